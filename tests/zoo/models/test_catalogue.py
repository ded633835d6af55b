"""Models by name: built as from their classes, with the traits and options that they declare."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from pyro import poutine

import zoo.models
from guides.posterior.files import json_safe
from zoo.errors import UserError
from zoo.experiments.engine.catalogue import experiments
from zoo.models import (
    BNN,
    GaussianWeights,
    HollywoodModel,
    LeNet,
    PBPNetwork,
    SpikeSlabLinear,
    SpikeSlabLogistic,
    SpikeSlabWeights,
    create,
    names,
)
from zoo.models.bnn import ACTIVATIONS
from zoo.models.catalogue import MODELS, find_model
from zoo.models.entries import DataShape
from zoo.models.traits import Activation, Traits
from zoo.papers import PAPERS, find_paper
from zoo.registry.guides import GUIDES


@pytest.mark.parametrize(
    ("name", "arguments", "model"),
    [
        ("bnn", {}, BNN(13)),
        ("bnn", {"widths": (3, 4), "activation": "tanh"}, BNN(13, widths=(3, 4), activation="tanh")),
        ("bnn", {"task": "binary"}, BNN(13, likelihood="bernoulli")),
        ("bnn", {"task": "multiclass", "num_classes": 4}, BNN(13, likelihood="categorical", outputs=4)),
        ("spike-slab-bnn", {}, BNN(13, weights=SpikeSlabWeights(0.5))),
        (
            "spike-slab-bnn",
            {"inclusion": 0.1, "noise_scale": 0.3},
            BNN(13, weights=SpikeSlabWeights(0.1), noise_scale=0.3),
        ),
        ("spike-slab-linear", {}, SpikeSlabLinear(13, 0.5)),
        ("spike-slab-logistic", {"inclusion": 0.1}, SpikeSlabLogistic(13, 0.1)),
        ("spike-slab-logistic", {}, SpikeSlabLogistic(13, 0.25)),
        ("pbp-bnn", {"widths": (7,)}, PBPNetwork(13, widths=(7,))),
        ("pbp-bnn-no-bias", {}, PBPNetwork(13, bias=False)),
        ("hollywood", {}, HollywoodModel()),
    ],
)
def test_created_models_are_those_of_their_classes(name, arguments, model):
    assert create(name, in_features=13, **arguments) == model


def test_created_images():
    assert create("lenet", 64, num_classes=3) == LeNet(64, 3, GaussianWeights())
    assert create("spike-slab-lenet", 784, num_classes=10) == LeNet(784, 10, SpikeSlabWeights(0.5))


def test_names_of_a_paper():
    assert names() == list(MODELS)
    assert names(paper="sspbp") == ["pbp-bnn", "pbp-bnn-no-bias"]
    assert names(paper="graphs") == ["hollywood"]
    assert set(names(paper="lbbnn")) == set(MODELS) - {"pbp-bnn", "pbp-bnn-no-bias", "hollywood"}
    with pytest.raises(UserError, match="unknown paper 'lbnn'; nearest: lbbnn"):
        names(paper="lbnn")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("spike-slab-bn", {}, "unknown model 'spike-slab-bn'; nearest: spike-slab-bnn"),
        ("pbp-bnn", {"task": "binary"}, "'pbp-bnn' is for regression, not for binary"),
        ("bnn", {"task": "multiclass"}, "'bnn' needs num_classes, 2 or more, not 0"),
        ("lenet", {}, "'lenet' needs num_classes"),
        ("bnn", {"inclusion": 0.1}, "'bnn' has no option 'inclusion'; it takes: widths, activation, noise"),
        ("lenet", {"widths": (3,), "num_classes": 2}, "has no option 'widths'; it takes: none"),
        ("bnn", {"widths": 5}, r"^widths takes whole numbers, .50,. or .20, 20. for instance, not 5$"),
        ("pbp-bnn", {"widths": (2.5,)}, r"^widths takes whole numbers.* not .2\.5,.$"),
        ("bnn", {"widths": (0,)}, "^widths must be at least 1, not '0'$"),
        ("bnn", {"widths": []}, "^widths must be at least 1, not ''$"),
        ("bnn", {"activation": "relo"}, "^unknown activation 'relo'; nearest: relu"),
        ("spike-slab-linear", {"inclusion": 2}, "^inclusion must lie between 0 and 1, both excluded, not 2$"),
        ("spike-slab-bnn", {"inclusion": math.nan}, "^inclusion must lie .* not nan$"),
        ("spike-slab-bnn", {"inclusion": "0.5"}, "^inclusion must lie .* not '0.5'$"),
        ("pbp-bnn", {"noise_scale": 0.0}, "^noise_scale must be a positive standard deviation, not 0$"),
        ("pbp-bnn", {"noise_scale": math.inf}, "^noise_scale must .* not inf$"),
    ],
)
def test_models_that_cannot_be_created_say_why(name, arguments, words):
    with pytest.raises(UserError, match=words):
        create(name, in_features=64, **arguments)


@pytest.mark.parametrize("in_features", [0, -3, 3.0, "3"])
def test_columns_are_counted(in_features):
    """Not by Pyro, at the first run, in words about an expansion."""
    with pytest.raises(UserError, match="^in_features must be a whole number, 1 or more, not"):
        create("bnn", in_features=in_features)


def test_unknown_models_come_with_the_nearest():
    with pytest.raises(UserError, match="unknown model 'bn'; nearest: bnn"):
        find_model("bn")
    with pytest.raises(UserError, match="unknown model 'x'; known: bnn, spike-slab-bnn"):
        find_model("x")


def test_options_are_what_the_builder_takes():
    """A family adds an option by a keyword argument: there is no other list of them."""
    network = {"widths": (50,), "activation": "relu", "noise_scale": None}
    scales = {"weight_scale": 1.0, "bias_scale": None}
    assert {name: dict(model.options) for name, model in MODELS.items()} == {
        "bnn": {**network, **scales},
        "spike-slab-bnn": {**network, "inclusion": 0.5, **scales},
        "spike-slab-linear": {"inclusion": 0.5},
        "spike-slab-logistic": {"inclusion": 0.25},
        "lenet": {},
        "spike-slab-lenet": {"inclusion": 0.5},
        "pbp-bnn": {"widths": (50,), "noise_scale": None},
        "pbp-bnn-no-bias": {"widths": (50,), "noise_scale": None},
        "hollywood": {},
    }


OTHER_VALUES = {"widths": (7,), "activation": "tanh", "noise_scale": 0.3, "inclusion": 0.2}
OTHER_VALUES |= {"weight_scale": (2.0, 1.0), "bias_scale": 0.5}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("option", OTHER_VALUES)
def test_a_model_is_changed_by_exactly_its_options(name, option):
    """What it does not take is for a model that a guide fits in its place."""
    model = MODELS[name]
    assert set(model.options) <= set(OTHER_VALUES)
    shape = DataShape(model.tasks[0], 64, 2)
    changed = model.build(shape, {option: OTHER_VALUES[option]}) != model.build(shape)
    assert changed == (option in model.options)


def test_scales_are_relative_to_the_inputs_of_a_layer():
    model = create("spike-slab-bnn", 64, widths=(9,), inclusion=0.1, weight_scale=(2.0, 3.0), bias_scale=0.5)
    trace = poutine.trace(model).get_trace(torch.zeros(2, 64))
    sites = ("w1", "w2", "b1", "b2")
    scales = {name: trace.nodes[name]["fn"].base_dist.scale.unique().item() for name in sites}
    assert scales == pytest.approx({"w1": 2 / 8, "w2": 3 / 3, "b1": 0.5 / 8, "b2": 0.5 / 3})
    plain = poutine.trace(create("bnn", 64)).get_trace(torch.zeros(2, 64))
    assert plain.nodes["b1"]["fn"].base_dist.scale.unique() == 1
    with pytest.raises(ValueError, match="3 scales for 2 layers"):
        create("bnn", 64, weight_scale=(1.0, 2.0, 3.0))
    with pytest.raises(
        UserError, match="bias_scale takes positive numbers from 1e-12 to 1e.12, one or one a layer, not -1"
    ):
        create("bnn", 64, bias_scale=(1.0, -1.0))


def test_options_survive_json():
    options = {"widths": (3, 4), "noise_scale": 0.5}
    assert json_safe(options) == {"widths": [3, 4], "noise_scale": 0.5}
    shape = DataShape("regression", 2)
    assert MODELS["bnn"].build(shape, json_safe(options)) == MODELS["bnn"].build(shape, options)


@pytest.mark.parametrize(
    ("name", "task", "options", "traits"),
    [
        ("bnn", "regression", {}, Traits("gaussian", "normal", activation="relu")),
        ("bnn", "binary", {"activation": "tanh"}, Traits("gaussian", "bernoulli", activation="tanh")),
        ("spike-slab-bnn", "multiclass", {}, Traits("spike-slab", "categorical", activation="relu")),
        ("pbp-bnn", "regression", {}, Traits("hierarchical", "normal", activation="relu")),
        ("spike-slab-linear", "regression", {}, Traits("spike-slab", "normal", selects=True)),
        ("spike-slab-logistic", "binary", {}, Traits("spike-slab", "bernoulli", selects=True)),
        ("hollywood", "binary", {}, Traits("none", "bernoulli", "picks")),
        ("lenet", "multiclass", {}, Traits("gaussian", "categorical", "images", "relu")),
        ("spike-slab-lenet", "multiclass", {}, Traits("spike-slab", "categorical", "images", "relu")),
    ],
)
def test_models_say_what_they_are(name, task, options, traits):
    assert MODELS[name].traits(task, options) == traits


@pytest.mark.parametrize("name", MODELS)
def test_entries_say_of_a_model_what_it_says_of_itself(name):
    """An entry is read without building the model: it must not go stale."""
    entry = MODELS[name]
    for task in entry.tasks:
        for activation in ACTIVATIONS:
            options = {"activation": activation, "inclusion": 0.2}
            assert entry.traits(task, options) == entry.build(DataShape(task, 64, 2), options).traits
        assert entry.traits(task) == entry.build(DataShape(task, 64, 2)).traits


def test_activations_have_the_names_that_lists_tell():
    assert tuple(ACTIVATIONS) == get_args(Activation)


def test_entries_are_complete():
    for name, model in MODELS.items():
        assert model.paper in PAPERS
        assert set(model.experiments) <= set(experiments()), name
        assert all(e.startswith(f"{model.paper}/") for e in model.experiments)
        card = model.card
        assert all((card.law, card.assumes, card.cost, card.fails)), name
        assert set(model.substitutes.values()) <= set(MODELS)
        assert model.dtype is torch.float32


def test_papers():
    entries = {entry.paper for entry in (*MODELS.values(), *GUIDES.values())}
    assert entries | {e.split("/")[0] for e in experiments()} - {"example"} == set(PAPERS)
    assert find_paper("sspbp").citation.startswith("Ott and Williamson 2022")


def test_public_names_exist():
    assert all(hasattr(zoo.models, name) for name in zoo.models.__all__)
