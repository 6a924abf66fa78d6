"""Latents and variances tracked while a model trains."""

import warnings

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.checkup.measurements import ACTIVE
from silentgrad.latents.families import family_of, standard_prior
from silentgrad.latents.priors import Prior

ALIVE = 0.05  # nats: a latent has died once it was above that and is no more active
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
        each = nats_per_latent(q, self.prior)
        row = {"kld": float(each.sum()), "active": int((each > ACTIVE).sum())}
        dead = ((each < ACTIVE) & self._alive).nonzero().flatten().tolist()
        self._alive = (each > ALIVE) | self._alive
        self._warn(dead, f"have died: their KL divergence fell below {ACTIVE} nats", f"latents {dead}")
        self._warn(not each.isfinite().all(), "the KL divergence is not finite: bound the log-variance of q")
        if p is not None:
            row["narrowest"] = float(p.stddev.min() / x.std().clamp(min=1e-30))
            trouble = "the likelihood's deviation fell to almost nothing beside the data's: its variance runs away"
            self._warn(not row["narrowest"] >= NARROW, f"{trouble}, bound it")
        self.history.append(row)
        return row

    def _warn(self, found: object, trouble: str, where: str = "") -> None:
        if found and trouble not in self._warned:
            self._warned.add(trouble)
            warnings.warn(f"{where} {trouble}".strip(), stacklevel=4)


def nats_per_latent(q: td.Distribution, prior: Prior | None = None) -> Tensor:
    """Return the mean KL divergence of each latent; from the standard prior of the family if none is given."""
    return (prior or standard_prior(q, family_of(q))).divergence_per_latent(q).mean(0)


@torch.no_grad()
def active_units(q: td.Distribution, prior: Prior | None = None, threshold: float = ACTIVE) -> Tensor:
    """Return which latents are used: those whose KL divergence from the prior is above a threshold on average.

    Without a prior, it is the standard one of the family; the threshold is in nats.

    Example:
        >>> q = td.Normal(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0.1, 1.0]))
        >>> active_units(q).tolist()
        [True, False]
    """
    return nats_per_latent(q, prior) > threshold
