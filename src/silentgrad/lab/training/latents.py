"""Latents of rows, and what those of a table come to: principal components, and the columns that weigh most."""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from silentgrad.decoders import LinearDecoder, StandardizedGaussian
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Counts, Observations, Reals, Rows, SplitName
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.factors import Factors, Loading, Weighted
from silentgrad.ppca import principal_components

BATCH = 250
POINTS = 5000  # rows on a picture of the latents
NAMED = 10  # columns that rise most with a latent, and that fall most


@torch.no_grad()
def latent_means(vae: GuidedVAE, observations: Observations, rows: Rows) -> Tensor:
    """The mean of the latents of each row, `(rows, latents)`."""
    like = next(vae.parameters())
    means = []
    with evaluating(vae):
        for start in range(0, len(rows), BATCH):
            batch = rows.between(start, start + BATCH).to(like.device)
            generator = torch.Generator(like.device).manual_seed(0)
            x = observations.as_seen(batch, generator).to(like)
            means.append(vae.encode(x, batch.beside.to(x)).mean.flatten(1))
    return torch.cat(means)


def latents_in_order(vae: GuidedVAE, observations: Observations) -> Tensor:
    """The latents of all rows in the order of their file; without a file, of the splits one after the other."""
    means = []
    for split in get_args(SplitName):
        means.append(latent_means(vae, observations, observations.rows(split)))
    in_splits = torch.cat(means)
    if observations.numbers is None:
        return in_splits
    in_order = torch.empty_like(in_splits)
    in_order[torch.cat(observations.numbers)] = in_splits
    return in_order


def factors_of(vae: GuidedVAE, observations: Reals | Counts) -> Factors:
    """What the latents of a table come to."""
    shown = list(_shown(observations))
    means = torch.cat([latent_means(vae, observations, rows) for rows in shown])
    labels = None
    if observations.labels is not None:
        of_rows = torch.cat([rows.labels for rows in shown if rows.labels is not None])
        labels = of_rows.double().tolist()
    loadings = loadings_of(vae)
    named, moves = [], means
    if loadings is not None:
        named = _named(loadings, means.std(0, correction=0), column_names(observations))
        moves = means @ torch.linalg.qr(loadings).R.T  # as far apart as the rows' u, however the latents are scaled
    points, shares = _principal(moves)
    return Factors(points, shares, labels, list(observations.label_names), named)


def _shown(observations: Observations) -> Iterator[Rows]:
    """The rows that a picture shows: the first of each split, which are in no order, in equal shares."""
    splits = [observations.rows(split) for split in get_args(SplitName)]
    total = sum(map(len, splits))
    for rows in splits:
        yield rows.between(0, min(len(rows), -(-len(rows) * POINTS // total)))


def _principal(means: Tensor) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """The first two principal components of the rows, and their shares of the variance; of one latent, one."""
    components = principal_components(means)
    directions = components.directions[:, :2]
    centred = means.double() - components.mean
    points = torch.nn.functional.pad(centred @ directions, (0, 2 - directions.shape[1]))
    shares = components.variances / components.variances.sum().clamp(min=torch.finfo(torch.float64).tiny)
    first, second = torch.nn.functional.pad(shares[:2], (0, 2 - len(shares[:2]))).tolist()
    return [(across, up) for across, up in points.tolist()], (first, second)


def loadings_of(vae: GuidedVAE) -> Tensor | None:
    """What each latent adds to u per unit, `(columns, latents)`; None unless a linear decoder is the model.

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
    """The names of a table's columns; numbers from 1 on if they have none."""
    if observations.columns:
        return observations.columns
    return [str(number) for number in range(1, observations.event_shape.numel() + 1)]


def loading_rows(loadings: Tensor, names: Sequence[str]) -> list[dict[str, object]]:
    """The rows of `loadings.csv`, one per column of the table."""
    rows: list[dict[str, object]] = []
    for name, weights in zip(names, loadings.tolist(), strict=True):
        row: dict[str, object] = {"column": name}
        for number, weight in enumerate(weights, start=1):
            row[f"latent {number}"] = weight
        rows.append(row)
    return rows


def _named(loadings: Tensor, deviations: Tensor, names: Sequence[str]) -> list[Loading]:
    spreads = deviations * loadings.norm(dim=0)
    named = []
    for latent in spreads.argsort(descending=True).tolist():
        weights = loadings[:, latent]
        named.append(Loading(latent + 1, spreads[latent].item(), _most(weights, names), _most(-weights, names, -1)))
    return named


def _most(weights: Tensor, names: Sequence[str], sign: int = 1) -> list[Weighted]:
    """The columns of the largest weights, with these or, by the sign, their opposites."""
    largest = weights.topk(min(NAMED, len(weights)))
    most = []
    for weight, place in zip(largest.values.tolist(), largest.indices.tolist(), strict=True):
        if weight > 0:
            most.append((names[place], sign * weight))
    return most
