"""What a table may claim at its scale.

The runs of `smoke` see other data than their recipes name, for two epochs: their figures stand alone. A table of theirs
has no column that compares, no verdict and no best row.
"""

from dataclasses import dataclass, replace

from silentgrad.lab.experiments.cells import Scale
from silentgrad.lab.runs.tables import Column, Content, Table


@dataclass(frozen=True)
class Comparison(Column):
    """A column that has the paper's figures, or judges the measured ones."""


def comparable(scale: Scale) -> bool:
    """Whether figures of a scale may be judged, and stand beside the paper's."""
    return scale != "smoke"


def meaning(scale: Scale) -> list[str]:
    """What a reader has to know before the figures; nothing where they are what they seem."""
    if comparable(scale):
        return []
    return ["This scale shows that everything works; its figures mean nothing."]


def as_claimed(table: Table, scale: Scale) -> Table:
    """The table with all that its scale allows it to say."""
    if comparable(scale):
        return table
    places = [place for place, column in enumerate(table.columns) if not isinstance(column, Comparison)]
    columns = [table.columns[place] for place in places]
    rows: list[list[Content]] = []
    for row in table.rows:
        rows.append([row[place] for place in places])
    return replace(table, columns=columns, rows=rows, best=[], verdicts=[])
