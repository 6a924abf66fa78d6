"""Which runs stand above each other in the paper's figures of reconstructions."""

from collections.abc import Iterable

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.tables import GUIDED, Results
from silentgrad.lab.runs.tables import PictureGroup, Pictures


def pictures(fixed: Results, learned: Results, datasets: Iterable[str]) -> Pictures:
    """The figures: fixed variance, then each dataset with learned variance."""
    groups = [_fixed_group(fixed), *(_learned_group(learned, dataset) for dataset in datasets)]
    return Pictures("figures", "Reconstructions", groups)


def _fixed_group(results: Results) -> PictureGroup:
    """Bernoulli latents with the schedule, without which the exact gradient saturates them."""
    cells = [cell for cell in results.where(seed=0) if cell.scheduled == (cell.latent == "bernoulli")]
    caption = "Test images and their reconstructed means."
    return PictureGroup("figure-fixed", "Fixed variance, MNIST", caption, _labelled(results, cells))


def _learned_group(results: Results, dataset: str) -> PictureGroup:
    cells = [cell for cell in results.where(dataset=dataset, seed=0) if cell.method.endswith(GUIDED)]
    title = f"Learned variance, {paper.DATASETS[dataset]}"
    caption = "Test images, reconstructed means, and learned standard deviations (normalized)."
    return PictureGroup(f"figure-{dataset}", title, caption, _labelled(results, cells))


def _labelled(results: Results, cells: Iterable[Cell]) -> dict[str, str]:
    chosen = {cell.name for cell in cells}
    return {label: name for label, name in results.first_seeds().items() if name in chosen}
