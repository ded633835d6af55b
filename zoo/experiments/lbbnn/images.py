"""The cells of the latent binary experiments on images; networks come from :mod:`.networks`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyro
import torch
from pyro.infer import SVI
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from guides.variational.sparse_networks import (
    SparseNetwork,
    active_paths,
    mean_weights,
    median_weights,
)
from guides.variational.spike_slab import AutoSpikeSlab
from zoo.evaluation.metrics import accuracy, ece, log_likelihood
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn.networks import (
    BOUNDS,
    COLD,
    FEW_ROWS,
    FittedNetworks,
    fit,
    images,
    make_guide,
    make_model,
    outside,
    validation,
    widths_of,
)
from zoo.fitting.epochs import (
    NETWORKS,
    averaged_probabilities,
    bound,
    classes,
    entropy,
    local_reparameterization_probabilities,
    member_probabilities,
    single_network,
)
from zoo.seeds import stable_seed

THRESHOLD = 0.95
#: From which a bound is taken where there are few rows: one network is a large part of fifty then.
MANY_NETWORKS = 500
BATCH = 100
#: Images a class and side of the pictures.
SHOWN = 5
#: Passes whose median time is taken, after two that warm up.
TIMED = 15


def scores(probabilities: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, mean negative log likelihood (nats) and calibration error."""
    law = classes(probabilities)
    return {
        "accuracy": accuracy(law, y).value,
        "nll": -log_likelihood(law, y).value,
        "ece": ece(law, y).value,
    }


# --------------------------------------------------------------------------------------------- the main table


def table(cell: Cell) -> Mapping[str, float]:
    """All figures of a fit; leaves the ensemble's probabilities and the members' labels."""
    return _table(cell, convolutional=False)


def convolutional_table(cell: Cell) -> Mapping[str, float]:
    """The same of the convolutional network."""
    return _table(cell, convolutional=True)


def _table(cell: Cell, convolutional: bool) -> Mapping[str, float]:
    fitted = fit(cell, convolutional=convolutional)
    x, y = fitted.data.x_test, fitted.data.y_test
    members = member_probabilities(fitted.model, fitted.draws(cell.options["members"]), x)
    ensemble = members.mean(0)
    np.savez_compressed(
        cell.folder / "predictions.npz",
        probabilities=ensemble.half().cpu().numpy(),
        labels=y.byte().cpu().numpy(),
    )
    one = (members.argmax(-1) == y).double().mean(1)
    figures = scores(ensemble, y) | {"accuracy_one": one.mean().item()}
    for name, probabilities in (("mean", fitted.mean_network(x)), ("median", fitted.median_network(x))):
        if probabilities is not None:
            figures |= {f"{key}_{name}": value for key, value in scores(probabilities, y).items()}
    return figures | densities(fitted, dense=not convolutional) | settling(cell, fitted)


def settling(cell: Cell, fitted: FittedNetworks) -> dict[str, float]:
    """Where the bound stands, what training took it for, and what it still gained at the end, nats a training
    image; what has no bound has the change of its loss.
    """
    data, guide = fitted.data, fitted.guides[-1]
    figures = {"bound_change": last_change(fitted)}
    if cell.method.removeprefix(COLD) in BOUNDS:
        seed = stable_seed("bound", fitted.seed)
        networks = MANY_NETWORKS if len(data.x) < FEW_ROWS else NETWORKS
        figures["bound"] = bound(guide, (data.x, data.y), seed=seed, networks=networks).value
        if not cell.method.startswith(COLD):  # whose objective is another
            losses = fitted.history.losses  # of every pass, several of which may be an epoch
            last = losses[-max(1, len(losses) // cell.options["epochs"]) :]
            figures["bound_trained"] = -statistics.fmean(last) / len(data.x)
        if guide.learned_priors is not None:
            sizes = {name: site.numel for name, site in guide.sites.items()}
            figures["bound_charge"] = guide.learned_priors.charge(sizes) / len(data.x)
    return figures


def last_change(fitted: FittedNetworks) -> float:
    """Of the bound, or of minus the loss, in the last tenth of the training, nats a training image."""
    return fitted.history.change / len(fitted.data.x)


def frontier(cell: Cell) -> Mapping[str, float]:
    """Scores on the images to choose by and on the test images, density and bound of one recipe."""
    fitted, options = fit(cell), cell.options
    held_out = validation(cell.dataset, options["rows"] or None, options["device"], options["held_out"])
    test = fitted.data.x_test, fitted.data.y_test
    figures = {}
    for ending, (x, y) in (("", test), ("_validation", held_out)):
        found = scores(fitted.ensemble(x, options["members"]), y)
        figures |= {f"{name}{ending}": value for name, value in found.items()}
    return figures | densities(fitted, dense=True) | settling(cell, fitted)


def densities(fitted: FittedNetworks, dense: bool) -> dict[str, float]:
    """Shares of weights, biases not counted; nothing without inclusions."""
    guide = fitted.guides[0]
    if not isinstance(guide, AutoSpikeSlab):
        return {}
    mean, half = guide.density()
    figures = {"density_mean": mean, "density_half": half}
    if dense:
        figures["density_paths"] = active_paths(median_weights(guide))
    return figures


def variance_table(cell: Cell) -> Mapping[str, float]:
    """Posterior mean, passes by local reparameterization, and networks really drawn, side by side."""
    fitted, members = fit(cell), cell.options["members"]
    x, y = fitted.data.x_test, fitted.data.y_test
    seed = stable_seed("passes", fitted.seed)
    passes = local_reparameterization_probabilities(fitted.guides[0], x, members, seed=seed)
    figures = scores(fitted.ensemble(x, members), y)
    figures |= {f"{key}_lrt": value for key, value in scores(passes, y).items()}
    figures["accuracy_mean"] = scores(fitted.mean_network(x), y)["accuracy"]
    return figures | densities(fitted, dense=False) | settling(cell, fitted)


# ------------------------------------------------------------------------------ what predictions are good for


def _in_and_out(cell: Cell) -> tuple[FittedNetworks, Tensor, Tensor]:
    """A fit, and its ensemble's probabilities of the test images and of images of another set."""
    fitted, members = fit(cell), cell.options["members"]
    inside = fitted.ensemble(fitted.data.x_test, members)
    return fitted, inside, fitted.ensemble(outside(cell.dataset, str(inside.device)), members)


def decisions(cell: Cell) -> Mapping[str, float]:
    """What is decided when only a probability of 0.95 or more counts, in and out of domain."""
    fitted, inside, out = _in_and_out(cell)
    confidence, label = inside.max(-1)
    sure = confidence >= THRESHOLD
    figures = {
        "decided": sure.double().mean().item(),
        "accuracy_all": (label == fitted.data.y_test).double().mean().item(),
        "decided_outside": (out.max(-1).values >= THRESHOLD).double().mean().item(),
        "bound_change": last_change(fitted),
    }
    if sure.any():
        right = label[sure] == fitted.data.y_test[sure]
        figures["accuracy_decided"] = right.double().mean().item()
    return figures


def entropies(cell: Cell) -> Mapping[str, float]:
    """Entropy of the ensemble's predictions in and out of domain; leaves both."""
    fitted, inside, out = _in_and_out(cell)
    values = [entropy(p).cpu().numpy() for p in (inside, out)]
    np.savez_compressed(
        cell.folder / "entropies.npz", inside=values[0].astype("f2"), outside=values[1].astype("f2")
    )
    labels = np.repeat([0, 1], [len(v) for v in values])
    return {
        "accuracy": scores(inside, fitted.data.y_test)["accuracy"],
        "entropy_inside": float(values[0].mean()),
        "entropy_outside": float(values[1].mean()),
        "auroc": float(roc_auc_score(labels, np.concatenate(values))),
        "bound_change": last_change(fitted),
    }


def training_curve(cell: Cell) -> Mapping[str, float]:
    """Negative log likelihood after every epoch, of the ensemble and of the posterior mean network, on the
    test images and on as many training images; leaves the curves.
    """
    members = cell.options["members"]

    def measure(fitted: FittedNetworks, epoch: int) -> dict[str, float]:
        data, draws = fitted.data, fitted.draws(members)
        mean = single_network(mean_weights(fitted.guides[-1]))
        n = len(data.y_test)
        rows = {"test": (data.x_test, data.y_test), "train": (data.x[:n], data.y[:n])}
        return {
            f"{name}_{part}": scores(averaged_probabilities(fitted.model, weights, x), y)["nll"]
            for part, (x, y) in rows.items()
            for name, weights in (("ensemble", draws), ("mean", mean))
        }

    history = fit(cell, each_epoch=measure).history
    curves = {key: [figures[key] for figures in history.figures] for key in history.figures[0]}
    np.savez(cell.folder / "curves.npz", losses=history.losses, **curves)
    last = {f"nll_{key}": values[-1] for key, values in curves.items()}
    return last | {"nll_best": min(curves["ensemble_test"])}


def pictures(cell: Cell) -> Mapping[str, float]:
    """The test images of lowest and highest entropy in every class; leaves them, labels and predictions."""
    fitted = fit(cell)
    x, y = fitted.data.x_test.cpu(), fitted.data.y_test.cpu()
    probabilities = fitted.ensemble(fitted.data.x_test, cell.options["members"]).cpu()
    value, predicted = entropy(probabilities), probabilities.argmax(-1)
    low, high = [], []
    for label in range(probabilities.shape[1]):
        rows = (y == label).nonzero().squeeze(1)
        order = rows[value[rows].argsort(stable=True)]
        low.append(order[:SHOWN])
        high.append(order.flip(0)[:SHOWN])
    figures = {}
    for name, rows in (("low", torch.stack(low)), ("high", torch.stack(high))):
        shape = (*rows.shape, fitted.data.side, fitted.data.side)
        np.savez_compressed(
            cell.folder / f"{name}.npz",
            images=(x[rows].reshape(shape) * 255).round().byte().numpy(),
            predicted=predicted[rows].byte().numpy(),
            entropy=value[rows].numpy(),
        )
        figures[f"entropy_{name}"] = value[rows].mean().item()
        figures[f"wrong_{name}"] = (predicted[rows] != y[rows]).double().mean().item()
    return figures


# ------------------------------------------------------------------------------------------ export and cost


def export(cell: Cell) -> Mapping[str, float]:
    """The median probability network as a program that makes use of its zeros: size and speed."""
    fitted = fit(cell)
    guide, x = fitted.guides[0], fitted.data.x_test
    weights = median_weights(guide)
    with pyro.validation_enabled(False):
        expected = _logits(fitted.model, weights, x)
    figures = {
        "density_half": guide.density()[1],
        "density_paths": active_paths(weights),
        "kilobytes_dense": sum(value.numel() * value.element_size() for value in weights.values()) / 1e3,
        "milliseconds_dense": _milliseconds(_dense_program(weights), x),
    }
    for form in ("sparse", "small"):
        program = SparseNetwork(weights, form)
        gap = (program(x) - expected).abs().max().item() / expected.abs().max().item()
        figures |= {
            f"kilobytes_{form}": program.nbytes / 1e3,
            f"milliseconds_{form}": _milliseconds(program, x),
            f"difference_{form}": gap,
        }
    return figures | {
        "units_small": float(sum(program.widths[1:-1])),
        "inputs_small": float(program.widths[0]),
        "bound_change": last_change(fitted),
    }


def _logits(model: Callable, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad(), pyro.poutine.block():
        return pyro.poutine.condition(model, weights)(
            x, torch.zeros(len(x), dtype=torch.long, device=x.device)
        )


def _plain_network(sizes: Sequence[int], device: torch.device) -> nn.Sequential:
    """Linear layers with a ReLU between each two, as torch has them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, device=device), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _dense_program(weights: Mapping[str, Tensor]) -> nn.Module:
    matrices = [weights[f"w{i}"] for i in range(1, len(weights) // 2 + 1)]
    sizes = (matrices[0].shape[1], *(len(matrix) for matrix in matrices))
    network = _plain_network(sizes, matrices[0].device).requires_grad_(False)
    for i, layer in enumerate(network[::2], start=1):
        layer.load_state_dict({"weight": weights[f"w{i}"], "bias": weights[f"b{i}"]})
    return network


def _milliseconds(program: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Median time of one pass over 1000 rows."""
    x, times = x[:1000], []
    for _ in range(2 + TIMED):
        start = time.perf_counter()
        program(x)
        _wait(x)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:]) * 1000 / len(x)


def cost(cell: Cell) -> Mapping[str, float]:
    """Seconds an epoch, and relative to an ordinary torch network of the same shape, steps taken in turn."""
    options = cell.options
    data = images(cell.dataset, options["rows"] or None, options["device"])
    torch.manual_seed(cell.seed)
    model = make_model(cell.method, cell.setting, data, widths_of(cell))
    guide = make_guide(cell.method, model, cell.setting)
    x, y, size = data.x[:BATCH], data.y[:BATCH], len(data.x)
    times: dict[str, list[float]] = {"method": [], "plain": []}
    with pyro.validation_enabled(False):
        guide.setup(x, y, size)
        svi = SVI(guide.model, guide, guide.optimizer(1e-3), guide.elbo())
        steps = {
            "method": lambda: svi.step(x, y, size),
            "plain": _plain_step(data.side**2, widths_of(cell), x, y),
        }
        for _ in range(options["steps"]):
            for name, step in steps.items():
                _wait(x)
                start = time.perf_counter()
                step()
                _wait(x)
                times[name].append(time.perf_counter() - start)
    warm = min(5, options["steps"] // 2)
    seconds = {name: statistics.median(values[warm:]) for name, values in times.items()}
    epoch = size // BATCH
    return {
        "seconds": epoch * seconds["method"],
        "seconds_plain": epoch * seconds["plain"],
        "relative": seconds["method"] / seconds["plain"],
        "parameters": float(sum(parameter.numel() for parameter in guide.parameters())),
    }


def _plain_step(pixels: int, widths: tuple[int, ...], x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of a deterministic network with torch's own Adam as it comes."""
    network = _plain_network((pixels, *widths, 10), x.device)
    adam = torch.optim.Adam(network.parameters())

    def step() -> None:
        adam.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        adam.step()

    return step


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()
