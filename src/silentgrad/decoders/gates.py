r"""Weights of a sum that depend on z: :math:`w(z) = \mathrm{softmax}(l)`, :math:`l = B z + e`.

The bound needs :math:`E\,l`, one matrix product, and :math:`\log E[e^l]` or more: :math:`E\,l + \tfrac12
\mathrm{Var}\,l` for Gaussian latents; the cumulant generating function for the others, or a proxy, see
:mod:`silentgrad.decoders.proxies`.
"""

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.projection import variance_of
from silentgrad.decoders.proxies import has_proxy, proxy
from silentgrad.decoders.sums import Gate
from silentgrad.decoders.tilting import tilt
from silentgrad.latents.moments import JointMoments, Moments


class LinearGate(nn.Module):
    """Logits l = B z + e of each component in each region.

    Args:
        latent_dim: Number of latents.
        regions: Number of regions.
        components: Number of components.
        proxy: Whether Bernoulli and one-hot latents take the sub-Gaussian proxy, one matrix product, in place of their
            generating function, which is tighter and needs an array of logits by batch by latents.
    """

    def __init__(self, latent_dim: int, regions: int, components: int, proxy: bool = True) -> None:
        super().__init__()
        self.regions, self.components, self.proxy = regions, components, proxy
        self.logits = nn.Linear(latent_dim, regions * components)
        nn.init.zeros_(self.logits.bias)

    def forward(self, z: Tensor) -> Tensor:
        """The logits at z, `(*batch, regions, components)`."""
        return self.logits(z).unflatten(-1, (self.regions, self.components))

    def start(self, logits: Tensor) -> None:
        """Starts the logits at z = 0, `(regions, components)`."""
        with torch.no_grad():
            self.logits.bias.copy_(logits.flatten())

    def expected(self, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Gate:
        """E l and log E[e^l] or a bound of it.

        Args:
            mean: Mean of the latents, `(*batch, latent_dim)`.
            moments: Moments of the latents, in q's own shape.
            q: The latents.
        """
        means = mean.reshape(-1, mean.shape[-1])
        expected = torch.addmm(self.logits.bias.unsqueeze(1), self.logits.weight, means.T)
        log_mass = self._log_mass(expected, mean, moments, q)
        return Gate(self._in_regions(expected), self._in_regions(log_mass))

    def _log_mass(self, expected: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        """log E[e^l] or a bound of it, `(regions * components, batch)`."""
        weight = self.logits.weight
        if isinstance(moments, Moments) and moments.gaussian:
            variances = moments.s2.reshape(-1, mean.shape[-1])
            return torch.addmm(expected, weight.square(), variances.T, alpha=0.5)
        if moments.gaussian:
            return expected + variance_of(self.logits, moments, mean).reshape(-1, len(weight)).T / 2
        if self.proxy and has_proxy(q):
            return expected + proxy(q, weight)
        log_mass = tilt(q, moments, mean, self.logits, self.logits).log_mass
        return log_mass.reshape(-1, len(weight)).T

    def _in_regions(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (self.regions, self.components))
