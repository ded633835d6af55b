"""Which guide applies to which model, which reference it has, and which options it takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import guides
from guides import AutoMeanField, AutoSpikeSlab
from zoo.errors import UserError
from zoo.fitting.message_passing import PassSettings
from zoo.fitting.methods import Variational
from zoo.models import create, names
from zoo.models.entries import DataShape
from zoo.papers import PAPERS
from zoo.registry.queries import (
    GUIDES,
    MODELS,
    applicable,
    baselines,
    check_data,
    check_fit_options,
    check_options,
    find_guide,
    kinds_of_weights,
    reference_of,
    where,
    with_companions,
)

SMALL = {"widths": (3,)}


@pytest.mark.parametrize(
    ("guide", "model", "fitted"),
    [
        ("mean-field", "bnn", "bnn"),
        ("mean-field", "pbp-bnn", "pbp-bnn"),
        ("mean-field", "spike-slab-linear", "spike-slab-linear"),
        ("spike-slab", "bnn", "spike-slab-bnn"),
        ("spike-slab", "spike-slab-bnn", "spike-slab-bnn"),
        ("spike-slab", "spike-slab-linear", "spike-slab-linear"),
        ("mnf", "bnn", "spike-slab-bnn"),
        ("mnf-iaf", "lenet", "spike-slab-lenet"),
        ("gaussian-mnf", "bnn", "bnn"),
        ("gaussian-mnf", "pbp-bnn", "pbp-bnn"),
        ("concrete", "spike-slab-lenet", "spike-slab-lenet"),
        ("mvn", "bnn", "spike-slab-bnn"),
        ("varbvs", "spike-slab-linear", "spike-slab-linear"),
        ("varbvs", "spike-slab-logistic", "spike-slab-logistic"),
        ("horseshoe", "lenet", "lenet"),
        ("deep-ensemble", "bnn", "bnn"),
    ],
)
def test_guide_fits_the_model_that_has_its_prior(guide, model, fitted):
    task = MODELS[model].tasks[0]
    entry, note = applicable(GUIDES[guide], MODELS[model], task)
    assert entry.name == fitted
    assert (f"fits {fitted}" in note) == (fitted != model)
    assert note.endswith(GUIDES[guide].note)


def test_guide_that_needs_another_prior_is_refused_with_the_models_that_have_it():
    with pytest.raises(UserError, match="'spike-slab' does not apply to model 'pbp-bnn'.*spike-slab-bnn"):
        applicable(GUIDES["spike-slab"], MODELS["pbp-bnn"])


GAUSSIAN_ONLY = [
    "horseshoe",
    "group-normal-jeffreys",
    "mc-dropout",
    "concrete-dropout",
    "map",
    "deep-ensemble",
]


@pytest.mark.parametrize("guide", GAUSSIAN_ONLY)
def test_guides_of_gaussian_weights_refuse_others(guide):
    for name, model in MODELS.items():
        if name in ("bnn", "lenet"):
            assert applicable(GUIDES[guide], model, "multiclass")[0] is model
            continue
        reason = "prior sd is known" if name.startswith("pbp") else "these have a spike and slab"
        reason = "the model has no weights" if name == "hollywood" else reason
        with pytest.raises(UserError, match=f"'{guide}' does not apply to model '{name}': .*{reason}"):
            applicable(GUIDES[guide], model, model.tasks[0])


@pytest.mark.parametrize(
    ("guide", "model", "words"),
    [
        ("varbvs", "bnn", "linear and logistic regression"),
        ("varbvs", "spike-slab-lenet", "linear and logistic regression"),
        ("varbvs", "pbp-bnn", "needs spike-and-slab weights"),
        ("gaussian-mnf", "spike-slab-bnn", "Gaussian weights, and these have a spike and slab"),
        ("gaussian-mnf", "spike-slab-logistic", "Gaussian weights, and these have a spike and slab"),
        ("mnf", "pbp-bnn", "models that have them: spike-slab-bnn, spike-slab-linear, spike-slab-logistic"),
        ("pbp", "lenet", "linear layers"),
        ("pbp", "spike-slab-logistic", "linear layers"),
    ],
)
def test_guide_that_cannot_fit_a_model_says_why(guide, model, words):
    with pytest.raises(UserError, match=f"'{guide}' does not apply to model '{model}': .*{words}"):
        applicable(GUIDES[guide], MODELS[model], MODELS[model].tasks[0])


def test_model_of_images_refuses_other_data():
    images, table = (
        SimpleNamespace(task="multiclass", image_shape=(8, 8), feature_names=("pixel",)),
        SimpleNamespace(task="multiclass", image_shape=None, feature_names=("x",)),
    )
    for name in ("lenet", "spike-slab-lenet"):
        check_data(MODELS[name], images, "digits")
        with pytest.raises(UserError, match=f"model '{name}' is for images, and wine has none"):
            check_data(MODELS[name], table, "wine")
    check_data(MODELS["bnn"], table, "wine")
    with pytest.raises(UserError, match="is for binary; digits is multiclass"):
        check_data(MODELS["spike-slab-logistic"], images, "digits")


#: Ends, nodes, appearances.
PICKED = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0], [3.0, 2.0, 0.0], [4.0, 3.0, 1.0]])
#: Convolutions take their time to set up; what guides do with them the tests of the guides say too.
SLOW_MODELS = ("lenet", "spike-slab-lenet")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_MODELS)) for name in MODELS]
)
def test_every_applicable_guide_sets_up_on_every_task(name):
    """What ``zoo list`` promises holds: the model runs and the guide finds its parameters."""
    model = MODELS[name]
    for task in model.tasks:
        classes = {"regression": 0, "binary": 2, "multiclass": 3}[task]
        y = torch.tensor([0, 1, 2, 0]) if task == "multiclass" else torch.tensor([0.0, 1.0, 1.0, 0.0])
        for guide_entry in GUIDES.values():
            if not isinstance(guide_entry.method, Variational):
                continue
            try:
                fitted, _ = applicable(guide_entry, model, task)
            except UserError:
                continue
            columns = 64 if model.traits().inputs == "images" else 2
            method = guide_entry.method
            guide = method.build(method.replace(fitted.build(DataShape(task, columns, classes), SMALL)))
            x = torch.randn(4, columns) if model.traits().inputs != "picks" else PICKED
            guide.setup(x, y)
            assert all(parameter.isfinite().all() for parameter in guide.parameters())


@pytest.mark.parametrize("guide", ["pbp", "pbp-1-epoch", "sspbp", "sspbp-1-epoch"])
def test_messages_are_passed_where_they_can_be(guide):
    entry = GUIDES[guide]
    for model in ("pbp-bnn", "pbp-bnn-no-bias"):
        assert applicable(entry, MODELS[model])[0].name == model
    for activation in ("relu", "leaky-relu"):
        options = {"activation": activation}
        assert applicable(entry, MODELS["bnn"], "regression", options)[0].name == "bnn"


@pytest.mark.parametrize(
    ("model", "task", "activation", "words"),
    [
        ("bnn", "regression", "tanh", "'pbp' does not apply to model 'bnn': .*relu.*is tanh"),
        ("bnn", "binary", "relu", "Gaussian likelihood, and its likelihood is bernoulli"),
        ("bnn", "multiclass", "relu", "Gaussian likelihood, and its likelihood is categorical"),
        ("spike-slab-bnn", "regression", "relu", "'pbp' does not apply .*Gaussian weights"),
        ("spike-slab-linear", "regression", "relu", "'pbp' does not apply .*Gaussian weights"),
    ],
)
def test_messages_are_refused_elsewhere_with_the_reason(model, task, activation, words):
    with pytest.raises(UserError, match=words):
        applicable(GUIDES["pbp"], MODELS[model], task, {"activation": activation})


def test_note_says_how_often_the_data_count():
    forty = "40 passes over the data count it 40 times: no approximation of the posterior"
    for name, note in (
        ("pbp", forty),
        ("sspbp", forty),
        ("pbp-1-epoch", "one pass"),
        ("sspbp-1-epoch", "one pass"),
    ):
        assert applicable(GUIDES[name], MODELS["pbp-bnn"])[1] == note
        assert GUIDES[name].method.settings(50, seed=3, steps=99) == PassSettings(
            40 if note == forty else 1, 3
        )


@pytest.mark.parametrize(
    ("guide", "model", "text"),
    [
        ("mean-field", "bnn", "bnn"),
        ("spike-slab", "bnn", "bnn (as spike-slab-bnn)"),
        ("spike-slab", "pbp-bnn", ""),
        ("pbp", "bnn", "bnn (regression; relu, leaky-relu)"),
        ("sspbp", "pbp-bnn-no-bias", "pbp-bnn-no-bias"),
        ("pbp", "spike-slab-bnn", ""),
        ("mnf", "lenet", "lenet (as spike-slab-lenet)"),
        ("mnf", "spike-slab-logistic", "spike-slab-logistic"),
        ("map", "bnn", "bnn"),
    ],
)
def test_where_a_guide_applies_is_told_with_its_limits(guide, model, text):
    assert where(GUIDES[guide], MODELS[model]) == text


def test_one_pass_stands_beside_forty():
    assert with_companions(["pbp", "mean-field"]) == ["pbp", "pbp-1-epoch", "mean-field"]
    assert with_companions(["pbp-1-epoch"]) == ["pbp-1-epoch"]
    assert with_companions(["sspbp-1-epoch", "sspbp", "pbp"]) == [
        "sspbp-1-epoch", "sspbp", "pbp", "pbp-1-epoch",
    ]  # fmt: skip
    with pytest.raises(UserError, match="unknown guide 'pbq'; nearest: pbp"):
        with_companions(["pbq"])


def test_entries_are_complete():
    for name, guide in GUIDES.items():
        assert guide.paper in PAPERS, name
        assert guide.model in (names(paper=guide.paper) or names())
        card = guide.card
        assert all((guide.code, card.law, card.assumes, card.cost, card.fails)), name
        came_with = MODELS[guide.model]
        assert applicable(guide, came_with, came_with.tasks[0])[0] is came_with


@pytest.mark.parametrize(
    ("guide", "kinds"),
    [
        ("mean-field", "any"),
        ("mnf", "spike-slab"),
        ("varbvs", "spike-slab"),
        ("gaussian-mnf", "gaussian, hierarchical"),
        ("mc-dropout", "gaussian"),
        ("pbp", "gaussian, hierarchical"),
    ],
)
def test_kinds_of_weights_that_a_guide_is_for(guide, kinds):
    assert kinds_of_weights(GUIDES[guide]) == kinds


def test_companions_are_guides():
    assert {other for guide in GUIDES.values() for other in guide.beside} <= set(GUIDES)


def test_options_of_a_fit_are_those_of_its_method():
    check_fit_options(GUIDES["mean-field"], ["steps", "lr", "batch-size"])
    check_fit_options(GUIDES["pbp"], [])
    with pytest.raises(UserError, match="--lr does not apply to guide 'pbp', which takes none of these"):
        check_fit_options(GUIDES["pbp"], ["lr"])
    with pytest.raises(UserError, match="--epochs .*which takes --steps, --lr, --batch-size"):
        check_fit_options(GUIDES["mean-field"], ["epochs"])


def test_baselines_leave_out_what_does_not_apply():
    assert baselines(MODELS["bnn"]) == ["mean-field", "spike-slab"]
    assert baselines(MODELS["pbp-bnn"]) == ["mean-field"]
    assert baselines(MODELS["spike-slab-logistic"]) == ["mean-field", "spike-slab"]


def test_best_reference_is_the_default():
    assert {name: reference_of(model, None) for name, model in MODELS.items()} == {
        "bnn": "nuts",
        "pbp-bnn": "nuts",
        "pbp-bnn-no-bias": "nuts",
        "spike-slab-bnn": "none",
        "spike-slab-linear": "exact",
        "spike-slab-logistic": "exact",
        "lenet": "none",
        "spike-slab-lenet": "none",
        "hollywood": "nuts",
    }
    assert all(reference_of(model, "none") == "none" for model in MODELS.values())


def test_more_columns_than_can_be_enumerated():
    """Twenty can, of more there is the Gibbs sampler, for classes."""
    linear, logistic = MODELS["spike-slab-linear"], MODELS["spike-slab-logistic"]
    assert reference_of(logistic, None, 20) == reference_of(logistic, "exact", 20) == "exact"
    assert reference_of(logistic, None, 21) == "gibbs"
    assert reference_of(logistic, "gibbs", 5) == "gibbs"
    with pytest.raises(UserError, match="21 columns: 2.p models .*p <= 20.*use --reference gibbs"):
        reference_of(logistic, "exact", 21)
    for wanted in ("exact", None):
        with pytest.raises(UserError, match="21 columns: .*use --reference none"):
            reference_of(linear, wanted, 21)
    assert reference_of(MODELS["bnn"], None, 21) == "nuts"


@pytest.mark.parametrize(
    ("model", "reference", "words"),
    [
        ("bnn", "exact", "no closed form"),
        ("spike-slab-linear", "nuts", "discrete"),
        ("spike-slab-linear", "gibbs", "no logistic regression.*use --reference exact"),
        ("spike-slab-logistic", "nuts", "discrete.*use --reference exact"),
        ("lenet", "nuts", "no NumPyro twin.*use --reference none"),
        ("bnn", "gibbs", "no logistic regression.*use --reference nuts"),
        ("spike-slab-bnn", "nuts", "use --reference none"),
        ("bnn", "nutz", "unknown reference 'nutz'; nearest: nuts"),
    ],
)
def test_reference_that_a_model_does_not_have_is_refused(model, reference, words):
    with pytest.raises(UserError, match=words):
        reference_of(MODELS[model], reference)


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(UserError, match="unknown guide 'Mean-Feld'; nearest: mean-field"):
        find_guide("Mean-Feld")


def test_option_that_a_model_does_not_take_is_refused_as_it_was_typed():
    for model in MODELS.values():
        check_options(model, [], model.options)
    with pytest.raises(UserError, match="--widths does not apply .*'spike-slab-linear', which takes --incl"):
        check_options(MODELS["spike-slab-linear"], [], ["widths"])
    with pytest.raises(UserError, match="--noise does not apply to model 'lenet', which takes none of these"):
        check_options(MODELS["lenet"], [], ["noise_scale"])
    with pytest.raises(UserError, match="--inclusion .*takes --widths, --activation, .*--bias-scale$"):
        check_options(MODELS["bnn"], [], ["inclusion"])


def test_option_of_the_model_that_a_guide_fits_instead_is_taken():
    check_options(MODELS["bnn"], [GUIDES["spike-slab"]], ["inclusion"])
    with pytest.raises(UserError, match="--inclusion"):
        check_options(MODELS["bnn"], [GUIDES["mean-field"]], ["inclusion"])


def test_guides_build_what_they_are_named_after():
    model = create("spike-slab-bnn", in_features=2, **SMALL)
    assert type(GUIDES["mean-field"].method.build(model)) is AutoMeanField
    assert type(GUIDES["spike-slab"].method.build(model)) is AutoSpikeSlab
    for name, kind in (
        ("mnf", guides.AutoMNF),
        ("concrete", guides.AutoConcrete),
        ("mvn", guides.AutoSpikeSlabMVN),
    ):
        assert type(GUIDES[name].method.build(model)) is kind
    for name, flow in (("mnf", "rnvp"), ("mnf-iaf", "iaf"), ("gaussian-mnf", "rnvp")):
        assert GUIDES[name].method.build(model).get_extra_state()["multipliers"]["flow"] == flow
    dropout, concrete = (GUIDES[name].method.build(model) for name in ("mc-dropout", "concrete-dropout"))
    assert type(dropout) is guides.AutoDropout
    assert type(concrete) is guides.AutoConcreteDropout
    assert type(GUIDES["group-normal-jeffreys"].method.build(model)) is guides.AutoGroupNormalJeffreys
    assert (GUIDES["map"].method.members, GUIDES["deep-ensemble"].method.members) == (1, 5)
