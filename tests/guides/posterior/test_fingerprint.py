"""Models that differ have different fingerprints, the same model has one whatever has happened to it."""

import copy
import functools
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroModule, PyroSample

from guides.posterior.fingerprint import fingerprint
from zoo.fitting.gated_function import gated_function
from zoo.models import (
    BNN,
    BNNProcess,
    DeepGMG,
    EdgeGraphModel,
    FlowDensity,
    HollywoodModel,
    LeNet,
    NeuralSampler,
    SpikeSlabLinear,
    SpikeSlabLogistic,
    SpikeSlabWeights,
    from_module,
)

HEAD = """
import dataclasses, functools, math
import jax, torch, pyro
import numpyro.distributions as ndist
import pyro.distributions as dist
import neighbour
from torch import nn
"""

#: A file with a ``model``; another number in place of ``?`` makes it another model.
MODELS = {
    "list": "S = [0, [?]]\ndef model(y): return S[1][0]",
    "tuple in a list": "S = [(0, ?)]\ndef model(y): return S[0][1]",
    "dict": "S = {'prior': {'scale': ?}}\ndef model(y): return S['prior']['scale']",
    "set": "S = {'a', 'b', ?}\ndef model(y): return len(S)",
    "functions in a dict": "def f(): return ?\nS = {'f': f}\ndef model(y): return S['f']()",
    "attribute": "class Box: pass\nbox = Box()\nbox.s = ?\ndef model(y): return box.s",
    "attribute of a class": "class Box: s = 0\nBox.s = ?\ndef model(y): return Box.s",
    "slots": "class Box:\n    __slots__ = ('s',)\nbox = Box()\nbox.s = ?\ndef model(y): return box.s",
    "dataclass": "@dataclasses.dataclass\nclass Box:\n    s: float = ?\ndef model(y): return Box().s",
    "default of a factory": (
        "@dataclasses.dataclass\nclass Box:\n    s: list = dataclasses.field(default_factory=lambda: [?])\n"
        "def model(y): return Box().s"
    ),
    "object in its own attribute": "class Box: s = ?\nb = Box()\nb.b = b\ndef model(y): return b.b.s",
    "another module": "neighbour.S = ?\ndef model(y): return neighbour.S",
    "array of objects": "import numpy\nS = numpy.array([?, None])\ndef model(y): return S[0]",
    "distribution": "S = dist.Normal(0.0, ?)\ndef model(y): return S.sample()",
    "independent": "S = dist.Normal(0.0, ?).expand([3]).to_event(1)\ndef model(y): return S.sample()",
    "transformed": "S = dist.LogNormal(0.0, ?)\ndef model(y): return S.sample()",
    "logits": "S = dist.Bernoulli(logits=torch.tensor(0.1 * ?))\ndef model(y): return S.sample()",
    "distribution of NumPyro": "S = ndist.Normal(0.0, ?)\ndef model(y): return S.sample(None)",
    "own distribution": (
        "class Law(dist.TorchDistribution):\n"
        "    def log_prob(self, x): return ? * x\n"
        "def model(y): return pyro.sample('y', Law(), obs=y)"
    ),
    "partial": "S = functools.partial(dist.Normal, 0.0, scale=?)\ndef model(y): return S()",
    "compiled method": "S = {'s': ?}.get\ndef model(y): return S('s')",
    "nested lambda": "S = ?\ndef model(y): return (lambda: S)()",
    "nested function": (
        "S = [?]\ndef model(y):\n    def outer():\n        def inner(): return S\n        return inner\n"
        "    return outer()()"
    ),
    "comprehension": "S = [?]\ndef model(y): return [s + S[0] for s in y]",
    "remembered function": "S = ?\n@functools.cache\ndef f(): return S\ndef model(y): return f()",
    "compiled function": "S = ?\n@jax.jit\ndef f(x): return S * x\ndef model(y): return f(y)",
    "class of a model": "class M:\n    def __call__(self, y): return ?\nmodel = M()",
    "forward": "class M(nn.Module):\n    def forward(self, y): return ?\nmodel = M()",
    "bound method": (
        "class M:\n    def helper(self): return ?\n    def run(self, y): return self.helper()\n"
        "model = M().run"
    ),
    "base": (
        "class B:\n    def s(self): return ?\nclass M(B):\n    def __call__(self, y): return self.s()\n"
        "model = M()"
    ),
    "property": (
        "class M:\n    s = property(lambda self: ?)\n    def __call__(self, y): return self.s\nmodel = M()"
    ),
    "static method": (
        "class M:\n    @staticmethod\n    def s(): return ?\n    def __call__(self, y): return self.s()\n"
        "model = M()"
    ),
    "global of a method": "S = ?\nclass M:\n    def __call__(self, y): return S\nmodel = M()",
    "model in a closure": (
        "class M:\n    def __call__(self, y): return ?\ndef make(m):\n    return lambda y: m(y)\n"
        "model = make(M())"
    ),
    "conditioned": "class M:\n    def __call__(self, y): return ?\nmodel = pyro.condition(M(), {'w': 1.0})",
    "decorator": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(*args): return ? * f(*args)\n    return g\n"
        "@twice\ndef model(y): return 1"
    ),
    "one of two lambdas": "fs = [lambda y: y + 1, lambda y: y + 5]\nmodel = fs[int(? > 1)]",
    "function of a library": "f = torch.relu if ? > 1 else torch.tanh\ndef model(y): return f(y)",
    "order of layers": (
        "layers = [('a', nn.Tanh()), ('b', nn.ReLU())]\nmodel = nn.Sequential()\n"
        "for name, layer in layers[::3 - 2 * ?]: model.add_module(name, layer)"
    ),
    "method of one object": "class M: pass\nmodel = M()\nmodel.run = lambda y: ?",
    "typed at a prompt": ("exec('S = 1\\nclass M:\\n    def __call__(self, y): return S + ?')\nmodel = M()"),
}
#: What a file may have beside, and two runs of it share.
SHARED = {
    "sets": "S = {'a', 'b', 'c', (1, 'd')}, frozenset('xyz')\ndef model(y): return y in {'p', 'q', 'r'} or S",
    "functions": "def f(): pass\ndef g(): return f\nS = {f, g, len, torch.tanh}\ndef model(y): return S",
    "circle": "def f(): return g()\ndef g(): return f()\nclass A:\n    def s(self): return A, model\n"
    "def model(y): return f(), A",
    "unreadable": "import logging, threading\nS = threading.Lock(), logging.getLogger('x'), iter([])\n"
    "def model(y): return S",
    "chain": "\n".join(f"def f{i}(): return f{i + 1}()" for i in range(400))
    + "\ndef f400(): pass\nmodel = f0",
}


def load(folder, text):
    """The model of a file, whose module runs anew."""
    file = folder / "written.py"
    (folder / "neighbour.py").write_text("S = 0\n")
    file.write_text(HEAD + text + "\n")
    spec = importlib.util.spec_from_file_location("written", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["written"] = module
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module.model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("written", "neighbour"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", MODELS)
def test_another_model_has_another_fingerprint(name, folder):
    first, same, other = (fingerprint(load(folder, MODELS[name].replace("?", s))) for s in ("1", "1", "2"))
    assert first == same
    assert first != other


@pytest.mark.parametrize("name", SHARED)
def test_a_model_that_is_made_again_has_the_same(name, folder):
    assert fingerprint(load(folder, SHARED[name])) == fingerprint(load(folder, SHARED[name]))


def test_another_process_finds_the_same(folder):
    """Whatever the order of its sets and the places in its memory."""
    code = (
        "import json, pathlib\n"
        "from tests.guides.posterior.test_fingerprint import fingerprints\n"
        "print(json.dumps(fingerprints(pathlib.Path({!r}))))\n"
    )
    (other := folder / "other").mkdir()
    environment = os.environ | {
        "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",  # not that of this process
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    # -B: byte code of a file counts as that of another of its length and second
    command = [sys.executable, "-B", "-W", "ignore", "-c", code.format(str(other))]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        here = fingerprints(folder)  # meanwhile
        there = json.loads(run.communicate()[0])
    assert run.returncode == 0
    assert there == here


def fingerprints(folder):
    """Of every model of this file."""
    found = {
        name: fingerprint(load(folder, text.replace("?", "1"))) for name, text in (MODELS | SHARED).items()
    }
    return found | {f"zoo {number}": fingerprint(model) for number, model in enumerate(zoo_models())}


def zoo_models():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    bnn = BNN(3, (4,), weights=SpikeSlabWeights())
    flows = [FlowDensity(3, hidden=(8,), kind=kind).eval() for kind in ("maf", "realnvp", "spline")]
    rows = [bnn, BNN(3, (4,)), SpikeSlabLinear(3), SpikeSlabLogistic(3), from_module(network), *flows]
    return [*rows, BNNProcess(3, (4,)), NeuralSampler(3, (4,)), LeNet(64, 2), bnn.twin, HollywoodModel(),
            DeepGMG(), EdgeGraphModel(), gated_function(bnn, torch.zeros(2, 3))]  # fmt: skip


class Remembering:
    """Computes once and remembers, in every way that is left out."""

    @functools.cached_property
    def scale(self):
        return dist.Bernoulli(logits=torch.tensor(0.3))

    @functools.lru_cache  # noqa: B019
    def squared(self, x):
        return x * x

    def __call__(self, x):
        self._cache = x
        self.squared(2.0)
        return pyro.sample("z", self.scale).sum() + pyro.sample("e", LOGITS)


class Sampled(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[torch.nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x):
        return self.linear(x)


LOGITS = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [dist.transforms.ExpTransform()])


def test_a_run_leaves_the_fingerprint_as_it_was():
    x = torch.randn(5, 3)
    for model in [*zoo_models()[:10], Remembering(), Sampled()]:
        before = fingerprint(model)
        poutine.trace(model).get_trace(x).compute_log_prob()
        assert fingerprint(model) == before, model


def test_what_a_distribution_computes_later_is_left_out():
    for law in (dist.Bernoulli(logits=torch.tensor(0.3)), dist.LogNormal(0.0, torch.tensor(2.0)),
                dist.MultivariateNormal(torch.zeros(2), torch.eye(2) * 3)):  # fmt: skip
        before = fingerprint(law)
        law.log_prob(law.sample())
        for name in ("probs", "precision_matrix"):
            getattr(law, name, None)
        for transform in getattr(law, "transforms", ()):
            assert transform.inv is not None
        assert fingerprint(law) == before


def test_parameters_of_two_kinds_are_told_apart():
    number = torch.tensor(0.3)
    assert fingerprint(dist.Bernoulli(number)) != fingerprint(dist.Bernoulli(logits=number))
    assert fingerprint(dist.Gamma(1.0, number)) != fingerprint(dist.Weibull(1.0, number))


def test_a_network_counts_with_its_weights_and_mode_and_not_with_its_hooks_numbers():
    def network():
        torch.manual_seed(0)
        with pytest.warns(FutureWarning, match="weight_norm"):
            return torch.nn.utils.weight_norm(torch.nn.Linear(3, 1))

    assert fingerprint(network()) == fingerprint(network())
    assert fingerprint(network()) != fingerprint(network().eval())
    other = network()
    with torch.no_grad():
        other.bias += 1e-3
    assert fingerprint(network()) != fingerprint(other)


def test_libraries_count_by_name(monkeypatch):
    """And so does this package to somebody's model, wherever it lies."""

    def model(x):
        return torch.nn.functional.relu(x), BNN(3)(x)

    before, own = fingerprint(model), fingerprint(BNN(3))
    monkeypatch.setattr(BNN, "traits", 1)
    monkeypatch.setattr(torch.nn.functional, "_later", 1, raising=False)
    assert fingerprint(model) == before
    assert fingerprint(BNN(3)) != own


def test_what_cannot_be_read_is_refused_where_it_was_handed_over():
    lock, own_module = threading.Lock(), sys.modules[__name__]
    for holder in (lock, own_module, [lock], {"a": lock}, functools.partial(max, lock), lambda: lock):
        with pytest.raises(TypeError, match="cannot fingerprint"):
            fingerprint(holder)


def test_references_that_may_die_are_left_out():
    model = Sampled()
    before = fingerprint(model)
    model.owner = weakref.ref(model)
    assert fingerprint(model) != before
    alive = fingerprint(model)
    model.owner = None
    assert fingerprint(model) == alive


def test_objects_that_answer_to_every_name():
    class Open:
        def __getattr__(self, name):
            return {"s": 1.0}[name]

    class Table(dict):
        __getattr__ = dict.__getitem__

    assert fingerprint(Open()) == fingerprint(Open())
    assert fingerprint(Table(s=1)) != fingerprint(Table(s=2))


def test_arrays_in_containers_and_numbers_keep_their_kind():
    objects = [
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        [1],
        (1,),
        {1},
        {1: 1},
        np.float64(1),
        np.float32(1),
        [[1]],
        [1, []],
    ]
    assert len(set(map(fingerprint, objects))) == len(objects)


def test_an_open_file_of_a_models_stays_open(tmp_path):
    """``detach`` is a method of files too."""
    with (tmp_path / "log").open("w") as log:

        def model():
            return log

        assert fingerprint(model) == fingerprint(model)
        log.write("still open")


@pytest.mark.parametrize(
    "pair",
    [
        [pd.DataFrame({"a": [1.0], "b": [2.0]}), pd.DataFrame({"b": [1.0], "a": [2.0]})],
        [pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])],
        [np.ma.array([1.0, 2.0], mask=mask) for mask in ([True, False], [False, True])],
        [re.compile("a" * 300 + end) for end in "bc"],
        [random.Random(seed) for seed in (1, 2)],  # noqa: S311
    ],
    ids=["columns", "index", "mask", "pattern", "generator"],
)
def test_what_surrounds_numbers_counts(pair):
    assert fingerprint(pair[0]) != fingerprint(pair[1])
    assert fingerprint(pair[0]) == fingerprint(copy.deepcopy(pair[0]))


def chain(length):
    link = None
    for _ in range(length):
        link = Link(link)
    return link


class Link:
    def __init__(self, rest):
        self.rest = rest


UNREAD = [
    torch.nn.Linear(2, 2).bfloat16(),
    torch.nn.LazyLinear(2),
    Link(torch.eye(2).to_sparse()),
    chain(3000),
    Link(i for i in (1, 2)),
]


@pytest.mark.parametrize("item", UNREAD, ids=["bfloat16", "lazy", "sparse", "chain", "generator"])
def test_what_cannot_be_read_is_named_or_forgiven(item):
    """A closed-over part is named in a line; one that only a global leads to counts by its type."""

    def model():
        return item

    with pytest.raises(TypeError, match="cannot fingerprint"):
        fingerprint(model)
    names = {"item": item}
    exec("def model(): return item", names)  # noqa: S102
    assert fingerprint(names["model"]) == fingerprint(names["model"])
