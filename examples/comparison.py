"""Before and after: one host trained without and with the guide, seed by seed, judged on the test images.

Every example has a function `train(images, seed, guided, epochs)` that trains its host and returns the test figure:
bits per dimension (the lower, the better) or the ELBO in nats per image (the higher, the better). :func:`main` makes of
it a command that runs all seeds both ways and prints the table. Each run is kept in a file as soon as it ends, so a
command that was interrupted goes on where it stood.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.distributions import Distribution

import silentgrad as sg
from silentgrad.lab.data import Binarized, Levels, Observations, load_images
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.store.files import write_json_atomically

Unit = Literal["BPD", "ELBO"]
Train = Callable[[Levels, int, bool, int], float]
WAYS = {"without": False, "with": True}


class Part(nn.Module):
    """Encoder or decoder of a host as the evaluation takes it: a function of the weights that a module has.

    Args:
        function: From x to q(z|x), or from z to p(x|z).
        owner: What has the weights.
    """

    def __init__(self, function: Callable[[Tensor], Distribution], owner: nn.Module) -> None:
        super().__init__()
        self.function, self.owner = function, owner

    def forward(self, x: Tensor) -> Distribution:
        return self.function(x)


def judge(
    host: nn.Module,
    latent: Callable[[Tensor], Distribution],
    likelihood: Callable[[Tensor], Distribution],
    observations: Observations,
) -> float:
    """The test figure of a host, by the evaluation that `silentgrad train` and `silentgrad evaluate` have.

    Args:
        host: What has the weights.
        latent: From x to q(z|x).
        likelihood: From z to p(x|z).
        observations: What the host is judged on.
    """
    model = sg.GuidedVAE(Part(latent, host), nonlinear=Part(likelihood, host), estimator=sg.Reparameterized())
    return evaluate_model(model, observations).figure


def flat(images: Levels) -> Levels:
    """The same images as vectors, for a host of fully connected layers."""
    splits = {split: getattr(images, split).flatten(1) for split in ("train", "valid", "test")}
    return dataclasses.replace(images, **splits)


def bits_of(images: Levels) -> Binarized:
    """The same images in black and white."""
    return Binarized(images.train, images.valid, images.test, images.name, levels=images.levels)


def main(train: Train, unit: Unit, data: str = "mnist", epochs: int = 20) -> None:
    """The example as a command."""
    script = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description=sys.modules[train.__module__].__doc__)
    parser.add_argument("--data", default=data, help=f"a data set's name or path ({data})")
    parser.add_argument("--images", type=int, help="train on so many images only, and test on as many")
    parser.add_argument("--epochs", type=int, default=epochs, help=f"of each run ({epochs})")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 (3)")
    parser.add_argument("--keep", type=Path, default=Path("runs") / "examples" / f"{script.stem}.json")
    given = parser.parse_args()
    given.keep.parent.mkdir(parents=True, exist_ok=True)
    images = load_images(given.data)
    if given.images is not None:
        images = dataclasses.replace(images, train=images.train[: given.images], test=images.test[: given.images])
    settings = {"data": given.data, "images": given.images, "epochs": given.epochs, "unit": unit}
    runs = _kept(given.keep, settings)
    for seed in range(given.seeds):
        for way, guided in WAYS.items():
            name = f"{way}, seed {seed}"
            if name not in runs:
                print(f"{script.stem} {name}: {given.epochs} epochs", flush=True)
                start = time.perf_counter()
                figure = train(images, seed, guided, given.epochs)
                runs[name] = {"figure": figure, "seconds": time.perf_counter() - start}
                write_json_atomically(given.keep, {"settings": settings, "runs": runs})
            print(f"{script.stem} {name}: {unit} {runs[name]['figure']:.4f}", flush=True)
    print(f"\n{table(runs, given.seeds, unit)}\n\nKept in {given.keep}")


def table(runs: dict[str, Any], seeds: int, unit: Unit) -> str:
    """A row for each seed, one for their mean and standard deviation, one for the seconds."""
    figures = {way: [runs[f"{way}, seed {seed}"]["figure"] for seed in range(seeds)] for way in WAYS}
    gains = [after - before for before, after in zip(figures["without"], figures["with"], strict=True)]
    seconds = {way: statistics.mean(runs[f"{way}, seed {seed}"]["seconds"] for seed in range(seeds)) for way in WAYS}
    rows = [(f"seed {seed}", *row) for seed, row in enumerate(zip(*figures.values(), gains, strict=True))]
    lines = [f"| test {unit} | without | with | difference |", "|---|---|---|---|"]
    lines += [f"| {name} | {before:.4f} | {after:.4f} | {gain:+.4f} |" for name, before, after, gain in rows]
    if seeds > 1:
        before, after, gain = ((statistics.mean(c), statistics.stdev(c)) for c in (*figures.values(), gains))
        spread = f"{before[0]:.4f} ± {before[1]:.4f} | {after[0]:.4f} ± {after[1]:.4f} | {gain[0]:+.4f} ± {gain[1]:.4f}"
        lines.append(f"| mean | {spread} |")
    lines.append(f"| seconds a run | {seconds['without']:.0f} | {seconds['with']:.0f} | |")
    return "\n".join(lines)


def _kept(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    if kept["settings"] != settings:
        sys.exit(f"{path} has runs with other settings, {kept['settings']}: choose another file with --keep")
    runs: dict[str, Any] = kept["runs"]
    return runs
