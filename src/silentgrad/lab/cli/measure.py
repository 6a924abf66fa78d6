"""`silentgrad variance` and `silentgrad bias`."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from rich.progress import track
from rich.text import Text

from silentgrad.analysis import Bias, Decomposition, MethodName, gradient_bias, gradient_variance
from silentgrad.analysis.tally import FEWEST_BATCHES
from silentgrad.decoders import LinearPrecisionGaussian
from silentgrad.decoders.precision import Link, LogTerm
from silentgrad.estimators import Enumerate, Exact
from silentgrad.guided import GuidedVAE
from silentgrad.lab.cli.shared import console, next_folder, require_folder, require_output, show_table
from silentgrad.lab.experiments import paper
from silentgrad.lab.settings import ConfigError, Count, EstimatorName, Range, Seed, family_named
from silentgrad.lab.store.files import write_rows_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.tables import Column, Content, Table, WithError
from silentgrad.lab.training import DataConfig, ModelConfig, RunError, TrainConfig, load_run, read_config, train_model
from silentgrad.lab.training.loading import load_weights, observations_of
from silentgrad.lab.training.measuring import estimators_of, rows_of, training_batches

# The closed forms of each link, as the table names them
LOG_TERMS: dict[Link, dict[str, LogTerm]] = {
    "linear": {"taylor": "taylor", "edgeworth": "auto"},
    "exp": {"exact": "auto"},
}
LATENTS, EPOCHS = 10, 20  # of the models that `bias` trains


def variance(
    run: Path,
    checkpoint: Count | None = None,
    estimators: list[EstimatorName] | None = None,
    batches: Annotated[int, Range(FEWEST_BATCHES)] = 50,
    draws: Annotated[int, Range(2)] = 200,
    method: MethodName = "sketch",
    guided: bool = False,
    seed: Seed = 0,
    data: str | None = None,
    root: Path | None = None,
    output: Path | None = None,
) -> None:
    """Decompose the encoder's gradient variance into the batches' part and the latent draws', as the paper does.

    Args:
        run: Folder of the finished run.
        checkpoint: Number of an epoch that --train.keep kept, whose weights are measured; the run's own, which are
            those of its best epoch, if absent.
        estimators: Estimators to compare, by name or as package.module:Class, separated by commas; if absent, all of
            the paper's that the latents and the decoder allow.
        batches: Number of batches of training images, each of the run's batch size.
        draws: Number of draws of the latent for each batch.
        method: How to measure: sketch, or every for every draw's gradient, which is slower.
        guided: Whether to measure the guided objective of the checkpoint's epoch, instead of the nonlinear decoder's
            alone.
        seed: Seed of the batches and of the draws.
        data: Name or path of another dataset of the same shape; the run's own data if absent.
        root: Folder that holds the datasets; that of the run if absent.
        output: A .csv file to write the figures to; variance.csv in the run's folder if absent.
    """
    settings = read_config(run)
    path = output or RunFolder(run).variance
    require_output(path, ".csv")
    images = observations_of(settings, data, root)
    epoch = checkpoint or settings.train.epochs
    vae = load_run(run, images) if checkpoint is None else load_weights(run, RunFolder(run).kept(epoch), images)
    like = next(vae.parameters())
    chosen = (x.to(like) for x in training_batches(images, settings.data.batch_size, batches, seed))
    shown = track(chosen, "batches", batches, console=console, transient=True)
    measured = estimators_of(settings.model, estimators, epoch)
    found = gradient_variance(vae, shown, draws, measured, method, epoch=epoch if guided else None, seed=seed)
    write_rows_atomically(path, rows_of(found))
    show_table(variance_table(found))
    print(f"figures, and those of each layer: {path}")


def variance_table(found: dict[str, Decomposition]) -> Table:
    """Return the columns of the paper's table, each with its standard error, and three more; marks biased ones."""
    heads = ["estimator", "Batch Var", "Est Var", "Est %", "SNR"]
    # At equal cost, of two estimators the one with less work varies less.
    columns = [*map(Column, heads), Column("Est Var x evaluations"), Column("cosine to exact", 4)]
    rows: list[list[Content]] = []
    for name, own in found.items():
        parts = ("batch", "est", "est_percent", "snr")
        figures = [WithError(getattr(own, part), getattr(own.errors, part)) for part in parts]
        rows.append([name if own.unbiased else f"{name} (biased)", *figures, own.work, own.cosine])
    return Table("", columns, rows)


def bias(
    run: Path | None = None,
    data: DataConfig = DataConfig(),  # noqa: B008
    latents: Annotated[int, Range(1, Enumerate().largest)] = LATENTS,
    epochs: Count = EPOCHS,
    estimators: list[EstimatorName] | None = None,
    images: Count = 16,
    draws: Annotated[int, Range(2)] = 100_000,
    seed: Seed = 0,
    folder: Path | None = None,
) -> None:
    """Measure how far gradients are from the true one, which is found by enumerating Bernoulli latents.

    With no options: trains two small models on the embedded digits, with linear and exponential precision link, and
    compares their closed forms and estimators that sample with the enumerated gradient. About a minute on two cores.
    The paper does not say its images, latents, networks or epoch: only the order of its figures can be compared.

    Args:
        run: Folder of a run with few Bernoulli latents and learned precision, to be measured instead.
        data: The images to train on.
        latents: Number of latents of the two models; the enumeration has 2 to that power of terms.
        epochs: Number of epochs to train the two models before the measurement.
        estimators: Estimators beside the closed forms, by name or as package.module:Class, separated by commas;
            reinforce and gumbel-softmax if absent.
        images: Number of images in the measured batch.
        draws: Number of draws behind the mean gradients of estimators.
        seed: Seed of the training and of the draws.
        folder: Folder of the models and the figures; runs/bias-NUMBER, or the measured run's own, if absent.
    """
    runs = []
    if run is not None:
        if (data, latents, epochs) != (DataConfig(), LATENTS, EPOCHS):
            raise ConfigError(
                "--data, --latents and --epochs are for models that bias trains itself: leave them or --run out"
            )
        runs.append(run)
        folder = folder or run
    else:
        folder = folder or next_folder("bias")
        require_folder(folder)
        for link in LOG_TERMS:
            runs.append(_trained(folder / link, link, data, latents, epochs, seed))
    found: list[tuple[str, str, Bias]] = []
    for each in runs:
        with console.status(Text(f"enumerating {each}, drawing {draws:,} times")):
            tractable, names = read_config(each).model.decoders.tractable, estimators or ["reinforce", "gumbel-softmax"]
            for name, own in _biases(each, names, images, draws, seed).items():
                found.append((tractable, name, own))
    path = RunFolder(folder).bias
    write_rows_atomically(path, [{"link": of, "gradient": name, **asdict(own)} for of, name, own in found])
    heads = ("link", "gradient", "deviation", "of which draws", "% of the true gradient", "deviation (paper)")
    rows: list[list[Content]] = []
    for of, name, own in sorted(found, key=lambda measured: measured[2].deviation):
        rows.append([of, name, own.deviation, own.noise, 100 * own.relative, paper.BIAS.get(name)])
    show_table(Table("", list(map(Column, heads)), rows))
    print(f"figures: {path}")


def _biases(run: Path, names: Sequence[EstimatorName], count: int, draws: int, seed: int) -> dict[str, Bias]:
    """Return how far gradients of a run are from the true one, by the estimator or closed form."""
    config = read_config(run)
    images = observations_of(config)
    found = load_run(run, images)
    decoder = copy.copy(found.tractable)
    if not isinstance(decoder, LinearPrecisionGaussian) or not Enumerate.suits(family_named(config.model.latent)):
        raise RunError(
            f"the model in {run} has to have Bernoulli latents or categories, and a linear decoder of learned precision"
        )
    vae = GuidedVAE(found.encoder, found.tractable, kl_weight=found.kl_weight, prior=found.prior).double()
    x = next(training_batches(images, count, 1, seed)).double()
    variant = GuidedVAE(vae.encoder, decoder, kl_weight=vae.kl_weight, prior=vae.prior)
    measured: dict[str, Bias] = {}
    for name, log_term in LOG_TERMS[decoder.link].items():
        decoder.log_term = log_term
        measured |= gradient_bias(variant, x, {f"silent, {name}": Exact(allow_approximation=True)})
    sampled = dict(zip(names, estimators_of(config.model, names, epoch=1), strict=True))
    return measured | gradient_bias(vae, x, sampled, draws, seed)


def _trained(folder: Path, link: Link, data: DataConfig, latents: int, epochs: int, seed: int) -> Path:
    model = ModelConfig(latent="bernoulli", latent_dim=latents, tractable=link, nonlinear=False, estimator="exact")
    if link == "linear":
        model = replace(model, log_term="taylor")
    train_model(data, model, TrainConfig(epochs=epochs, seed=seed), folder)
    return folder
