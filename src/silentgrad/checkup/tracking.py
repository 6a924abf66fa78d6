"""Latents and variances tracked while a model trains."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis.posterior import nats_per_latent
from silentgrad.evaluation import ACTIVE
from silentgrad.latents.priors import Prior

NARROW = 1e-4  # the least deviation of p, in units of that of x


class Tracker:
    """Function for a training loop that records active latents and variances, and warns once of each trouble.

    A latent has died once its KL divergence was above 0.01 nats, and is below that and below half of its most.

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
        self._most = torch.zeros(())  # nats of each latent
        self._warned: set[object] = set()

    @torch.no_grad()
    def __call__(self, x: Tensor, q: td.Distribution, p: td.Distribution | None = None) -> dict[str, float]:
        """Record the latents q of a batch x and, if it is given, its likelihood p(x|z)."""
        each = nats_per_latent(q, self.prior)
        row = {"kld": float(each.sum()), "active": int((each > ACTIVE).sum())}
        self._most = torch.fmax(self._most.to(each), each)
        died = ((each < ACTIVE) & (each < self._most / 2) & (self._most > ACTIVE)).nonzero().flatten().tolist()
        self._warn(died, f"latents {{}} have died: their KL divergence fell below {ACTIVE} nats")
        infinite = ["divergence"] * (not each.isfinite().all())
        self._warn(infinite, "the KL divergence is not finite: bound the log-variance of q")
        if p is not None:
            row["narrowest"] = float(p.stddev.min() / x.std().clamp(min=1e-30))
            trouble = "the likelihood's deviation fell to almost nothing beside the data's: its variance runs away"
            self._warn(["variance"] * (not row["narrowest"] >= NARROW), f"{trouble}, bound it")
        self.history.append(row)
        return row

    def _warn(self, troubles: Sequence[object], said: str) -> None:
        """Warn of those that are new."""
        new = [trouble for trouble in troubles if trouble not in self._warned]
        if new:
            self._warned.update(new)
            warnings.warn(said.format(new), stacklevel=4)
