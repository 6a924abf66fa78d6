"""Symmetric matrices as the vectors of their upper triangles, so that many quadratic forms are one matrix product.

Of diagonal ones only the diagonal is stored: arguments `diagonal` say so, and so does the length of a vector.
"""

from functools import cache

import torch
from torch import Tensor


def products(vectors: Tensor, diagonal: bool = False) -> Tensor:
    """Return the upper triangle of v v^T for each v, `(rows, size (size + 1) / 2)`; or its diagonal.

    Example:
        >>> products(torch.tensor([[2.0, 3.0]]))
        tensor([[4., 6., 9.]])
    """
    first, second = _corners(vectors.shape[-1], vectors.device, diagonal)
    return vectors.index_select(-1, first).mul_(vectors.index_select(-1, second))


def forms(vectors: Tensor, diagonal: bool = False) -> Tensor:
    """Return what a symmetric matrix's upper triangle is multiplied by to give v^T S v, for each v.

    Example:
        >>> matrix, vector = torch.tensor([[1.0, 2.0], [2.0, 5.0]]), torch.tensor([[2.0, 3.0]])
        >>> float(forms(vector) @ triangles(matrix)), float(vector @ matrix @ vector.T)
        (73.0, 73.0)
    """
    first, second = _corners(vectors.shape[-1], vectors.device, diagonal)
    return products(vectors, diagonal) * (1 + (first != second).to(vectors))


def triangles(matrices: Tensor, diagonal: bool = False) -> Tensor:
    """Return the upper triangle of each symmetric matrix; or its diagonal."""
    size = matrices.shape[-1]
    first, second = _corners(size, matrices.device, diagonal)
    return matrices.flatten(-2).index_select(-1, first * size + second)


def matrices(triangles: Tensor, size: int) -> Tensor:
    """Return the symmetric matrices with these upper triangles.

    Example:
        >>> matrices(torch.tensor([1.0, 2.0, 3.0]), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    if triangles.shape[-1] == size:
        return triangles.diag_embed()
    return triangles.index_select(-1, _places(size, triangles.device)).unflatten(-1, (size, size))


def diagonals(triangles: Tensor, size: int) -> Tensor:
    """Return the diagonal of each symmetric matrix with these upper triangles."""
    if triangles.shape[-1] == size:
        return triangles
    return triangles.index_select(-1, _places(size, triangles.device)[:: size + 1])


def congruence(m: Tensor, diagonal: bool = False) -> Tensor:
    """Return the matrix K with triangle(S) K = triangle(M S M^T), for every symmetric S.

    Example:
        >>> m, s = torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[1.0, 2.0], [2.0, 5.0]])
        >>> bool((triangles(s) @ congruence(m) == triangles(m @ s @ m.T)).all())
        True
    """
    first, second = _corners(len(m), m.device, diagonal)
    straight = m[first][:, first] * m[second][:, second]
    crossed = m[first][:, second] * m[second][:, first]
    return (straight + crossed * (first != second)).T


@cache
def _corners(size: int, device: torch.device, diagonal: bool = False) -> tuple[Tensor, Tensor]:
    """Row and column of each entry of an upper triangle, or of a diagonal."""
    if diagonal:
        return torch.arange(size, device=device), torch.arange(size, device=device)
    first, second = torch.triu_indices(size, size, device=device)
    return first, second


@cache
def _places(size: int, device: torch.device) -> Tensor:
    """Where in the upper triangle each entry of a matrix is."""
    first, second = _corners(size, device)
    places = torch.empty(size, size, dtype=torch.long, device=device)
    places[first, second] = places[second, first] = torch.arange(len(first), device=device)
    return places.flatten()
