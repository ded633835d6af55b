"""Compiled kernels: the same numbers as the eager formulas, and their absence changes nothing else."""

import math
import os
import subprocess
import sys

import pytest
import torch

from guides.core import fused, kernels
from guides.core.fused import ConcreteSite, GradientBuffer, MultipliedSpikeSlabSite, SpikeSlabSite, pieces

needs_compiler = pytest.mark.skipif(kernels._library() is None, reason="no C compiler")


def site(shape=(7, 33), dtype=torch.float32, extreme: bool = False) -> list[torch.Tensor]:
    """Logits, means, log scales and the prior's three parameters."""
    logits, loc, log_scale = torch.randn(3, *shape, dtype=dtype)
    logits = 60 * logits.sign() if extreme else 4 * logits
    prior = (torch.tensor(v, dtype=dtype) for v in (-1.5, 0.2, 0.7))
    return [t.requires_grad_() for t in (logits, loc, log_scale - 2, *prior)]


def results(function, arguments, weights) -> list[torch.Tensor]:
    outputs = function(*arguments)
    gradients = torch.autograd.grad(
        sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)), arguments
    )
    return [*outputs, *gradients]


@needs_compiler
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("shape", [(1,), (7, 33), (5000,), (3, 2, 41)])
def test_kernel_agrees_with_double_precision(monkeypatch, shape, extreme):
    arguments = site(shape, extreme=extreme)
    weights = torch.randn(shape), torch.randn(shape), torch.tensor(1.3)
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    compiled = results(SpikeSlabSite.apply, arguments, weights)
    exact = [a.detach().double().requires_grad_() for a in arguments]
    eager = results(SpikeSlabSite.apply, exact, [w.double() for w in weights])
    for ours, truth in zip(compiled, eager, strict=True):
        assert ours.isfinite().all()
        rounding = 2e-6 * truth.abs().max().item() + 1e-12
        torch.testing.assert_close(ours.double(), truth, rtol=2e-5, atol=rounding)


@needs_compiler
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("shape", [(7, 33), (5000,), (3, 2, 41)])
def test_concrete_kernel_agrees_with_double_precision(monkeypatch, shape, extreme, temperature):
    """On the same noise, at whose ends a uniform number is 0 or next to 1."""
    arguments = site(shape, extreme=extreme)
    uniform, noise = torch.rand(shape), torch.randn(shape)
    uniform.view(-1)[:2] = torch.tensor([0.0, 1 - 2**-24])
    monkeypatch.setattr(torch, "rand", lambda _, out: out.copy_(uniform))
    monkeypatch.setattr(torch, "randn", lambda _, out: out.copy_(noise))
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    weights = noise.flip(0), torch.tensor(1.3)

    def value_and_kl(logits, loc, log_scale, *prior):
        value, _, kl = ConcreteSite.apply(logits, loc, log_scale, temperature, *prior)
        return value, kl

    compiled = results(value_and_kl, arguments, weights)
    exact = [a.detach().double().requires_grad_() for a in arguments]
    eager = results(value_and_kl, exact, [w.double() for w in weights])
    for ours, truth in zip(compiled, eager, strict=True):
        assert ours.isfinite().all()
        rounding = 1e-5 * truth.abs().max().item() + 1e-12
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=rounding)
    off = compiled[0] == 0
    assert not (compiled[0][~off].abs() < torch.finfo(torch.float32).tiny).any()


def multiplied(logits, loc, log_scale, z, c, *prior):
    """What the kernel with multipliers computes, by the one without."""
    mean, variance, kl = SpikeSlabSite.apply(logits, loc * z, log_scale, *prior)
    return mean, variance, kl, mean @ c, variance @ c**2


@needs_compiler
@pytest.mark.parametrize("shape", [(33,), (7, 33), (3, 2, 41)])
def test_multiplied_kernel_agrees_with_double_precision(monkeypatch, shape):
    logits, loc, log_scale, *prior = site(shape)
    z, c = (t.requires_grad_() for t in 1 + 0.3 * torch.randn(2, shape[-1]))
    arguments = [logits, loc, log_scale, z, c, *prior]
    weights = torch.randn(shape), torch.randn(shape), torch.tensor(1.3), *torch.randn(2, *shape[:-1])

    exact = [a.detach().double().requires_grad_() for a in arguments]
    truth = results(multiplied, exact, [w.double() for w in weights])
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    ours = results(MultipliedSpikeSlabSite.apply, arguments, weights)
    for got, expected in zip(ours, truth, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=2e-5, atol=2e-6 * expected.abs().max().item())


@needs_compiler
@pytest.mark.parametrize("magnitude", [60.0, 200.0])
def test_multiplied_kernel_at_extreme_logits(monkeypatch, magnitude):
    logits, loc, log_scale, *prior = site((7, 33))
    logits = (magnitude * logits.sign()).detach().requires_grad_()
    z, c = (t.requires_grad_() for t in 1 + 0.3 * torch.randn(2, 33))
    arguments = [logits, loc, log_scale, z, c, *prior]
    weights = torch.randn(7, 33), torch.randn(7, 33), torch.tensor(1.3), *torch.randn(2, 7)

    exact = [a.detach().double().requires_grad_() for a in arguments]
    truth = results(multiplied, exact, [w.double() for w in weights])
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    for got, expected in zip(results(MultipliedSpikeSlabSite.apply, arguments, weights), truth, strict=True):
        assert got.isfinite().all()
        rounding = 5e-6 * expected.abs().max().item() + 1e-12
        torch.testing.assert_close(got.double(), expected, rtol=2e-5, atol=rounding)


@needs_compiler
def test_kernels_take_upstream_gradients_of_any_layout(monkeypatch):
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    arguments = site((4, 6))
    weight = torch.randn(6, 4)
    direct = results(SpikeSlabSite.apply, arguments, (weight.T.contiguous(), weight.T.contiguous(), 1.0))
    mean, variance, kl = SpikeSlabSite.apply(*arguments)
    loss = (mean.T * weight).sum() + (variance.T * weight).sum() + kl
    for ours, truth in zip(torch.autograd.grad(loss, arguments), direct[3:], strict=True):
        torch.testing.assert_close(ours, truth)


def test_which_sites_are_compiled(monkeypatch):
    big = torch.zeros(kernels.SMALLEST)
    assert kernels.kernel("spike_slab_forward", big[1:]) is None
    assert kernels.kernel("spike_slab_forward", big.double()) is None
    assert kernels.kernel("spike_slab_forward", torch.zeros(2, len(big)).T) is None
    monkeypatch.setattr(kernels, "_library", lambda: None)
    assert kernels.kernel("spike_slab_forward", big) is None


each_obstacle = pytest.mark.parametrize(
    "environment", [{"POSTERIOR_ZOO_KERNELS": "0"}, {"CC": "/no/such/compiler"}, {"CC": "false"}]
)


@each_obstacle
def test_without_a_compiler_all_is_silent(tmp_path, environment, monkeypatch, capfd):
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    kernels._library.cache_clear()
    try:
        arguments = [torch.zeros(20_000, requires_grad=True) for _ in range(3)]
        SpikeSlabSite.apply(*arguments, *torch.tensor([0.0, 0.0, 1.0]))[2].backward()
        assert kernels._library() is None
    finally:
        kernels._library.cache_clear()
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.slow
def test_a_fresh_process_without_a_compiler_is_silent(tmp_path):
    code = """
        import torch
        from guides.core import kernels
        from guides.core.fused import SpikeSlabSite
        arguments = [torch.zeros(20000, requires_grad=True) for _ in range(3)]
        SpikeSlabSite.apply(*arguments, *torch.tensor([0.0, 0.0, 1.0]))[2].backward()
        assert kernels._library() is None
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "false"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
def test_library_is_kept_and_an_unwritable_cache_does_no_harm(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = kernels._built()
    stamp = first.stat().st_mtime_ns
    assert first.parent == tmp_path / "posterior-zoo"
    assert kernels._built() == first
    assert first.stat().st_mtime_ns == stamp
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernels._built().exists()


# ---------------------------------------------------------------------- gradients in one place


def test_pieces_give_the_gradient_of_split():
    flat = torch.randn(20, requires_grad=True)
    shapes = [torch.Size([2, 3]), torch.Size([4]), torch.Size([]), torch.Size([9])]
    parts = pieces(flat, shapes)
    loss = (parts[0] ** 2).sum() + parts[1].sum() * parts[2] + parts[0].sum()
    loss.backward(retain_graph=True)
    first = flat.grad.clone()
    expected = torch.cat([2 * flat[:6] + 1, flat[10].expand(4), flat[6:10].sum()[None], torch.zeros(9)])
    torch.testing.assert_close(first, expected.detach())
    loss.backward()
    torch.testing.assert_close(flat.grad, 2 * first)


def test_nodes_write_into_the_place_of_their_piece(monkeypatch):
    copies = []
    gather = GradientBuffer.gather

    def watched(self, gradients, sizes):
        places = self.values.split(sizes)
        copies.append([g.data_ptr() != p.data_ptr() for g, p in zip(gradients, places, strict=True)])
        return gather(self, gradients, sizes)

    monkeypatch.setattr(GradientBuffer, "gather", watched)
    arguments = site((2, 3))
    flats = [torch.cat([a.detach().flatten()] * 2).requires_grad_() for a in arguments[:3]]
    parts = [pieces(flat, [torch.Size([2, 3])] * 2) for flat in flats]
    total = 0
    for logits, loc, log_scale in zip(*parts, strict=True):
        total = total + SpikeSlabSite.apply(logits, loc, log_scale, *arguments[3:])[2]
    # The second site is used twice: its second gradient must not overwrite the first.
    total = total + 3 * SpikeSlabSite.apply(logits, loc, log_scale, *arguments[3:])[2]
    total.backward()
    assert [c[0] for c in copies] == [False] * 3
    for flat, argument in zip(flats, arguments, strict=False):
        (single,) = torch.autograd.grad(SpikeSlabSite.apply(*arguments)[2], argument)
        torch.testing.assert_close(flat.grad, torch.cat([single.flatten(), 4 * single.flatten()]))


def test_memory_of_spent_gradients_is_used_again():
    from guides.core.optim import FusedAdam

    flat = torch.randn(6, requires_grad=True)
    optimizer, addresses = FusedAdam(lr=0.1), []
    for step in range(3):
        (part,) = pieces(flat.view_as(flat), [torch.Size([6])])
        ((step + 1) * part).sum().backward()
        assert (flat.grad == step + 1).all()
        addresses.append(flat.grad.data_ptr())
        optimizer([flat])
    assert addresses[0] == addresses[1] == addresses[2]
    assert fused.GradientBuffer(flat).take(0, torch.Size([6])).data_ptr() == addresses[0]


@needs_compiler
@pytest.mark.parametrize("log_scale", [-30.0, -12.0, 6.0, 12.0, 30.0])
def test_kernel_agrees_however_narrow_or_wide_the_slabs(monkeypatch, log_scale):
    """Around zero, so that the variance is the slab's own: each number to rounding, whatever its size."""
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    arguments = site((9,))
    with torch.no_grad():
        arguments[1].zero_()
        arguments[2].fill_(log_scale)
    mean, variance, kl = SpikeSlabSite.apply(*arguments)
    exact = SpikeSlabSite.apply(*(a.detach().double() for a in arguments))
    torch.testing.assert_close(variance.double(), exact[1], rtol=2e-5, atol=0)
    torch.testing.assert_close(kl.double(), exact[2], rtol=2e-5, atol=0)
    assert (mean == 0).all()


@needs_compiler
def test_the_divergence_from_itself_is_zero(monkeypatch):
    """Of a law that is its own prior all terms cancel, and nothing large hides an error of a small one."""
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    for logit in (-6.0, -1.5, 0.0, 0.3, 4.0):
        full = [torch.full((500,), value) for value in (logit, 0.2, math.log(0.7))]
        prior = [torch.tensor(value) for value in (logit, 0.2, 0.7)]
        *_, kl = SpikeSlabSite.apply(*(t.requires_grad_() for t in (*full, *prior)))
        assert abs(kl.item()) < 500 * 1e-6, logit
