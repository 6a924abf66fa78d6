"""Matrix products over rows whose rounding does not depend on the number of threads.

BLAS shares out one product among threads, and its kernels round by the shape of the part. In a batch of products, each
is made by one thread: the rows are cut into a batch of chunks, whatever the number of threads.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 256  # rows


def row_products(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return the product of every row with a matrix, `rows @ matrix`."""
    chunks = _chunks(rows)
    return torch.bmm(chunks, matrix.expand(len(chunks), -1, -1)).flatten(0, 1)[: len(rows)]


def summed_products(rows: Tensor, others: Tensor) -> Tensor:
    """Return the sum over rows of their outer products with others, `rows.T @ others`, in double precision.

    Example:
        >>> summed_products(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [10.0]]))
        tensor([[31.],
                [42.]], dtype=torch.float64)
    """
    return torch.bmm(_chunks(rows).mT, _chunks(others)).sum(0, dtype=torch.float64)


def _chunks(rows: Tensor) -> Tensor:
    """Return two chunks or more of one size, `(chunks, size, columns)`, the last of them filled with zeros."""
    count = max(2, -(-len(rows) // CHUNK))
    size = -(-len(rows) // count)
    missing = count * size - len(rows)
    if missing:
        rows = pad(rows, (0, 0, 0, missing))
    return rows.unflatten(0, (count, size))
