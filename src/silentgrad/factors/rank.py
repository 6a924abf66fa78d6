"""Choice of the number of factors: fits along a path of ranks, each judged on entries that none has seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from silentgrad.decoders import LinearLikelihood
from silentgrad.factors.deviance import (
    NullModel,
    beyond_poisson,
    counted_entries,
    deviances,
    inverse_dispersion_of,
    rates,
    sizes_of,
)
from silentgrad.factors.fit import FactorFit
from silentgrad.factors.table import CountTable
from silentgrad.side_info import SideInfo

HELD = 0.1  # share of the entries
RANKS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50)
PATIENCE = 2  # ranks in a row without a gain, after which no more are tried


@dataclass(frozen=True)
class RankPath:
    """Deviances along a path of ranks.

    Args:
        ranks: The ranks.
        deviances: Mean deviance of an entry that was held out, for each; lower is better. Each rank has dispersions of
            its own, so that all count from the largest likelihood that a Poisson variable has: then ranks compare.
        errors: Standard errors of the differences from the least of them.
        explained: The share of the deviance of those entries that each explains.
    """

    ranks: list[int]
    deviances: list[float]
    errors: list[float]
    explained: list[float]

    @property
    def best(self) -> int:
        """The smallest rank whose deviance is above the least by no more than a standard error."""
        least = min(self.deviances)
        found = zip(self.ranks, self.deviances, self.errors, strict=True)
        return min(rank for rank, deviance, error in found if deviance - least <= error)


def rank_path_of(
    decoder_of: Callable[[int], LinearLikelihood],
    fit_of: Callable[..., FactorFit],
    table: CountTable,
    known: SideInfo,
    weights: Tensor | None,
    ranks: Sequence[int] | None = None,
) -> RankPath:
    """Fit some rows, spread evenly over a table, at every rank, a tenth of the entries held out.

    Without ranks, some up to 50 are tried, until two in a row are no better.
    """
    x, known, weights = table.taken(known, weights)
    held = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < HELD
    if known.mask is not None:
        held &= known.mask
    seen = replace(known, mask=~held if known.mask is None else known.mask & ~held)
    judged = counted_entries(replace(known, mask=held), weights, x)[held]
    null, sizes = NullModel(x.shape[1]), sizes_of(known, len(x))
    null.add(x, sizes, counted_entries(seen, weights, x))
    found: list[Tensor] = []
    explained: list[float] = []
    tried: list[int] = []
    before: LinearLikelihood | None = None
    for rank in [rank for rank in sorted(ranks or RANKS) if rank <= min(x.shape)]:
        decoder = decoder_of(rank).to(x.dtype)
        decoder.init_from_data(x, offset=seen.offset, mask=seen.mask)
        if before is not None:
            _continue(decoder, before)
        fit = fit_of(decoder, x, seen, weights)
        r = inverse_dispersion_of(decoder.likelihood)
        own = deviances(x, rates(decoder, fit.latents.means, fit.latents, known), r)[held] * judged
        of_null = deviances(x, null.rates(sizes), r)[held] * judged
        explained.append(1 - float(own.sum() / of_null.sum()))
        found.append(own + beyond_poisson(x, r)[held] * judged)
        tried.append(rank)
        before = decoder
        totals = [float(entries.sum()) for entries in found]
        if ranks is None and len(totals) - 1 - totals.index(min(totals)) >= PATIENCE:
            break
    best = found[totals.index(min(totals))]
    errors = [float((entries - best).std()) * math.sqrt(len(best)) / float(judged.sum()) for entries in found]
    return RankPath(tried, [total / float(judged.sum()) for total in totals], errors, explained)


@torch.no_grad()
def _continue(decoder: LinearLikelihood, before: LinearLikelihood) -> None:
    """Start a decoder from a fit of lower rank, whose weights it has, and from what its own start has beside them."""
    kept, started = before.affine.weight, decoder.affine.weight.clone()
    basis = torch.linalg.qr(kept.double()).Q.to(kept)
    left, sizes, _ = torch.linalg.svd(started - basis @ (basis.T @ started), full_matrices=False)
    more = decoder.latent_dim - before.latent_dim
    decoder.affine.weight[:, : before.latent_dim] = kept
    decoder.affine.weight[:, before.latent_dim :] = left[:, :more] * sizes[:more]
    decoder.affine.bias.copy_(before.affine.bias)
    decoder.likelihood.load_state_dict(before.likelihood.state_dict())  # type: ignore[attr-defined]
    if decoder.covariate_affine is not None and before.covariate_affine is not None:
        decoder.covariate_affine.weight.copy_(before.covariate_affine.weight)
