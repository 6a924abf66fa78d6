"""A training run from start to finish: a folder with everything about it."""

import contextlib
import errno
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
import yaml  # type: ignore[import-untyped]
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from silentgrad.decoders import LinearDecoder
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import ImageData, Images, dequantise
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_json, write_json_atomically, write_tensors_atomically
from silentgrad.lab.training.build import build_model, variance_schedule
from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig, read_settings
from silentgrad.lab.training.folder import is_finished, make_folder, prepare_resuming
from silentgrad.lab.training.loop import TrainingPlan, mixed
from silentgrad.lab.training.machine import require_machine, require_shares
from silentgrad.lab.training.measuring import GradientVarianceLog, evaluating
from silentgrad.lab.training.recorder import Keeper, Recorder
from silentgrad.lab.training.saving import AtomicCheckpointIO, Checkpoints, RunError, model_weights, read_checkpoint
from silentgrad.lab.training.suitable import family_named
from silentgrad.lab.training.weights import dtype_of, fill
from silentgrad.ppca import ppca_bound

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PICTURES, SAMPLES = 16, 64
TOGETHER = 16  # batches per step of Lightning's loop, whose hooks cost about a millisecond


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
        resume: Go on from the last finished epoch of the run in `folder`; of a finished run nothing is changed.
        quiet: No progress bar.
        callbacks: More of Lightning's callbacks.

    Returns:
        The summary, as in the folder's `summary.json`.
    """
    if resume and is_finished(folder):
        return read_json(RunFolder(folder).summary)
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
    checkpoint = None
    if resume:
        checkpoint = prepare_resuming(folder, vae, images)
    else:
        make_folder(folder, settings)
    if checkpoint is None:
        _start_from_data(vae, model, images.images, train.seed)
    plan = TrainingPlan(vae, train, images.images.levels, variance_schedule(model))
    recorder, checkpoints = Recorder(folder), Checkpoints(folder)
    with _without_known_remarks(), _failures_in_users_terms(folder):
        trainer = _trainer(train, folder, quiet, [recorder, *callbacks, checkpoints], logger)
        trainer.fit(plan, datamodule=images, ckpt_path=checkpoint, weights_only=True)
        plan.iwae_samples = train.iwae_samples
        vae.load_state_dict(model_weights(read_checkpoint(checkpoints.best)))
        trainer.test(plan, datamodule=images, verbose=False)
        summary = _summary(plan, images.images, model, checkpoints.best_epoch, recorder.seconds)
        if trainer.is_global_zero:
            _finish(folder, plan.model, images.images, summary)
    return summary


def _start_from_data(vae: GuidedVAE, model: ModelConfig, images: Images, seed: int) -> None:
    """The linear decoder's start, for which a part of the training images is enough."""
    if isinstance(vae.linear, LinearDecoder) and model.start != "random":
        assert vae.prior is not None
        vae.linear.init_from_data(_seen(images.train[:10_000], images.levels, seed), model.start, vae.prior())


@contextlib.contextmanager
def _failures_in_users_terms(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "make room" if error.errno in NO_ROOM else "put that right"
        raise RunError(
            f"cannot write to {error.filename or folder}: {error.strerror or error}. All epochs up to the last "
            f"checkpoint are safe: {remedy}, then go on with --folder {folder} --resume true"
        ) from error
    except SystemExit as stop:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from stop


def load_run(folder: Path, images: Images) -> GuidedVAE:
    """The trained model of a finished run."""
    path = RunFolder(folder).weights
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
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    except RuntimeError as error:
        raise RunError(
            f"the model in {folder} does not fit images of shape {tuple(images.event_shape)}: {error}"
        ) from None
    return vae.eval()


def read_config(folder: Path) -> Settings:
    """The settings of the run in a folder."""
    path = RunFolder(folder).config
    if not path.exists():
        raise RunError(f"{folder} holds no run: it has no {path.name}")
    try:
        return read_settings(path)
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot read {path}: {reason}; put it back from a copy") from error


def _trainer(
    train: TrainConfig, folder: Path, quiet: bool, more: Sequence[Callback], logger: Logger | bool
) -> lightning.Trainer:
    callbacks: list[Callback] = [Keeper(folder, train.keep), *more]
    callbacks += [GradientVarianceLog(folder, train.variance_every)] if train.variance_every else []
    callbacks += [] if quiet else [RichProgressBar()]
    return lightning.Trainer(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy="ddp" if train.devices > 1 else "auto",
        precision=train.precision,
        max_epochs=train.epochs,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
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
    if model.nonlinear or model.linear != "fixed":
        return None
    # A learned Gaussian prior is a standard one with other weights; a mixture is not.
    if not family_named(model.latent).gaussian or model.prior == "mixture":
        return None
    train, test = (_seen(split, images.levels, 0) for split in (images.train, images.test))
    nats = ppca_bound(train, model.latent_dim, model.variance, test)
    return bits_per_dimension(nats, images)


def bits_per_dimension(nats: float, images: Images) -> float:
    """An ELBO in nats per dequantised image as bits per pixel and channel of the integers."""
    return -nats / (images.event_shape.numel() * math.log(2)) + math.log2(images.levels)


def _exactness(vae: GuidedVAE, images: Images) -> dict[str, str]:
    """What the closed form that the model was trained with is for its latents; nothing if it has none."""
    if vae.linear is None:
        return {}
    with evaluating(vae), torch.no_grad():
        q = vae.encoder(_seen(images.test[:1], images.levels, 0).to(next(vae.parameters())))
    return {"exactness": vae.linear.exactness(q).value}


def _summary(plan: TrainingPlan, images: Images, model: ModelConfig, best_epoch: int, seconds: float) -> dict[str, Any]:
    figures = {name.removeprefix("test_"): value for name, value in plan.figures.items()}
    limit = limit_bpd(model, images)
    return {
        **figures,
        **({} if limit is None else {"limit_bpd": limit}),
        **_exactness(plan.model, images),
        "seconds": round(seconds, 1),
        "epochs": plan.config.epochs,
        "best_epoch": best_epoch,
        "train_images": len(images.train),
        "parameters": sum(p.numel() for p in plan.model.parameters()),
    }


def _finish(folder: Path, model: GuidedVAE, images: Images, summary: dict[str, Any]) -> None:
    vae = model.cpu().eval()
    write_tensors_atomically(RunFolder(folder).weights, vae.state_dict())
    write_tensors_atomically(RunFolder(folder).pictures, pictures(vae, images))
    write_json_atomically(RunFolder(folder).summary, summary)


@torch.no_grad()
def pictures(vae: GuidedVAE, images: Images) -> dict[str, Tensor]:
    """Originals from the test split, their reconstructions, and samples from the prior."""
    torch.manual_seed(0)
    x = _seen(images.test[:PICTURES], images.levels, 0).to(next(vae.parameters()).dtype)
    q = vae.encoder(x)
    sample, reconstruction = vae.generate(SAMPLES), vae.decoder(q.sample())
    found = {"originals": x, "means": reconstruction.mean, "samples": sample.mean}
    if not plain(vae):
        found["stds"] = reconstruction.stddev
    return {name: value.float().contiguous() for name, value in found.items()}


def plain(vae: GuidedVAE) -> bool:
    """Whether the decoder has one fixed variance, so that a picture of it would show nothing."""
    return hasattr(vae.decoder, "variance")
