"""Factors of counts with scikit-learn's interface: a linear decoder fitted without an encoder and without sampling."""

import math
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import LinearLikelihood
from silentgrad.errors import DomainError
from silentgrad.factors import Inference, fit_factors, infer_factors
from silentgrad.factors.pieces import Table
from silentgrad.lab.data.sparse import SparseMatrix, SparseRows
from silentgrad.likelihoods import (
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

LikelihoodOfCounts = Literal["poisson", "negative-binomial", "zero-inflated-poisson", "zero-inflated-negative-binomial"]
OffsetKind = Literal["none", "size"]
LIKELIHOODS: dict[str, Callable[[int], nn.Module]] = {
    "negative-binomial": NegativeBinomial,
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial,
}
START_ENTRIES = 2**26  # of the rows from which the decoder starts


class CountFactors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components of counts: log-rates that are linear in a few Gaussian factors.

    With a Poisson likelihood this is Poisson log-normal PCA. The fit is deterministic, by Newton's steps on a bound of
    the likelihood that needs no sample. Factors come in the order of how much they move the log-rates.

    Args:
        n_components: Number of factors.
        likelihood: Likelihood of the counts.
        offset: What the log-rate of a row is known to contain: nothing, or the logarithm of its size, the row's sum
            relative to the mean row's.
        tol: Nats per entry: the fit ends when four iterations in a row gain less each.
        max_iter: Number of iterations at the most.

    Attributes:
        components_: Weights of the factors, `(n_components, n_features)`.
        intercept_: Log-rates where all factors are zero, `(n_features,)`.
        elbo_: The bound in nats, over all rows.
        n_iter_: Number of iterations.
        converged_: Whether the fit ended by its tolerance.
        decoder_: The decoder, a `silentgrad.LinearLikelihood`.

    Example:
        >>> counts = np.random.RandomState(0).poisson(3.0, size=(40, 5))
        >>> CountFactors(n_components=2).fit_transform(counts).shape
        (40, 2)
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        likelihood: LikelihoodOfCounts = "negative-binomial",
        offset: OffsetKind = "none",
        tol: float = 1e-6,
        max_iter: int = 300,
    ) -> None:
        self.n_components = n_components
        self.likelihood = likelihood
        self.offset = offset
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: N803
        """Fits the factors to counts `(rows, columns)`, an array or a sparse matrix."""
        self._fitted(X)
        return self

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray[Any]:  # noqa: N803
        """Fits the factors, and returns each row's, `(rows, n_components)`."""
        return _array(self._fitted(X).mean)

    def transform(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The factors of rows, `(rows, n_components)`: the means of their posteriors under the fitted decoder."""
        return _array(self._inferred(X).latent.mean)

    def score(self, X: ArrayLike, y: object = None) -> float:  # noqa: N803
        """The bound of the log-likelihood of rows, in nats per entry; the higher, the better."""
        return float(self._inferred(X).elbo.mean()) / self.n_features_in_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        return tags

    @property
    def _n_features_out(self) -> int:
        """Number of columns that `transform` gives, for scikit-learn's names of them."""
        return int(self.n_components)

    def _fitted(self, X: ArrayLike) -> td.MultivariateNormal:  # noqa: N803
        """Fits the decoder, and returns the latents of the rows."""
        self._require_parameters()
        counts = self._table(X, reset=True)
        sizes = self._sizes(counts)
        size = float(sizes.mean())
        offset = self._relative(sizes, size)
        decoder = LinearLikelihood(self.n_components, self.n_features_in_, self._likelihood())
        rows = slice(0, max(1, START_ENTRIES // self.n_features_in_))
        started = None
        if offset is not None:
            started = offset[rows]
        decoder.init_from_data(counts[rows].float(), offset=started)
        fit = fit_factors(decoder, counts, offset=offset, tolerance=self.tol, iterations=self.max_iter)
        if not fit.converged:
            advice = f"the fit did not converge in {self.max_iter} iterations: raise max_iter, or tol"
            warnings.warn(advice, ConvergenceWarning, stacklevel=3)
        self.decoder_, self.elbo_, self.converged_ = decoder, fit.elbo, fit.converged
        self.size_ = size
        self.n_iter_ = len(fit.history)
        self.components_ = _array(decoder.affine.weight.T)
        self.intercept_ = _array(decoder.affine.bias)
        return fit.latent

    def _inferred(self, X: ArrayLike) -> Inference:  # noqa: N803
        check_is_fitted(self)
        counts = self._table(X, reset=False)
        offset = self._relative(self._sizes(counts), self.size_)
        return infer_factors(self.decoder_, counts, offset=offset)

    def _table(self, X: ArrayLike, reset: bool) -> Table:  # noqa: N803
        """The data as the fit takes them: a tensor, or rows of a sparse matrix that become dense in pieces."""
        found = self._validated(X, reset)
        if not sparse.issparse(found):
            require_counts(found)
            return torch.from_numpy(np.array(found, dtype=np.float32))
        require_counts(found.data)
        if not found.has_canonical_format:
            found = found.copy()  # the caller's stays as it is
            found.sum_duplicates()
        matrix = SparseMatrix(found.indptr.astype(np.int64), found.indices, found.data, found.shape[1], np.dtype("f4"))
        return SparseRows(matrix, torch.arange(found.shape[0]))

    def _validated(self, X: ArrayLike, reset: bool) -> Any:  # noqa: N803
        """The data as scikit-learn has found them to be in order, an array or a sparse matrix in CSR form."""
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])

    def _sizes(self, counts: Table) -> Tensor:
        """The sum of each row."""
        return torch.cat([counts[rows].sum(1).double() for rows in _slices(counts)])

    def _relative(self, sizes: Tensor, size: float) -> Tensor | None:
        """The offset: the logarithm of each row's size, relative to the mean size of the rows that were fitted."""
        if self.offset == "none":
            return None
        if (sizes == 0).any():
            row = int((sizes == 0).nonzero()[0])
            raise DomainError(f"row {row} has no counts, so that it has no size: leave it out, or say offset='none'")
        return (sizes / size).log().float()

    def _likelihood(self) -> nn.Module:
        if self.likelihood == "poisson":
            return Poisson()
        return LIKELIHOODS[self.likelihood](self.n_features_in_)

    def _require_parameters(self) -> None:
        for name, kinds in (("likelihood", get_args(LikelihoodOfCounts)), ("offset", get_args(OffsetKind))):
            value = getattr(self, name)
            if value not in kinds:
                raise DomainError(f"{name} has to be one of {', '.join(kinds)}; got {value!r}")
        for name in ("n_components", "max_iter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise DomainError(f"{name} has to be a whole number of at least 1, got {value!r}")
        if not 0 <= self.tol < math.inf:
            raise DomainError(f"tol has to be a number from 0 on, got {self.tol!r}")


def require_counts(entries: NDArray[Any]) -> None:
    """Refuses what are no counts."""
    if (entries < 0).any():
        raise DomainError("Negative values in data passed to CountFactors: counts are whole numbers from 0 on")
    if (entries != np.floor(entries)).any():
        raise DomainError("fractions in data passed to CountFactors: counts are whole numbers from 0 on")


def _slices(counts: Table) -> Iterator[slice]:
    """Rows whose dense form is small."""
    step = max(1, START_ENTRIES // counts.shape[1])
    for start in range(0, len(counts), step):
        yield slice(start, start + step)


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().double().numpy()
