"""Gradient variance of runs: the batches and estimators to measure it with, and a log of it while training."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.decoders import is_tractable
from silentgrad.estimators import Estimator, Exact, GumbelSoftmax, Reparameterized
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, mixed
from silentgrad.lab.data.module import ObservationData
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import write_rows_atomically
from silentgrad.lab.training.build import build_estimator
from silentgrad.lab.training.config import ModelConfig
from silentgrad.lab.training.loop import TrainingPlan
from silentgrad.lab.training.ranges import ConfigError
from silentgrad.lab.training.suitable import EstimatorName, family_named
from silentgrad.latents.families import Family

Row = dict[str, Any]
FIGURES = ("batch", "est", "est_percent", "snr")


def training_batches(observations: Observations, size: int, count: int, seed: int) -> Iterator[Tensor]:
    """Batches as a model sees them, each drawn from all training rows, so that they are independent of each other.

    Raises:
        ConfigError: Something stands beside the rows, which the measurements do not take.
    """
    require_alone(observations)
    generator = torch.Generator().manual_seed(seed)
    rows = observations.rows("train")
    size = min(size, len(rows))
    for _ in range(count):
        chosen = torch.randperm(len(rows), generator=generator)[:size]
        yield observations.as_seen(rows.index_select(0, chosen), generator)


def require_alone(observations: Observations) -> None:
    """Refuses observations that have something beside x for the model, which measurements do not take."""
    if observations.rows("train").between(0, 1).beside:
        raise ConfigError(
            f"gradients are measured on x alone, and {observations.name} has more beside it for the model"
        )


def estimators_of(config: ModelConfig, names: Sequence[EstimatorName] | None, epoch: int) -> list[Estimator]:
    """Estimators with a run's settings; without names, all of the paper's that its latents and decoder allow."""
    sampling = _papers(family_named(config.latent))
    if names is None and config.decoders.nonlinear:
        names = sampling
    elif names is None:
        names = ["exact", *sampling]
    if not names:
        raise ConfigError("--estimators is empty: there is nothing to measure")
    if "none" in names:
        raise ConfigError("none is no estimator: leave it out of --estimators")
    estimators = []
    for name in names:
        estimator = _estimator(config, name)
        estimator.on_epoch(epoch)
        estimators.append(estimator)
    return estimators


def _papers(family: type[Family]) -> list[EstimatorName]:
    """The paper's estimators for a family: reparameterized where samples can be, else those of discrete latents."""
    if Reparameterized.suits(family):
        return ["reparameterized"]
    if GumbelSoftmax.suits(family):
        return ["gumbel-softmax", "reinforce"]
    return ["reinforce"]


def _estimator(config: ModelConfig, name: EstimatorName) -> Estimator:
    chosen = dataclasses.replace(config, estimator=name)
    try:
        chosen.validate()
    except ConfigError as error:
        raise ConfigError(f"--estimators {name} does not go with this run: {error}") from None
    return build_estimator(chosen)


def rows_of(results: Mapping[str, Decomposition]) -> list[Row]:
    """One row for each estimator, with standard errors, and one for each layer's part."""
    rows: list[Row] = []
    for name, found in results.items():
        rows.append({"estimator": name, "layer": "all", **_figures(found)})
        for layer, part in found.groups.items():
            rows.append({"estimator": name, "layer": layer, **part._asdict()})
    return rows


def _figures(found: Decomposition) -> Row:
    """The figures, the cosine, and the figures' standard errors."""
    row: Row = {}
    for figure in FIGURES:
        row[figure] = getattr(found, figure)
    row["cosine"] = found.cosine
    if found.cosine is None:
        row["cosine"] = ""
    for figure in FIGURES:
        row[f"{figure}_error"] = getattr(found.errors, figure)
    return row


class GradientVarianceLog(lightning.Callback):
    """Appends the decomposition of the model's gradient variance to `gradient_variance.csv`, every few epochs.

    Measured is the training loss of the epoch with the model's own estimator, and the exact gradient where the decoder
    has one, on training rows in evaluation mode. Training goes on to the same bits as without. Epochs in which the
    encoder is frozen have no gradient and no row.

    Args:
        folder: The run's folder.
        every: Number of epochs between measurements.
        batches: Number of batches measured each time.
        draws: Number of draws per batch.
    """

    def __init__(self, folder: Path, every: int, batches: int = 20, draws: int = 100) -> None:
        self.path = RunFolder(folder).variance_log
        self.every, self.batches, self.draws = every, batches, draws
        self.rows: list[Row] = []

    def state_dict(self) -> dict[str, Any]:
        """The rows so far: a resumed run restores the file from its checkpoint, without rows of unfinished epochs."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]

    def on_fit_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if trainer.is_global_zero and self.rows:
            write_rows_atomically(self.path, self.rows)

    def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if not trainer.is_global_zero or not isinstance(plan, TrainingPlan) or plan.epoch % self.every:
            return
        if any(parameter.requires_grad for parameter in plan.model.encoder.parameters()):
            data: ObservationData = trainer.datamodule  # type: ignore[attr-defined]
            for row in rows_of(self._measure(plan, data)):
                self.rows.append({"epoch": plan.epoch, **row})
            write_rows_atomically(self.path, self.rows)

    def _measure(self, plan: TrainingPlan, data: ObservationData) -> dict[str, Decomposition]:
        model, seed = plan.model, mixed(plan.config.seed, plan.epoch)
        like = next(model.parameters())
        batches = (x.to(like) for x in training_batches(data.observations, data.batch_size, self.batches, seed))
        with evaluating(model):
            return gradient_variance(model, batches, self.draws, own_estimators(model), epoch=plan.epoch, seed=seed)


def own_estimators(model: GuidedVAE) -> list[Estimator]:
    """The estimator that a model is trained with, and the exact one if its decoder has a closed form."""
    own = model.estimator
    if own is None:
        own = model.tractable_estimator
    if own.exact or not is_tractable(model.decoder):
        return [own]
    return [Exact(allow_approximation=True), own]  # the run's log term was its user's choice
