"""Rows on many machines: the blocks of a Dask array, each with its latents where it is.

What travels are weights to the blocks and sums back. A block's latents are the result of a chain of tasks that begins
with its data, so that Dask's scheduler makes those of a worker that was lost anew on another.
"""

import copy
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.factors.latents import Latents
from silentgrad.factors.rows import FactorRows, RowSet, Totals
from silentgrad.factors.table import CountTable
from silentgrad.side_info import SideInfo


class ClusterRows(RowSet):
    """Rows of a Dask array, reached by the `distributed.Client` of its scheduler; the other arguments are `Rows`'."""

    def __init__(
        self,
        client: Any,
        decoder: LinearLikelihood,
        table: CountTable,
        side_info: SideInfo,
        weights: Tensor | None,
        w: Tensor,
        diagonal: bool = False,
    ) -> None:
        self.client = client
        array = table.source.rechunk({1: -1})
        self.parts: list[Any] = []
        start = 0
        for block, length in zip(client.compute(list(array.to_delayed().ravel())), array.chunks[0], strict=True):
            rows = slice(start, start + length)
            counted = None if weights is None else weights[rows].clone()
            known = side_info.map(lambda part, rows=rows: part[rows].clone())  # type: ignore[misc]
            arguments = (block, table.missing, table.dtype, decoder, known, counted, w, diagonal)
            self.parts.append(client.submit(_rows_of, *arguments, pure=False))
            start += length

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all parts, and return its results."""
        pairs = [self.client.submit(_called, part, method, *arguments, pure=False) for part in self.parts]
        self.parts = [self.client.submit(operator.itemgetter(0), pair, pure=False) for pair in pairs]
        results = [self.client.submit(operator.itemgetter(1), pair, pure=False) for pair in pairs]
        found: list[Any] = self.client.gather(results)
        return found

    def improve(self, theta: Tensor, own: Tensor, tally: bool) -> Totals:
        totals: Totals
        totals, *others = self._all("improve", theta, own, tally)
        for other in others:
            totals = totals + other
        return totals

    def move(self, center: Tensor, inverse: Tensor, noted: bool) -> Tensor:
        return torch.stack(self._all("move", center, inverse, noted)).sum(0)

    def extrapolate(self, shares: Tensor) -> None:
        self._all("extrapolate", shares)

    def go_back(self, to_plain: bool) -> None:
        self._all("go_back", to_plain)

    def finish(self) -> Latents:
        found = self._all("finish")
        names = ("means", "covariances", "log_dets")
        return replace(found[0], **{name: torch.cat([getattr(latents, name) for latents in found]) for name in names})


def client_of(source: Any) -> Any:
    """Return the client of the scheduler that a Dask array would be computed by; None without one, or for others."""
    if not hasattr(source, "dask"):
        return None
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def _rows_of(block: Any, missing: bool, dtype: Any, decoder: LinearLikelihood, *beside: Any) -> FactorRows:
    table = CountTable(block, missing)
    table.dtype = dtype
    return FactorRows(copy.deepcopy(decoder), table, *beside)


@torch.inference_mode(False)
@torch.no_grad()
def _called(rows: FactorRows, method: str, *arguments: Any) -> tuple[FactorRows, Any]:
    """Return what becomes of rows by a method, and its result; the rows that are given stay as they are."""
    rows = copy.copy(rows)
    rows.history = copy.copy(rows.history)
    return rows, getattr(rows, method)(*arguments)
