"""What a change does to finished runs: their figures compared by pairs of seeds, after the same steps or seconds."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

from silentgrad.lab.experiments.cells import Cell
from silentgrad.lab.experiments.paired import Difference, paired
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.runs.records import read_metrics


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


def compared_in_time(results: Results, runs: Sequence[Cell], references: Sequence[Cell]) -> Difference | None:
    """The change of the best validation figure in the seconds that the quicker of both takes."""
    own_clock, other_clock = _clock(results, runs), _clock(results, references)
    if not own_clock or not other_clock:
        return None
    seconds = min(own_clock[-1], other_clock[-1])
    ours, theirs = [], []
    for cell, reference in _shared(runs, references):
        ours.append(best_by(own_clock, _column(results, cell, "valid_bpd"), seconds))
        theirs.append(best_by(other_clock, _column(results, reference, "valid_bpd"), seconds))
    return paired(ours, theirs)


def best_by(clock: Sequence[float], figures: Sequence[float], seconds: float) -> float:
    """The best figure up to a time, along a line between the ends of two epochs; that of the first before its end.

    Example:
        >>> best_by([10.0, 20.0, 30.0], [4.0, 3.0, 3.5], 15.0), best_by([10.0, 20.0, 30.0], [4.0, 3.0, 3.5], 30.0)
        (3.5, 3.0)
    """
    best = list(accumulate(figures, min))
    after = bisect_left(clock, seconds)
    if after == 0:
        return best[0]
    if after == len(clock):
        return best[-1]
    part = (seconds - clock[after - 1]) / (clock[after] - clock[after - 1])
    return best[after - 1] + part * (best[after] - best[after - 1])


def _clock(results: Results, runs: Sequence[Cell]) -> list[float]:
    """Seconds at the ends of the epochs, each epoch as quick as in the quickest run: other work only adds to them."""
    durations: list[list[float]] = []
    for cell in runs:
        ends = [0.0, *_column(results, cell, "seconds")]
        durations.append([end - begin for begin, end in pairwise(ends)])
    return list(accumulate(map(min, zip(*durations, strict=True))))


def _column(results: Results, cell: Cell, name: str) -> list[float]:
    """A column of a finished run's figures by epoch."""
    numbers = []
    for number in read_metrics(results.run(cell).metrics)[name]:
        assert number is not None
        numbers.append(number)
    return numbers
