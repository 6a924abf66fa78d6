"""Tools for AnnData objects, as scanpy has them: `silentgrad.tl.count_factors(adata)`."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch
from anndata import AnnData  # type: ignore[import-untyped]
from numpy.typing import ArrayLike, NDArray

import silentgrad
from silentgrad.errors import DomainError
from silentgrad.factors.count_factors import CountFactors, LikelihoodOfCounts, Missing, SizeFactors
from silentgrad.factors.latents import Posterior
from silentgrad.factors.table import require_covariates

STORED = (  # attributes of the estimator that `uns` has
    *("explained_deviance", "explained_by_covariates", "elbo", "converged", "n_iter"),
    *("intercept", "dispersions", "coefficients", "coefficient_errors"),
)


def count_factors(
    adata: AnnData,
    n_comps: int | Literal["auto"] = 10,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    batch_key: str | None = None,
    covariate_keys: Sequence[str] = (),
    size_factors: SizeFactors | ArrayLike = "median",
    likelihood: LikelihoodOfCounts = "negative-binomial",
    posterior: Posterior = "full",
    ridge: float = 0.0,
    missing: Missing = "error",
    key_added: str = "count_factors",
    verbose: bool = False,
    copy: bool = False,
) -> AnnData | None:
    """Fit count factors to an AnnData object, in memory or backed, and write them into it.

    It fills `obsm["X_count_factors"]`, with which `sc.pp.neighbors(adata, use_rep="X_count_factors")` goes on;
    `varm["count_factors"]`, the loadings; and `uns["count_factors"]`: settings, deviance, weights of the covariates
    with standard errors, and version. Backed data are read in blocks.

    Args:
        adata: Counts of cells (rows) by genes (columns).
        n_comps: Number of factors, or "auto" for the smallest whose deviance on entries that are held out is within a
            standard error of the least.
        layer: Layer that holds the counts; `adata.X` if absent.
        use_raw: Whether the counts are those of `adata.raw`; their loadings are then in `uns` alone.
        batch_key: Column of `obs` whose values, numbers too, are categories with log-rates of their own. The weights
            are relative to the first category.
        covariate_keys: Further columns of `obs`: categories, or numbers with a slope each.
        size_factors: As in `CountFactors`, whose default is "none".
        likelihood: As in `CountFactors`.
        posterior: As in `CountFactors`.
        ridge: As in `CountFactors`.
        missing: As in `CountFactors`.
        key_added: Name under which the results are stored.
        verbose: Whether to show a progress bar.
        copy: Whether to return a copy with the results instead of changing `adata`.
    """
    if copy:
        adata = adata.to_memory() if adata.isbacked else adata.copy()
    if isinstance(covariate_keys, str):
        raise DomainError(f"covariate_keys is a list of columns, such as [{covariate_keys!r}]")
    keys = [*([] if batch_key is None else [batch_key]), *covariate_keys]
    table = adata.obs
    if batch_key is not None and batch_key in table:  # batches are often numbered
        table = table.assign(**{batch_key: table[batch_key].astype("category")})
    covariates, names = covariates_of(table, keys)
    settings: dict[str, Any] = {"likelihood": likelihood, "posterior": posterior, "ridge": ridge, "missing": missing}
    model = CountFactors(n_comps, size_factors=size_factors, verbose=verbose, **settings)
    factors = model.fit_transform(_counts_of(adata, layer, use_raw), covariates=covariates)
    adata.obsm[f"X_{key_added}"] = factors.astype(np.float32)
    loadings = model.components_.T.astype(np.float32)
    found = {name: getattr(model, f"{name}_") for name in STORED} | {
        "params": {
            "n_comps": model.n_components_,
            "layer": layer or "X",
            "use_raw": use_raw,
            "batch_key": batch_key or "",
            "covariate_keys": list(covariate_keys),
            "size_factors": size_factors if isinstance(size_factors, str) else "given",
            **settings,
        },
        "history": np.array(model.history_),
        "variances": np.square(model.components_).sum(1),
        "covariates": names,
        "version": silentgrad.__version__,
    }
    if n_comps == "auto":
        path = model.rank_path_
        found["rank_path"] = {name: np.array(getattr(path, name)) for name in ("ranks", "deviances", "errors")}
    if use_raw:
        found["loadings"] = loadings
    else:
        adata.varm[key_added] = loadings
    adata.uns[key_added] = found
    return adata if copy else None


def covariates_of(table: pd.DataFrame, keys: Sequence[str]) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Return columns of a table as covariates with their names: categories but for the first, and numbers."""
    made = []
    for key in keys:
        if key not in table:
            known = ", ".join(map(repr, map(str, table.columns))) or "none"
            raise DomainError(f"obs has no column {key!r}; it has {known}")
        column = table[key]
        if column.isna().any():
            raise DomainError(f"the column {key!r} of obs has rows without a value, the first of them row "
                              f"{int(column.isna().to_numpy().nonzero()[0][0])}")  # fmt: skip
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            made.append(column.astype(np.float64).rename(key))
            continue
        found = column.astype("category").cat.remove_unused_categories()
        if len(found.cat.categories) < 2:
            raise DomainError(f"the column {key!r} of obs is the same in all rows: leave it out")
        made.append(pd.get_dummies(found, prefix=key, prefix_sep="=", drop_first=True, dtype=np.float64))
    if not made:
        return None, []
    joined = pd.concat(made, axis=1)
    names = list(map(str, joined.columns))
    require_covariates(torch.from_numpy(joined.to_numpy(np.float64)), names)
    return joined.to_numpy(np.float64), names


def _counts_of(adata: AnnData, layer: str | None, use_raw: bool) -> Any:
    if use_raw and layer is not None:
        raise DomainError("use_raw and layer name two places of counts: choose one")
    if use_raw and adata.raw is None:
        raise DomainError("use_raw=True, and adata.raw is not there: name the layer of counts, or leave use_raw out")
    if use_raw:
        return adata.raw.X
    if layer is None:
        return adata.X
    if layer not in adata.layers:
        known = ", ".join(map(repr, adata.layers)) or "none"
        raise DomainError(f"adata.layers has no {layer!r}; it has {known}")
    return adata.layers[layer]
