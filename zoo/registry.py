"""The models and guides by name, and which guide applies to which model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from guides import AutoMeanField, AutoSpikeSlab
from zoo.bnn import ACTIVATIONS, BNN, PBPNetwork
from zoo.budgets import BASELINES
from zoo.errors import UserError, unknown
from zoo.latent_binary import SpikeSlabLinear, spike_slab_bnn
from zoo.message_passing import MessagePassing, refuses_messages
from zoo.methods import Method, Variational

LIKELIHOODS = {"regression": "normal", "binary": "bernoulli", "multiclass": "categorical"}


@dataclass(frozen=True)
class ModelOptions:
    """What a user may choose about a model.

    :ivar widths: hidden units of each layer
    :ivar activation: ``relu``, ``leaky-relu`` or ``tanh``
    :ivar noise_scale: known noise on the standardised target, or None to infer it
    :ivar inclusion: prior inclusion probability of a spike-and-slab weight
    """

    widths: tuple[int, ...] = (50,)
    activation: str = "relu"
    noise_scale: float | None = None
    inclusion: float = 0.5

    def to_dict(self) -> dict:
        """JSON-safe."""
        return {**asdict(self), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, saved: dict) -> ModelOptions:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**saved, "widths": tuple(saved["widths"])})


@dataclass(frozen=True)
class ModelEntry:
    """One model.

    :ivar build: ``(task, in_features, num_classes, options) -> model``
    :ivar references: the ground truths it has, the best first
    :ivar options: names of the command line's options that it takes
    :ivar substitutes: prior family a guide may need -> name of the model that has it in this one's place
    """

    name: str
    summary: str
    build: Callable[[str, int, int, ModelOptions], Callable]
    tasks: tuple[str, ...]
    references: tuple[str, ...]
    priors: frozenset[str]
    options: tuple[str, ...]
    substitutes: dict[str, str] = field(default_factory=dict)


def _takes_all(model: Callable) -> str:
    return ""


@dataclass(frozen=True)
class GuideEntry:
    """One guide.

    :ivar method: how it is fitted
    :ivar needs: the family of priors without which the guide makes no sense, or None
    :ivar refuses: ``model -> why it cannot be fitted``, empty when it can
    :ivar note: what a reader of its figures must know
    :ivar beside: guides that are graded whenever this one is
    """

    name: str
    summary: str
    method: Method
    needs: str | None = None
    refuses: Callable[[Callable], str] = _takes_all
    note: str = ""
    beside: tuple[str, ...] = ()


def _network(maker: Callable) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> BNN:
        return maker(
            in_features,
            widths=options.widths,
            activation=options.activation,
            noise_scale=options.noise_scale,
            likelihood=LIKELIHOODS[task],
            outputs=num_classes if task == "multiclass" else 1,
        )

    return build


def _spike_slab_network(task: str, in_features: int, num_classes: int, options: ModelOptions) -> BNN:
    def maker(*args, **kwargs) -> BNN:
        return spike_slab_bnn(*args, inclusion=options.inclusion, **kwargs)

    return _network(maker)(task, in_features, num_classes, options)


def _pbp_network(bias: bool) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> PBPNetwork:
        return PBPNetwork(in_features, widths=options.widths, noise_scale=options.noise_scale, bias=bias)

    return build


def _spike_slab_linear(
    task: str, in_features: int, num_classes: int, options: ModelOptions
) -> SpikeSlabLinear:
    return SpikeSlabLinear(in_features, inclusion=options.inclusion)


MODELS = {
    entry.name: entry
    for entry in (
        ModelEntry(
            "bnn",
            "fully connected network, weights N(0, 1/fan_in), biases N(0, 1), noise precision Gamma(6, 6)",
            _network(BNN),
            ("regression", "binary", "multiclass"),
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "activation", "noise"),
            {"spike_slab": "spike-slab-bnn"},
        ),
        ModelEntry(
            "pbp-bnn",
            "probabilistic backpropagation: weight precision Gamma(6, 6), layers / sqrt(fan_in + 1)",
            _pbp_network(bias=True),
            ("regression",),
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "noise"),
        ),
        ModelEntry(
            "pbp-bnn-no-bias",
            "pbp-bnn without bias weights, layers / sqrt(fan_in): spike-and-slab messages differ here",
            _pbp_network(bias=False),
            ("regression",),
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "noise"),
        ),
        ModelEntry(
            "spike-slab-bnn",
            "bnn with a spike and slab on every weight",
            _spike_slab_network,
            ("regression", "binary", "multiclass"),
            (),
            frozenset({"normal", "spike_slab"}),
            ("widths", "activation", "noise", "inclusion"),
        ),
        ModelEntry(
            "spike-slab-linear",
            "linear regression with a spike and slab on every column, noise precision Gamma(1, 1)",
            _spike_slab_linear,
            ("regression",),
            ("exact",),
            frozenset({"spike_slab"}),
            ("inclusion",),
        ),
    )
}

EPOCHS = 40


def _message_passing(name: str, summary: str, messages: str) -> tuple[GuideEntry, GuideEntry]:
    """The published schedule, and the one pass that approximates the posterior."""
    short = f"{name}-1-epoch"
    return (
        GuideEntry(
            name,
            f"{summary}; {EPOCHS} passes, and beside it in a comparison {short}",
            MessagePassing(messages, EPOCHS),
            refuses=refuses_messages,
            note=f"{EPOCHS} passes over the data count it {EPOCHS} times: no approximation of the posterior",
            beside=(short,),
        ),
        GuideEntry(
            short,
            f"{name} in one pass",
            MessagePassing(messages, 1),
            refuses=refuses_messages,
            note="one pass",
        ),
    )


GUIDES = {
    entry.name: entry
    for entry in (
        GuideEntry(
            "mean-field",
            "independent Gaussians, Bayes by backprop with local reparameterization",
            Variational(AutoMeanField),
        ),
        GuideEntry(
            "spike-slab",
            "independent spikes and slabs (LBBNN-LRT)",
            Variational(AutoSpikeSlab),
            needs="spike_slab",
        ),
        *_message_passing("pbp", "probabilistic backpropagation (Gaussian messages)", "gaussian"),
        *_message_passing(
            "sspbp",
            "the same with spike-and-slab messages: other than pbp only without bias (pbp-bnn-no-bias)",
            "spike-slab",
        ),
    )
}


def find_model(name: str) -> ModelEntry:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def find_guide(name: str) -> GuideEntry:
    if name not in GUIDES:
        raise unknown("guide", name, GUIDES)
    return GUIDES[name]


def applicable(
    guide: GuideEntry, model: ModelEntry, task: str = "regression", options: ModelOptions | None = None
) -> tuple[ModelEntry, str]:
    """The model that a guide fits when asked for ``model``, and what a reader of its figures must know.

    :raises UserError: when the guide cannot be used there
    """
    entry, remark = _with_prior(guide, model)
    reason = guide.refuses(entry.build(task, 1, 2, options or ModelOptions()))
    if reason:
        raise UserError(f"guide {guide.name!r} does not apply to model {model.name!r}: {reason}")
    return entry, "; ".join(filter(None, (remark, guide.note)))


def _with_prior(guide: GuideEntry, model: ModelEntry) -> tuple[ModelEntry, str]:
    """``model``, or the one in its place that has the prior that the guide needs, and a remark then."""
    if guide.needs is None or guide.needs in model.priors:
        return model, ""
    if guide.needs in model.substitutes:
        other = MODELS[model.substitutes[guide.needs]]
        return other, f"fits {other.name}: the guide needs a spike-and-slab prior"
    raise UserError(
        f"guide {guide.name!r} does not apply to model {model.name!r}: it needs spike-and-slab weights; "
        f"models that have them: {', '.join(m.name for m in MODELS.values() if guide.needs in m.priors)}"
    )


def where(guide: GuideEntry, model: ModelEntry) -> str:
    """A model as ``zoo list`` shows it for a guide, with tasks and activations where some are refused; empty
    when all are: ``bnn (as spike-slab-bnn)``, ``bnn (regression; relu, leaky-relu)``.
    """
    activations = tuple(ACTIVATIONS) if "activation" in model.options else (ModelOptions.activation,)
    fits: dict[tuple[str, str], ModelEntry] = {}
    for choice in itertools.product(model.tasks, activations):
        with suppress(UserError):
            fits[choice], _ = applicable(guide, model, choice[0], ModelOptions(activation=choice[1]))
    if not fits:
        return ""
    fitted = next(iter(fits.values()))
    remarks = [] if fitted is model else [f"as {fitted.name}"]
    for place, choices in enumerate((model.tasks, activations)):
        accepted = [name for name in choices if any(choice[place] == name for choice in fits)]
        if len(accepted) < len(choices):
            remarks.append(", ".join(accepted))
    return f"{model.name} ({'; '.join(remarks)})" if remarks else model.name


def with_companions(names: Sequence[str]) -> list[str]:
    """Names of guides, each followed by those that are graded beside it and are not named themselves."""
    found: list[str] = []
    for name in names:
        found += [name, *(other for other in find_guide(name).beside if other not in names)]
    return found


def baselines(model: ModelEntry) -> list[str]:
    """Names of the guides to grade when none are named: those of the baselines that apply."""
    names = []
    for name in BASELINES:
        with suppress(UserError):
            applicable(find_guide(name), model)
            names.append(name)
    return names


def check_task(model: ModelEntry, task: str, data: str) -> None:
    """:raises UserError: when a model has no likelihood for a task"""
    if task not in model.tasks:
        raise UserError(f"model {model.name!r} is for {', '.join(model.tasks)}; {data} is {task}")


def check_options(model: ModelEntry, guides: Iterable[GuideEntry], given: Iterable[str]) -> None:
    """:raises UserError: for an option that neither the model nor one that a guide fits in its place takes"""
    taken = {*model.options, *(option for guide in guides for option in _with_prior(guide, model)[0].options)}
    for option in given:
        if option not in taken:
            has = ", ".join(f"--{name}" for name in model.options)
            raise UserError(f"--{option} does not apply to model {model.name!r}, which takes {has}")


def check_fit_options(guide: GuideEntry, given: Iterable[str]) -> None:
    """:raises UserError: for an option of ``zoo fit`` that changes nothing for this guide"""
    for option in given:
        if option not in guide.method.takes:
            has = ", ".join(f"--{name}" for name in guide.method.takes) or "none of these options"
            raise UserError(f"--{option} does not apply to guide {guide.name!r}, which takes {has}")


def reference_of(model: ModelEntry, wanted: str | None) -> str:
    """The reference to compute: ``wanted``, or the best that the model has, or ``none``.

    :raises UserError: for one that the model does not have
    """
    if wanted in (None, "none"):
        return wanted or (model.references[0] if model.references else "none")
    if wanted in model.references:
        return wanted
    if wanted == "nuts":
        why = "its inclusion indicators are discrete"
    elif wanted == "exact":
        why = "it has no closed form"
    else:
        raise unknown("reference", wanted, ("nuts", "exact", "none"))
    has = f"use --reference {model.references[0]}" if model.references else "use --reference none"
    raise UserError(f"model {model.name!r} has no {wanted!r} reference ({why}); {has}")
