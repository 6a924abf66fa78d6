"""A table of counts wherever it is: blocks of its rows become dense, are looked at once, and are then fitted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silentgrad.errors import DomainError
from silentgrad.side_info import SideInfo

BLOCK = 2**19  # entries that are dense at a time
START, RUNS = 2**22, 64  # entries with which a fit starts, and runs of neighboring rows that they are taken from
FEW = 2**20  # entries that are fitted in double precision, which costs little then
ROUNDING = 2e-6  # nats per entry that a fit may lose to single precision
EXACT = 2**24  # up to which single precision has every whole number


class CountTable:
    """Rows of counts as a fit takes them: a tensor for a slice.

    Args:
        source: A dense or sparse matrix, or what gives either for a slice of its rows, as files do.
        missing: Whether NaN is an entry that is missing, and 0 here.
    """

    def __init__(self, source: Any, missing: bool = False) -> None:
        self.source, self.missing = source, missing
        self.shape = torch.Size(source.shape)
        self.dtype: Any = np.float32

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Tensor:
        raw = self.raw(rows)
        block = raw.astype(self.dtype, copy=self.missing or not raw.flags.writeable)
        if self.missing:
            block[np.isnan(block)] = 0
        return torch.from_numpy(block)

    def raw(self, rows: slice) -> NDArray[Any]:
        """Return some rows as they are, dense."""
        block = self.source[rows]
        if hasattr(block, "compute"):  # of a Dask array
            block = block.compute()
        if hasattr(block, "toarray"):
            block = block.toarray()
        return np.asarray(block)

    def slices(self) -> Iterator[slice]:
        """Yield rows whose dense form is small."""
        step = max(1, BLOCK // self.shape[1])
        for start in range(0, len(self), step):
            yield slice(start, min(start + step, len(self)))

    def taken(self, known: SideInfo, weights: Tensor | None) -> tuple[Tensor, SideInfo, Tensor | None]:
        """Return some rows with which a fit starts, evenly spread over the table, with what is known of them."""
        runs = self._runs()

        def some(part: Any) -> Tensor:
            return torch.cat([part[rows] for rows in runs])

        return some(self), known.map(some), None if weights is None else some(weights)

    def _runs(self) -> list[slice]:
        """Return runs of rows, evenly spread; all rows if they are few."""
        count = START // self.shape[1]
        if len(self) <= 4 * count:
            return [slice(0, len(self))]
        length = max(1, count // RUNS)
        starts = np.linspace(0, len(self) - length, max(1, count // length)).astype(int).tolist()
        return [slice(start, start + length) for start in starts]


@dataclass(frozen=True)
class Survey:
    """Results of a look at all counts.

    Args:
        sizes: The sum of each row, double precision.
        totals: The sum of each column.
        mask: Which entries are there, if some are missing.
    """

    sizes: Tensor
    totals: Tensor
    mask: Tensor | None

    def shares(self) -> Tensor:
        """Return each column's share of a whole row, by its mean over the rows in which it was observed."""
        means = self.totals
        if self.mask is not None:
            means = means / self.mask.sum(0).clamp(min=1)
        return means / means.sum().clamp(min=torch.finfo(means.dtype).tiny)

    def whole_sizes(self, shares: Tensor) -> Tensor:
        """Return the sums of the rows, over the shares of what was observed of them."""
        if self.mask is None:
            return self.sizes
        observed = torch.cat([part.to(shares) @ shares for part in self.mask.split(4096)])
        return (self.sizes / observed).nan_to_num(nan=0.0, posinf=0.0)


def surveyed(table: CountTable, mask: Tensor | None) -> Survey:
    """Look at all counts, refuse what is none, and choose the precision in which rounding is no part of the bound."""
    sizes = torch.empty(len(table), dtype=torch.float64)
    totals = torch.zeros(table.shape[1], dtype=torch.float64)
    there = torch.empty(table.shape, dtype=torch.bool) if table.missing else None
    terms = largest = 0.0
    for rows in table.slices():
        raw = table.raw(rows)
        if there is not None:
            known = ~np.isnan(raw)
            there[rows] = torch.from_numpy(known)
            raw = np.where(known, raw, 0)
        if not (
            raw.min() >= 0
            and np.isfinite(raw.max())
            and (raw.dtype.kind in "biu" or np.array_equal(raw, np.floor(raw)))
        ):
            _refuse(raw, rows.start)
        block = torch.from_numpy(np.array(raw, dtype=np.float64 if raw.max() > EXACT else np.float32))
        if mask is not None:
            block = block * mask[rows]
        sizes[rows] = block.sum(1, dtype=torch.float64)
        totals += block.sum(0, dtype=torch.float64)
        largest = max(largest, float(block.max()))
        terms += float(torch.log1p(block).mul_(block).sum(dtype=torch.float64))  # a count's terms of the bound
    few = table.shape.numel() <= FEW
    if few or largest > EXACT or terms * torch.finfo(torch.float32).eps > ROUNDING * table.shape.numel():
        table.dtype = np.float64
    if there is not None:
        mask = there if mask is None else there & mask
    if mask is not None and bool(mask.all()):
        mask = None
    return Survey(sizes, totals, mask)


def _refuse(block: NDArray[Any], first: int) -> None:
    """Raise for what is no count, by the place of the first that is none."""
    whole = "counts are whole numbers from 0 on"
    raw = f"{whole}: are these normalized? Raw ones are often in a layer, layer='counts', or in .raw"
    for what, wrong, advice in (
        ("NaN", np.isnan(block), "missing='nan' takes it for an entry that was not observed"),
        ("infinite numbers", np.isinf(block), whole),
        ("Negative values", block < 0, whole),
        ("fractions", block != np.floor(block), raw),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DomainError(
                f"{what} in data passed to CountFactors: row {first + row}, column {column} has "
                f"{block[row, column]:g}, and {advice}"
            )


def require_covariates(covariates: Tensor, names: Sequence[str] = ()) -> None:
    """Refuse covariates whose weights no data could tell: one that does not vary, or that others give."""
    called = [*map(repr, names)] or [*map(str, range(covariates.shape[1]))]
    if not covariates.isfinite().all():
        raise DomainError("covariates hold a number that is not finite")
    deviation, mean = torch.std_mean(covariates, dim=0, correction=0)
    constant = (deviation <= 1e-12 * (1 + mean.abs())).nonzero().flatten().tolist()
    if constant:
        raise DomainError(f"covariate {called[constant[0]]} is the same in all rows, as the intercept is: leave it out")
    standard = (covariates - mean) / deviation
    _, factor = torch.linalg.qr(standard)
    rest = factor.diagonal().abs() / len(standard) ** 0.5
    collinear = (rest < 1e-6).nonzero().flatten().tolist()
    if collinear or standard.shape[1] >= len(standard):
        which = collinear[0] if collinear else standard.shape[1] - 1
        raise DomainError(f"covariate {called[which]} is a sum of the intercept and covariates before it: leave it out")
