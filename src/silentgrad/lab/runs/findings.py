"""The findings of an experiment: tables, curves and pictures of runs, and what they say.

Experiments make them, and reports write them as files and as a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from silentgrad.lab.tables import Table


@dataclass(frozen=True)
class Curves:
    """Runs whose validation curves stand under the table before them."""

    runs: Mapping[str, str]  # label -> name of the run's folder


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
    command: str = ""  # that makes all of it again

    @property
    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]
