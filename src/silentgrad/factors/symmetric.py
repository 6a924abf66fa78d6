"""Symmetric matrices as the vectors of their upper triangles, so that many quadratic forms are one matrix product."""

from torch import Tensor, triu_indices


def products(vectors: Tensor) -> Tensor:
    """The upper triangle of v v^T for each v, `(..., size (size + 1) / 2)`.

    Example:
        >>> import torch
        >>> products(torch.tensor([2.0, 3.0]))
        tensor([4., 6., 9.])
    """
    first, second = triu_indices(vectors.shape[-1], vectors.shape[-1], device=vectors.device)
    return vectors[..., first] * vectors[..., second]


def forms(matrices: Tensor) -> Tensor:
    """What a product's upper triangle is multiplied by to give v^T S v, for each symmetric S.

    Example:
        >>> import torch
        >>> matrix, vector = torch.tensor([[1.0, 2.0], [2.0, 5.0]]), torch.tensor([2.0, 3.0])
        >>> float(forms(matrix) @ products(vector)), float(vector @ matrix @ vector)
        (73.0, 73.0)
    """
    first, second = triu_indices(matrices.shape[-1], matrices.shape[-1], device=matrices.device)
    twice = 1 + (first != second).to(matrices)
    return matrices[..., first, second] * twice


def triangles(matrices: Tensor) -> Tensor:
    """The upper triangle of each symmetric matrix."""
    first, second = triu_indices(matrices.shape[-1], matrices.shape[-1], device=matrices.device)
    return matrices[..., first, second]


def matrices(triangles: Tensor, size: int) -> Tensor:
    """The symmetric matrices with these upper triangles.

    Example:
        >>> import torch
        >>> matrices(torch.tensor([1.0, 2.0, 3.0]), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    first, second = triu_indices(size, size, device=triangles.device)
    result = triangles.new_empty(*triangles.shape[:-1], size, size)
    result[..., first, second] = triangles
    result[..., second, first] = triangles
    return result
