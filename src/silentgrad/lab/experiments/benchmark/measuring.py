"""The noise and the cost of every estimator's gradient on the same weights.

The weights are those of the run by leave-one-out REINFORCE, of the first seed, at fixed steps. An estimator that
learns does so first, for some steps while these weights stand still.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from silentgrad.analysis import gradient_variance
from silentgrad.estimators import Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab.experiments.benchmark.problem import Data, build, estimator_named, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import RATES, BenchmarkScale, Setting, Size, data_of
from silentgrad.lab.experiments.benchmark.records import weights_file
from silentgrad.lab.runs.records import read_json, write_json_atomically
from silentgrad.lab.training.suitable import EstimatorName


class Noise(NamedTuple):
    """The noise of an estimator's gradient at some weights.

    Args:
        variance: Variance over the draws, summed over the encoder's parameters.
        error: Its standard error.
        snr: Signal-to-noise ratio, draws and batches together.
        evaluations: Evaluations of the decoder that a draw took.
        cosine: Cosine between the mean gradient and the closed form's; None where there is none.
    """

    variance: float
    error: float
    snr: float
    evaluations: int
    cosine: float | None


class Weights(NamedTuple):
    """A model with the weights that a run had after a step.

    Args:
        setting: The setting.
        scale: The scale of the run.
        size: How large it is.
        run: The run's folder.
        step: The step.
    """

    setting: Setting
    scale: BenchmarkScale
    size: Size
    run: Path
    step: int

    def load(self, root: Path | None, device: torch.device) -> tuple[GuidedVAE, Data]:
        """The model, without an estimator, and the data of its setting."""
        data = Data.of(data_of(self.setting.dataset, self.scale), self.setting.likelihood, root, device)
        model = build(self.setting, self.size, data.start(), seed=0)
        model.load_state_dict(load_file(weights_file(self.run, self.step)))
        return model, data


def measure_noise(
    weights: Weights, names: Sequence[EstimatorName], path: Path, root: Path | None, device: torch.device
) -> None:
    """Measures the noise of estimators at some weights and writes it to a file."""
    model, data = weights.load(root, device)
    size = weights.size
    rate = RATES[data_of(weights.setting.dataset, weights.scale)]
    estimators: dict[str, Estimator] = {}
    for name in names:
        estimator = estimator_named(name, size.latents)
        teach(estimator, model, data, size.learning, rate)
        estimators[name] = estimator
    batches = islice(data.training(torch.Generator().manual_seed(1)), size.batches)
    found = gradient_variance(model.eval(), batches, size.draws, estimators)
    content = {}
    for estimated, noise in found.items():
        assert noise.evaluations is not None
        content[estimated] = Noise(noise.est, noise.errors.est, noise.snr, noise.evaluations, noise.cosine)._asdict()
    write_json_atomically(path, content)


def teach(estimator: Estimator, model: GuidedVAE, data: Data, steps: int, rate: float) -> None:
    """Lets an estimator learn what it learns, while the model stands still."""
    learned = list(estimator.parameters())
    if not learned and not list(estimator.buffers()):
        return
    torch.manual_seed(0)
    with_estimator(model, estimator).train()
    optimizer = None
    if learned:
        optimizer = torch.optim.Adam(learned, lr=rate)
    for x in islice(data.training(torch.Generator().manual_seed(2)), steps):
        model.zero_grad()
        model(x, epoch=1).total.backward()  # by both of which running averages learn too
        if optimizer is not None:
            optimizer.step()


def read_noise(path: Path) -> dict[str, Noise]:
    """Reads what :func:`measure_noise` wrote."""
    return {name: Noise(**figures) for name, figures in read_json(path).items()}


def milliseconds(
    weights: Weights, names: Sequence[EstimatorName], root: Path | None, device: torch.device
) -> dict[str, float]:
    """The median time of each estimator's step, forward and backward; the estimators take turns."""
    model, data = weights.load(root, device)
    x = next(data.training(torch.Generator().manual_seed(1)))
    estimators = {}
    for name in names:
        estimators[name] = estimator_named(name, weights.size.latents)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 + weights.size.rounds):
        for name, estimator in estimators.items():
            with_estimator(model, estimator).train()
            times[name].append(1e3 * timed(lambda: step(model, x), device))
    return {name: statistics.median(rounds[1:]) for name, rounds in times.items()}


def step(model: GuidedVAE, x: Tensor) -> None:
    """A gradient of the whole objective."""
    model.zero_grad(set_to_none=True)
    model(x, epoch=1).total.backward()


def timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds that some work takes, until the device has done it."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
