"""One Adam for a whole fit: the same steps as torch's, parameters that join late, saved states."""

import pytest
import torch
from pyro.infer import SVI

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, AutoSpikeSlabMVN
from guides.core.optim import Common, FusedAdam
from guides.testing import (
    data,
    linear_model,
    network,
    normal,
    spike_slab,
)


def parameters(n: int = 2) -> list[torch.Tensor]:
    return [torch.full((3,), float(i), requires_grad=True) for i in range(n)]


def give_gradients(params, factor: float = 1.0) -> None:
    for i, p in enumerate(params):
        p.grad = factor * torch.arange(1.0, 4.0) * (i + 1)


def test_steps_are_adams():
    mine, theirs = parameters(), parameters()
    fused, plain = FusedAdam(lr=0.1, betas=(0.8, 0.9)), torch.optim.Adam(theirs, lr=0.1, betas=(0.8, 0.9))
    for step in range(4):
        give_gradients(mine, 1.0 + step)
        give_gradients(theirs, 1.0 + step)
        fused.set_lr(0.1 / (step + 1))
        plain.param_groups[0]["lr"] = 0.1 / (step + 1)
        fused(mine)
        plain.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q)
        assert p.grad is None


def test_clipping_is_by_the_norm_of_all_gradients():
    mine, theirs = parameters(), parameters()
    fused, plain = FusedAdam(lr=0.1, clip_norm=0.5, eps=1.0), torch.optim.Adam(theirs, lr=0.1, eps=1.0)
    give_gradients(mine)
    give_gradients(theirs)
    torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    fused(mine)
    plain.step()
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q)


def test_parameters_join_late_at_the_present_rate():
    params = parameters()
    fused = FusedAdam(lr=0.1)
    give_gradients(params[:1])
    fused(params)  # the other has no gradient yet
    fused.set_lr(0.01)
    give_gradients(params)
    before = params[1].detach().clone()
    fused(params)
    torch.testing.assert_close(before - params[1].detach(), torch.full((3,), 0.01))


@pytest.mark.parametrize("common", [{}, {"logits": 5.0, "log_scale": 5.0}])
def test_a_saved_state_goes_on_as_if_nothing_happened(common):
    x, y = data()
    model = linear_model(spike_slab)

    def start():
        guide = AutoSpikeSlab(model, empirical_bayes=True)
        guide.setup(x, y)
        optimizer = guide.optimizer(lr=0.1, common=common)
        optimizer.adopt(guide.parameters())
        return guide, optimizer, SVI(model, guide, optimizer, guide.elbo())

    torch.manual_seed(0)
    guide, optimizer, svi = start()
    for _ in range(4):
        svi.step(x, y)
    other, later, svi_later = start()
    other.load_state_dict(guide.state_dict())
    later.set_state(optimizer.get_state())
    for one in (svi, svi_later):
        torch.manual_seed(3)
        one.step(x, y)
        one.step(x, y)
    assert all(torch.equal(p, q) for p, q in zip(guide.parameters(), other.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="adopt the parameters"):
        FusedAdam().set_state(optimizer.get_state())
    assert FusedAdam().get_state() == {}


def test_kinds_of_parameters_may_have_rates_of_their_own():
    """The first step of Adam is the learning rate; a saved state keeps the factors."""
    x, y = data()
    model = linear_model(spike_slab)

    def fitted(steps: int, state: dict | None = None, guide=None):
        guide = AutoSpikeSlab(model) if guide is None else guide
        guide.setup(x, y)
        adam = guide.optimizer(0.01, factors={"logits": 8.0, "log_scale": 4.0, "of another guide": 2.0})
        adam.adopt(parameter for _, parameter in sorted(guide.named_parameters()))
        if state is not None:
            adam.set_state(state)
        svi = SVI(model, guide, adam, guide.elbo())
        before = {name: value.detach().clone() for name, value in guide.named_parameters()}
        for _ in range(steps):
            adam.set_lr(0.02)
            svi.step(x, y)
        moved = {name: (p - before[name]).abs().max().item() for name, p in guide.named_parameters()}
        return guide, adam, moved

    guide, adam, moved = fitted(1)
    expected = {"loc": 0.02, "log_scale": 0.08, "logits": 0.16}
    assert moved == pytest.approx(expected, rel=1e-3)
    _, _, again = fitted(1, adam.get_state(), guide)
    assert again["logits"] > 4 * again["loc"]


def test_pieces_that_move_as_one_are_elements_and_a_common_number():
    """``x = u + a``, where Adam moves both, and ``a`` in some steps only; rates fall, and gradients are
    clipped before they are summed.
    """
    target, sizes, moves = torch.tensor([1.0, 3.0, -2.0, 5.0, 4.0]), (2, 3), [True, False, True, True]
    x = torch.zeros(5, requires_grad=True)
    u, a = torch.zeros(5), torch.zeros(2)
    common = Common(sizes, 4.0, lambda: moves[step])
    mine = FusedAdam(
        lr=0.1, clip_norm=3.0, eps=1.0, common_of=lambda parameter: common if parameter is x else None
    )
    theirs = torch.optim.Adam([{"params": [u], "lr": 0.1}, {"params": [a], "lr": 0.4}], eps=1.0)
    for step in range(4):
        rate = 0.1 / (step + 1)
        mine.set_lr(rate)
        for group, factor in zip(theirs.param_groups, (1.0, 4.0), strict=True):
            group["lr"] = factor * rate
        (x - target).square().sum().backward()
        mine([x])
        slope = 2 * (u + a.repeat_interleave(torch.tensor(sizes)) - target)
        u.grad = slope * min(1.0, 3.0 / slope.norm().item())
        a.grad = torch.stack([piece.sum() for piece in u.grad.split(sizes)]) if moves[step] else None
        theirs.step()
    torch.testing.assert_close(x.detach(), u + a.repeat_interleave(torch.tensor(sizes)))
    assert (a.abs() > 0.1).all()


def test_common_moves_wait_for_a_gradient():
    """Of a parameter that a step does not reach."""
    params = parameters()
    fused = FusedAdam(lr=0.1, common_of=lambda parameter: Common((1, 2), 2.0, lambda: True))
    give_gradients(params)
    fused(params)
    give_gradients(params[:1])
    before = params[1].detach().clone()
    fused(params)
    assert torch.equal(params[1].detach(), before)


@pytest.mark.parametrize("learned", [True, False])
def test_weights_move_as_one_once_their_priors_are_learned(learned):
    """All of a site by the same, beside what each moves: not while the divergence is on its way."""
    x, y = data()
    model = linear_model(spike_slab)

    def logits(common, weights):
        torch.manual_seed(0)
        guide = AutoSpikeSlab(model, empirical_bayes=learned)
        adam = guide.optimizer(0.01, common=common)
        svi = SVI(model, guide, adam, guide.elbo())
        for weight in weights:
            guide.kl_weight = weight
            svi.step(x, y)
        return guide.logits.detach()

    ramp = [0.1, 0.2, 0.4]
    apart, together = (logits(common, [*ramp, 1.0]) for common in ({}, {"logits": 5.0}))
    assert torch.equal(apart, together) == learned
    if learned:  # the second run at a weight learns the priors, and the weights move with its gradient
        apart, together = (logits(common, [*ramp, 1.0, 1.0]) for common in ({}, {"logits": 5.0}))
        moved = together - apart
        torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.05))
        assert len(moved.sign().unique()) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"factors": {"logits": 0.0}}, "factor of logits must be positive"),
        ({"factors": {"logits": "5"}}, "factor of logits must be a number, got '5'"),
        ({"factors": {"logits": None}}, "factor of logits must be a number, got None"),
        ({"common": {"logits": float("nan")}}, "common factor of logits must be positive"),
        ({"common": {"logits": torch.tensor(-1.0)}}, "common factor of logits must be positive"),
        ({"common": {"rate_logits": 5.0, 1: 1.0}}, "logits, not of 1, rate_logits"),
    ],
)
def test_rates_that_are_none_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        AutoSpikeSlab(linear_model(spike_slab)).optimizer(**wrong)


@pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab, AutoMNF, AutoConcrete, AutoSpikeSlabMVN])
def test_sites_are_the_pieces_of_every_guide(make):
    """Biases, which have no logits, among them: with rates of (almost) zero for the elements, the elements
    of a site move by the same.
    """
    x, y = data()
    model = network(normal if make is AutoMeanField else spike_slab)
    guide = make(model)
    guide.setup(x, y)
    adam = guide.optimizer(1e-9, common={"loc": 1e7, "log_scale": 1e7, "logits": 1e7})
    before = guide._detached()
    before = {name: [part.clone() for part in parts[:3]] for name, parts in before.items()}
    SVI(model, guide, adam, guide.elbo()).step(x, y)
    for name, parts in guide._detached().items():
        for then, now in zip(before[name], parts[:3], strict=True):
            moved = (now - then).abs()
            torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-2, atol=1e-6)
            assert len((now - then).sign().unique()) == 1
