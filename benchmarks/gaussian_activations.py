r"""Where local reparameterization takes spikes and slabs for Gaussian, and what that promises too much.

In training a layer's output has Gaussian noise with the moments of its weights.  Here networks are drawn
after a fit, and the weights of one layer after the other are replaced by Gaussian ones with the same moments
(of the second also those alone that are more likely in than out): where all are, the mean loss is that which
training sees.

    python benchmarks/gaussian_activations.py --dataset kmnist --setting pi0.25-sd1 --epochs 60 \
        --rate 0.005 --reach 1

A fit takes about three minutes.  KMNIST is downloaded, or read from ZOO_DATA; the digits ship inside
scikit-learn.
"""

from __future__ import annotations

import argparse

import torch
from pyro import distributions as dist
from torch import Tensor

from guides.core.flat_guide import FlatGuide
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import networks
from zoo.experiments.lbbnn.options import RATES
from zoo.fitting.epochs import member_probabilities, single_network

METHOD, NETWORKS = "lrt", 300


def gaussian(guide: FlatGuide, name: str) -> Tensor:
    """A draw of a site's weights from a Gaussian law of the same moments."""
    law = guide.site_distribution(name)
    return dist.Normal(law.mean, law.variance.sqrt()).sample()


@torch.no_grad()
def losses(fitted: networks.FittedNetworks, layers: tuple[str, ...], above: float) -> Tensor:
    """Mean negative log likelihood of training images by each drawn network, ``[networks]``, every one
    on images of its own.

    :param layers: whose weights are Gaussian
    :param above: those with an inclusion probability above this
    """
    guide, data, found = fitted.guides[0], fitted.data, []
    taken = {name: probs > above for name, probs in guide.inclusion_probabilities().items()}
    torch.manual_seed(0)
    drawn = guide.draws(NETWORKS, seed=0)
    for i, rows in enumerate(torch.randperm(len(data.x)).chunk(NETWORKS)):
        weights = {name: values[i] for name, values in drawn.items()}
        weights |= {name: torch.where(taken[name], gaussian(guide, name), weights[name]) for name in layers}
        probabilities = member_probabilities(fitted.model, single_network(weights), data.x[rows])[0]
        found.append(-probabilities.gather(1, data.y[rows, None]).log().mean())
    return torch.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=("digits", "mnist", "fmnist", "kmnist"))
    parser.add_argument("--setting", default="pi0.25-sd1", choices=("default", "pi0.1-sd1", "pi0.25-sd1"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=RATES["rate"], help="first learning rate")
    parser.add_argument("--reach", type=float, default=RATES["reach"], help="see zoo.fitting.reach")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates = {"rate": arguments.rate, "reach": arguments.reach}
    options = {"epochs": arguments.epochs, "widths": "400-600", "rows": 0, "device": "cpu", **rates}
    place = f"lbbnn/{arguments.dataset}", arguments.dataset, METHOD, arguments.setting, 0
    fitted = networks.fit(Cell(*place, options=options))
    print(f"{METHOD} on {arguments.dataset}, {arguments.setting}, {arguments.epochs} epochs; nats an image")
    print(f"{'Gaussian weights':17} mean loss      se  median     max")
    cases = (
        ((), 0.0),
        (("w1",), 0.0),
        (("w2",), 0.0),
        (("w2",), 0.5),
        (("w3",), 0.0),
        (("w1", "w2", "w3"), 0.0),
    )
    for layers, above in cases:
        found = losses(fitted, layers, above)
        figures = (found.mean(), found.std() / len(found) ** 0.5, found.median(), found.max())
        name = (", ".join(layers) or "none") + (f", probs > {above}" if above else "")
        print(f"{name:20}" + "".join(f"{float(figure):8.3f}" for figure in figures))


if __name__ == "__main__":
    main()
