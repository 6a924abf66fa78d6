"""Latents of rows, and what those of a table come to: principal components, and the columns that weigh most."""

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from silentgrad.decoders import LinearDecoder, StandardizedGaussian
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Counts, Observations, Reals, Rows, SplitName
from silentgrad.lab.runs.evaluation import evaluating, seen
from silentgrad.lab.store.records import Factors, Loading, Weighted
from silentgrad.ppca import principal_components

BATCH = 250
POINTS = 5000  # rows on a picture of the latents
NAMED = 10  # columns that rise most with a latent, and that fall most


@torch.no_grad()
def latent_means(vae: GuidedVAE, observations: Observations, rows: Rows) -> Tensor:
    means = []
    with evaluating(vae):
        for start in range(0, len(rows), BATCH):
            batch = seen(observations, rows.between(start, start + BATCH), next(vae.parameters()))
            means.append(vae.encode(*batch).mean.flatten(1))
    return torch.cat(means)


def latents_in_order(vae: GuidedVAE, observations: Observations) -> Tensor:
    """Return the latents of all rows in the order of their file; without a file, of the splits one after the other."""
    in_splits = torch.cat([latent_means(vae, observations, observations.rows(name)) for name in get_args(SplitName)])
    if observations.numbers is None:
        return in_splits
    in_order = torch.empty_like(in_splits)
    in_order[torch.cat(observations.numbers)] = in_splits
    return in_order


def factors_of(vae: GuidedVAE, observations: Observations) -> Factors:
    """Return the latents of rows: their principal components, and the columns that weigh most."""
    splits = [observations.rows(split) for split in get_args(SplitName)]
    total = sum(map(len, splits))
    # the first rows of each split, which are in no order, in equal shares
    shown = [rows.between(0, min(len(rows), -(-len(rows) * POINTS // total))) for rows in splits]
    means = torch.cat([latent_means(vae, observations, rows) for rows in shown])
    labels = None
    if observations.labels is not None:
        labels = torch.cat([rows.labels for rows in shown if rows.labels is not None]).double().tolist()
    loadings = loadings_of(vae)
    named, moves = [], means
    if loadings is not None and isinstance(observations, Reals | Counts):
        named = _named(loadings, means.std(0, correction=0), column_names(observations))
        moves = means @ torch.linalg.qr(loadings).R.T  # as far apart as the rows' u, however the latents are scaled
    points, shares = _principal(moves)
    return Factors(points, shares, labels, list(observations.label_names), named)


def _principal(means: Tensor) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Return the first two principal components of the rows, and their shares of the variance; of one latent, one."""
    means = torch.nn.functional.pad(means, (0, 1))  # so that there are two at least
    components = principal_components(means)
    points = (means.double() - components.mean) @ components.directions[:, :2]
    shares = components.variances / components.variances.sum().clamp(min=torch.finfo(torch.float64).tiny)
    first, second, *_ = shares.tolist()
    return [(across, up) for across, up in points.tolist()], (first, second)


def loadings_of(vae: GuidedVAE) -> Tensor | None:
    """Return what each latent adds to u per unit, `(columns, latents)`; None unless a linear decoder is the model.

    For Gaussian decoders u is the mean of x as the model sees it: of standardized columns.
    """
    decoder = vae.tractable
    if vae.nonlinear is not None or not isinstance(decoder, LinearDecoder):
        return None
    weight = decoder.affine.weight.detach()
    if isinstance(decoder, StandardizedGaussian):
        return decoder.scale.detach().unsqueeze(1) * weight
    return weight


def column_names(observations: Reals | Counts) -> Sequence[str]:
    """Return the names of a table's columns; numbers from 1 on if they have none."""
    if observations.columns:
        return observations.columns
    return [str(number) for number in range(1, observations.event_shape.numel() + 1)]


def loading_rows(loadings: Tensor, names: Sequence[str]) -> list[dict[str, object]]:
    latents = [f"latent {number}" for number in range(1, loadings.shape[1] + 1)]
    rows = zip(names, loadings.tolist(), strict=True)
    return [{"column": name, **dict(zip(latents, weights, strict=True))} for name, weights in rows]


def _named(loadings: Tensor, deviations: Tensor, names: Sequence[str]) -> list[Loading]:
    spreads = deviations * loadings.norm(dim=0)
    named = []
    for latent in spreads.argsort(descending=True).tolist():
        weights = loadings[:, latent]
        named.append(Loading(latent + 1, spreads[latent].item(), _most(weights, names), _most(-weights, names, -1)))
    return named


def _most(weights: Tensor, names: Sequence[str], sign: int = 1) -> list[Weighted]:
    """Return the columns of the largest weights, with these or, by the sign, their opposites."""
    largest = (part.tolist() for part in weights.topk(min(NAMED, len(weights))))
    return [(names[place], sign * weight) for weight, place in zip(*largest, strict=True) if weight > 0]
