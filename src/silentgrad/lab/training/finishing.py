"""What a run leaves when its last epoch is done: its figures, its weights and its pictures."""

from pathlib import Path

import torch
from torch import Tensor

from silentgrad.decoders import CircuitDistribution, LinearLikelihood
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Counts, Observations, Reals, SplitName
from silentgrad.lab.networks import NonlinearBernoulli
from silentgrad.lab.runs.baseline import baseline
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.pictures import RunPictures
from silentgrad.lab.runs.records import (
    write_factors,
    write_pictures,
    write_rows_atomically,
    write_summary,
    write_tensors_atomically,
)
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.latents import column_names, factors_of, loading_rows, loadings_of
from silentgrad.lab.training.loop import TrainingPlan
from silentgrad.lab.training.saving import RunError
from silentgrad.lab.training.suitable import family_named
from silentgrad.ppca import ppca_bound

PICTURES, SAMPLES = 16, 64


def limit(model: ModelConfig, observations: Observations) -> float | None:
    """The figure that no encoder can beat, where probabilistic PCA says so, with noise integrated out."""
    if model.nonlinear or model.tractable != "fixed" or not observations.likelihoods:
        return None
    if observations.mask is not None:
        return None
    # A learned Gaussian prior is a standard one with other weights; a mixture is not.
    if not family_named(model.latent).gaussian or model.prior == "mixture":
        return None
    noise = observations.noise_deviation
    train, test = _without_noise(observations, "train"), _without_noise(observations, "test")
    nats = ppca_bound(train, model.latent_dim, model.variance, test)
    lost_to_noise = observations.event_shape.numel() * noise**2 / (2 * model.variance)
    return observations.figure(nats - lost_to_noise)


def _without_noise(observations: Observations, split: SplitName) -> Tensor:
    """The examples of a split; where the model sees them with noise, their centres."""
    rows = observations.rows(split)
    if observations.noise_deviation > 0:
        return observations.centre(rows)
    return observations.as_seen(rows)


def _closed_form(vae: GuidedVAE, observations: Observations) -> str | None:
    """What the closed form that the model was trained with is for its latents; None if it has none."""
    if vae.tractable is None:
        return None
    row = observations.rows("test").between(0, 1)
    with evaluating(vae), torch.no_grad():
        x = observations.as_seen(row, torch.Generator().manual_seed(0)).to(next(vae.parameters()))
        q = vae.encode(x, row.beside.to(x))
    return vae.tractable.exactness(q).value


def summary_of(plan: TrainingPlan, model: ModelConfig, best_epoch: int, seconds: float) -> Summary:
    """The final figures of a run; the plan's last evaluation is that of the test."""
    observations, test = plan.observations, plan.evaluation
    return Summary(
        unit=test.unit,
        figure=test.figure,
        metrics=test.metrics,
        kld=test.kld,
        active=test.active,
        exactness=str(test.exactness),
        sampled=test.sampled,
        limit=limit(model, observations),
        baseline=baseline(observations),
        closed_form=_closed_form(plan.model, observations),
        seconds=round(seconds, 1),
        epochs=plan.config.epochs,
        best_epoch=best_epoch,
        training_examples=len(observations.train),
        test_examples=len(observations.test),
        parameters=sum(p.numel() for p in plan.model.parameters()),
    )


def finish(folder: Path, model: GuidedVAE, observations: Observations, summary: Summary) -> None:
    """Writes what only a finished run has; the summary last, which says that it is finished."""
    vae = model.cpu().eval()
    run = RunFolder(folder)
    write_tensors_atomically(run.weights, vae.state_dict())
    if observations.pictured:
        write_pictures(run.pictures, pictures(vae, observations))
    if isinstance(observations, Reals | Counts):
        write_factors(run.factors, factors_of(vae, observations))
        loadings = loadings_of(vae)
        if loadings is not None:
            write_rows_atomically(run.loadings, loading_rows(loadings, column_names(observations)))
    write_summary(run.summary, summary)


@torch.no_grad()
def pictures(vae: GuidedVAE, observations: Observations) -> RunPictures:
    """Originals from the test split, their reconstructions, and samples from the prior.

    Raises:
        RunError: The observations are no images.
    """
    if not observations.pictured:
        raise RunError(f"{observations.name} holds no images: there is nothing to make pictures of")
    rows = observations.rows("test").between(0, PICTURES)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        x = observations.as_seen(rows).to(next(vae.parameters()).dtype)
        q = vae.encoder(x)
        samples, reconstruction = generated(vae, SAMPLES), vae.decoder(q.sample())
    stds = None
    if not plain(vae):
        stds = reconstruction.stddev.float()
    return RunPictures(x.float(), reconstruction.mean.float(), stds, samples.float())


def generated(vae: GuidedVAE, count: int) -> Tensor:
    """Examples decoded from latents of the prior: their means or, of a circuit, whose means are a blur, samples."""
    decoded = vae.generate(count)
    if isinstance(decoded, CircuitDistribution):
        return decoded.sample()
    return decoded.mean


def plain(vae: GuidedVAE) -> bool:
    """Whether the decoder has one fixed variance, or none, so that a picture of it would show nothing."""
    return hasattr(vae.decoder, "variance") or isinstance(vae.decoder, LinearLikelihood | NonlinearBernoulli)
