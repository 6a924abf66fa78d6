"""Plots of count factors in an AnnData object, after `silentgrad.tl.count_factors`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from anndata import AnnData  # type: ignore[import-untyped]
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from silentgrad.errors import DomainError

SHOWN = 10  # columns at either end of a factor


def loadings(adata: AnnData, factors: Sequence[int] = (0, 1, 2), *, key: str = "count_factors") -> list[Axes]:
    """Draw the columns that rise and fall most with each factor, one panel a factor."""
    found = _found(adata, key)
    weights = found["loadings"] if "loadings" in found else adata.varm[key]
    names = np.asarray(adata.raw.var_names if found["params"]["use_raw"] else adata.var_names)
    _require_factors(factors, weights.shape[1])
    _, grid = plt.subplots(1, len(factors), figsize=(3.2 * len(factors), 4.5), squeeze=False, layout="constrained")
    for axes, factor in zip(grid[0], factors, strict=True):
        order = np.argsort(weights[:, factor])
        ends = np.unique(np.concatenate([np.arange(len(order))[:SHOWN], np.arange(len(order))[-SHOWN:]]))
        chosen = order[ends]
        places = np.arange(len(chosen))
        axes.barh(places, weights[chosen, factor])
        axes.set_yticks(places, names[chosen], fontsize=7)
        axes.set(title=f"factor {factor + 1}", xlabel="log-rate per standard deviation")
    return list(grid[0])


def factors(
    adata: AnnData, color: str | None = None, *, factors: tuple[int, int] = (0, 1), key: str = "count_factors"
) -> Axes:
    """Draw the rows in the plane of two factors, colored by a column of `obs`."""
    _found(adata, key)
    points = adata.obsm[f"X_{key}"]
    _require_factors(factors, points.shape[1])
    _, axes = plt.subplots(figsize=(5, 4.5), layout="constrained")
    across, up = points[:, factors[0]], points[:, factors[1]]
    if color is None:
        axes.scatter(across, up, s=4)
    elif color not in adata.obs:
        raise DomainError(
            f"obs has no column {color!r}; it has {', '.join(map(repr, map(str, adata.obs.columns))) or 'none'}"
        )
    elif adata.obs[color].dtype.kind in "if":
        axes.figure.colorbar(axes.scatter(across, up, s=4, c=adata.obs[color]), label=color)
    else:
        for name, rows in adata.obs.groupby(color, observed=True).indices.items():
            axes.scatter(across[rows], up[rows], s=4, label=str(name))
        axes.legend(title=color, markerscale=3)
    axes.set(xlabel=f"factor {factors[0] + 1}", ylabel=f"factor {factors[1] + 1}")
    return axes


def explained_deviance(adata: AnnData, *, key: str = "count_factors") -> Axes:
    """Draw the share of the deviance that covariates explain, and each factor beyond them.

    Factors divide their share in proportion to how much they move the log-rates.

    After `n_comps="auto"`, the deviance of held-out entries by rank is drawn instead.
    """
    found: dict[str, Any] = _found(adata, key)
    _, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    if "rank_path" in found:
        path = found["rank_path"]
        axes.errorbar(path["ranks"], path["deviances"], path["errors"], marker="o")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.axvline(found["params"]["n_comps"], linestyle=":")
        axes.set(xlabel="number of factors", ylabel="mean deviance of held-out entries")
        return axes
    of_covariates = found["explained_by_covariates"]
    shares = found["variances"] / found["variances"].sum() * (found["explained_deviance"] - of_covariates)
    axes.bar(np.arange(len(shares)) + 1, shares, label="factors")
    if len(found["covariates"]):
        axes.bar(0, of_covariates, color="tab:gray", label="covariates")
        axes.legend()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="factor", ylabel="share of the deviance", title=f"{found['explained_deviance']:.1%} in all")
    return axes


def convergence(adata: AnnData, *, key: str = "count_factors") -> Axes:
    """Draw by how many nats the bound of each iteration was below that of the last one."""
    history = np.asarray(_found(adata, key)["history"])
    _, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.plot(np.arange(len(history)) + 1, history[-1] - history, marker="o", markersize=3)
    axes.set_yscale("symlog", linthresh=1)
    axes.set(xlabel="iteration", ylabel="nats below the last bound")
    return axes


def _found(adata: AnnData, key: str) -> Any:
    if key not in adata.uns:
        raise DomainError(f"there is no uns[{key!r}]: call silentgrad.tl.count_factors(adata) first")
    return adata.uns[key]


def _require_factors(chosen: Sequence[int], count: int) -> None:
    for factor in chosen:
        if not 0 <= factor < count:
            found = "factor 0 alone" if count == 1 else f"factors 0 to {count - 1}"
            raise DomainError(f"cannot draw factor {factor}: the fit has {found}. Pass factors=, or fit more")
