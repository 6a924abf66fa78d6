"""A training run from start to finish: a folder with everything about it."""

import contextlib
import errno
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from silentgrad.decoders import Circuit, LinearDecoder, LinearLikelihood
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, kind_of, mixed
from silentgrad.lab.data.module import ObservationData
from silentgrad.lab.networks import NonlinearCircuit, NonlinearLikelihood
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_summary
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.annealing import variance_schedule
from silentgrad.lab.training.build import model_for
from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.finishing import finish, summary_of
from silentgrad.lab.training.folder import is_finished, make_folder, prepare_resuming
from silentgrad.lab.training.loop import TrainingPlan
from silentgrad.lab.training.machine import require_machine, require_shares
from silentgrad.lab.training.measuring import GradientVarianceLog, require_alone
from silentgrad.lab.training.progress import StepsBar
from silentgrad.lab.training.recorder import Keeper, Recorder
from silentgrad.lab.training.saving import AtomicCheckpointIO, Checkpoints, RunError, model_weights, read_checkpoint

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
START_ROWS = 10_000
START_ENTRIES = 2**25  # in those rows together, which are dense
TOGETHER = 16  # batches per step of Lightning's loop, whose hooks cost about a millisecond


def train_model(
    data: DataConfig,
    model: ModelConfig,
    train: TrainConfig,
    folder: Path,
    resume: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
    observations: Observations | None = None,
) -> Summary:
    """Trains a model and leaves a run's folder, whose figures are those of the epoch that was best in validation.

    Args:
        data: Which data.
        model: Which model.
        train: How to train.
        folder: Where the run goes; it must not exist, unless `resume`.
        resume: Go on from the last finished epoch of the run in `folder`; of a finished run nothing is changed.
        quiet: No progress bar.
        callbacks: More of Lightning's callbacks.
        observations: What to train on, instead of what `data` names.

    Returns:
        The final figures, as in the folder's `summary.json`.
    """
    if resume and is_finished(folder):
        return read_summary(RunFolder(folder).summary)
    if observations is not None:
        data = replace(data, name=observations.name)
    settings = _resolved(Settings(data, model, train), observations)
    settings.validate()
    model, train = settings.model, settings.train
    require_machine(train)
    source = _source(settings, observations)
    require_shares(settings, source.observations)
    if train.variance_every:
        require_alone(source.observations)
    torch.manual_seed(mixed(train.seed, 0))
    vae = model_for(model, source.observations, train.epochs)
    logger = _logger(train, folder)
    recorder = Recorder(folder, source.observations.unit.metric)  # whose clock runs while decoders start from data
    # Only now, so that what cannot be trained leaves no folder behind.
    checkpoint = _prepare(folder, settings, vae, source, resume)
    plan = TrainingPlan(vae, train, source.observations, variance_schedule(model))
    checkpoints = Checkpoints(folder)
    with _without_known_remarks(), _failures_in_users_terms(folder):
        trainer = _trainer(train, model, folder, quiet, [recorder, *callbacks, checkpoints], logger)
        trainer.fit(plan, datamodule=source, ckpt_path=checkpoint, weights_only=True)
        vae.load_state_dict(model_weights(read_checkpoint(checkpoints.best)))
        trainer.test(plan, datamodule=source, verbose=False)
        summary = summary_of(plan, model, checkpoints.best_epoch, recorder.seconds)
        if trainer.is_global_zero:
            finish(folder, plan.model, source.observations, summary)
    return summary


def _resolved(settings: Settings, observations: Observations | None) -> Settings:
    """The settings with what was left open chosen by the data."""
    if observations is None:
        return settings.resolved(kind_of(settings.data.name, settings.data.kind).likelihoods)
    return settings.resolved(observations.likelihoods)


def _source(settings: Settings, observations: Observations | None) -> ObservationData:
    """The data, loaded unless they are there."""
    data, _, train = settings
    # One at a time with several processes: their gradients are averaged once per step of Lightning's loop.
    together = 1
    if train.devices == 1:
        together = TOGETHER
    source = ObservationData(
        data.name, data.root, data.batch_size, train.seed, together, data.kind, data.selection, observations
    )
    source.setup()
    return source


def _prepare(folder: Path, settings: Settings, vae: GuidedVAE, source: ObservationData, resume: bool) -> Path | None:
    """Makes the run's folder, or looks for the checkpoint from which to go on; without one, the model starts anew."""
    checkpoint = None
    if resume:
        checkpoint = prepare_resuming(folder, vae, source)
    else:
        make_folder(folder, settings)
    if checkpoint is None:
        _start_from_data(vae, settings.model, source.observations, settings.train.seed)
    return checkpoint


def _start_from_data(vae: GuidedVAE, model: ModelConfig, observations: Observations, seed: int) -> None:
    """The start of the decoders that have one; a part of the training rows is enough for it."""
    starts = vae.tractable is not None and model.starts_from != "random"
    if not starts and not isinstance(vae.nonlinear, NonlinearCircuit | NonlinearLikelihood):
        return
    fitting = START_ENTRIES // observations.event_shape.numel()
    rows = observations.rows("train").between(0, min(START_ROWS, fitting))
    x = observations.as_seen(rows, torch.Generator().manual_seed(mixed(seed, 0, 0))).float()
    beside = rows.beside.to(x)
    if isinstance(vae.nonlinear, NonlinearLikelihood):
        vae.nonlinear.init_from_data(x, beside.offset, beside.mask)
    if isinstance(vae.nonlinear, NonlinearCircuit):
        vae.nonlinear.init_from_data(x)
    if starts and isinstance(vae.tractable, Circuit):
        vae.tractable.init_from_data(x)
    if starts and isinstance(vae.tractable, LinearDecoder):
        assert vae.prior is not None
        if isinstance(vae.tractable, LinearLikelihood):
            of_rows = {"offset": beside.offset, "mask": beside.mask}
            vae.tractable.init_from_data(x, model.starts_from, vae.prior(), **of_rows)
        else:
            vae.tractable.init_from_data(x, model.starts_from, vae.prior())


@contextlib.contextmanager
def _failures_in_users_terms(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "put that right"
        if error.errno in NO_ROOM:
            remedy = "make room"
        raise RunError(
            f"cannot write to {error.filename or folder}: {error.strerror or error}. All epochs up to the last "
            f"checkpoint are safe: {remedy}, then go on with --folder {folder} --resume true"
        ) from error
    except SystemExit as stop:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from stop


def _strategy(train: TrainConfig, model: ModelConfig) -> str:
    """How processes share the work, in Lightning's words.

    A guide that has given way, and an encoder that is frozen, have parameters that take no part in the loss. To look
    for them costs time at every step, so it is done only where there are such.
    """
    if train.devices == 1:
        return "auto"
    if model.cutoff is not None or model.decoders.guided:
        return "ddp_find_unused_parameters_true"
    return "ddp"


def _trainer(
    train: TrainConfig, model: ModelConfig, folder: Path, quiet: bool, more: Sequence[Callback], logger: Logger | bool
) -> lightning.Trainer:
    callbacks: list[Callback] = [Keeper(folder, train.keep), *more]
    if train.variance_every:
        callbacks.append(GradientVarianceLog(folder, train.variance_every))
    if not quiet:
        callbacks.append(StepsBar())
    return lightning.Trainer(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy=_strategy(train, model),
        precision=train.precision,
        max_epochs=train.epochs,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
        logger=logger,
        enable_progress_bar=False,  # its own, which counts the steps of its loop
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )


def _logger(train: TrainConfig, folder: Path) -> Logger | bool:
    if not train.tensorboard:
        return False
    try:
        return TensorBoardLogger(folder, name="tensorboard", version="")
    except ModuleNotFoundError as error:
        raise RunError("--train.tensorboard needs an extra: pip install 'silentgrad[tensorboard]'") from error


@contextlib.contextmanager
def _without_known_remarks() -> Iterator[None]:
    """Silences what Lightning says about things that are meant: no worker processes, resuming, its advertisements."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for remark in ("does not have many workers", "Checkpoint directory", "LeafSpec", "logging interval"):
            warnings.filterwarnings("ignore", f".*{remark}.*")
        try:
            yield
        finally:
            log.setLevel(level)
