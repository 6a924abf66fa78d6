"""A training run from start to finish: a folder with everything about it."""

import contextlib
import errno
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
import yaml  # type: ignore[import-untyped]
from torch import nn

from silentgrad.decoders.context import set_context_weight
from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import annealed, model_for, seen_by, weights_on_z
from silentgrad.lab.data import Batches, DataError, Observations, Reals, SplitName, kind_of, load, mixed
from silentgrad.lab.data.files import in_print
from silentgrad.lab.runs.evaluation import seen
from silentgrad.lab.settings import DataConfig, ModelConfig, Plan, Settings, TrainConfig, resolve
from silentgrad.lab.store import files
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import Run, Summary, read_summary
from silentgrad.lab.training.checkpoints import Checkpoint, RunError, checkpoint_to_resume, checksum_of, read_checkpoint
from silentgrad.lab.training.fabric import TensorBoardLogger, fabric_for, first_process
from silentgrad.lab.training.finishing import finish, summary_of
from silentgrad.lab.training.loop import Loop, Report
from silentgrad.lab.training.recording import Recorder, environment, keeper, progress_of

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FARTHEST = 1e9  # standard deviations from a column's mean: squares and their sums fit single precision
START_ROWS = 10_000
START_ENTRIES = 2**25  # in those rows together, which are dense


def train_model(
    data: DataConfig,
    model: ModelConfig,
    train: TrainConfig,
    folder: Path,
    resume: bool = False,
    quiet: bool = False,
    reports: Sequence[Report] = (),
    observations: Observations | None = None,
    finished: Callable[[Run], object] | None = None,
) -> Summary:
    """Train a model, leave a run's folder, and return its figures: those of the epoch that was best in validation.

    Args:
        data: Which data.
        model: Which model.
        train: How to train.
        folder: Where the run goes; it must not exist, unless `resume`.
        resume: Go on from the last finished epoch of the run in `folder`; of a finished run nothing is changed.
        quiet: No progress bar.
        reports: Called with the loop at the end of each epoch, before its checkpoint is written.
        observations: What to train on, instead of what `data` names.
        finished: Called with the run once it is finished, in the process that writes; not for one that was before.
    """
    run = RunFolder(folder)
    if resume and run.summary.exists():
        return read_summary(run.summary)
    kind = observations or kind_of(data.name, data.kind)
    named = data if observations is None else replace(data, name=observations.name)
    data, model, train = plan = resolve(Settings(named, model, train), kind.likelihoods)
    fabric = fabric_for(train, model)
    observations = seen_by(model, observations or load(data.name, data.root, data.kind, data.selection))
    _require_trainable(plan, observations)
    torch.manual_seed(mixed(train.seed, 0))
    vae = model_for(model, observations, train.epochs)
    logs = _tensorboard(run, train)
    recorder = Recorder(run, observations.unit.metric)  # whose clock runs while decoders start from data
    checkpoint = Checkpoint(run, recorder, checksum_of(observations))
    # Only now, so that what cannot be trained leaves no folder behind.
    state = _prepare(run, plan, vae, observations, resume)
    with _failures_in_users_terms(folder):
        fabric.launch()
        loop = Loop(fabric, vae, train, observations, data.batch_size, annealed(model, "variance"))
        if state is not None:
            checkpoint.restore(loop, state)
        if fabric.is_global_zero:
            recorder.begin()
        reports = [keeper(run), recorder, *logs, *reports, checkpoint]
        with progress_of(loop, quiet, "without z: " * model.without_z) as advance:

            def on_step(loop: Loop) -> None:
                if model.context is not None:
                    _enter(loop, model.context_after)
                advance(loop)

            on_step(loop)
            loop.run([lambda loop: loop.evaluate("valid"), advance, *reports], on_step)
        vae.load_state_dict(read_checkpoint(run.checkpoint)["best"]["model"])
        loop.evaluate("train")
        trained = loop.evaluation
        loop.evaluate("test", train.iwae_samples)
        summary = summary_of(loop, model, checkpoint.best["epoch"], recorder.seconds, trained)
        if fabric.is_global_zero:
            # The environment is that of the process which began the run; what its model has to tell comes last.
            began = files.read_json(run.environment) if run.environment.exists() else {}
            record = Run(folder, yaml.safe_load(plan.as_yaml()), files.columns_of(recorder.lines), summary, began, None)
            record = finish(record, vae, observations)
    if fabric.is_global_zero and finished is not None:
        finished(record)
    return summary


def _require_trainable(plan: Plan, observations: Observations) -> None:
    """Refuse numbers too large to compute with, and a batch size that leaves a process without rows in some step."""
    if isinstance(observations, Reals):
        for split in get_args(SplitName):
            _require_moderate(observations, split)
    processes, steps = plan.train.devices, plan.train.epoch_steps
    Batches(observations.rows("train"), plan.data.batch_size, True, plan.train.seed, 0, processes, steps)


def _require_moderate(table: Reals, split: SplitName) -> None:
    """Raise DataError, which names one, if numbers are too large for single precision, their squares included."""
    rows = table.rows(split)
    far = ~(table.as_seen(rows).abs() <= FARTHEST) | ~table.deviation.isfinite()
    if not far.any():
        return
    stored = rows.stored.flatten(1)
    row, column = divmod(int(stored.abs().where(far.flatten(1), -1).argmax()), stored.shape[1])
    number = row if table.numbers is None else int(getattr(table.numbers, split)[row])
    raise DataError(
        f"{table.name}: row {number + 1}, {in_print(table.columns, column)} is {stored[row, column]:.4g}, too far from "
        f"the other rows to compute with: it has to be within {FARTHEST:.0e} standard deviations of their mean; "
        "correct it, or leave the row out"
    )


def _prepare(
    run: RunFolder, plan: Plan, vae: GuidedVAE, observations: Observations, resume: bool
) -> dict[str, Any] | None:
    """Make the run's folder, or return the checkpoint from which to go on; without one, the model starts anew."""
    state, last = None, run.checkpoint
    if not first_process():
        state = read_checkpoint(last) if resume and last.exists() else None
    elif resume:
        state = checkpoint_to_resume(run, vae, observations)
        files.remove_leftovers(run.path)
    else:
        _make_folder(run, plan)
    if state is None:
        _start_from_data(vae, plan.model, observations, plan.train.seed)
        for weight in weights_on_z(vae) if plan.model.without_z else ():
            nn.init.zeros_(weight)
    return state


def _make_folder(run: RunFolder, plan: Plan) -> None:
    """Make the folder of a new run; its `config.yaml` comes last, and what was killed before that is no obstacle."""
    folder = run.path
    found = folder.iterdir() if folder.exists() else ()
    if any(path != run.environment and not path.name.endswith(files.UNFINISHED) for path in found):
        raise RunError(f"{folder} exists: choose another --folder, or go on with that run by --resume true")
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(folder)
    files.write_json_atomically(run.environment, environment())
    files.write_atomically(run.config, plan.as_yaml().encode())


def _start_from_data(vae: GuidedVAE, model: ModelConfig, observations: Observations, seed: int) -> None:
    """Start the parts that have an `init_from_data`, which is given whatever of the run it has arguments for."""
    parts: list[Any] = [vae.encoder, vae.nonlinear, *([] if model.start == "random" else [vae.tractable])]
    fitting = START_ENTRIES // observations.event_shape.numel()
    rows = observations.rows("train").between(0, min(START_ROWS, fitting))  # a part is enough
    x, side_info = seen(observations, rows, torch.empty(0), mixed(seed, 0, 0))
    assert vae.prior is not None
    known = {"method": model.start, "prior": vae.prior(), "offset": side_info.offset, "mask": side_info.mask}
    for start in [part.init_from_data for part in parts if hasattr(part, "init_from_data")]:
        taken = inspect.signature(start).parameters
        start(x, **{name: value for name, value in known.items() if name in taken})


def _enter(loop: Loop, after: float) -> None:
    """Set the weight that a decoder's context has in the next step."""
    weight = loop.step / loop.steps / after - 1 if after > 0 else 1.0
    set_context_weight(loop.model, min(1.0, max(0.0, weight)))


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


def _tensorboard(run: RunFolder, train: TrainConfig) -> list[Report]:
    """Return what logs the figures of each epoch for TensorBoard, if it is asked for."""
    if not train.tensorboard:
        return []
    try:
        logger = TensorBoardLogger(run.path, "", "tensorboard")
    except ModuleNotFoundError as error:
        raise RunError("--train.tensorboard needs an extra: pip install 'silentgrad[tensorboard]'") from error

    def log(loop: Loop) -> None:
        figures = {f"valid_{loop.evaluation.unit.metric}": loop.evaluation.figure}
        logger.log_metrics(figures | {"train_loss": torch.stack(loop.losses).mean().item()}, loop.step)
        logger.save()

    return [log]
