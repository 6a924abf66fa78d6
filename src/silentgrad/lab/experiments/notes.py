"""How the runs of a table were made, in sentences."""

from collections.abc import Sequence

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, recipe_of
from silentgrad.lab.experiments.claims import comparable, meaning
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.training import ModelConfig, Settings
from silentgrad.lab.training.recipes import read_recipe


def notes(results: Results, scale: Scale) -> list[str]:
    """How the runs were made, and what was reduced with respect to the paper."""
    return made(results, scale) + reduced(results.cells, scale)


def made(results: Results, scale: Scale) -> list[str]:
    """Scale and seeds, and how many images there were."""
    seeds = 1 + max(cell.seed for cell in results.cells)
    counted = "1 seed"
    if seeds > 1:
        counted = f"{seeds} seeds"
    sentences = [f"Scale {scale}, {counted}; test images; mean ± standard deviation over seeds."]
    return sentences + meaning(scale) + _images(results)


def _images(results: Results) -> list[str]:
    """How many images each dataset was trained on: a folder may hold a part of a dataset only."""
    counts: dict[str, int] = {}
    for cell in results.finished():
        counts[cell.data] = results.summary(cell).training_examples
    return [f"{dataset}: {count:,} training images." for dataset, count in counts.items()]


def reduced(cells: Sequence[Cell], scale: Scale) -> list[str]:
    """What was reduced with respect to the paper's scale, a sentence for each set of runs."""
    if scale == "paper" or not comparable(scale):
        return []
    methods: dict[str, set[str]] = {}  # of each dataset
    concerned: dict[tuple[str, str], set[str]] = {}  # dataset, what was reduced -> methods
    for cell in cells:
        method = f"{cell.latent} {cell.method}"
        methods.setdefault(cell.dataset, set()).add(method)
        changes = _changes(cell.settings, read_recipe(recipe_of(cell, "paper")))
        if changes:
            concerned.setdefault((cell.dataset, ", ".join(changes)), set()).add(method)
    sentences = []
    for (dataset, change), some in concerned.items():
        subject = paper.DATASETS[dataset]
        if some != methods[dataset]:
            subject += f" ({', '.join(sorted(some))})"
        sentences.append(f"Reduced: {subject}: {change}.")
    return sentences


def _changes(ours: Settings, full: Settings) -> list[str]:
    """The quantities in which two runs differ, as in 'epochs 20 instead of 200'."""
    theirs = _extent(full)
    changes = []
    for name, value in _extent(ours).items():
        if value != theirs[name]:
            changes.append(f"{name} {value} instead of {theirs[name]}")
    return changes


def _extent(settings: Settings) -> dict[str, object]:
    """How large a run is, in the words of the notes."""
    data, model, train = settings
    return {
        "images": data.name,
        "batch": data.batch_size,
        "epochs": train.epochs,
        "network": _network(model),
        "latents": model.latent_dim,
    }


def _network(model: ModelConfig) -> str:
    if model.network == "mlp":
        return f"mlp {model.hidden}"
    return f"{model.network}, {model.channels} channels"
