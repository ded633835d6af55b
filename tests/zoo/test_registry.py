"""Which guide applies to which model, which reference it has, and which options it takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from guides import AutoMeanField, AutoSpikeSlab
from zoo.errors import UserError
from zoo.message_passing import PassSettings
from zoo.registry import (
    GUIDES,
    MODELS,
    ModelOptions,
    applicable,
    baselines,
    check_fit_options,
    check_options,
    check_task,
    find_guide,
    find_model,
    reference_of,
    where,
    with_companions,
)

SMALL = ModelOptions(widths=(3,))


@pytest.mark.parametrize(
    ("guide", "model", "fitted"),
    [
        ("mean-field", "bnn", "bnn"),
        ("mean-field", "pbp-bnn", "pbp-bnn"),
        ("mean-field", "spike-slab-linear", "spike-slab-linear"),
        ("spike-slab", "bnn", "spike-slab-bnn"),
        ("spike-slab", "spike-slab-bnn", "spike-slab-bnn"),
        ("spike-slab", "spike-slab-linear", "spike-slab-linear"),
    ],
)
def test_guide_fits_the_model_that_has_its_prior(guide, model, fitted):
    entry, note = applicable(GUIDES[guide], MODELS[model])
    assert entry.name == fitted
    assert bool(note) == (fitted != model)
    if note:
        assert fitted in note


def test_guide_that_needs_another_prior_is_refused_with_the_models_that_have_it():
    with pytest.raises(UserError, match="'spike-slab' does not apply to model 'pbp-bnn'.*spike-slab-bnn"):
        applicable(GUIDES["spike-slab"], MODELS["pbp-bnn"])


@pytest.mark.parametrize("name", MODELS)
def test_every_applicable_guide_sets_up_on_every_task(name):
    """What ``zoo list`` promises holds: the model runs and the guide finds its parameters."""
    model = MODELS[name]
    for task in model.tasks:
        classes = {"regression": 0, "binary": 2, "multiclass": 3}[task]
        y = torch.tensor([0, 1, 2, 0]) if task == "multiclass" else torch.tensor([0.0, 1.0, 1.0, 0.0])
        for guide_name in baselines(model):
            guide_entry = GUIDES[guide_name]
            fitted, _ = applicable(guide_entry, model)
            guide = guide_entry.method.build(fitted.build(task, 2, classes, SMALL))
            guide.setup(torch.randn(4, 2), y)
            assert all(parameter.isfinite().all() for parameter in guide.parameters())


@pytest.mark.parametrize("guide", ["pbp", "pbp-1-epoch", "sspbp", "sspbp-1-epoch"])
def test_messages_are_passed_where_they_can_be(guide):
    entry = GUIDES[guide]
    for model in ("pbp-bnn", "pbp-bnn-no-bias"):
        assert applicable(entry, MODELS[model])[0].name == model
    for activation in ("relu", "leaky-relu"):
        options = ModelOptions(activation=activation)
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
        applicable(GUIDES["pbp"], MODELS[model], task, ModelOptions(activation=activation))


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


def test_best_reference_is_the_default():
    assert {name: reference_of(model, None) for name, model in MODELS.items()} == {
        "bnn": "nuts",
        "pbp-bnn": "nuts",
        "pbp-bnn-no-bias": "nuts",
        "spike-slab-bnn": "none",
        "spike-slab-linear": "exact",
    }
    assert all(reference_of(model, "none") == "none" for model in MODELS.values())


@pytest.mark.parametrize(
    ("model", "reference", "words"),
    [
        ("bnn", "exact", "no closed form"),
        ("spike-slab-linear", "nuts", "discrete"),
        ("spike-slab-bnn", "nuts", "use --reference none"),
        ("bnn", "nutz", "unknown reference 'nutz'; nearest: nuts"),
    ],
)
def test_reference_that_a_model_does_not_have_is_refused(model, reference, words):
    with pytest.raises(UserError, match=words):
        reference_of(MODELS[model], reference)


def test_task_without_a_likelihood_is_refused():
    with pytest.raises(UserError, match="'pbp-bnn' is for regression; digits is multiclass"):
        check_task(MODELS["pbp-bnn"], "multiclass", "digits")


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(UserError, match="unknown guide 'Mean-Feld'; nearest: mean-field"):
        find_guide("Mean-Feld")
    with pytest.raises(UserError, match="unknown model 'bn'; nearest: bnn"):
        find_model("bn")
    with pytest.raises(UserError, match="unknown model 'x'; known: bnn, pbp-bnn"):
        find_model("x")


OPTION_VALUES = {
    "widths": {"widths": (7,)},
    "activation": {"activation": "tanh"},
    "noise": {"noise_scale": 0.3},
    "inclusion": {"inclusion": 0.2},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("option", OPTION_VALUES)
def test_a_model_takes_exactly_the_options_that_change_it(name, option):
    """An option that is accepted has an effect; one that has none is refused."""
    model = MODELS[name]
    usual = model.build("regression", 2, 0, ModelOptions())
    changed = model.build("regression", 2, 0, dataclasses.replace(ModelOptions(), **OPTION_VALUES[option]))
    if option in model.options:
        check_options(model, [], [option])
        assert changed != usual
    else:
        with pytest.raises(UserError, match=f"--{option} does not apply to model '{name}'"):
            check_options(model, [], [option])
        assert changed == usual


def test_option_of_the_model_that_a_guide_fits_instead_is_taken():
    check_options(MODELS["bnn"], [GUIDES["spike-slab"]], ["inclusion"])
    with pytest.raises(UserError, match="--inclusion"):
        check_options(MODELS["bnn"], [GUIDES["mean-field"]], ["inclusion"])


def test_options_survive_json():
    options = ModelOptions((3, 4), "tanh", 0.5, 0.1)
    assert ModelOptions.from_dict(options.to_dict()) == options


def test_guides_build_what_they_are_named_after():
    model = MODELS["spike-slab-bnn"].build("regression", 2, 0, SMALL)
    assert type(GUIDES["mean-field"].method.build(model)) is AutoMeanField
    assert type(GUIDES["spike-slab"].method.build(model)) is AutoSpikeSlab
