"""Latents and variances tracked while a model trains."""

import warnings

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.priors import Prior

DEAD, ALIVE = 0.01, 0.05  # nats: a latent has died once it was above the one and is below the other
NARROW = 1e-4  # the least deviation of p, in units of that of x


class Tracker:
    """Function for a training loop that records active latents and variances, and warns once of each trouble.

    Args:
        prior: p(z); the standard one of the latents' family if absent.

    Attributes:
        history: A row for each call.

    Example:
        >>> track = Tracker()
        >>> row = track(torch.zeros(5, 3), td.Normal(torch.ones(5, 2), 0.5), td.Normal(torch.zeros(5, 3), 1.0))
        >>> row["active"], round(row["kld"], 3)
        (2, 1.636)
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self.prior, self.history = prior, list[dict[str, float]]()
        self._alive: Tensor | bool = False
        self._warned: set[str] = set()

    @torch.no_grad()
    def __call__(self, x: Tensor, q: td.Distribution, p: td.Distribution | None = None) -> dict[str, float]:
        """Record the latents q of a batch x and, if it is given, its likelihood p(x|z)."""
        prior = self.prior or standard_prior(q, family_of(q))
        each = prior.divergence_per_latent(q).mean(0)
        row = {"kld": float(each.sum()), "active": int((each > DEAD).sum())}
        dead = ((each < DEAD) & self._alive).nonzero().flatten().tolist()
        self._alive = (each > ALIVE) | self._alive
        self._warn(dead, "have died: their KL divergence fell below 0.01 nats", f"latents {dead}")
        self._warn(not each.isfinite().all(), "the KL divergence is not finite: bound the log-variance of q")
        if p is not None:
            row["narrowest"] = float(p.stddev.min() / x.std().clamp(min=1e-30))
            trouble = (
                "the likelihood's deviation fell to almost nothing beside the data's: its variance runs away, bound it"
            )
            self._warn(not row["narrowest"] >= NARROW, trouble)
        self.history.append(row)
        return row

    def _warn(self, found: object, trouble: str, where: str = "") -> None:
        if found and trouble not in self._warned:
            self._warned.add(trouble)
            warnings.warn(f"{where} {trouble}".strip(), stacklevel=4)
