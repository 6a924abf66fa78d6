"""Finished runs as rows of a CSV: tables are made from them, and an experiment goes on when its folders are gone.

A row is known by its command, the `silentgrad train` that repeats the run, so that one made with other settings is
never taken for it. A run that is in the ledger is not made again.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from silentgrad.lab.build import plan_for
from silentgrad.lab.settings import Settings
from silentgrad.lab.settings.documents import train_command
from silentgrad.lab.store.files import RecordError, locked, parse_json, read_json, read_metrics, write_rows_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import read_summary

DIGITS = 7  # significant ones of a figure


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A finished run; one that diverged has no figures."""

    run: str
    seed: int
    steps: int = 0
    examples: int = 0  # that it was trained on
    valid: float | None = None  # figure of validation at its best epoch, by which options are chosen
    test: float | None = None  # figure of the test, which chooses nothing
    sampled: float | None = None  # the ELBO by samples on the test, where the figure is another number
    sampled_error: float | None = None  # its standard error
    training: float | None = None  # the ELBO of as many training examples
    mse: float | None = None
    kld: float | None = None  # in nats
    active: int | None = None  # latents that are used
    limit: float | None = None  # the best figure that a model of this kind could have on the test, where it is known
    independent: float | None = None  # figure of the same likelihood without latents, which a run has to beat
    histogram: float | None = None  # figure of a histogram of every output, for images
    seconds: float | None = None  # of processor time
    version: str = ""  # of silentgrad
    failure: str = ""  # why it diverged
    curve: tuple[float, ...] = ()  # figures of validation after each epoch
    command: str  # that repeats it

    @property
    def elbo(self) -> float | None:
        """The ELBO of the test by samples; the figure itself, where that is the ELBO."""
        return self.test if self.sampled is None else self.sampled

    @property
    def failed(self) -> bool:
        """True if the run diverged, or is no better than a model without latents of the same likelihood."""
        return self.elbo is None or (self.independent is not None and self.elbo >= self.independent)

    @property
    def above_limit(self) -> float | None:
        """Distance from the limit, where both are known."""
        return None if self.test is None or self.limit is None else self.test - self.limit

    def reach(self, level: float, after: int) -> float:
        """Return the first epoch, after some, whose figure of validation was no worse than a level; else infinity."""
        return next((epoch for epoch in range(after, len(self.curve)) if self.curve[epoch] <= level), math.inf) + 1


_ROW = TypeAdapter(RunRow)


def key_of(settings: Settings) -> str:
    """Return the command that repeats a run, with all that was left open chosen; not where its data lie, or on what."""
    data, model, train = plan_for(settings)
    train = replace(train, accelerator="auto", devices=1, keep=[])
    return train_command(Settings(replace(data, root=None), model, train))


def row_of(name: str, settings: Settings, folder: Path) -> RunRow | None:
    """Return what the run in a folder came to; None if it is not finished."""
    run, command, seed = RunFolder(folder), key_of(settings), settings.train.seed
    if run.failure.exists():
        return RunRow(run=name, seed=seed, failure=str(read_json(run.failure)["message"]), command=command)
    if not run.summary.exists():
        return None
    summary = read_summary(run.summary)
    column = read_metrics(run.metrics).get(f"valid_{summary.unit.metric}", []) if run.metrics.exists() else []
    curve = tuple(_rounded(figure) for figure in column if figure is not None)
    figures = {name: getattr(summary, name) for name in ("sampled", "sampled_error", "training", "kld", "limit")}
    figures |= {"test": summary.figure, "mse": summary.metrics.get("mse")}
    figures |= {"histogram": summary.baselines.get("histogram")}
    figures |= {"independent": None if summary.baseline is None else summary.baseline.figure}
    known: dict[str, Any] = {metric: _rounded(figure) for metric, figure in figures.items() if figure is not None}
    return RunRow(
        run=name,
        seed=seed,
        steps=summary.epochs
        * (settings.train.epoch_steps or -(-summary.training_examples // settings.data.batch_size)),
        examples=summary.training_examples,
        valid=curve[summary.best_epoch - 1] if len(curve) >= summary.best_epoch else None,
        active=summary.active,
        seconds=round(read_json(run.clock)["seconds"] if run.clock.exists() else summary.seconds, 1),
        version=str(parse_json(run.environment).get("silentgrad", "")) if run.environment.exists() else "",
        curve=curve,
        command=command,
        **known,
    )


def _rounded(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")


class Ledger:
    """The rows of an experiment, in a CSV, or in memory only if it has no path."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, RunRow] = {}
        self._renew()

    def row(self, settings: Settings) -> RunRow | None:
        """Return what the run with some settings came to; None if it is not there."""
        return self.rows.get(key_of(settings))

    def add(self, row: RunRow) -> None:
        """Add a row, or renew it, beside those that other processes have added meanwhile."""
        if self.path is None:
            self.rows[row.command] = row
            return
        with locked(self.path):
            self._renew()
            self.rows[row.command] = row
            lines = [asdict(one) | {"curve": " ".join(map(str, one.curve))} for one in self.rows.values()]
            write_rows_atomically(self.path, lines)

    def enter(self, name: str, settings: Settings, folder: Path) -> None:
        """Add the row of the finished run in a folder."""
        row = row_of(name, settings, folder)
        assert row is not None
        self.add(row)

    def _renew(self) -> None:
        if self.path is not None and self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                self.rows |= {row.command: row for row in _rows(self.path, csv.DictReader(file))}


def _rows(path: Path, lines: "csv.DictReader[str]") -> Iterator[RunRow]:
    for number, line in enumerate(lines, 2):
        known = {name: cell for name, cell in line.items() if cell}
        try:
            yield _ROW.validate_python(known | {"curve": line.get("curve", "").split()})
        except ValidationError as error:
            first, *_ = error.errors()
            raise RecordError(f"cannot read {path}, line {number}: {first['loc'][0]}: {first['msg']}") from error
