"""A training run from start to finish: a folder with everything about it."""

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch import distributions as td

from silentgrad.data import ImageData, Images, dequantise
from silentgrad.errors import DomainError, SilentgradError
from silentgrad.models import GuidedVAE
from silentgrad.networks import prior_of
from silentgrad.ppca import ppca_bound
from silentgrad.records import write_atomically, write_json_atomically, write_tensors_atomically
from silentgrad.training.build import build_model, variance_schedule
from silentgrad.training.config import DataConfig, ModelConfig, Settings, TrainConfig, read_settings
from silentgrad.training.loop import ADVICE, JUDGED, DivergedError, TrainingPlan, mixed
from silentgrad.training.machine import require_machine, require_shares
from silentgrad.training.measuring import GradientVarianceLog
from silentgrad.training.recorder import Keeper, Recorder, environment
from silentgrad.training.weights import dtype_of, fill

PICTURES, SAMPLES = 16, 64
TOGETHER = 16  # batches per step of Lightning's loop, whose hooks cost about a millisecond


class RunError(SilentgradError):
    """A run's folder is not what it has to be."""


def train_model(
    data: DataConfig,
    model: ModelConfig,
    train: TrainConfig,
    folder: Path,
    resume: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Trains a model and leaves a run's folder, whose figures are those of the epoch with the best validation BPD.

    Args:
        data: Which images.
        model: Which model.
        train: How to train.
        folder: Where the run goes; it must not exist, unless `resume`.
        resume: Go on from the last finished epoch of the run in `folder`.
        quiet: No progress bar.
        callbacks: More of Lightning's callbacks.

    Returns:
        The summary, as in the folder's `summary.json`.
    """
    settings = Settings(data, model, train)
    settings.validate()
    require_machine(train)
    # One at a time with several processes: their gradients are averaged once per step of Lightning's loop.
    together = TOGETHER if train.devices == 1 else 1
    images = ImageData(data.name, data.root, data.batch_size, train.seed, together)
    images.setup()
    require_shares(settings, images.images)
    torch.manual_seed(mixed(train.seed, 0))
    vae = build_model(model, images.images.event_shape, images.images.levels)
    logger = _logger(train, folder)
    # Only now, so that what cannot be trained leaves no folder behind.
    checkpoint = _prepare(folder, settings, resume)
    if checkpoint is None:
        _start_from_data(vae, model, images.images, train.seed)
    plan = TrainingPlan(vae, train, images.images.levels, variance_schedule(model))
    start = time.perf_counter()
    with _without_known_remarks():
        trainer = _trainer(train, folder, quiet, callbacks, logger)
        with _failures_in_users_terms(plan, folder):
            trainer.fit(plan, datamodule=images, ckpt_path=checkpoint, weights_only=True)
        plan.iwae_samples = train.iwae_samples
        trainer.test(plan, datamodule=images, verbose=False, ckpt_path=_best(folder), weights_only=True)
    if trainer.is_global_zero:
        _finish(folder, plan, images.images, model, time.perf_counter() - start)
    return plan.figures


def _start_from_data(vae: GuidedVAE, model: ModelConfig, images: Images, seed: int) -> None:
    """The linear decoder's start, for which a part of the training images is enough."""
    if vae.linear is not None and model.start != "random":
        prior = td.Normal(0.0, 1.0) if model.latent == "gaussian" else td.Bernoulli(0.5)
        vae.linear.init_from_data(_seen(images.train[:10_000], images.levels, seed), model.start, prior)


@contextlib.contextmanager
def _failures_in_users_terms(plan: TrainingPlan, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write to {folder}: {error.strerror or error}. All epochs up to the last checkpoint are safe: "
            "make room, then go on with --resume true"
        ) from error
    except SystemExit as stop:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from stop
    except ValueError as error:
        if isinstance(error, SilentgradError) and not isinstance(error, DomainError):
            raise
        # a latent (torch.distributions) or a decoder met NaN before the loss did
        reason = str(error).partition(", but found")[0]  # torch goes on with every number of the tensor
        raise DivergedError(f"{reason} (in epoch {plan.epoch}). {ADVICE}") from error


def load_run(folder: Path, images: Images) -> GuidedVAE:
    """The trained model of a finished run."""
    path = folder / "model.safetensors"
    if not path.exists():
        raise RunError(f"{folder} holds no finished run: it has no {path.name}")
    return load_weights(folder, path, images)


def load_weights(folder: Path, path: Path, images: Images) -> GuidedVAE:
    """The model of the run in a folder with the weights of a file, read without executing anything from it."""
    settings = read_config(folder)
    vae = build_model(settings.model, images.event_shape, images.levels).to(dtype_of(settings.train))
    try:
        fill(vae, load_file(path), path)
    except FileNotFoundError:
        raise RunError(f"there are no weights in {path}") from None
    except SafetensorError as error:
        raise RunError(f"cannot read {path}: {error}") from None
    except RuntimeError as error:
        raise RunError(
            f"the model in {folder} does not fit images of shape {tuple(images.event_shape)}: {error}"
        ) from None
    return vae.eval()


def read_config(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    path = folder / "config.yaml"
    if not path.exists():
        raise RunError(f"{folder} holds no run: it has no config.yaml")
    return read_settings(path)


def _prepare(folder: Path, settings: Settings, resume: bool) -> Path | None:
    """Makes the folder, or finds the checkpoint to resume from."""
    checkpoint = folder / "checkpoints" / "last.ckpt"
    if not first_process():
        return checkpoint if resume and checkpoint.exists() else None
    if resume:
        if not (folder / "config.yaml").exists():
            raise RunError(f"{folder} holds no run to resume")
        return checkpoint if checkpoint.exists() else None
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} exists: choose another --folder, or go on with that run by --resume true")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "config.yaml", settings.as_yaml().encode())
    write_json_atomically(folder / "environment.json", environment())
    return None


def _best(folder: Path) -> Path:
    return folder / "checkpoints" / "best.ckpt"


def first_process() -> bool:
    """Whether this process is the one that writes; Lightning starts the others with the same command."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _trainer(
    train: TrainConfig, folder: Path, quiet: bool, more: Sequence[Callback], logger: Logger | bool
) -> lightning.Trainer:
    checkpoints = ModelCheckpoint(
        folder / "checkpoints", filename="best", monitor=JUDGED, save_last=True, enable_version_counter=False
    )
    callbacks: list[Callback] = [checkpoints, Recorder(folder), Keeper(folder, train.keep), *more]
    callbacks += [GradientVarianceLog(folder, train.variance_every)] if train.variance_every else []
    callbacks += [] if quiet else [RichProgressBar()]
    return lightning.Trainer(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy="ddp" if train.devices > 1 else "auto",
        precision=train.precision,
        max_epochs=train.epochs,
        callbacks=callbacks,
        logger=logger,
        enable_progress_bar=not quiet,
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


def _seen(images: Tensor, levels: int, seed: int) -> Tensor:
    """Images as the model sees them."""
    return dequantise(images, levels, torch.Generator().manual_seed(mixed(seed, 0, 0)))


def limit_bpd(model: ModelConfig, images: Images) -> float | None:
    """The BPD that no encoder can beat, where probabilistic PCA says so."""
    if model.nonlinear or model.linear != "fixed" or model.latent != "gaussian":
        return None
    train, test = (_seen(split, images.levels, 0) for split in (images.train, images.test))
    nats = ppca_bound(train, model.latent_dim, model.variance, test)
    return bits_per_dimension(nats, images)


def bits_per_dimension(nats: float, images: Images) -> float:
    """An ELBO in nats per dequantised image as bits per pixel and channel of the integers."""
    return -nats / (images.event_shape.numel() * math.log(2)) + math.log2(images.levels)


def _finish(folder: Path, plan: TrainingPlan, images: Images, model: ModelConfig, seconds: float) -> None:
    figures = {name.removeprefix("test_"): value for name, value in plan.figures.items()}
    limit = limit_bpd(model, images)
    summary: dict[str, Any] = {
        **figures,
        **({} if limit is None else {"limit_bpd": limit}),
        "seconds": round(seconds, 1),
        "epochs": plan.trainer.max_epochs,
        "best_epoch": int(torch.load(_best(folder), weights_only=True, mmap=True)["epoch"]) + 1,
        "train_images": len(images.train),
        "parameters": sum(p.numel() for p in plan.model.parameters()),
    }
    plan.figures = summary
    vae = plan.model.cpu().eval()
    write_tensors_atomically(folder / "model.safetensors", vae.state_dict())
    write_tensors_atomically(folder / "pictures.safetensors", pictures(vae, images))
    write_json_atomically(folder / "summary.json", summary)


@torch.no_grad()
def pictures(vae: GuidedVAE, images: Images) -> dict[str, Tensor]:
    """Originals from the test split, their reconstructions, and samples from the prior."""
    torch.manual_seed(0)
    x = _seen(images.test[:PICTURES], images.levels, 0).to(next(vae.parameters()).dtype)
    q = vae.encoder(x)
    drawn = torch.cat([prior_of(q).sample() for _ in range(SAMPLES // PICTURES)])
    reconstruction, sample = vae.decoder(q.sample()), vae.decoder(drawn)
    found = {"originals": x, "means": reconstruction.mean, "samples": sample.mean}
    if not plain(vae):
        found["stds"] = reconstruction.stddev
    return {name: value.float().contiguous() for name, value in found.items()}


def plain(vae: GuidedVAE) -> bool:
    """Whether the decoder has one fixed variance, so that a picture of it would show nothing."""
    return hasattr(vae.decoder, "variance")
