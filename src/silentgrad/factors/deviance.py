"""Rates of counts under a decoder, and their deviance: twice what the log-likelihood lacks of its largest value."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from silentgrad.decoders import LinearLikelihood
from silentgrad.factors.latents import Latents
from silentgrad.factors.table import CountTable
from silentgrad.side_info import SideInfo

TINY = torch.finfo(torch.float64).tiny


def inverse_dispersion_of(likelihood: Any) -> Tensor:
    """Return the r of a negative binomial, inflated or not; infinity for a Poisson likelihood."""
    counts = getattr(likelihood, "counts", likelihood)
    found: Tensor = getattr(counts, "inverse_dispersion", torch.tensor(torch.inf))
    return found.detach().double()


@torch.no_grad()
def rates(decoder: LinearLikelihood, means: Tensor, latents: Latents | None, known: SideInfo) -> Tensor:
    """Return expected counts of rows: at means of the factors, or under latents, over their spread too."""
    w = decoder.affine.weight.to(means)
    u = torch.addmm(decoder.affine.bias.to(w), means, w.T)
    if latents is not None:
        u += latents.variances(w) / 2
    if known.covariates is not None and decoder.covariate_affine is not None:
        u += known.covariates.to(w) @ decoder.covariate_affine.weight.to(w).T
    u.exp_()
    if known.offset is not None:
        u *= sizes_of(known, len(u)).to(u)
    counted = getattr(decoder.likelihood, "counted", None)  # of inflated ones, the share that is not
    return u if counted is None else u * counted.to(u)


def sizes_of(known: SideInfo, rows: int) -> Tensor:
    """Return the exponential of the offset, one per row or per entry."""
    if known.offset is None:
        return torch.ones(rows, 1, dtype=torch.float64)
    return known.offset.double().reshape(rows, -1).exp()


def counted_entries(known: SideInfo, weights: Tensor | None, x: Tensor) -> Tensor:
    """Return how much each entry counts, in the precision of x: not at all where it was not observed."""
    counted = torch.ones(()).to(x)
    if weights is not None:
        counted = weights.unsqueeze(1).to(x)
    if known.mask is not None:
        counted = counted * known.mask
    return counted.expand_as(x)


def deviances(x: Tensor, rate: Tensor, r: Tensor) -> Tensor:
    """Return the deviance of each entry of a negative binomial, or of a Poisson likelihood if r is infinite.

    Example:
        >>> one, two = torch.ones(1).double(), torch.full((1,), 2.0).double()
        >>> deviances(one, two, torch.tensor(torch.inf))  # 2 (log(1 / 2) + 1)
        tensor([0.6137], dtype=torch.float64)
    """
    rate = rate.to(x).clamp(min=torch.finfo(x.dtype).tiny)
    entries = x.clamp(min=1).div_(rate).log_().mul_(x)
    if r.isinf().all():
        return entries.sub_(x).add_(rate).mul_(2)
    r = r.to(x)
    return entries.sub_((x + r) * torch.log1p((x - rate) / (rate + r))).mul_(2)


def beyond_poisson(x: Tensor, r: Tensor) -> Tensor:
    """Return what is added to each entry's deviance, so that it counts from a Poisson variable's largest likelihood.

    A deviance counts from the largest likelihood at its own r, so that those of fits with other dispersions do not
    compare: a fit that takes what it misses for noise has a small one.

    Example:
        >>> beyond_poisson(torch.tensor([0.0, 1.0]).double(), torch.ones(1).double())  # 2 (2 log(2) - 1)
        tensor([0.0000, 0.7726], dtype=torch.float64)
    """
    if r.isinf().all():
        return torch.zeros_like(x)
    total = x.double() + r
    entries = total * total.log() - total.lgamma() - (r * r.log() - r.lgamma()) - x
    return (2 * entries).to(x)


@torch.no_grad()
def explained_deviance(
    decoder: LinearLikelihood, table: CountTable, known: SideInfo, weights: Tensor | None, means: Tensor
) -> tuple[float, float]:
    """Return the share of the deviance that covariates and means of the factors explain, and that of the covariates."""
    null, with_covariates = NullModel(table.shape[1]), NullModel(table.shape[1])
    r = inverse_dispersion_of(decoder.likelihood)
    model = of_null = of_covariates = 0.0

    def blocks() -> Iterator[tuple[slice, Tensor, SideInfo, Tensor]]:
        for rows in table.slices():
            x, beside = table[rows], known.between(rows)
            yield rows, x, beside, counted_entries(beside, None if weights is None else weights[rows], x)

    def total(x: Tensor, rate: Tensor, counted: Tensor) -> float:
        return float(deviances(x, rate, r).mul_(counted).sum(dtype=torch.float64))

    for _, x, beside, counted in blocks():
        null.add(x, sizes_of(beside, len(x)), counted)
        if known.covariates is not None:
            with_covariates.add(x, _covaried_sizes(decoder, beside, len(x)), counted)
    for rows, x, beside, counted in blocks():
        model += total(x, rates(decoder, means[rows], None, beside), counted)
        of_null += total(x, null.rates(sizes_of(beside, len(x))), counted)
        if known.covariates is not None:
            of_covariates += total(x, with_covariates.rates(_covaried_sizes(decoder, beside, len(x))), counted)
    if of_null == 0:
        return 0.0, 0.0
    return 1 - model / of_null, 0.0 if known.covariates is None else 1 - of_covariates / of_null


def _covaried_sizes(decoder: LinearLikelihood, known: SideInfo, rows: int) -> Tensor:
    """Return the exponential of all that is known of each entry: the offset, and the covariates by their weights."""
    assert known.covariates is not None
    assert decoder.covariate_affine is not None
    effects = known.covariates.double() @ decoder.covariate_affine.weight.double().T
    return sizes_of(known, rows) * effects.exp()


class NullModel:
    """Rates without factors and covariates: each column's counts over the sum of the sizes of its rows."""

    def __init__(self, columns: int) -> None:
        self.counts = torch.zeros(columns, dtype=torch.float64)
        self.sizes = torch.zeros_like(self.counts)

    def add(self, x: Tensor, sizes: Tensor, counted: Tensor) -> None:
        """Learn from rows."""
        self.counts += (x * counted).sum(0, dtype=torch.float64)
        self.sizes += (sizes.to(x) * counted).sum(0, dtype=torch.float64)

    def rates(self, sizes: Tensor) -> Tensor:
        """Return the rates of rows of these sizes."""
        return self.counts / self.sizes.clamp(min=TINY) * sizes
