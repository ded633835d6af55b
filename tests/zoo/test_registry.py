"""Which guide applies to which model, which reference it has, and which options it takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from guides import AutoMeanField, AutoSpikeSlab
from zoo.errors import UserError
from zoo.registry import (
    GUIDES,
    MODELS,
    ModelOptions,
    applicable,
    baselines,
    check_options,
    check_task,
    find_guide,
    find_model,
    reference_of,
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
            guide = guide_entry.build(fitted.build(task, 2, classes, SMALL))
            guide.setup(torch.randn(4, 2), y)
            assert all(parameter.isfinite().all() for parameter in guide.parameters())


def test_baselines_leave_out_what_does_not_apply():
    assert baselines(MODELS["bnn"]) == ["mean-field", "spike-slab"]
    assert baselines(MODELS["pbp-bnn"]) == ["mean-field"]


def test_best_reference_is_the_default():
    assert {name: reference_of(model, None) for name, model in MODELS.items()} == {
        "bnn": "nuts",
        "pbp-bnn": "nuts",
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
    assert type(GUIDES["mean-field"].build(model)) is AutoMeanField
    assert type(GUIDES["spike-slab"].build(model)) is AutoSpikeSlab
