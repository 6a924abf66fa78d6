"""Figures of a gradient over batches, streamed: what is kept does not grow with their number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.analysis.products import Gradient, difference, inner_products, squared_norms
from silentgrad.errors import DomainError


class Group(NamedTuple):
    """The part of both variances that lies in one layer of the encoder."""

    est: float
    batch: float


class Figures(NamedTuple):
    """The four figures of a decomposition, or their standard errors."""

    est: float
    batch: float
    est_percent: float
    snr: float


@dataclass(frozen=True)
class Decomposition:
    """The variance of an estimator's gradient, summed over the encoder's parameters.

    Args:
        est: Variance over the latent draws.
        batch: Variance over the mini-batches.
        est_percent: 100 est / (est + batch).
        snr: `|E g|^2 / (est + batch)`.
        errors: Standard errors of these four.
        cosine: Cosine of the angle between the mean gradient and the closed form's; None where there is no closed form.
        groups: The parts by layer, named as in the encoder.
        evaluations: How often the estimator evaluated the integrand for a draw; None where several estimators draw.
    """

    est: float
    batch: float
    est_percent: float
    snr: float
    errors: Figures
    cosine: float | None
    groups: dict[str, Group]
    evaluations: int | None = None

    @property
    def work(self) -> float:
        """The work-normalized variance, est times evaluations.

        An average of n draws has a variance of est / n and costs n times the evaluations. So of two estimators the one
        of less work has less variance at equal cost. What it leaves out is the bias of a biased one.
        """
        if self.evaluations is None:
            raise DomainError("several estimators draw here: their work is not one number of evaluations")
        return self.est * self.evaluations


def ranked(found: Mapping[str, Decomposition]) -> dict[str, Decomposition]:
    """Decompositions by their work-normalized variance, the least first.

    Example:
        >>> import silentgrad as sg
        >>> q = torch.distributions.Bernoulli(logits=torch.zeros(1, 20))
        >>> found = sg.gradient_variance(q, lambda z: (z - 0.499).square().sum(-1), 50, [sg.Rloo(), sg.IndeCateR()])
        >>> list(ranked(found))  # ten times the cost, but no variance: the bits do not interact
        ['IndeCateR', 'Rloo']
    """

    def work(entry: tuple[str, Decomposition]) -> float:
        return entry[1].work

    return dict(sorted(found.items(), key=work))


class Tally:
    """What one estimator's gradients over batches add up to.

    Args:
        draws: Number of draws behind each batch's mean.
    """

    def __init__(self, draws: int) -> None:
        self.draws, self.batches = draws, 0
        self.mean: Gradient = []
        self.variance = self.spread = torch.zeros((), dtype=torch.float64)
        self.waiting: tuple[Gradient, Tensor] | None = None
        self.pairs: list[Tensor] = []
        self.evaluations: int | None = None

    def add(self, gradient: Gradient, variance: Tensor) -> None:
        """Takes in a batch's mean gradient over draws and its variance over draws, per parameter tensor."""
        variance = on_host(variance)
        self.batches += 1
        self.variance = self.variance + variance
        if not self.mean:
            self.mean = [torch.zeros_like(g) for g in gradient]
        step = difference(gradient, self.mean)
        self.mean = [m + s / self.batches for m, s in zip(self.mean, step, strict=True)]
        self.spread = self.spread + on_host(squared_norms(step)) * (1 - 1 / self.batches)
        if self.waiting is None:
            self.waiting = gradient, variance
        else:
            self.pairs.append(self._pair(gradient, variance, *self.waiting))
            self.waiting = None

    def result(self, names: Sequence[str], exact: Gradient) -> Decomposition:
        """The figures; `names` are those of the encoder's parameters, `exact` its closed-form gradient or empty."""
        est = self.variance / self.batches
        spread = self.spread / (self.batches - 1)
        batch = spread - est / self.draws
        signal = on_host(squared_norms(self.mean)) - spread / self.batches
        figures = with_quotients(torch.stack([est.sum(), batch.sum(), signal.sum()])).tolist()
        return Decomposition(
            **Figures(*figures)._asdict(),
            errors=Figures(*jackknife(torch.stack(self.pairs)).tolist()),
            cosine=self._cosine(exact),
            groups=by_layer(names, est, batch),
            evaluations=self.evaluations,
        )

    def _cosine(self, exact: Gradient) -> float | None:
        if not exact:
            return None
        return cosine(self.mean, exact)

    def _pair(self, a: Gradient, variance_a: Tensor, b: Gradient, variance_b: Tensor) -> Tensor:
        """Est, Batch and |E g|^2 as two batches alone estimate them."""
        est = (variance_a + variance_b).sum() / 2
        batch = on_host(squared_norms(difference(a, b))).sum() / 2 - est / self.draws
        return torch.stack([est, batch, on_host(inner_products(a, b)).sum()])


def with_quotients(figures: Tensor) -> Tensor:
    """From Est, Batch and |E g|^2 to Est, Batch, Est % and SNR, along the last dimension."""
    est, batch, signal = figures.unbind(-1)
    return torch.stack([est, batch, 100 * est / (est + batch), signal / (est + batch)], -1)


def jackknife(pairs: Tensor) -> Tensor:
    """Standard errors of Est, Batch, Est % and SNR out of the pairs' own figures `(pairs, 3)`."""
    count = len(pairs)
    without_one = with_quotients((pairs.sum(0) - pairs) / (count - 1))
    return ((count - 1) ** 2 / count * without_one.var(0)).sqrt()


def by_layer(names: Sequence[str], est: Tensor, batch: Tensor) -> dict[str, Group]:
    """Weight and bias of a layer together."""
    groups: dict[str, Group] = {}
    for name, e, b in zip(names, est.tolist(), batch.tolist(), strict=True):
        layer = name.rpartition(".")[0] or name
        so_far = groups.get(layer, Group(0.0, 0.0))
        groups[layer] = Group(so_far.est + e, so_far.batch + b)
    return groups


def cosine(a: Gradient, b: Gradient) -> float:
    """The cosine of the angle between two gradients."""
    norms = squared_norms(a).sum() * squared_norms(b).sum()
    return (inner_products(a, b).sum() / norms.sqrt()).item()


def on_host(figures: Tensor) -> Tensor:
    """The figures in double precision, where Python reads them: once per batch, a few numbers."""
    return figures.double().cpu()
