"""Noise of every estimator's gradient, on the weights of a run.

The weights are those of the run by leave-one-out REINFORCE, of the first seed, after chosen epochs. An estimator that
learns does so first, for the steps of an epoch while these weights stand still.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.estimators import Estimator
from silentgrad.lab.experiments.benchmark.protocol import BATCH, BenchmarkPlan, Setting
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.training import TrainConfig, load_weights, read_config
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.measuring import estimators_of, kept_variances, training_batches


class ReferenceWeights:
    """The weights that gradients of a setting are measured on, after an epoch."""

    def __init__(self, plan: BenchmarkPlan, setting: Setting, epoch: int) -> None:
        run = plan.weights(setting)
        self.size, self.settings = plan.size, read_config(run.path)
        self.device = fabric_for(TrainConfig(accelerator=plan.accelerator), prefix="--").device
        self.observations = observations_of(self.settings, root=plan.root)
        self.model = load_weights(run.path, run.kept(epoch), self.observations).to(self.device)

    def variances(self, names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        """Return the variance of each estimator's gradient."""
        estimators = {name: self._taught(name) for name in names}
        batches = self._batches(self.size.batches, seed=1)
        return gradient_variance(self.model.eval(), batches, self.size.draws, estimators)

    def _batches(self, count: int, seed: int) -> Iterator[Tensor]:
        for x in training_batches(self.observations, BATCH, count, seed):
            yield x.to(self.device)

    def _taught(self, name: EstimatorName) -> Estimator:
        """Return an estimator that has learned what it learns, while the model stands still."""
        torch.manual_seed(0)
        (estimator,) = estimators_of(self.settings.model, [name], epoch=1)
        estimator.to(self.device)
        setattr(self.model, "tractable_estimator" if self.model.nonlinear is None else "estimator", estimator)
        self.model.train()
        learned = list(estimator.parameters())
        optimizer = torch.optim.Adam(learned, lr=self.settings.train.rate) if learned else None
        for x in self._batches(self.size.epoch_steps, seed=2) if [*learned, *estimator.buffers()] else ():
            self.model.zero_grad(set_to_none=True)
            self.model(x, epoch=1).total.backward()  # by which running averages learn too
            if optimizer is not None:
                optimizer.step()
        return estimator


def variances_at(plan: BenchmarkPlan, setting: Setting, epoch: int) -> dict[str, Decomposition]:
    """Return the variance of all estimators' gradients after an epoch of the reference run; measured once."""

    def measure(names: Sequence[EstimatorName]) -> dict[str, Decomposition]:
        return ReferenceWeights(plan, setting, epoch).variances(names)

    return kept_variances(plan.weights(setting).kept_variance(epoch, plan.scale), plan.names(setting), measure)
