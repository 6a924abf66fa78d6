"""The end of a run: its figures, weights and pictures, and what the latents of a table come to."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import get_args

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders import CircuitDistribution, LinearDecoder, LinearLikelihood, StandardizedGaussian
from silentgrad.errors import IntractableError
from silentgrad.estimators import Exact
from silentgrad.evaluation import evaluating
from silentgrad.exactness import weakest
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Counts, Observations, Reals, Rows, SplitName
from silentgrad.lab.data.files import names_or_numbers
from silentgrad.lab.networks import NonlinearLikelihood
from silentgrad.lab.runs.baseline import baseline, simple_models
from silentgrad.lab.runs.evaluation import BATCH, seen
from silentgrad.lab.settings import ModelConfig, family_named
from silentgrad.lab.store.files import write_rows_atomically, write_tensors_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import (
    TRAVERSED,
    Evaluated,
    Factors,
    Run,
    RunPictures,
    Summary,
    named_loadings,
    write_pictures,
    write_record,
)
from silentgrad.lab.training.checkpoints import RunError
from silentgrad.lab.training.loop import Loop
from silentgrad.ppca import ppca_bound, principal_components

PICTURES, SAMPLES = 16, 64
MOVED = 6  # latents, in the traversals
POINTS = 5000  # rows on a picture of the latents


def limit(model: ModelConfig, observations: Observations) -> float | None:
    """Return the best figure on the test that any linear decoder of this variance could have, noise integrated out.

    Probabilistic PCA of the test examples themselves has it: fitted to other examples, it can be beaten on these.
    """
    if model.nonlinear or model.tractable != "fixed" or not observations.likelihoods or observations.mask is not None:
        return None
    # A learned Gaussian prior is a standard one with other weights; a mixture is not.
    if not family_named(model.latent).gaussian or model.prior == "mixture":
        return None
    noise, rows = observations.noise_deviation, observations.rows("test")
    examples = observations.centre(rows) if noise > 0 else observations.as_seen(rows)
    nats = ppca_bound(examples, model.latent_dim, model.variance)
    lost_to_noise = observations.event_shape.numel() * noise**2 / (2 * model.variance)
    return observations.figure(nats - lost_to_noise)


def _closed_form(vae: GuidedVAE, observations: Observations) -> str | None:
    """Return the exactness of the closed form that the model was trained with; None if there was none."""
    if vae.tractable is None or not isinstance(vae.tractable_estimator, Exact):
        return None
    with evaluating(vae), torch.no_grad():
        q = vae.encode(*seen(observations, observations.rows("test").between(0, 1), next(vae.parameters())))
    return weakest(vae.tractable.exactness(q), vae.prior_of(q).exactness).value


def summary_of(loop: Loop, model: ModelConfig, best_epoch: int, seconds: float, trained: Evaluated) -> Summary:
    """Return the final figures of a run, whose last evaluation is that of the test; `trained` is that of training."""
    observations, test = loop.observations, loop.evaluation
    figures = {own.name: getattr(test, own.name) for own in fields(Evaluated)}
    fixed = model.tractable == "fixed" and not model.nonlinear  # a variance that the model cannot learn
    return Summary(
        **figures | {"exactness": str(test.exactness)},
        training=trained.figure if trained.sampled is None else trained.sampled,
        limit=limit(model, observations),
        baseline=baseline(observations, model.variance if fixed else None),
        baselines=simple_models(observations),
        closed_form=_closed_form(loop.model, observations),
        seconds=round(seconds, 1),
        epochs=loop.train.epochs,
        best_epoch=best_epoch,
        training_examples=len(observations.train),
        test_examples=len(observations.test),
        parameters=sum(p.numel() for p in loop.model.parameters()),
    )


def finish(run: Run, model: GuidedVAE, observations: Observations) -> Run:
    """Write what only a finished run has, and return the run with it; the summary last, which says that it is finished.

    The model is that of the best epoch.
    """
    vae, place = model.cpu().eval(), RunFolder(run.folder)
    write_tensors_atomically(place.weights, vae.state_dict())
    if observations.pictured:
        found = pictures(vae, observations)
        write_pictures(place.pictures, found)
        run = replace(run, pictures=found)
    if isinstance(observations, Reals | Counts) or observations.labels is not None:
        run = replace(run, factors=factors_of(vae, observations))
        write_record(place.factors, run.factors)
    loadings = loadings_of(vae)
    if isinstance(observations, Reals | Counts) and loadings is not None:
        names = names_or_numbers(observations.columns, len(loadings))
        write_rows_atomically(place.loadings, rows_of(loadings, "column", names))
    write_record(place.summary, run.summary)
    return run


@torch.no_grad()
def pictures(vae: GuidedVAE, observations: Observations) -> RunPictures:
    """Make pictures of originals from the test split, their reconstructions, and samples from the prior."""
    if not observations.pictured:
        raise RunError(f"{observations.name} holds no images: there is nothing to make pictures of")
    rows = observations.rows("test").between(0, PICTURES)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        x = observations.as_seen(rows).to(next(vae.parameters()).dtype)
        q = vae.encoder(x)
        samples, reconstruction = generated(vae, SAMPLES), vae.decoder(q.sample())
        means, moved, stds = shown(reconstruction), None, None
    with contextlib.suppress(IntractableError):  # of outputs that see earlier ones, whose draws differ by more than z
        moved = traversals(vae, observations)
        # A picture of one fixed variance, or of none, would show nothing.
        if not (hasattr(vae.decoder, "variance") or isinstance(vae.decoder, LinearLikelihood | NonlinearLikelihood)):
            stds = reconstruction.stddev
    scale = observations.brightness
    made = {"originals": x, "means": means, "samples": samples, "stds": stds, "traversals": moved}
    return RunPictures(**{name: scale * images.float() for name, images in made.items() if images is not None})


def traversals(vae: GuidedVAE, observations: Observations) -> Tensor:
    """Decode images while one latent moves over its means, from the lowest to the highest, the others at their average.

    The latents are those whose means vary most, one after the other.
    """
    x = observations.as_seen(observations.rows("test").between(0, BATCH)).to(next(vae.parameters()).dtype)
    means = vae.encoder(x).mean.flatten(1)
    chosen = means.var(0, correction=0).topk(min(MOVED, means.shape[1])).indices
    z = means.mean(0).repeat(len(chosen), TRAVERSED, 1)
    for row, latent in zip(z, chosen, strict=True):
        low, high = means[:, latent].aminmax()
        row[:, latent] = torch.linspace(low, high, TRAVERSED)
    return vae.decoder(z.flatten(0, 1)).mean


def shown(decoded: td.Distribution) -> Tensor:
    """Return the mean of decoded examples; a sample of outputs that see earlier ones, which have no mean given z."""
    try:
        return decoded.mean
    except IntractableError:
        return decoded.sample()


def generated(vae: GuidedVAE, count: int, mean: bool = False) -> Tensor:
    """Return examples decoded from latents of the prior: means, or samples of a circuit, whose means are a blur."""
    decoded = vae.generate(count)
    if mean:
        return decoded.mean
    return decoded.sample() if isinstance(decoded, CircuitDistribution) else shown(decoded)


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
    return in_splits if observations.numbers is None else in_splits[torch.cat(observations.numbers).argsort()]


def names_in_order(observations: Observations, rows: int) -> Sequence[str]:
    """Return the names of all rows in the same order; numbers from 1 on if they have none."""
    if observations.row_names is None or observations.numbers is None:
        return names_or_numbers((), rows)
    named = zip(torch.cat(observations.numbers).tolist(), chain(*observations.row_names), strict=True)
    return [name for _, name in sorted(named)]


def factors_of(vae: GuidedVAE, observations: Observations) -> Factors:
    """Return the latents of rows: their principal components, and the columns that weigh most."""
    splits = [observations.rows(split) for split in get_args(SplitName)]
    total = sum(map(len, splits))
    # the first rows of each split, which are in no order, in equal shares
    shown = [rows.between(0, min(len(rows), -(-len(rows) * POINTS // total))) for rows in splits]
    means = torch.cat([latent_means(vae, observations, rows) for rows in shown])
    labels = [rows.labels for rows in shown if rows.labels is not None]
    loadings = loadings_of(vae)
    named, moves = [], means
    if loadings is not None and isinstance(observations, Reals | Counts):
        names = names_or_numbers(observations.columns, len(loadings))
        named = named_loadings(loadings, means.std(0, correction=0), names)
        moves = means @ torch.linalg.qr(loadings).R.T  # as far apart as the rows' u, however the latents are scaled
    points, shares = _principal(moves)
    numbers = torch.cat(labels).double().tolist() if labels else None
    return Factors(points, shares, numbers, list(observations.label_names), named)


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


def rows_of(numbers: Tensor, head: str, names: Iterable[str]) -> list[dict[str, object]]:
    """Return rows of a CSV: a name under the head, and a number for each latent."""
    latents = [f"latent {number}" for number in range(1, numbers.shape[1] + 1)]
    rows = zip(names, numbers.tolist(), strict=True)
    return [{head: name, **dict(zip(latents, own, strict=True))} for name, own in rows]
