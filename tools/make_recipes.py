"""Writes the recipes of every cell of the paper's tables, at the paper's scale and at two for two processor cores.

Of these `cpu` has fully connected networks, and `conv` the paper's convolutions with few channels, for MNIST with
learned variance. And those of silent circuits, which the paper does not have.

    python tools/make_recipes.py                                 # after a change here
    python tools/make_recipes.py reproduce/cpu reproduce/conv    # also takes the figures of the runs that `silentgrad
                                                                 # reproduce` left there

What the paper leaves open is chosen here: channels 32 (MNIST) and 64 (strided), latent sizes of the learned-variance
models, the Gumbel temperature, REINFORCE's decay. The figures under `expects` are the paper's, or measured ones; a
recipe nobody has run says that.
"""

import json
import statistics
import sys
from pathlib import Path

import yaml

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, fixed_cells, learned_cells, recipe_of, same_experiment
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_summary
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training import RunError, Settings, read_config

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src" / "silentgrad" / "lab" / "recipes"
MEASURED = ROOT / "tools" / "measured.json"  # recipe -> {"expects": ..., "time": ...}, from runs

BATCH = {"mnist": 64, "imagenet32": 128, "cifar10": 256}
EPOCHS = {"mnist": 200, "imagenet32": 100, "cifar10": 2000}
LATENTS = {"mnist": 200, "imagenet32": 1024, "cifar10": 1024}
CPU_EPOCHS = {"mnist": 20, "imagenet32": 20, "cifar10": 20}
CONV_EPOCHS = 12
CONV_CHANNELS = 8  # an epoch of the paper's networks then takes less than a minute on one core


def fixed(latent: str, method: str, scale: str) -> dict:
    estimator = "exact" if method == "silent" else method
    model = {"latent": latent, "latent_dim": 200, "tractable": "fixed", "variance": 0.01, "nonlinear": False,
             "estimator": estimator}  # fmt: skip
    if scale == "paper":
        model |= {"network": "conv", "channels": 32}
        return {"data": {"name": "mnist", "batch_size": 64}, "model": model, "train": {"epochs": 500, "lr": 5e-4}}
    if latent == "bernoulli":
        model |= {"variance_start": 0.3, "variance_factor": 0.5}
    epochs = 25 if latent == "gaussian" else 20
    model |= {"network": "mlp", "hidden": [512]}
    return {"data": {"name": "mnist", "batch_size": 64}, "model": model, "train": {"epochs": epochs, "lr": 5e-4}}


def learned(dataset: str, latent: str, method: str, scale: str) -> dict:
    guided = method.endswith("-sg")
    estimator = method.removesuffix("-sg")
    model = {"latent": latent, "latent_dim": LATENTS[dataset], "tractable": "exp" if guided else "none",
             "nonlinear": True, "estimator": estimator}  # fmt: skip
    epochs = 300 if dataset == "mnist" and "reinforce" in method else EPOCHS[dataset]
    train = {"epochs": epochs, "lr": 1e-4}
    if scale == "paper":
        model |= {"network": "conv" if dataset == "mnist" else "strided", "channels": 32 if dataset == "mnist" else 64}
        if guided:
            model |= {"tractable": "linear", "log_term": "taylor"}
            if estimator != "none":
                model |= {"guided": round(100 / epochs, 3)}  # a rate of 0.01 an epoch
        if estimator == "none":
            model |= {"cutoff": 100 if epochs >= 200 else 50}
    else:
        epochs = CONV_EPOCHS if scale == "conv" else CPU_EPOCHS[dataset]
        train = {"epochs": epochs, "lr": 5e-4, "clip": 1.0}
        if scale == "conv":
            model |= {"network": "conv", "channels": CONV_CHANNELS, "latent_dim": 64}
            # At a constant rate few convolutions with learned precisions jump by whole bits between epochs.
            train |= {"decay": "cosine"}
        else:
            model |= {"network": "mlp", "hidden": [256], "latent_dim": 64}
        if guided:
            model |= {"tractable": "constant"}
        if estimator == "none":
            # The guide is all that the encoder has, so its precision depends on z too. For Bernoulli latents the
            # exponential link would take ten times as long.
            model |= {"tractable": "exp" if latent == "gaussian" else "linear", "start": "ppca"}
            train |= {"lr_precision": 5e-3 if latent == "gaussian" else 1e-2}
            model |= {"cutoff": int(0.7 * epochs)}
    return {"data": {"name": dataset, "batch_size": BATCH[dataset]}, "model": model, "train": train}


def circuit(dataset: str, components: int, latents: int, epochs: int, latent: str = "gaussian") -> dict:
    """A silent circuit: leaves of constant precision, gates at every level."""
    model = {"latent": latent, "latent_dim": latents, "tractable": "circuit", "components": components, "gates": "all",
             "nonlinear": False, "estimator": "exact", "network": "mlp", "hidden": [512]}  # fmt: skip
    train = {"epochs": epochs, "lr": 1e-2, "lr_network": 1e-3, "decay": "cosine", "warmup": 200, "clip": 100.0}
    return {"data": {"name": dataset, "batch_size": 128}, "model": model, "train": train}


CIRCUITS = {
    "mnist-circuit-cpu": circuit("mnist", 8, 32, 20),
    "mnist-circuit-long": circuit("mnist", 16, 64, 40),
    "mnist-circuit-bernoulli-cpu": circuit("mnist", 8, 64, 10, "bernoulli"),
    "fashion-mnist-circuit-cpu": circuit("fashion-mnist", 8, 32, 20),
    "cifar10-circuit-cpu": circuit("cifar10", 8, 64, 30),
    "imagenet32-circuit-cpu": circuit("imagenet32", 8, 64, 20),
}


COUNTS = {
    "data": {"name": "counts.h5ad", "batch_size": 64, "offset": "size"},
    "model": {"latent": "gaussian", "latent_dim": 10, "likelihood": "negative-binomial", "tractable": "linear",
              "nonlinear": False, "estimator": "exact", "network": "mlp", "hidden": [128]},
    "train": {"epochs": 40, "lr": 1e-2, "lr_network": 2e-3, "decay": "cosine"},
}  # fmt: skip


def write(name: str, what: str, expects: str, settings: dict) -> None:
    measured = json.loads(MEASURED.read_text()).get(name, {})
    header = {
        "what": what,
        "command": f"silentgrad train --recipe {name}",
        "expects": measured.get("expects", expects),
        "time": measured.get("time", "not measured"),
    }
    text = "".join(f"# {key}: {value}\n" for key, value in header.items())
    (FOLDER / f"{name}.yaml").write_text(text + yaml.safe_dump(settings, sort_keys=False, default_flow_style=None))


def _as_settings(folder: Path, settings: Settings) -> bool:
    """Whether a run was made with these settings; one of another version was not."""
    try:
        return same_experiment(read_config(folder), settings)
    except RunError:
        return False


def measure(folder: Path) -> None:
    """Notes the figures of the finished runs in a folder that `silentgrad reproduce` made at scale cpu or conv."""
    measured = json.loads(MEASURED.read_text())
    cells = {
        "cpu": [*fixed_cells("cpu", 9), *learned_cells("cpu", list(paper.DATASETS), 9)],
        "conv": learned_cells("conv", ["mnist"], 9),
    }
    runs: dict[str, list[Summary]] = {}
    for scale, of_scale in cells.items():
        for cell in of_scale:
            run = RunFolder(folder / cell.name)
            if run.summary.exists() and _as_its_recipe(cell) and _as_settings(run.path, cell.settings):
                runs.setdefault(recipe_of(cell, scale), []).append(read_summary(run.summary))
    for name, summaries in runs.items():
        bpd = [summary.figure for summary in summaries]
        spread = f" ± {statistics.stdev(bpd):.3f} over {len(bpd)} seeds" if len(bpd) > 1 else " (seed 0)"
        limit = f"; pPCA limit {summaries[0].limit:.3f}" if summaries[0].limit is not None else ""
        minutes = statistics.median(summary.seconds for summary in summaries) / 60
        measured[name] = {
            "expects": f"test BPD {statistics.fmean(bpd):.3f}{spread}{limit}",
            "time": f"{minutes:.0f} minutes on one core, another run beside it",
        }
    MEASURED.write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n")


def _as_its_recipe(cell: Cell) -> bool:
    """A fixed-variance recipe has the schedule or not; the table has both."""
    return cell.scheduled is None or cell.scheduled == (cell.latent == "bernoulli")


def main() -> None:
    for folder in sys.argv[1:]:
        measure(Path(folder))
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for name, settings in CIRCUITS.items():
        model = settings["model"]
        what = f"{settings['data']['name']}, silent circuit, {model['latent_dim']} {model['latent']} latents"
        write(name, what, "not measured", settings)
    write("counts-cpu", "counts of --data.name, negative binomial, linear decoder, 10 latents", "not measured", COUNTS)
    for scale in ("paper", "cpu"):
        for (latent, method), (bpd, _) in paper.FIXED.items():
            what = f"MNIST, fixed variance 0.01, 200 {latent} latents, linear decoder, {method}"
            write(f"mnist-fixed-{latent}-{method}-{scale}", what, expected(bpd, scale), fixed(latent, method, scale))
        for dataset in paper.DATASETS:
            write_learned(dataset, scale)
    write_learned("mnist", "conv")


def write_learned(dataset: str, scale: str) -> None:
    """The learned-variance recipes of a dataset at a scale."""
    place = list(paper.DATASETS).index(dataset)
    for (latent, method), figures in paper.LEARNED["bpd"].items():
        what = f"{dataset}, learned variance, {latent} latents, {method.replace('-sg', ' + SG')}"
        if scale == "conv":
            what += f", convolutions of {CONV_CHANNELS} channels"
        expects = expected(figures[place].mean, scale)
        write(f"{dataset}-{latent}-{method}-{scale}", what, expects, learned(dataset, latent, method, scale))


def expected(bpd: float, scale: str) -> str:
    return f"test BPD {bpd} (the paper)" if scale == "paper" else "not measured"


if __name__ == "__main__":
    main()
