"""From the runs that separate a guide's causes to their table: effects, verdicts, and the noise of the gradients."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from silentgrad.analysis import training_variance
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments.causes import BATCH, CAUSES, EXACT, GUIDED, NONE, host_title
from silentgrad.lab.experiments.cells import Cell, Scale
from silentgrad.lab.experiments.claims import Comparison, as_claimed, comparable
from silentgrad.lab.experiments.effects import compared, compared_in_time
from silentgrad.lab.experiments.notes import made
from silentgrad.lab.experiments.paired import Difference
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_json, write_json_atomically
from silentgrad.lab.runs.tables import Column, Content, Table
from silentgrad.lab.training import load_weights
from silentgrad.lab.training.measuring import training_batches

BATCHES = {"smoke": 4, "cpu": 8}
DRAWS = {"smoke": 2, "cpu": 16}
Comparing = Callable[[Results, Sequence[Cell], Sequence[Cell]], Difference | None]
COLUMNS = [
    Column("data"),
    Column("latents"),
    Column("network"),
    Column("guide or warm-up"),
    Column("BPD", 3),
    Comparison("against none"),
    Comparison("verdict"),
    Comparison("against none, equal seconds"),
    Comparison("verdict, equal seconds"),
    Comparison("against the exact guide"),
    Comparison("verdict on that"),
    Column("KLD", 1),
    Column("estimator's part of the variance, %"),
    Column("signal-to-noise ratio"),
    Column("seconds", 0),
]


class Noise(NamedTuple):
    """The noise of a run's gradient at an epoch.

    Args:
        est_percent: The estimator's part of the variance in percent.
        snr: The signal-to-noise ratio.
    """

    est_percent: float
    snr: float


def causes_table(results: Results, scale: Scale, root: Path | None) -> Table:
    """Every cause in every host, compared with none by pairs of seeds."""
    rows: list[list[Content]] = []
    effects: dict[str, list[Difference]] = {}
    loaded: dict[str, Observations] = {}
    for which in track(_rows_of(results), "noise of the gradients"):
        if which.data not in loaded:
            loaded[which.data] = load(which.data, root)
        row = _row(results, which, loaded[which.data], scale)
        rows.append(row.cells)
        title = CAUSES[which.cause].title
        if row.effect is not None:
            effects.setdefault(title, []).append(row.effect)
        if row.against_exact is not None:
            effects.setdefault(f"{title}, against the exact guide", []).append(row.against_exact)
    table = Table(
        name="causes",
        title="What a guide helps by",
        columns=COLUMNS,
        rows=rows,
        verdicts=_verdicts(effects),
        notes=[*made(results, scale), *_notes(scale)],
        curves=_curves(results),
    )
    return as_claimed(table, scale)


class _Which(NamedTuple):
    """What the runs of a row have in common.

    Args:
        dataset: Name of the dataset in the recipes.
        latent: Name of the latents' family.
        host: Name of the network.
        cause: Name of the cause.
        data: Name of the data that were used.
        title: The data in print.
    """

    dataset: str
    latent: str
    host: str
    cause: str
    data: str
    title: str

    def runs(self, cause: str) -> dict[str, str]:
        """What the runs of a cause in the same host are known by."""
        return {"dataset": self.dataset, "latent": self.latent, "method": f"{self.host}-{cause}"}


def _rows_of(results: Results) -> list[_Which]:
    """The rows, each once, in the order of the runs."""
    rows: dict[_Which, None] = {}
    for cell in results.cells:
        host, _, cause = cell.method.partition("-")
        rows[_Which(cell.dataset, cell.latent, host, cause, cell.settings.data.name, cell.data)] = None
    return list(rows)


class _Row(NamedTuple):
    cells: list[Content]
    effect: Difference | None
    against_exact: Difference | None


def _row(results: Results, which: _Which, observations: Observations, scale: Scale) -> _Row:
    runs = results.finished(**which.runs(which.cause))
    effect = in_time = against_exact = None
    if _whole(results, which):
        effect = _against(results, which, NONE, compared)
        in_time = _against(results, which, NONE, compared_in_time)
        if CAUSES[which.cause].guided:
            against_exact = _against(results, which, EXACT, compared)
    cells: list[Content] = [which.title, *host_title(which.latent, which.host), CAUSES[which.cause].title]
    cells.append(results.over_seeds("bpd", **which.runs(which.cause)))
    for difference in (effect, in_time, against_exact):
        cells += _told(difference)
    cells.append(results.over_seeds("kld", **which.runs(which.cause)))
    noises = _noises(results, runs, observations, scale)
    cells.append(_joined([f"{noise.est_percent:.0f}" for noise in noises]))
    cells.append(_joined([f"{noise.snr:.2g}" for noise in noises]))
    cells.append(results.over_seeds("seconds", **which.runs(which.cause)))
    return _Row(cells, effect, against_exact)


def _whole(results: Results, which: _Which) -> bool:
    """Whether no run of the row or of those that it is compared with diverged: what is left would be chosen."""
    for cause in (which.cause, NONE, EXACT):
        for cell in results.where(**which.runs(cause)):
            if results.run(cell).failure.exists():
                return False
    return True


def _against(results: Results, which: _Which, other: str, comparison: Comparing) -> Difference | None:
    """A row's difference to another cause of its host; None to itself."""
    if which.cause == other:
        return None
    return comparison(results, results.finished(**which.runs(which.cause)), results.finished(**which.runs(other)))


def _curves(results: Results) -> dict[str, str]:
    """The first seed's runs of the first host, for curves: more lines than its causes nobody could tell apart."""
    first = _rows_of(results)[0]
    names = {}
    for cell in results.finished(seed=0, dataset=first.dataset, latent=first.latent):
        if cell.method.startswith(f"{first.host}-"):
            names[cell.title] = cell.name
    return names


def _told(difference: Difference | None) -> list[Content]:
    if difference is None:
        return [None, None]
    return [str(difference), difference.verdict]


def _joined(figures: list[str]) -> str:
    return ", ".join(figures)


def _noises(results: Results, runs: Sequence[Cell], observations: Observations, scale: Scale) -> list[Noise]:
    """The noise at the measured epochs of the first seed's run."""
    noises = []
    for cell in runs:
        if cell.seed == 0:
            for epoch in cell.settings.train.keep:
                noises.append(_noise(results.run(cell), epoch, observations, scale))
    return noises


def _noise(run: RunFolder, epoch: int, observations: Observations, scale: Scale) -> Noise:
    """The noise at an epoch, kept in the run's folder."""
    path = run.kept_variance(epoch, scale)
    if not path.exists():
        model = load_weights(run.path, run.kept(epoch), observations)
        batches = training_batches(observations, BATCH, BATCHES[scale], seed=0)
        with evaluating(model):
            found = training_variance(model, batches, DRAWS[scale], epoch - 0.5)
        write_json_atomically(path, Noise(found.est_percent, found.snr)._asdict())
    return Noise(**read_json(path))


def _verdicts(effects: dict[str, list[Difference]]) -> list[str]:
    """How often each change helps and hurts, and by how much on average."""
    sentences = []
    for change, differences in sorted(effects.items(), key=_against_exact):
        verdicts = [difference.verdict for difference in differences]
        counts = []
        for word in ("helps", "hurts", "undecided", "one seed"):
            if word in verdicts:
                counts.append(f"{word} {verdicts.count(word)}")
        mean = sum(difference.mean for difference in differences) / len(differences)
        told = f"{', '.join(counts)} of {len(differences)} hosts"
        sentences.append(f"{change}: {told}; mean change {mean:+.3f} BPD.")
    return sentences


def _against_exact(item: tuple[str, list[Difference]]) -> bool:
    """Sorts the changes against the exact guide behind those against none."""
    return item[0].endswith("exact guide")


def _notes(scale: Scale) -> list[str]:
    measured = f"{BATCHES[scale]} batches of {BATCH}, {DRAWS[scale]} draws each"
    sizes = []
    if comparable(scale):
        sizes.append("The MLP has one layer of 256 units, the convolutions are the paper's with 4 channels.")
    return [
        *sizes,
        f"A guide or a warm-up takes the first {GUIDED:.0%} of the training. The guide starts as probabilistic PCA "
        "unless its row says otherwise, and is sampled by its host's estimator: with Bernoulli latents by "
        "Gumbel-Softmax, which is biased.",
        "A verdict is by Student's interval of 95 % around the mean difference over pairs of runs of one seed, which "
        "see the same batches. One seed is no verdict, nor is there one where a run diverged. Of twenty verdicts on "
        "nothing one is wrong on average.",
        "Equal seconds: best validation figures in the time that the quicker of both takes, along lines between "
        "epochs; an epoch counts as in the quickest of a row's runs, since other work on the machine only adds.",
        "Estimator's part and signal-to-noise ratio: of the gradient of the whole training loss, seed 0, with the "
        "weights at the end of an epoch and the objective of its middle, in the middle and at the end of the guide's "
        f"part, which may be one epoch, and at the end of the training; {measured}.",
    ]
