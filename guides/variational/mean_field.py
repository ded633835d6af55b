"""Gaussian mean field: Bayes by backprop (Blundell et al. 2015) with local reparameterization (Kingma et al.
2015).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from guides.core.flat_guide import FlatGuide
from guides.core.sites import Site
from guides.core.starts import initial_value


class AutoMeanField(FlatGuide):
    """An independent Gaussian for every latent element, on any Pyro model.

    ======================  ==========================================  =======================
    prior of the site       law in the guide                            KL divergence
    ======================  ==========================================  =======================
    Normal                  Normal                                      closed form
    SpikeSlab               Normal (it never visits the spike)          closed form
    Gamma                   LogNormal                                   closed form
    other continuous laws   Gaussian through the support's bijection    by the draw
    discrete                refused by name                             --
    ======================  ==========================================  =======================

    Example::

        guide = AutoMeanField(model)
        svi = SVI(model, guide, guide.optimizer(lr=0.01), guide.elbo())
        svi.step(x, y)
        Predictive(model, guide=guide, num_samples=500)(x)

    :param model: a Pyro model; latent sites hidden by ``poutine.block`` keep their prior
    :param init_loc_fn: start of the means, as for Pyro's autoguides; by default
        :func:`guides.core.starts.initial_value`, at Normal priors a draw
    :param init_scale: start of the standard deviations: this share of the prior's for Normal and SpikeSlab
        priors, this number in the unconstrained space for others
    :param lrt: local reparameterization in linear and convolutional layers: every row of a layer's input gets
        noise of its own, which the positions of an image in a convolution share.  Off for a site that is
        used more than once or in another way, or whose layer has rows that meet in one likelihood term,
        whatever this says (set-up finds out by experiment).
    :param empirical_bayes: every Normal prior that the elements of a site share has its sd chosen by the
        data, as :mod:`guides.core.learned_priors` says; ``learned_priors.numbers`` has what was found, and
        the first step warns where there is no such prior
    :raises ValueError: for arguments out of range
    :raises UnsupportedSiteError: at the first call, naming a site that it cannot handle
    """

    def __init__(
        self,
        model: Callable,
        *,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
        lrt: bool = True,
        empirical_bayes: bool = False,
    ):
        if empirical_bayes not in (False, True):
            raise ValueError(f"empirical_bayes must be True or False, got {empirical_bayes!r}")
        super().__init__(
            model, init_loc_fn=init_loc_fn, init_scale=init_scale, empirical_bayes=empirical_bayes
        )
        self.lrt = lrt

    def _allows_moments(self, site: Site) -> bool:
        return self.lrt
