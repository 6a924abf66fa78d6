"""`silentgrad variance` and `silentgrad bias`."""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.progress import track
from rich.table import Column, Table

from silentgrad.analysis import Bias, Decomposition, MethodName, gradient_bias, gradient_variance, log_term_bias
from silentgrad.analysis.variance import FEWEST_BATCHES
from silentgrad.decoders.precision import Link
from silentgrad.estimators import Enumerate, GumbelSoftmax, Reinforce
from silentgrad.guided import GuidedVAE
from silentgrad.lab.cli.console import console, say, verbatim
from silentgrad.lab.cli.options import next_folder, require_folder, require_output
from silentgrad.lab.reports.rounding import with_error
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_rows_atomically
from silentgrad.lab.training import DataConfig, ModelConfig, RunError, TrainConfig, load_run, read_config, train_model
from silentgrad.lab.training.checkpoints import load_checkpoint
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.measuring import Row, estimators_of, rows_of, training_batches
from silentgrad.lab.training.ranges import COUNT, SEED, ConfigError, Range, require
from silentgrad.lab.training.suitable import EstimatorName, family_named

LINKS: tuple[Link, ...] = ("linear", "exp")
LATENTS, EPOCHS = 10, 20  # of the models that `bias` trains


def variance(
    run: Path,
    checkpoint: str = "finished",
    estimators: list[EstimatorName] | None = None,
    batches: int = 50,
    draws: int = 200,
    method: MethodName = "sketch",
    guided: bool = False,
    seed: int = 0,
    data: str | None = None,
    root: Path | None = None,
    output: Path | None = None,
) -> None:
    """Decomposes the encoder's gradient variance into the batches' part and the latent draws', as the paper does.

    Args:
        run: Folder of the finished run.
        checkpoint: Weights to measure: finished, last, best, the number of a kept epoch, or a file.
        estimators: Estimators to compare, separated by commas; if absent, all of the paper's that the latents and the
            decoder allow.
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
    require("--batches", batches, Range(FEWEST_BATCHES))  # fewer have no standard error
    require("--draws", draws, Range(2))
    require("--seed", seed, SEED)
    settings = read_config(run)
    path = output or RunFolder(run).variance
    require_output(path, ".csv")
    images = observations_of(settings, data, root)
    vae, epoch = load_checkpoint(run, checkpoint, images)
    like = next(vae.parameters())
    chosen = (x.to(like) for x in training_batches(images, settings.data.batch_size, batches, seed))
    shown = track(chosen, "batches", batches, console=console, transient=True)
    measured = estimators_of(settings.model, estimators, epoch)
    guided_epoch = None
    if guided:
        guided_epoch = epoch
    found = gradient_variance(vae, shown, draws, measured, method, epoch=guided_epoch, seed=seed)
    write_rows_atomically(path, rows_of(found))
    console.print(variance_table(found))
    say(f"figures, and those of each layer: {path}")


def variance_table(found: dict[str, Decomposition]) -> Table:
    """The columns of the paper's table, each with its standard error, and three more."""
    work = "Est Var x evaluations"  # at equal cost, of two estimators the one with less of it varies less
    table = Table(Column("estimator", no_wrap=True), "Batch Var", "Est Var", "Est %", "SNR", work, "cosine to exact")
    for name, d in found.items():
        cosine = ""
        if d.cosine is not None:
            cosine = f"{d.cosine:.4f}"
        table.add_row(
            name,
            with_error(d.batch, d.errors.batch),
            with_error(d.est, d.errors.est),
            with_error(d.est_percent, d.errors.est_percent),
            with_error(d.snr, d.errors.snr),
            f"{d.work:.3g}",
            cosine,
        )
    return table


def bias(
    run: Path | None = None,
    data: DataConfig = DataConfig(),  # noqa: B008
    latents: int = LATENTS,
    epochs: int = EPOCHS,
    images: int = 16,
    draws: int = 100_000,
    seed: int = 0,
    folder: Path | None = None,
) -> None:
    """Measures how far gradients are from the true one, which is found by enumerating Bernoulli latents.

    With no options: trains two small models on the embedded digits, with linear and exponential precision link, and
    compares their closed forms, REINFORCE and Gumbel-Softmax with the enumerated gradient. About a minute on two cores.

    Args:
        run: Folder of a run with few Bernoulli latents and learned precision, to be measured instead.
        data: The images to train on.
        latents: Number of latents of the two models; the enumeration has 2 to that power of terms.
        epochs: Number of epochs to train the two models before the measurement.
        images: Number of images in the measured batch.
        draws: Number of draws behind the mean gradients of REINFORCE and Gumbel-Softmax.
        seed: Seed of the training and of the draws.
        folder: Folder of the models and the figures; runs/bias-NUMBER, or the measured run's own, if absent.
    """
    require("--latents", latents, Range(1, Enumerate().largest))
    require("--epochs", epochs, COUNT)
    require("--images", images, COUNT)
    require("--draws", draws, Range(2))
    require("--seed", seed, SEED)
    runs = []
    if run is not None:
        _require_no_training(data, latents, epochs)
        runs.append(run)
        folder = folder or run
    else:
        folder = folder or next_folder("bias")
        require_folder(folder)
        for link in LINKS:
            runs.append(_trained(folder / link, link, data, latents, epochs, seed))
    found: list[MeasuredBias] = []
    for each in runs:
        with console.status(verbatim(f"enumerating {each}, drawing {draws:,} times")):
            found += _biases(each, images, draws, seed)
    path = RunFolder(folder).bias
    write_rows_atomically(path, [measured.row() for measured in found])
    console.print(bias_table(found))
    say(f"figures: {path}")


class MeasuredBias(NamedTuple):
    """How far a gradient of a run is from the true one.

    Args:
        link: The run's precision link, or `fixed`.
        gradient: The estimator, or the closed form.
        bias: How far it is off.
    """

    link: str
    gradient: str
    bias: Bias

    def row(self) -> Row:
        """The row of the file."""
        return {"link": self.link, "gradient": self.gradient, **asdict(self.bias)}


def bias_table(found: list[MeasuredBias]) -> Table:
    """Deviations, the smallest first."""
    table = Table("link", "gradient", "deviation", "of which draws", "of the true gradient")
    for link, gradient, bias in sorted(found, key=lambda measured: measured.bias.deviation):
        share = f"{100 * bias.relative:.3g} %"
        table.add_row(link, gradient, f"{bias.deviation:.3g}", f"{bias.noise:.3g}", share)
    return table


def _require_no_training(data: DataConfig, latents: int, epochs: int) -> None:
    """Refuses options of the two models where a run is measured instead of them."""
    if (data, latents, epochs) != (DataConfig(), LATENTS, EPOCHS):
        raise ConfigError(
            "--data, --latents and --epochs are for models that bias trains itself: leave them or --run out"
        )


def _trained(folder: Path, link: Link, data: DataConfig, latents: int, epochs: int, seed: int) -> Path:
    model = ModelConfig(
        latent="bernoulli", latent_dim=latents, tractable=link, log_term="taylor", nonlinear=False, estimator="exact"
    )
    train_model(data, model, TrainConfig(epochs=epochs, seed=seed), folder)
    return folder


def _biases(run: Path, count: int, draws: int, seed: int) -> list[MeasuredBias]:
    config = read_config(run)
    images = observations_of(config)
    found = load_run(run, images)
    if found.tractable is None or not Enumerate.suits(family_named(config.model.latent)):
        raise RunError(f"the model in {run} has to have Bernoulli latents or categories, and a linear decoder")
    vae = GuidedVAE(found.encoder, found.tractable, kl_weight=found.kl_weight, prior=found.prior).double()
    x = next(training_batches(images, count, 1, seed)).double()
    link = config.model.decoders.tractable
    biases = []
    for term, value in log_term_bias(vae, x).items():
        biases.append(MeasuredBias(link, f"silent, {term}", value))
    sampled = {"REINFORCE": Reinforce(), "Gumbel-Softmax": GumbelSoftmax(config.model.temperature)}
    for name, value in gradient_bias(vae, x, sampled, draws, seed).items():
        biases.append(MeasuredBias(link, name, value))
    return biases
