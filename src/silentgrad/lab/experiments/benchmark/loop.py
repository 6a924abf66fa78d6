"""A run of the benchmark: steps of Adam, points of its curve, and a checkpoint to go on from to the same bits."""

import io
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from silentgrad.evaluation import evaluate
from silentgrad.guided import GuidedVAE
from silentgrad.lab.experiments.benchmark.problem import Data, build, estimator_named, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import RATES, BenchmarkRun, BenchmarkScale, Size, data_of
from silentgrad.lab.experiments.benchmark.records import CHECKPOINT, Curve, Result, weights_file, write_result
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.records import write_atomically, write_tensors_atomically

SAVED_EVERY = 60.0  # seconds between checkpoints: a kill costs no more than that


class Means(NamedTuple):
    """Averages over fixed examples, in nats per example."""

    elbo: float
    bound: float
    kld: float


class Training:
    """A run under way.

    Args:
        run: Which run.
        scale: Its scale, for the name of the data.
        size: How large it is.
        folder: Its own folder.
        root: Folder that holds the data sets.
        device: Where it is computed.
    """

    def __init__(
        self,
        run: BenchmarkRun,
        scale: BenchmarkScale,
        size: Size,
        folder: Path,
        root: Path | None,
        device: torch.device,
    ) -> None:
        self.run, self.size, self.folder = run, size, folder
        dataset = data_of(run.setting.dataset, scale)
        self.data = Data.of(dataset, run.setting.likelihood, root, device)
        self.rate = RATES[dataset]
        self.model = build(run.setting, size, self.data.start(), run.seed)
        with_estimator(self.model, estimator_named(run.estimator, size.latents))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rate)
        self.batches = torch.Generator().manual_seed(run.seed)
        self.curve = Curve()
        self.step, self.seconds = 0, 0.0
        self.saved = time.monotonic()
        self.diverged: int | None = None

    def finish(self) -> None:
        """Takes the steps that are left, and writes what the run came to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / CHECKPOINT).exists():
            self._restore()
        else:
            self._report()
        batches = self.data.training(self.batches)
        while self.step < self.size.steps and self.diverged is None:
            self._advance(batches)
            self._report()
        test = kld = math.nan
        if self.diverged is None:
            test = means(self.model, self.data.fixed("test", self.size.tested), self.size.samples).bound
            kld = means(self.model, self.data.fixed("train", self.size.examples)).kld
        found = Result(
            protocol=protocol_of(self.run, self.size, self.rate),
            curve=self.curve,
            test=_known(test),
            kld=_known(kld),
            diverged=self.diverged,
            seconds=self.seconds,
        )
        write_result(self.folder, found)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def _advance(self, batches: Iterator[Tensor]) -> None:
        """The steps up to the next point of the curve."""
        start = time.perf_counter()
        self.model.train()
        for _ in range(min(self.size.reported, self.size.steps - self.step)):
            loss = self._loss(next(batches))
            if loss is None:
                self.diverged = self.step
                break
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
        self.seconds += time.perf_counter() - start

    def _loss(self, x: Tensor) -> Tensor | None:
        """The objective of a batch; None where it is no number, or where latents refuse weights that are none."""
        try:
            loss: Tensor = self.model(x, epoch=1).total
        except ValueError:
            if all(parameter.isfinite().all() for parameter in self.model.parameters()):
                raise  # something else is wrong
            return None
        if not loss.isfinite():
            return None
        return loss

    def _report(self) -> None:
        """A point of the curve, the weights where they are to be measured, and now and then a checkpoint."""
        if self.diverged is not None:
            return
        found = means(self.model, self.data.fixed("train", self.size.examples))
        self.curve.steps.append(self.step)
        self.curve.elbos.append(found.elbo)
        if self.step in self.size.measured:
            write_tensors_atomically(weights_file(self.folder, self.step), _weights(self.model))
        if time.monotonic() - self.saved >= SAVED_EVERY:
            self._save()

    def _save(self) -> None:
        self.saved = time.monotonic()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.get_state(),
            "draws": _draws(self.data.device),
            "curve": asdict(self.curve),
            "step": self.step,
            "seconds": self.seconds,
        }
        write_atomically(self.folder / CHECKPOINT, _bytes(state))

    def _restore(self) -> None:
        state = torch.load(self.folder / CHECKPOINT, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.set_state(state["batches"])
        _set_draws(self.data.device, state["draws"])
        self.curve = Curve(**state["curve"])
        self.step, self.seconds = state["step"], state["seconds"]


def protocol_of(run: BenchmarkRun, size: Size, rate: float) -> str:
    """All that decides what a run comes to, in words, to know it again by."""
    words = [run.name, f"rate {rate}"]
    for what in ("steps", "reported", "latents", "width", "components", "examples", "tested", "samples"):
        words.append(f"{what} {getattr(size, what)}")
    return ", ".join(words)


def means(model: GuidedVAE, batches: Iterator[Tensor], samples: int = 1) -> Means:
    """ELBO by one sample or in closed form, bound of several samples and KL divergence of examples.

    The draws are the same each time, and leave those of the training alone.
    """
    totals = torch.zeros(3, dtype=torch.float64)
    count = 0
    with evaluating(model), torch.random.fork_rng():
        torch.manual_seed(0)
        for x in batches:
            found = evaluate(model, x, samples)
            totals += torch.stack([found.sampled, found.elbo, found.kld]).to(totals)
            count += len(x)
    return Means(*(totals / count).tolist())


def _weights(model: GuidedVAE) -> dict[str, Tensor]:
    """The weights of encoder and decoder, without the estimator's own."""
    kept = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(("estimator.", "tractable_estimator.")):
            kept[name] = tensor.clone()
    return kept


def _draws(device: torch.device) -> Tensor:
    """The state of the random numbers that latents are drawn by."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def _set_draws(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _known(number: float) -> float | None:
    if math.isfinite(number):
        return number
    return None


def _bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
