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
        self._alive = torch.zeros(0, dtype=torch.bool)
        self._warned: set[str] = set()

    @torch.no_grad()
    def __call__(self, x: Tensor, q: td.Distribution, p: td.Distribution | None = None) -> dict[str, float]:
        """Record a batch's latents q and, if it is given, p(x|z).

        Args:
            x: The batch.
            q: Its latents.
            p: Its likelihood.
        """
        prior = self.prior or standard_prior(q, family_of(q))
        each = prior.divergence_per_latent(q).mean(0)
        row = {"kld": float(each.sum()), "active": int((each > DEAD).sum())}
        if self._alive.shape != each.shape:
            self._alive = torch.zeros_like(each, dtype=torch.bool)
        dead = (self._alive & (each < DEAD)).nonzero().flatten().tolist()
        self._alive |= each > ALIVE
        self._warn("dead", dead, f"latents {dead} have died: their KL divergence fell below {DEAD} nats")
        self._warn("nan", not each.isfinite().all(), "the KL divergence is not finite: bound the log-variance of q")
        if p is not None:
            narrow = float(p.stddev.min() / x.std().clamp(min=1e-30))
            row["narrowest"] = narrow
            runs = not narrow >= NARROW
            said = f"the likelihood's deviation fell to {narrow:.1e} of the data's: its variance runs away, bound it"
            self._warn("variance", runs, said)
        self.history.append(row)
        return row

    def _warn(self, kind: str, trouble: object, message: str) -> None:
        if trouble and kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=4)
