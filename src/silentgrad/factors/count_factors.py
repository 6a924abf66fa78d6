"""Factors of counts with scikit-learn's interface: a linear decoder fitted without an encoder and without sampling."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from silentgrad.decoders import LinearLikelihood
from silentgrad.errors import DomainError, ShapeError
from silentgrad.factors.cluster import ClusterRows, client_of
from silentgrad.factors.deviance import explained_deviance, inverse_dispersion_of, rates
from silentgrad.factors.fit import FactorFit, Inference, fit_rows, infer_factors
from silentgrad.factors.latents import Posterior
from silentgrad.factors.rank import RankPath, rank_path_of
from silentgrad.factors.rows import FactorRows, RowSet
from silentgrad.factors.table import CountTable, Survey, require_covariates, surveyed
from silentgrad.likelihoods import (
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from silentgrad.side_info import SideInfo, usual_size

LikelihoodOfCounts = Literal["poisson", "negative-binomial", "zero-inflated-poisson", "zero-inflated-negative-binomial"]
SizeFactors = Literal["median", "none"]
Missing = Literal["error", "nan"]
LIKELIHOODS: dict[str, Callable[[int], nn.Module]] = {
    "negative-binomial": NegativeBinomial,
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial,
}
CHOICES: dict[str, tuple[str, ...]] = {
    "likelihood": get_args(LikelihoodOfCounts),
    "size_factors": get_args(SizeFactors),
    "posterior": get_args(Posterior),
    "scale": ("standard", "loadings"),
    "missing": get_args(Missing),
}


class CountFactors(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components of counts: log-rates that are linear in a few Gaussian factors.

    With a Poisson likelihood this is Poisson log-normal PCA. The fit is deterministic, by Newton's steps on a bound of
    the likelihood that needs no sample. Factors come in the order of how much they move the log-rates. Every method
    takes the side information of its rows: `offset`, known parts of the log-rates, `(rows,)` or `(rows, columns)`;
    `covariates`, `(rows, covariates)`; `mask`, True where an entry was observed; `sample_weight`, `(rows,)`.

    Args:
        n_components: Number of factors, or "auto" for the smallest whose deviance on held-out entries is within a
            standard error of the least.
        likelihood: Likelihood of the counts.
        size_factors: By how much a row's rates are multiplied: "median", its sum relative to that of the median row,
            corrected for columns that were not observed; "none"; or an array of one per row that is fitted.
        posterior: Covariances of the rows' posteriors: "full", or "diagonal", which takes memory in proportion to the
            number of factors, not to its square, and whose bound is lower. Components are then not orthogonal.
        ridge: Shrinks the weights W of factors of variance 1: the fit maximizes the bound less `ridge / 2 * |W|^2`, in
            nats. The value is to be chosen by the deviance of entries that are held out, as `rank_path` tells it.
        scale: "standard" for factors of variance 1, "loadings" for factors in log-rates: then components have norm 1.
        missing: "nan" if NaN is an entry that was not observed, "error" if it is an error.
        tol: Nats per entry: the fit ends when four iterations in a row gain less each.
        max_iter: Number of iterations at the most.
        verbose: Whether to show a progress bar.

    Attributes:
        components_: Weights of the factors, `(n_components, n_features)`.
        intercept_: Log-rates where all factors and covariates are zero, `(n_features,)`.
        coefficients_: Weights of the covariates, `(n_features, covariates)`.
        coefficient_errors_: Their standard errors, with the factors held at their posteriors.
        dispersions_: Of a negative binomial, 1 / r in the variance `mean + mean**2 / r`, `(n_features,)`; else zeros.
        explained_deviance_: The share of the deviance, without factors and covariates, that the fit explains.
        elbo_: The bound in nats, over all rows, without the ridge's penalty.
        history_: The best bound up to each iteration, in nats; with a ridge, less its penalty.
        n_iter_: Number of iterations.
        converged_: Whether the fit ended by its tolerance.
        n_components_: Number of factors.
        size_factors_: Size factors of the rows that were fitted, `(rows,)`; ones without size factors.
        explained_by_covariates_: The part of `explained_deviance_` that covariates explain where all factors are zero.
        rank_path_: The `RankPath` from which "auto" chose.
        decoder_: The decoder, a `silentgrad.LinearLikelihood`.

    Example:
        >>> counts = np.random.RandomState(0).poisson(3.0, size=(40, 5))
        >>> CountFactors(n_components=2).fit_transform(counts).shape
        (40, 2)
    """

    def __init__(
        self,
        n_components: int | Literal["auto"] = 10,
        *,
        likelihood: LikelihoodOfCounts = "negative-binomial",
        size_factors: SizeFactors | ArrayLike = "none",
        posterior: Posterior = "full",
        ridge: float = 0.0,
        scale: Literal["standard", "loadings"] = "standard",
        missing: Missing = "error",
        tol: float = 1e-6,
        max_iter: int = 300,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.likelihood = likelihood
        self.size_factors = size_factors
        self.posterior = posterior
        self.ridge = ridge
        self.scale = scale
        self.missing = missing
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: object = None,
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit the factors to counts `(rows, columns)`: an array, a sparse matrix, or one on disk."""
        self._fitted(X, sample_weight, offset, covariates, mask)
        return self

    def fit_transform(
        self,
        X: ArrayLike,  # noqa: N803
        y: object = None,
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Fit the factors, and return each row's, `(rows, n_components)`."""
        return self._scaled(self._fitted(X, sample_weight, offset, covariates, mask).latents.means)

    def transform(
        self,
        X: ArrayLike,  # noqa: N803
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Return the factors of rows, `(rows, n_components)`: means of their posteriors under the fitted decoder."""
        return self._scaled(self._inferred(X, offset, covariates, mask)[0].latent.mean)

    def score(
        self,
        X: ArrayLike,  # noqa: N803
        y: object = None,
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the bound of the log-likelihood of rows, in nats per observed entry; the higher, the better."""
        found, known = self._inferred(X, offset, covariates, mask)
        weights = self._weights(sample_weight, len(found.elbo))
        if weights is None:
            weights = torch.ones_like(found.elbo)
        observed = torch.full_like(found.elbo, self.n_features_in_)
        if known.mask is not None:
            observed = known.mask.sum(1).to(observed)
        return float(weights @ found.elbo) / float(weights @ observed)

    def inverse_transform(
        self,
        X: ArrayLike,  # noqa: N803
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Return the expected counts of rows with these factors, `(rows, n_features)`.

        They are those of rows of size 1, unless their size is in the offset, as in `offset=np.log(size_factors_)`.
        """
        check_is_fitted(self)
        factors = np.asarray(X, dtype=np.float64)
        if factors.ndim != 2 or factors.shape[1] != self.n_components_:
            raise ShapeError(f"expected factors of shape (rows, {self.n_components_}), got {factors.shape}")
        known = self._side_info_like_the_fits(len(factors), offset, covariates)
        means = torch.from_numpy(factors / self._units())
        return _array(rates(self.decoder_, means, None, known))

    @torch.inference_mode(False)
    def rank_path(
        self,
        X: ArrayLike,  # noqa: N803
        ranks: Sequence[int] | None = None,
        *,
        offset: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> RankPath:
        """Return the deviance of entries that are held out, for some ranks, from which "auto" chooses."""
        return self._path(self._prepared(X, sample_weight, offset, covariates, mask), ranks)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "nan"
        return tags

    @property
    def _n_features_out(self) -> int:
        """The number of columns that `transform` gives, for scikit-learn's names of them."""
        return int(self.n_components_)

    @torch.inference_mode(False)
    def _fitted(self, X: ArrayLike, sample_weight: ArrayLike | None, *beside: ArrayLike | None) -> FactorFit:  # noqa: N803
        """Fit the decoder, and return what came of it."""
        data = self._prepared(X, sample_weight, *beside)
        rank, path = self.n_components, None
        if rank == "auto":
            path = self._path(data)
            rank = path.best
        decoder = self._started(int(rank), data)
        client = client_of(data.table.source)
        rows_of: Callable[..., RowSet] = FactorRows if client is None else partial(ClusterRows, client)
        with tqdm(total=self.max_iter, unit="iteration", disable=not self.verbose) as bar:

            def report(bounds: list[float]) -> None:
                bar.set_postfix_str(f"bound {bounds[-1]:.6g} nats", refresh=False)
                bar.update()

            fit = self._fit_rows(decoder, *data[:3], self.tol, report=report, rows_of=rows_of)
        if not fit.converged:
            advice = f"the fit ended after {len(fit.history)} iterations without converging: raise max_iter, or tol"
            warnings.warn(advice, ConvergenceWarning, stacklevel=4)
        self._keep(decoder, fit, data)
        shares = explained_deviance(decoder, data.table, data.known, data.weights, fit.latents.means)
        self.explained_deviance_, self.explained_by_covariates_ = shares
        if path is not None:
            self.rank_path_ = path
        return fit

    def _prepared(self, X: ArrayLike, sample_weight: ArrayLike | None, *beside: ArrayLike | None) -> "_Prepared":  # noqa: N803
        """Look at the data of a fit."""
        self._require_parameters()
        table = self._table(X, reset=True)
        if self.n_components != "auto" and self.n_components > self.n_features_in_:
            raise DomainError(
                f"n_components={self.n_components} is above the number of columns, n_features={self.n_features_in_}"
            )
        given = self._side_info(len(table), *beside)
        if given.covariates is not None:
            require_covariates(given.covariates)
        survey = surveyed(table, given.mask)
        shares = survey.shares()
        size = usual_size(survey.whole_sizes(shares))
        sizes = self._sizes_of(survey, size, shares)
        weights = self._weights(sample_weight, len(table))
        return _Prepared(table, self._with_sizes(given, survey, sizes), weights, sizes, size, shares)

    def _path(self, data: "_Prepared", ranks: Sequence[int] | None = None) -> RankPath:
        new = partial(self._new_decoder, known=data.known)
        return rank_path_of(new, partial(self._fit_rows, tol=self.tol), *data[:3], ranks)

    def _fit_rows(
        self, decoder: LinearLikelihood, x: Any, known: SideInfo, weights: Tensor | None, tol: float, **options: Any
    ) -> FactorFit:
        """Fit a decoder to rows by the settings."""
        options = {"ridge": self.ridge} | options
        return fit_rows(decoder, x, known, weights, tol, self.max_iter, self.posterior, **options)

    def _keep(self, decoder: LinearLikelihood, fit: FactorFit, data: "_Prepared") -> None:
        self.decoder_, self.elbo_, self.converged_ = decoder, fit.elbo, fit.converged
        self.size_, self._shares, self.size_factors_ = data.size, data.shares, _array(data.sizes)
        self.history_, self.n_iter_, self.n_components_ = fit.history, len(fit.history), decoder.latent_dim
        self.components_ = _array(decoder.affine.weight.T) / self._units()[:, None]
        self.intercept_ = _array(decoder.affine.bias)
        self.coefficients_ = np.zeros((self.n_features_in_, 0))
        if decoder.covariate_affine is not None:
            self.coefficients_ = _array(decoder.covariate_affine.weight)
        self.coefficient_errors_ = _array(fit.covariate_errors)
        dispersions = 1 / inverse_dispersion_of(decoder.likelihood)
        self.dispersions_ = _array(dispersions.expand(self.n_features_in_)).copy()

    def _units(self) -> NDArray[Any]:
        """Return what each factor of variance 1 is multiplied by."""
        if self.scale == "standard":
            return np.ones(self.n_components_)
        norms = _array(self.decoder_.affine.weight.norm(dim=0))
        return np.where(norms > 0, norms, 1)

    def _scaled(self, means: Tensor) -> NDArray[Any]:
        return _array(means) * self._units()

    def _started(self, rank: int, data: "_Prepared") -> LinearLikelihood:
        """Return the decoder where the fit begins: fitted to some of the rows, if there are many."""
        rows, beside, some = data.table.taken(data.known, data.weights)
        decoder = self._new_decoder(rank, data.known).to(rows.dtype)
        decoder.init_from_data(rows, offset=beside.offset, mask=beside.mask)
        if len(rows) < len(data.table):
            share = len(rows) / len(data.table)  # of the bound, and so of the penalty
            self._fit_rows(decoder, rows, beside, some, 10 * self.tol, ridge=self.ridge * share)
        return decoder

    def _new_decoder(self, rank: int, known: SideInfo) -> LinearLikelihood:
        likelihood = Poisson() if self.likelihood == "poisson" else LIKELIHOODS[self.likelihood](self.n_features_in_)
        with torch.random.fork_rng(devices=[]):  # a linear layer draws its first weights, which are replaced
            return LinearLikelihood(rank, self.n_features_in_, likelihood, covariates=_columns(known))

    @torch.inference_mode(False)
    def _inferred(self, X: ArrayLike, *beside: ArrayLike | None) -> tuple[Inference, SideInfo]:  # noqa: N803
        """Find the factors of rows under the fitted decoder; return them, and what is known of the rows."""
        check_is_fitted(self)
        table = self._table(X, reset=False)
        given = self._side_info_like_the_fits(len(table), *beside)
        survey = surveyed(table, given.mask)
        known = self._with_sizes(given, survey, self._sizes_of(survey, self.size_, self._shares))
        found = infer_factors(
            self.decoder_, table, offset=known.offset, covariates=known.covariates, mask=known.mask,
            posterior=self.posterior,
        )  # fmt: skip
        if not found.converged.all():
            rows = (~found.converged).nonzero().squeeze(1)
            advice = f"the factors of {len(rows)} rows did not converge, the first of them row {int(rows[0])}"
            warnings.warn(advice, ConvergenceWarning, stacklevel=4)
        return found, known

    def _table(self, X: ArrayLike, reset: bool) -> CountTable:  # noqa: N803
        """Return the data as the fit takes them; in memory as scikit-learn has found them to be in order."""
        if hasattr(X, "obsm"):
            raise DomainError(
                "CountFactors takes a matrix, not an AnnData object: pass adata.X or a layer of counts, or use "
                "silentgrad.tl.count_factors(adata)"
            )
        in_file = type(X).__module__.split(".")[0] in ("anndata", "dask", "h5py")
        table = CountTable(X if in_file else self._validated(X, reset), self.missing == "nan")
        if in_file and reset:
            self.n_features_in_ = table.shape[1]
        if table.shape[1:] != (self.n_features_in_,) or len(table) == 0:
            raise ShapeError(f"X has shape {tuple(table.shape)}, expected rows of {self.n_features_in_} features")
        return table

    def _validated(self, X: ArrayLike, reset: bool) -> Any:  # noqa: N803
        """Return the data once scikit-learn has found them in order, an array or a sparse matrix in CSR form."""
        # `surveyed` names the row and the column of what is not finite
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype="numeric", ensure_all_finite=False)

    def _side_info(
        self, rows: int, offset: ArrayLike | None, covariates: ArrayLike | None, mask: ArrayLike | None = None
    ) -> SideInfo:
        """Return what is known of rows, as tensors."""
        try:
            given = _tensor(covariates)
        except ValueError as error:
            advice = "code categories as columns of 0 and 1, or use silentgrad.tl.count_factors(batch_key=...)"
            raise DomainError(f"covariates have to be numbers ({error}): {advice}") from None
        if given is not None and given.dim() == 1:
            given = given.unsqueeze(1)
        known = SideInfo(_tensor(offset), given, None if mask is None else torch.as_tensor(mask))
        known.flattened(torch.Size([rows]), torch.Size([self.n_features_in_]))
        return known

    def _side_info_like_the_fits(self, rows: int, *beside: ArrayLike | None) -> SideInfo:
        """Return the same, with as many covariates as the fit had."""
        known = self._side_info(rows, *beside)
        if _columns(known) != self.coefficients_.shape[1]:
            raise ShapeError(f"the fit had {self.coefficients_.shape[1]} covariates, and {_columns(known)} were given")
        return known

    def _sizes_of(self, survey: Survey, size: float, shares: Tensor) -> Tensor:
        """Return the size factors of rows; ones without any."""
        if not isinstance(self.size_factors, str):
            sizes = torch.as_tensor(np.asarray(self.size_factors, dtype=np.float64))
            if sizes.shape != survey.sizes.shape:
                raise ShapeError(
                    f"size_factors has shape {tuple(sizes.shape)} for {len(survey.sizes)} rows: it is for rows that "
                    "were fitted; for others say size_factors='none' and pass offset=log(sizes) to every method"
                )
            if not ((sizes > 0) & sizes.isfinite()).all():
                raise DomainError("size_factors have to be finite numbers above 0")
            return sizes
        if self.size_factors == "none":
            return torch.ones_like(survey.sizes)
        sizes = survey.whole_sizes(shares) / size
        if not (sizes > 0).all():
            row = int((~(sizes > 0)).nonzero()[0])
            advice = "leave it out, or say size_factors='none'"
            raise DomainError(f"row {row} has no counts, so that it has no size: {advice}")
        return sizes

    def _with_sizes(self, given: SideInfo, survey: Survey, sizes: Tensor) -> SideInfo:
        """Add the logarithms of size factors to the offset, and what is missing to the mask."""
        offset = given.offset
        if isinstance(self.size_factors, str) and self.size_factors == "none":
            return SideInfo(offset, given.covariates, survey.mask)
        log_size = sizes.log()
        if offset is not None:
            log_size = offset + (log_size if offset.dim() == 1 else log_size.unsqueeze(1))
        return SideInfo(log_size, given.covariates, survey.mask)

    def _weights(self, sample_weight: ArrayLike | None, rows: int) -> Tensor | None:
        if sample_weight is None:
            return None
        weights = torch.as_tensor(np.asarray(sample_weight, dtype=np.float64))
        if weights.shape != (rows,):
            raise ShapeError(f"sample_weight has shape {tuple(weights.shape)}, expected one per row, {rows}")
        return weights

    def _require_parameters(self) -> None:
        for name, kinds in CHOICES.items():
            value = getattr(self, name)
            if name == "size_factors" and not isinstance(value, str):
                continue
            if value not in kinds:
                raise DomainError(f"{name} has to be one of {', '.join(kinds)}; got {value!r}")
        for name in ("n_components", "max_iter"):
            value = getattr(self, name)
            if name == "n_components" and value == "auto":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise DomainError(f"{name} has to be a whole number of at least 1, got {value!r}")
        for name in ("tol", "ridge"):
            if not 0 <= getattr(self, name) < math.inf:
                raise DomainError(f"{name} has to be a finite number from 0 on, got {getattr(self, name)!r}")


class _Prepared(NamedTuple):
    """Data of a fit, what is known of the rows, their size factors, the median size, each column's share of a row."""

    table: CountTable
    known: SideInfo
    weights: Tensor | None
    sizes: Tensor
    size: float
    shares: Tensor


def _columns(known: SideInfo) -> int:
    """Return the number of covariates."""
    return 0 if known.covariates is None else known.covariates.shape[1]


def _tensor(numbers: ArrayLike | None) -> Tensor | None:
    if numbers is None:
        return None
    return torch.from_numpy(np.array(numbers, dtype=np.float64))


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().double().numpy()
