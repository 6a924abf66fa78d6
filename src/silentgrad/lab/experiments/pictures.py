"""Which runs stand above each other in the paper's figures of reconstructions."""

from collections.abc import Iterable

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.runs.tables import PictureGroup, Pictures
from silentgrad.latents.families import FAMILIES


def pictures(results: Results, datasets: Iterable[str]) -> Pictures:
    """The figures: fixed variance, then each dataset with learned variance."""
    groups = [_fixed_group(results)]
    for dataset in datasets:
        groups.append(_learned_group(results, dataset))
    return Pictures("figures", "Reconstructions", groups)


def _fixed_group(results: Results) -> PictureGroup:
    cells = [cell for cell in results.where(seed=0) if cell.scheduled == _needs_schedule(cell)]
    caption = "Test images and their reconstructed means."
    title = f"Fixed variance, {results.data(dataset='mnist')}"
    return PictureGroup("figure-fixed", title, caption, results.only(cells).first_seeds())


def _needs_schedule(cell: Cell) -> bool:
    """Whether the latents are discrete: without the schedule the exact gradient saturates them."""
    return not FAMILIES[cell.latent].distribution.has_rsample


def _learned_group(results: Results, dataset: str) -> PictureGroup:
    learned = results.where(dataset=dataset, seed=0, scheduled=None)
    cells = [cell for cell in learned if cell.method.endswith(paper.GUIDED)]
    title = f"Learned variance, {results.data(dataset=dataset)}"
    caption = "Test images, reconstructed means, and learned standard deviations (normalized)."
    return PictureGroup(f"figure-{dataset}", title, caption, results.only(cells).first_seeds())
