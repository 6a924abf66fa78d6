"""The cost of a step of the paper's convolutional networks on one core, and tricks that make it cheaper.

    python benchmarks/convolutions.py                       # about five minutes
    python benchmarks/convolutions.py --channels 8 --compile    # torch.compile too: minutes more, and a C++ compiler

A step is forward, backward and AdamW on 64 random images of MNIST's size, 64 Gaussian latents, without a guide. The
tricks: weights that lie with their channels last, bfloat16 by autocast in the forward pass, and torch.compile. All
ways take turns; given are medians of the processor time, which other work on the machine changes least, and how many
times faster than plain float32 each way is.
"""

import argparse
import statistics
import time
from typing import NamedTuple

import torch
from closed_form import keep_freed_memory
from torch._dynamo.utils import counters

from silentgrad import GuidedVAE
from silentgrad.lab.build import build_model
from silentgrad.lab.training import ModelConfig

BATCH, SHAPE, LEVELS = 64, (1, 28, 28), 256


class Way(NamedTuple):
    """A way to compute a step."""

    channels_last: bool = False
    bfloat16: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        layout = "channels last" if self.channels_last else "contiguous"
        numbers = "bfloat16" if self.bfloat16 else "float32"
        return f"{layout}, {numbers}{', compiled' if self.compiled else ''}"


PLAIN = Way()
EAGER = [PLAIN, Way(channels_last=True), Way(bfloat16=True), Way(channels_last=True, bfloat16=True)]


class Side:
    """A model that is trained in one way."""

    def __init__(self, way: Way, channels: int) -> None:
        self.way = way
        self.model = model_of(way, channels)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, betas=(0.9, 0.95), fused=True)
        self.x = torch.rand(BATCH, *SHAPE)
        self.times: list[float] = []

    def step(self) -> None:
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.way.bfloat16):
            loss = self.model(self.x, 1.0).total
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.times.append(1e3 * (time.process_time() - start))


def model_of(way: Way, channels: int) -> GuidedVAE:
    config = ModelConfig(latent_dim=64, tractable="none", network="conv", channels=channels)
    model = build_model(config, torch.Size(SHAPE), LEVELS)
    layout = torch.channels_last if way.channels_last else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    if way.compiled:
        model.encoder.body = torch.compile(model.encoder.body)
        model.nonlinear.network = torch.compile(model.nonlinear.network)
    return model


def measure(ways: list[Way], channels: int, rounds: int) -> dict[Way, float]:
    """Median milliseconds of a step in each way."""
    counters.clear()
    torch.compiler.reset()
    sides = [Side(way, channels) for way in ways]
    for turn in range(rounds + 3):
        for side in sides if turn % 2 else reversed(sides):
            side.step()
    # `Module.compile` was seen to compile nothing, without a word: then its times would be those of the plain way.
    graphs, expected = counters["stats"]["unique_graphs"], 2 * sum(way.compiled for way in ways)
    if graphs < expected:
        raise SystemExit(f"torch.compile made {graphs} graphs, not {expected}: the compiled ways were not measured")
    return {side.way: statistics.median(side.times[3:]) for side in sides}  # the first three warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    ways = list(EAGER)
    if options.compile:
        ways += [way._replace(compiled=True) for way in EAGER]
    for channels in options.channels:
        medians = measure(ways, channels, options.rounds)
        for way, milliseconds in medians.items():
            faster = medians[PLAIN] / milliseconds
            print(f"{channels:2} channels, {way!s:35} {milliseconds:6.1f} ms, {faster:.2f} times faster", flush=True)


if __name__ == "__main__":
    main()
