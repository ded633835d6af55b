"""Multiplicative flows of many regressions side by side: multipliers of its own for every run.

:class:`guides.AutoMNF` gives the weights of a layer one draw ``z`` for all its outputs.  Where the outputs
are regressions that know nothing of each other (:mod:`.runs`), each has flows, an auxiliary density and a
``z`` of its own; they are evaluated at once, by ``torch.func.vmap`` over their stacked parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from guides import AutoMNF
from guides.core.laws import SiteLaw
from guides.core.moments import spike_slab_kl
from guides.core.rng import seeded_rng
from guides.core.sites import Site
from guides.variational.multiplied_laws import MultipliedSpikeSlabLaw
from guides.variational.multipliers import Multipliers


class _Asked(nn.Module):
    """A module whose methods are called by name, for ``functional_call`` has no other way to them."""

    def __init__(self, module: Multipliers):
        super().__init__()
        self.module = module

    def forward(self, method: str, *arguments: Tensor | bool):
        return getattr(self.module, method)(*arguments)


class MultipliersOfRuns(nn.Module):
    """What :class:`Multipliers` are to one run, for ``R`` of them: parameters ``[R, ...]``."""

    def __init__(self, of_runs: Sequence[Multipliers]):
        super().__init__()
        parameters, buffers = stack_module_state([_Asked(each) for each in of_runs])
        self._form = (_Asked(of_runs[0]).to("meta"),)  # in a tuple: its parameters are no part of this
        self._names = {name: name.replace(".", "_") for name in (*parameters, *buffers)}
        for name, value in parameters.items():
            self.register_parameter(self._names[name], nn.Parameter(value.detach()))
        for name, value in buffers.items():
            self.register_buffer(self._names[name], value)

    @property
    def contraction(self) -> Tensor:
        """``c [R, d]``."""
        return getattr(self, self._names["module.auxiliary"])[:, 0]

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """``noise [R, S, d] -> (z [R, S, d], log q(z) [R, S])``, the base's part of it in expectation."""
        return self._of_each(lambda noise: ("forward", noise, True), noise)

    def log_auxiliary(self, z: Tensor, activations: Tensor) -> Tensor:
        """``log r(z | w)``, ``[R, S]``, from ``z [R, S, d]`` and ``sum_i c_i w_i``, ``[R, S]``."""
        return self._of_each(lambda z, seen: ("log_auxiliary", z, seen[:, None]), z, activations)

    def _of_each(self, call: Callable[..., tuple], *arguments: Tensor):
        state = {name: getattr(self, own) for name, own in self._names.items()}
        (form,) = self._form
        return vmap(lambda state, *of_run: functional_call(form, state, call(*of_run)))(state, *arguments)


class _RunsLaw(MultipliedSpikeSlabLaw):
    """Weights ``[R, in]`` whose rows have multipliers of their own."""

    @cached_property
    def multipliers_and_density(self) -> tuple[Tensor, Tensor]:
        """``(z [R, in], log q(z) [R])``."""
        z, log_density = self._multipliers(torch.randn_like(self._unit_loc)[:, None])
        return z[:, 0], log_density[:, 0]

    @cached_property
    def loc(self) -> Tensor:
        return self._unit_loc * self.multipliers_and_density[0]

    @cached_property
    def cost(self) -> Tensor:
        """``log q(z) - log r(z | w)`` of all runs together."""
        z, log_density = self.multipliers_and_density
        guessed = self._multipliers.log_auxiliary(z[:, None], self._seen()[:, None])
        return (log_density - guessed[:, 0]).sum()

    def _contracted(self, values: Tensor, contraction: Tensor) -> Tensor:
        """``sum_i c_ri w_ri`` of every run ``r``, ``[R]``."""
        return (values * contraction).sum(-1)

    _fused = None  # the kernel has one vector of multipliers for all rows


class AutoMNFOfRuns(AutoMNF):
    """:class:`guides.AutoMNF` for :class:`~.runs.SideBySide`, each run for itself.

    The loss is the sum of ``E[-log p(y_r | w_r) + KL(q(w_r | z_r) || p) + log q(z_r) - log r(z_r | w_r)]``.
    It is for fitting them; of the ways to look at a fit it has :meth:`draws_of_runs` and
    ``inclusion_probabilities``.
    """

    def _make_multipliers(self) -> None:
        start = self.init_z, self.init_z_scale
        self.multipliers = nn.ModuleList(
            MultipliersOfRuns(
                [Multipliers(site.shape[1], *self._flow_options, *start) for _ in range(site.shape[0])]
            ).to(self.loc)
            for site in self._multiplied_sites()
        )
        self._multipliers_names = [f"multipliers.{name}" for name, _ in self.multipliers.named_parameters()]

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if site.multiplied is None or not len(self.multipliers):
            return super()._law(site)
        return partial(_RunsLaw, multipliers=self._multipliers_of(site.name), axis=site.multiplied)

    def _networks(self, num_samples: int, seed: int | None):
        raise NotImplementedError("runs side by side have draws_of_runs")

    @torch.no_grad()
    def draws_of_runs(
        self, num_samples: int, prior: Sequence[Tensor], *, seed: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """``{"w": [S, R, in], "b": [S, R]}``, and ``KL(q(w | z) || p) + log q(z) - log r(z | w)``, a mean
        over these draws, ``[R]``, nats.

        :param prior: inclusion logit, mean and sd of the slab
        """
        loc, log_scale, logits = (part[:, None] for part in self._detached()["w"])
        multipliers = self._multipliers_of("w")
        with seeded_rng(seed):
            z, log_density = multipliers(torch.randn(len(loc), num_samples, loc.shape[-1]))
            loc = loc * z
            slab = loc + log_scale.exp() * torch.randn_like(z)
            w = torch.where(torch.rand_like(z) < torch.sigmoid(logits), slab, torch.zeros_like(slab))
            b = self.site_distribution("b").sample((num_samples,))
        seen = (w * multipliers.contraction[:, None]).sum(-1)
        costs = spike_slab_kl(logits, loc, log_scale, *prior).sum(-1)
        costs = costs + log_density - multipliers.log_auxiliary(z, seen)
        return {"w": w.transpose(0, 1), "b": b}, costs.double().mean(1)
