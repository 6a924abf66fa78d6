"""Figures of a gradient over batches, streamed: what is kept does not grow with their number."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from silentgrad.analysis.products import Gradient, difference, inner_products, squared_norms
from silentgrad.errors import DomainError

DRAWS = (1, 10, 100)  # whose mean squared errors are printed
FEWEST_BATCHES = 4  # two pairs: with fewer there is no standard error


class LayerVariance(NamedTuple):
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
        evaluations: How often the estimator evaluated the integrand for a draw.
        unbiased: Whether the estimator claims that its mean is the gradient.
        squared_bias: Squared distance of its mean from the gradient, the mean over batches: 0 for one that claims to
            be unbiased, else measured, less what the draws explain, so that noise can make it negative. The gradient is
            the closed form's, where that is exact, or else that of the unbiased estimator among those measured that
            varies least; None without either.
        squared_bias_error: Its standard error, over batches.
        reference: Whose gradient it is measured against; empty if it is not measured.
    """

    est: float
    batch: float
    est_percent: float
    snr: float
    errors: Figures
    cosine: float | None
    groups: dict[str, LayerVariance]
    evaluations: int = 1
    unbiased: bool = True
    squared_bias: float | None = None
    squared_bias_error: float = 0.0
    reference: str = ""

    def error(self, draws: float = 1) -> float | None:
        """Return the mean squared error of the mean of some draws, on a batch; None if the bias is not known."""
        return None if self.squared_bias is None else max(self.squared_bias, 0.0) + self.est / draws

    @property
    def work(self) -> float:
        """The work-normalized variance, est times evaluations.

        An average of n draws has a variance of est / n and costs n times the evaluations. So of two estimators the one
        of less work has less variance at equal cost. What it leaves out is the bias of a biased one.
        """
        return self.est * self.evaluations

    def error_within(self, evaluations: float) -> float | None:
        """Return the mean squared error that evaluations buy; None if they buy no draw or the bias is not known."""
        return None if self.evaluations > evaluations else self.error(evaluations / max(self.evaluations, 1))

    @property
    def bias(self) -> str:
        """The squared bias and its standard error, as tables have them."""
        if self.squared_bias is None:
            return "unknown"
        return f"{self.squared_bias:.3g}" + f" ± {self.squared_bias_error:.1g}" * (not self.unbiased)


class Ranking(dict[str, Decomposition]):
    """Decompositions in order, which print as a table whose last column has what they are ordered by.

    Args:
        found: The decompositions, by name.
        evaluations: Evaluations of the integrand that a gradient may cost, if that is what orders them.
    """

    def __init__(self, found: Iterable[tuple[str, Decomposition]], evaluations: float | None = None) -> None:
        super().__init__(found)
        self.evaluations = evaluations

    def __str__(self) -> str:
        """Print squared bias, variance and the mean squared error of 1, 10 and 100 draws; unbiased ones have a star."""
        last = "variance x eval."
        if self.evaluations is not None:
            last = f"error in {self.evaluations:g} evaluations"
        rows = [("estimator", "evaluations", "bias²", "variance", *(f"error of {n}" for n in DRAWS), last)]
        for name, own in self.items():
            by = own.work if self.evaluations is None else own.error_within(self.evaluations)
            figures = [own.est, *(own.error(n) for n in DRAWS), by]
            told = ["unknown" if figure is None else f"{figure:.3g}" for figure in figures]
            if self.evaluations is not None and own.evaluations > self.evaluations:
                told[-1] = "takes more"
            rows.append((f"{name} *" if own.unbiased else name, str(own.evaluations), own.bias, *told))
        return table(rows, self.values())


def table(rows: Sequence[tuple[str, ...]], found: Iterable[Decomposition]) -> str:
    """Put the columns of rows of text below each other, and say what the star means and whose bias is 0."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]))
    references = sorted({own.reference for own in found} - {""})
    return "\n".join([*lines, "* unbiased" + f"; bias² against {' and '.join(references)}" * bool(references)])


def ranked(found: Mapping[str, Decomposition], evaluations: float | None = None) -> Ranking:
    """Order decompositions, the best first; printed, they are a table.

    Without a number of evaluations the order is that of the work-normalized variance, biased estimators after all
    others: the variance says nothing of the bias, and an estimator of no use can have hardly any. With one it is that
    of the mean squared error that so many evaluations of the integrand buy, where little variance can make up for a
    bias; those that take more evaluations, or whose bias is not known, come last.

    Args:
        found: Decompositions, by name.
        evaluations: Evaluations of the integrand that a gradient may cost.

    Example:
        >>> import silentgrad as sg
        >>> q = torch.distributions.Bernoulli(logits=torch.zeros(1, 20))
        >>> estimators = [sg.StraightThrough(), sg.RLOO(), sg.estimators.IndeCateR()]
        >>> found = sg.gradient_variance(q, lambda z: (z - 0.499).square().sum(-1), 50, estimators)
        >>> list(ranked(found))  # ten times the cost, but no variance: the bits do not interact
        ['IndeCateR', 'RLOO', 'StraightThrough']
    """

    def place(entry: tuple[str, Decomposition]) -> tuple[bool, float]:
        own = entry[1]
        if evaluations is None:
            return not own.unbiased, own.work
        error = own.error_within(evaluations)
        return error is None, own.work if error is None else error

    return Ranking(sorted(found.items(), key=place), evaluations)


class Mean(NamedTuple):
    """The mean gradient over a batch's draws, and what is left of their variance in it."""

    gradient: Gradient
    noise: Tensor


class Tally:
    """Sums of one estimator's gradients over batches.

    Args:
        draws: Number of draws behind each batch's mean.
        unbiased: Whether the estimator claims to be unbiased.
    """

    def __init__(self, draws: int, unbiased: bool = True) -> None:
        self.draws, self.unbiased, self.batches = draws, unbiased, 0
        self.mean: Gradient = []
        self.variance = self.spread = torch.zeros((), dtype=torch.float64)
        self.waiting: tuple[Gradient, Tensor] | None = None
        self.pairs: list[Tensor] = []
        self.evaluations = 1
        self.squared_biases: list[float] = []
        self.references: list[str] = []

    def compare(self, own: Mean, truth: Mean, reference: str) -> None:
        """Take in how far a batch's mean gradient is from the truth, and whose that is."""
        explained = on_host(own.noise + truth.noise)
        distance = on_host(squared_norms(difference(own.gradient, truth.gradient)).sum()) - explained
        self.squared_biases.append(distance.item())
        if reference not in self.references:
            self.references.append(reference)

    def add(self, gradient: Gradient, variance: Tensor) -> None:
        """Take in a batch's mean gradient over draws and its variance over draws, per parameter tensor."""
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
        """Compute the figures; `names` are those of the encoder's parameters, `exact` its exact gradient or empty."""
        if self.batches < FEWEST_BATCHES:
            raise DomainError(f"standard errors need at least {FEWEST_BATCHES} batches")
        est = self.variance / self.batches
        spread = self.spread / (self.batches - 1)
        batch = spread - est / self.draws
        signal = on_host(squared_norms(self.mean)) - spread / self.batches
        figures = with_quotients(torch.stack([est.sum(), batch.sum(), signal.sum()])).tolist()
        biases = [0.0] * self.batches if self.unbiased else self.squared_biases
        return Decomposition(
            **Figures(*figures)._asdict(),
            errors=Figures(*jackknife(torch.stack(self.pairs)).tolist()),
            cosine=cosine(self.mean, exact) if exact else None,
            groups=by_layer(names, est, batch),
            evaluations=self.evaluations,
            unbiased=self.unbiased,
            squared_bias=statistics.fmean(biases) if biases else None,
            squared_bias_error=statistics.stdev(biases) / len(biases) ** 0.5 if biases else 0.0,
            reference=" or ".join(self.references),
        )

    def _pair(self, a: Gradient, variance_a: Tensor, b: Gradient, variance_b: Tensor) -> Tensor:
        """Estimate Est, Batch and |E g|^2 by two batches alone."""
        est = (variance_a + variance_b).sum() / 2
        batch = on_host(squared_norms(difference(a, b))).sum() / 2 - est / self.draws
        return torch.stack([est, batch, on_host(inner_products(a, b)).sum()])


def with_quotients(figures: Tensor) -> Tensor:
    """Go from Est, Batch and |E g|^2 to Est, Batch, Est % and SNR, along the last dimension."""
    est, batch, signal = figures.unbind(-1)
    return torch.stack([est, batch, 100 * est / (est + batch), signal / (est + batch)], -1)


def jackknife(pairs: Tensor) -> Tensor:
    """Compute standard errors of Est, Batch, Est % and SNR out of the pairs' own figures `(pairs, 3)`."""
    count = len(pairs)
    without_one = with_quotients((pairs.sum(0) - pairs) / (count - 1))
    return ((count - 1) ** 2 / count * without_one.var(0)).sqrt()


def by_layer(names: Sequence[str], est: Tensor, batch: Tensor) -> dict[str, LayerVariance]:
    """Add up weight and bias of a layer."""
    groups: dict[str, LayerVariance] = {}
    for name, e, b in zip(names, est.tolist(), batch.tolist(), strict=True):
        layer = name.rpartition(".")[0] or name
        so_far = groups.get(layer, LayerVariance(0.0, 0.0))
        groups[layer] = LayerVariance(so_far.est + e, so_far.batch + b)
    return groups


def cosine(a: Gradient, b: Gradient) -> float:
    """Compute the cosine of the angle between two gradients."""
    norms = squared_norms(a).sum() * squared_norms(b).sum()
    return (inner_products(a, b).sum() / norms.sqrt()).item()


def on_host(figures: Tensor) -> Tensor:
    """Move the figures in double precision to where Python reads them: once per batch, a few numbers."""
    return figures.double().cpu()
