"""From the runs that separate a guide's causes to their table: effects, verdicts, and the noise of the gradients."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from silentgrad.analysis import training_variance
from silentgrad.lab.data import Observations, load
from silentgrad.lab.experiments.causes import BATCH, CAUSES, GUIDED, NONE, host_title
from silentgrad.lab.experiments.cells import Cell, Scale
from silentgrad.lab.experiments.claims import Comparison, as_claimed
from silentgrad.lab.experiments.notes import made
from silentgrad.lab.experiments.paired import Difference, paired
from silentgrad.lab.experiments.results import Results, reached
from silentgrad.lab.runs.evaluation import evaluating
from silentgrad.lab.runs.folder import RunFolder
from silentgrad.lab.runs.records import read_json, read_metrics, write_json_atomically
from silentgrad.lab.runs.tables import Column, Content, Table
from silentgrad.lab.training import load_weights
from silentgrad.lab.training.measuring import training_batches

BATCHES = {"smoke": 4, "cpu": 8}
DRAWS = {"smoke": 2, "cpu": 16}
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
        if row.effect is not None:
            effects.setdefault(which.cause, []).append(row.effect)
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


def _row(results: Results, which: _Which, observations: Observations, scale: Scale) -> _Row:
    wanted = which.runs(which.cause)
    runs, references = results.finished(**wanted), results.finished(**which.runs(NONE))
    effect = compared(results, runs, references)
    in_time = _effect_in_time(results, runs, references)
    if which.cause == NONE:
        effect = in_time = None
    noises = _noises(results, runs, observations, scale)
    cells: list[Content] = [which.title, *host_title(which.latent, which.host), CAUSES[which.cause].title]
    cells.append(results.over_seeds("bpd", **wanted))
    for difference in (effect, in_time):
        cells += _told(difference)
    cells.append(results.over_seeds("kld", **wanted))
    cells.append(_joined([f"{noise.est_percent:.0f}" for noise in noises]))
    cells.append(_joined([f"{noise.snr:.2g}" for noise in noises]))
    cells.append(results.over_seeds("seconds", **wanted))
    return _Row(cells, effect)


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


def _shared(runs: Sequence[Cell], references: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Pairs of runs with one seed."""
    by_seed = {cell.seed: cell for cell in references}
    pairs = []
    for cell in runs:
        if cell.seed in by_seed:
            pairs.append((cell, by_seed[cell.seed]))
    return pairs


def compared(results: Results, runs: Sequence[Cell], references: Sequence[Cell]) -> Difference | None:
    """The change of the test figure after the same steps."""
    ours, theirs = [], []
    for cell, reference in _shared(runs, references):
        ours.append(results.summary(cell).figure)
        theirs.append(results.summary(reference).figure)
    return paired(ours, theirs)


def _effect_in_time(results: Results, runs: Sequence[Cell], references: Sequence[Cell]) -> Difference | None:
    """The change of the best validation figure in the seconds that the quicker of both takes."""
    own_clock, other_clock = _clock(results, runs), _clock(results, references)
    if not own_clock or not other_clock:
        return None
    seconds = min(own_clock[-1], other_clock[-1])
    ours, theirs = [], []
    for cell, reference in _shared(runs, references):
        own, other = _reached(results, cell, own_clock, seconds), _reached(results, reference, other_clock, seconds)
        if own is not None and other is not None:
            ours.append(own)
            theirs.append(other)
    return paired(ours, theirs)


def _clock(results: Results, runs: Sequence[Cell]) -> list[float]:
    """Seconds at the ends of the epochs, each epoch as quick as in the quickest run: other work only adds to them."""
    durations: list[list[float]] = []
    for cell in runs:
        ends = [0.0, *_column(results, cell, "seconds")]
        durations.append([end - begin for begin, end in pairwise(ends)])
    return list(accumulate(map(min, zip(*durations, strict=True))))


def _reached(results: Results, cell: Cell, clock: list[float], seconds: float) -> float | None:
    return reached({"seconds": list(clock), "valid_bpd": list(_column(results, cell, "valid_bpd"))}, seconds)


def _column(results: Results, cell: Cell, name: str) -> list[float]:
    """A column of a finished run's figures by epoch."""
    numbers = []
    for number in read_metrics(results.run(cell).metrics)[name]:
        assert number is not None
        numbers.append(number)
    return numbers


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
            found = training_variance(model, batches, DRAWS[scale], epoch)
        write_json_atomically(path, Noise(found.est_percent, found.snr)._asdict())
    return Noise(**read_json(path))


def _verdicts(effects: dict[str, list[Difference]]) -> list[str]:
    """How often each cause helps and hurts, and by how much on average."""
    sentences = []
    for cause, differences in effects.items():
        verdicts = [difference.verdict for difference in differences]
        counts = []
        for word in ("helps", "hurts", "undecided", "one seed"):
            if word in verdicts:
                counts.append(f"{word} {verdicts.count(word)}")
        mean = sum(difference.mean for difference in differences) / len(differences)
        told = f"{', '.join(counts)} of {len(differences)} hosts"
        sentences.append(f"{CAUSES[cause].title}: {told}; mean change {mean:+.3f} BPD.")
    return sentences


def _notes(scale: Scale) -> list[str]:
    return [
        f"A guide or a warm-up takes the first {GUIDED:.0%} of the training. The guide starts as probabilistic PCA.",
        "A verdict is by Student's interval of 95 % around the mean difference to none over pairs of runs of one seed; "
        "one seed is no verdict. Equal seconds: best validation figures in the time that the quicker of both takes; an "
        "epoch counts as in the quickest of a row's runs, since other work on the machine only adds.",
        "Estimator's part and signal-to-noise ratio: of the gradient of the whole training loss, seed 0, at the end of "
        f"half the guide's part, of the whole of it, and of the training; {BATCHES[scale]} batches of {BATCH}, "
        f"{DRAWS[scale]} draws each.",
    ]
