"""The findings of an experiment: tables, curves and pictures of runs, and what they say.

Experiments make them, and reports write them as files and as a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from silentgrad.lab.kinds import Unit
from silentgrad.lab.tables import Table


@dataclass(frozen=True)
class Progress:
    """The validation figure of an estimator over steps and over seconds."""

    steps: Sequence[int]
    seconds: Sequence[float]  # that so many steps take, by the time of one step measured alone
    figures: Sequence[float]


@dataclass(frozen=True)
class Curves:
    """Curves that stand under the table before them."""

    lines: Mapping[str, Progress]  # by the estimator's name
    unit: Unit


@dataclass(frozen=True)
class Reconstructions:
    """Runs whose reconstructions stand above each other."""

    name: str  # of the picture's file
    title: str
    caption: str  # a sentence under the picture
    runs: Mapping[str, str]  # label -> name of the run's folder


@dataclass(frozen=True)
class Findings:
    """Everything that an experiment found."""

    name: str  # of its files
    title: str
    parts: Sequence[Table | Curves | Reconstructions]  # in their order
    verdicts: Sequence[str] = ()  # what they say, in sentences
    notes: Sequence[str] = ()  # how they were made, in sentences
    runs: Mapping[str, str] = field(default_factory=dict)  # to show validation curves of: label -> name of the folder
    command: str = ""  # that makes all of it again

    @property
    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]
