"""Observations: where they come from, how they are split, and how they reach a model."""

from silentgrad.lab.data.catalogue import NAMES, load, load_images
from silentgrad.lab.data.formats import DataError
from silentgrad.lab.data.loader import Batches, Together
from silentgrad.lab.data.observations import (
    Binarized,
    Counts,
    Levels,
    Observations,
    Reals,
    SplitName,
    dequantize,
)
from silentgrad.lab.data.rows import Part, Rows, Splits
from silentgrad.lab.data.seeds import mixed
from silentgrad.lab.data.sparse import SparseMatrix, SparseRows
from silentgrad.lab.data.units import Unit
from silentgrad.lab.selection import Selection

__all__ = [
    "NAMES",
    "Batches",
    "Binarized",
    "Counts",
    "DataError",
    "Levels",
    "Observations",
    "Part",
    "Reals",
    "Rows",
    "Selection",
    "SparseMatrix",
    "SparseRows",
    "SplitName",
    "Splits",
    "Together",
    "Unit",
    "dequantize",
    "load",
    "load_images",
    "mixed",
]
