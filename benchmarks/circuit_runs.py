"""The circuits of levels, one after the other: every finished run is a line of results/circuits.csv.

    python benchmarks/circuit_runs.py mnist --seeds 3       # goes on where it was interrupted
    python benchmarks/circuit_runs.py --table               # writes docs/tables/circuit-levels.md from the file

`seconds` are those on the processor, of an interrupted run those of the last process. The rows of a group differ in
nothing but what they name.
"""

import argparse
import csv
import statistics
import time
from dataclasses import replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from silentgrad.lab.build import plan_for
from silentgrad.lab.experiments.recipes import read_recipe
from silentgrad.lab.training.run import train_plan

ROOT = Path(__file__).parent.parent
FILE, TABLE = ROOT / "results" / "circuits.csv", ROOT / "docs" / "tables" / "circuit-levels.md"
HEAD = ["group", "row", "seed", "epochs", "steps", "valid", "bound", "elbo", "error", "kld", "seconds", "version"]

BLIND = {"with z": {}, "without z": {"without_z": True}}
BY_ESTIMATOR = {
    "bound": {},
    "one reparameterized sample": {"estimator": "reparameterized"},
    "silent control variate": {"estimator": "silent-reparameterized"},
    "silent control variate, Gaussian leaves": {"estimator": "silent-reparameterized", "leaves": "constant"},
    "bound, Gaussian leaves": {"leaves": "constant"},
    "reparameterized, Gaussian leaves": {"leaves": "constant", "estimator": "reparameterized"},
    "bound, categorical leaves": {"leaves": "categorical"},
    "without z": {"without_z": True},
}
BITS: dict[str, dict[str, Any]] = {
    "bound": {"estimator": "exact"},
    "RLOO": {"estimator": "rloo"},
    "RLOO, silent control variate": {"estimator": "silent-rloo"},
    "Gumbel-Softmax": {"estimator": "gumbel-softmax"},
    "ReinMax": {"estimator": "reinmax"},
    "without z": {"without_z": True},
}
SMALL = {"latent_dim": 16, "components": 4}
Changes = dict[str, dict[str, Any]]
# What each group starts from, its rows, and the data and the training that differ from the recipe's.
GROUPS: dict[str, tuple[str, Changes, Changes]] = {
    "mnist": ("mnist-circuit-cpu", BLIND, {}),
    "mnist-context": ("mnist-circuit-context-cpu", BLIND, {}),
    "cifar10": ("cifar10-circuit-cpu", BLIND, {}),
    "fashion-mnist": ("fashion-mnist-circuit-cpu", BLIND, {}),
    "imagenet32": ("imagenet32-circuit-cpu", BLIND, {}),
    "mnist-bits": ("mnist-circuit-bernoulli-cpu", BITS, {"train": {"epochs": 2}}),
    "digits": (
        "mnist-circuit-cpu",
        {name: SMALL | model for name, model in BY_ESTIMATOR.items()},
        {"data": {"name": "digits", "batch_size": 64}, "train": {"epochs": 20, "warmup": 40}},
    ),
    "digits-context": (
        "mnist-circuit-context-cpu",
        {name: SMALL | model for name, model in BLIND.items()},
        {"data": {"name": "digits", "batch_size": 64}, "train": {"epochs": 20, "warmup": 40}},
    ),
    "digits-bits": (
        "mnist-circuit-bernoulli-cpu",
        {name: {"latent_dim": 32, "components": 4} | model for name, model in BITS.items()},
        {"data": {"name": "digits", "batch_size": 64}, "train": {"epochs": 20, "warmup": 40}},
    ),
}


def finished() -> list[dict[str, str]]:
    """Return the lines of the file."""
    if not FILE.exists():
        return []
    with FILE.open() as file:
        return list(csv.DictReader(file))


def measure(group: str, row: str, seed: int, folder: Path) -> None:
    """Train one run, or go on with it, and write its line."""
    recipe, rows, others = GROUPS[group]
    data, model, train = read_recipe(recipe)
    data = replace(data, **others.get("data", {}))
    model = replace(model, **rows[row])
    train = replace(train, **others.get("train", {}), seed=seed)
    plan = plan_for(read_recipe(recipe)._replace(data=data, model=model, train=train))
    place = folder / f"{group}-{row}-{seed}".replace(" ", "-").replace(",", "")
    began = time.process_time()
    found = train_plan(plan, place, resume=place.exists(), quiet=True)
    seconds = time.process_time() - began
    with (place / "metrics.csv").open() as file:
        valid = min(float(line["valid_bpd"]) for line in csv.DictReader(file))
    steps = found.epochs * -(-found.training_examples // data.batch_size)
    figures = [f"{figure:.4f}" for figure in (valid, found.figure, found.elbo, found.sampled_error or 0.0)]
    line = [group, row, seed, found.epochs, steps, *figures, f"{found.kld:.1f}", f"{seconds:.0f}"]
    FILE.parent.mkdir(exist_ok=True)
    new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([HEAD] * new + [[*line, version("silentgrad")]])


def write_table() -> None:
    """Write the means over seeds, a section for each group."""
    parts = ["# Circuits of whole levels\n\n`python benchmarks/circuit_runs.py --table`, from `results/circuits.csv`."]
    lines = sorted(finished(), key=lambda line: (line["group"], line["row"]))
    for group, in_group in groupby(lines, lambda line: line["group"]):
        table = ["| row | seeds | steps | test BPD by the bound | by the sampled ELBO | KLD | processor seconds |"]
        table.append("|---|---|---|---|---|---|---|")
        for row, own in groupby(in_group, lambda line: line["row"]):
            runs = list(own)
            bound, elbo, kld, seconds = (over_seeds(runs, name) for name in ("bound", "elbo", "kld", "seconds"))
            table.append(f"| {row} | {len(runs)} | {runs[0]['steps']} | {bound} | {elbo} | {kld} | {seconds} |")
        parts.append(f"## {group}\n\n" + "\n".join(table))
    TABLE.write_text("\n\n".join(parts) + "\n")


def over_seeds(runs: list[dict[str, str]], name: str) -> str:
    """Return the mean of a column and its deviation over seeds."""
    values = [float(run[name]) for run in runs]
    digits = 4 if name in ("bound", "elbo") else 0
    told = f"{statistics.fmean(values):.{digits}f}"
    return told if len(values) == 1 else f"{told} ± {statistics.stdev(values):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="; ".join(GROUPS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/circuits"))
    parser.add_argument("--table", action="store_true", help="write the table")
    given = parser.parse_args()
    for group in given.groups:
        for seed in range(given.seeds):
            for row in GROUPS[group][1]:
                done = {(line["group"], line["row"], line["seed"]) for line in finished()}
                if (group, row, str(seed)) not in done:
                    measure(group, row, seed, given.folder)
    if given.table:
        write_table()


if __name__ == "__main__":
    main()
