"""Observations: where they come from, how they are split, and how they reach a model."""

from silentgrad.lab.data.batches import Batches, Part, Rows, Splits, mixed
from silentgrad.lab.data.catalogue import NAMES, kind_of, load, load_images
from silentgrad.lab.data.files import DataError
from silentgrad.lab.data.observations import Binarized, Counts, Levels, Observations, Reals, SplitName, dequantize
from silentgrad.lab.kinds import Selection, Unit
from silentgrad.sparse import SparseMatrix, SparseRows
