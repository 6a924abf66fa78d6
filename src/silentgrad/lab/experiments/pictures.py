"""Which runs stand above each other in the paper's figures of reconstructions."""

from collections.abc import Iterable
from typing import Any

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.tables import Results


def pictures(fixed: Results, learned: Results, datasets: Iterable[str]) -> dict[str, Any]:
    """The record of the figures: fixed variance, then each dataset with learned variance."""
    groups = [
        _group(
            "figure-fixed", "Fixed variance, MNIST", "Test images and their reconstructed means.", fixed, _fixed(fixed)
        )
    ]
    for dataset in datasets:
        cells = [cell for cell in learned.where(dataset=dataset, seed=0) if cell.method.endswith("-sg")]
        caption = "Test images, reconstructed means, and learned standard deviations (normalised)."
        groups.append(
            _group(f"figure-{dataset}", f"Learned variance, {paper.DATASETS[dataset]}", caption, learned, cells)
        )
    return {"name": "figures", "title": "Reconstructions", "groups": groups}


def _fixed(results: Results) -> list[Cell]:
    """Bernoulli latents with the schedule, without which the exact gradient saturates them."""
    return [cell for cell in results.where(seed=0) if cell.scheduled == (cell.latent == "bernoulli")]


def _group(name: str, title: str, caption: str, results: Results, cells: Iterable[Cell]) -> dict[str, Any]:
    finished = results.first_seeds()
    chosen = {cell.name for cell in cells}
    runs = {label: run for label, run in finished.items() if run in chosen}
    return {"name": name, "title": title, "caption": caption, "runs": runs}
