"""Noise of every estimator's gradient, on the weights of a run.

The weights are those of the run by leave-one-out REINFORCE, of the first seed, after chosen epochs. An estimator that
learns does so first, for the steps of an epoch while these weights stand still.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from silentgrad.analysis import Decomposition, gradient_variance
from silentgrad.estimators import Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab.experiments.benchmark.protocol import BATCH, BenchmarkPlan, Setting
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.training import TrainConfig, load_weights, read_config
from silentgrad.lab.training.fabric import fabric_for
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.measuring import estimators_of, kept_variances, training_batches


def variances_at(plan: BenchmarkPlan, setting: Setting, epoch: int) -> dict[str, Decomposition]:
    """Return the variance of all estimators' gradients after an epoch of the reference run; measured once."""
    path, measure = plan.weights(setting).kept_variance(epoch, plan.scale), partial(measured, plan, setting, epoch)
    return kept_variances(path, plan.names(setting), measure)


def measured(
    plan: BenchmarkPlan, setting: Setting, epoch: int, names: Sequence[EstimatorName]
) -> dict[str, Decomposition]:
    """Measure the variance of estimators' gradients on the weights of the reference run after an epoch."""
    run, size = plan.weights(setting), plan.size
    settings = read_config(run.path)
    device = fabric_for(TrainConfig(accelerator=plan.accelerator), prefix="--").device
    observations = observations_of(settings, root=plan.root)
    model = load_weights(run.path, run.kept(epoch), observations).to(device)

    def batches(count: int, seed: int) -> Iterator[Tensor]:
        return (x.to(device) for x in training_batches(observations, BATCH, count, seed))

    estimators: dict[str, Estimator] = {}
    for name in names:
        torch.manual_seed(0)
        (estimator,) = estimators_of(settings.model, [name], epoch=1)
        estimators[name] = estimator.to(device)
        _teach(estimator, model, batches(size.epoch_steps, seed=2), settings.train.rate)
    return gradient_variance(model.eval(), batches(size.batches, seed=1), size.draws, estimators)


def _teach(estimator: Estimator, model: GuidedVAE, batches: Iterable[Tensor], rate: float) -> None:
    """Let an estimator learn what it learns, while the model stands still."""
    setattr(model, "tractable_estimator" if model.nonlinear is None else "estimator", estimator)
    model.train()
    learned = list(estimator.parameters())
    optimizer = torch.optim.Adam(learned, lr=rate) if learned else None
    for x in batches if [*learned, *estimator.buffers()] else ():
        model.zero_grad(set_to_none=True)
        model(x, epoch=1).total.backward()  # by which running averages learn too
        if optimizer is not None:
            optimizer.step()
