"""Counts of cells, and what is known of them, as files that other libraries write."""

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from torch import Tensor

from silentgrad.lab.data import Observations
from silentgrad.lab.data.batches import permutation

ROWS, WIDTH = 50, 7
SPLITS = (slice(0, 40), slice(40, 45), slice(45, 50))
ORDER = permutation(ROWS).numpy()


def counts(largest: int = 9) -> sp.csr_matrix:
    """Return counts, a third of which are not 0; no row is empty, the last column is."""
    rng = np.random.default_rng(0)
    dense = rng.integers(1, largest + 1, (ROWS, WIDTH)) * (rng.random((ROWS, WIDTH)) < 0.3)
    dense[:, 0] += 1
    dense[:, -1] = 0
    return sp.csr_matrix(dense)


def cells() -> pd.DataFrame:
    """Columns of every kind that anndata writes."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(index=[f"cell{row}" for row in range(ROWS)])
    frame["batch"] = pd.Categorical(rng.choice(["b2", "b1"], ROWS), categories=["b2", "b1", "never"])
    frame["age"] = rng.integers(1, 90, ROWS)
    frame["depth"] = rng.random(ROWS) + 0.5
    frame["sick"] = rng.random(ROWS) < 0.5
    frame["some"] = pd.array([None, *range(ROWS - 1)], dtype="Int64")
    frame["flag"] = pd.array([None, *([True, False] * ROWS)[: ROWS - 1]], dtype="boolean")
    frame["type"] = pd.Categorical([None, *(["T", "B"] * ROWS)[: ROWS - 1]])
    return frame


def as_anndata(matrix: Any) -> anndata.AnnData:
    genes = pd.DataFrame(index=[f"gene{column}" for column in range(WIDTH)])
    return anndata.AnnData(matrix, cells(), genes, layers={"counts": counts().astype(np.float32)})


def frame() -> pd.DataFrame:
    """Return the counts and what is known of their rows in one table."""
    beside = cells()[["batch", "age", "depth"]].reset_index(drop=True)
    table = pd.DataFrame(counts().toarray(), columns=[f"gene{column}" for column in range(WIDTH)])
    return pd.concat([beside, table], axis=1)


def splits_of(observations: Observations) -> list[Tensor]:
    return [observations.rows(split).stored for split in ("train", "valid", "test")]


def assert_rows(observations: Observations, dense: np.ndarray) -> None:
    """Every split is the rows of an array, in the order that is the same everywhere."""
    for found, part in zip(splits_of(observations), SPLITS, strict=True):
        assert np.array_equal(found.numpy(), dense[ORDER[part]])


def save_parts(path: Path, **changed: object) -> None:
    """Return a matrix of SciPy with some members changed."""
    matrix = counts()
    parts = {"indices": matrix.indices, "indptr": matrix.indptr, "data": matrix.data, "shape": np.array(matrix.shape)}
    np.savez(path, format=np.array(changed.pop("format", b"csr")), **(parts | changed))
