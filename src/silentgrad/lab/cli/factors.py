"""`silentgrad factors`: the fit of counts without an encoder, from a file to a file."""

from pathlib import Path
from typing import Any, Literal

from silentgrad.errors import DomainError
from silentgrad.factors.count_factors import LikelihoodOfCounts, SizeFactors
from silentgrad.factors.latents import Posterior
from silentgrad.lab.data.h5ad import read_anndata
from silentgrad.lab.store.folders import RunFolder

TOP = 5  # columns told of either end of a factor


def factors(
    data: Path,
    output: Path,
    rank: str = "10",
    likelihood: LikelihoodOfCounts = "negative-binomial",
    size_factors: SizeFactors = "median",
    posterior: Posterior = "full",
    ridge: float = 0.0,
    layer: str | None = None,
    batch: str | None = None,
    color: str | None = None,
    index: str | None = None,
    drop: list[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Fit count factors without an encoder, and write them with their loadings and pictures.

    Args:
        data: Counts, rows by columns: an .h5ad file, or a .csv file with names of columns.
        output: An .h5ad file for data, factors and loadings; or a .csv file for the factors alone. A folder beside it,
            named after it, has the loadings and the pictures.
        rank: Number of factors, or auto, which tries up to 50 on held-out entries.
        likelihood: Likelihood of the counts.
        size_factors: By how much a row's rates are multiplied.
        posterior: Covariances of the rows' posteriors; diagonal ones take less memory.
        ridge: Shrinks the loadings; 0 leaves them as they are.
        layer: Layer that holds the counts.
        batch: Column of obs, or of the .csv file, whose values, numbers too, are categories with log-rates of their
            own.
        color: Column by which the picture of the rows is colored.
        index: Column of a .csv file that names its rows.
        drop: Columns of a .csv file that are no counts.
        overwrite: Whether to replace an output that is there.
    """
    n_comps = _rank(rank)
    folder = output.with_suffix("")
    _require_output(data, output, folder, overwrite)
    from silentgrad import tl

    side = [name for name in (batch, color) if name is not None]
    table = read_anndata(data) if data.suffix == ".h5ad" else _read_csv(data, index, drop or [], side)
    tl.count_factors(
        table, n_comps, layer=layer, batch_key=batch, size_factors=size_factors, likelihood=likelihood,
        posterior=posterior, ridge=ridge, verbose=True,
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    weights = _write(table, output, folder)
    _draw(table, color or batch, folder)
    found = table.uns["count_factors"]
    end = "converged" if found["converged"] else "did not converge"
    print(f"{end} after {found['n_iter']} iterations; {found['explained_deviance']:.1%} of the deviance explained")
    for name in weights.columns[:3]:
        order = weights[name].sort_values().index
        print(f"{name}: {', '.join(order[: -TOP - 1 : -1])} rise, {', '.join(order[:TOP])} fall")
    print(f"{output}, and loadings and pictures in {folder}")


def _rank(word: str) -> int | Literal["auto"]:
    if word == "auto":
        return "auto"
    if not word.isdecimal():
        raise DomainError(f"--rank has to be a whole number or auto, got {word!r}")
    return int(word)


def _require_output(data: Path, output: Path, folder: Path, overwrite: bool) -> None:
    if output.suffix not in (".h5ad", ".csv"):
        raise DomainError(f"{output}: expected a name that ends in .h5ad or .csv")
    if data.resolve() == output.resolve():
        raise DomainError(f"{output} is the file of the data: name another output")
    for path in (output, folder):
        if path.exists() and not overwrite:
            raise DomainError(f"{path} is there already: --overwrite true replaces it")


def _write(table: Any, output: Path, folder: Path) -> Any:
    """Write factors and loadings, and return the loadings with their names."""
    import pandas as pd  # type: ignore[import-untyped]

    names = [f"factor{number + 1}" for number in range(table.uns["count_factors"]["params"]["n_comps"])]
    weights = pd.DataFrame(table.varm["count_factors"], index=table.var_names, columns=names)
    weights.to_csv(RunFolder(folder).loadings)
    if output.suffix == ".h5ad":
        table.write_h5ad(output)
    else:
        pd.DataFrame(table.obsm["X_count_factors"], index=table.obs_names, columns=names).to_csv(output)
    return weights


def _draw(table: Any, color: str | None, folder: Path) -> None:
    from matplotlib import pyplot as plt

    from silentgrad import pl

    dimensions = table.uns["count_factors"]["params"]["n_comps"]
    drawn: dict[str, Any] = {
        "loadings.png": pl.loadings(table, range(min(3, dimensions)))[0],
        "deviance.png": pl.explained_deviance(table),
    }
    if dimensions > 1:
        drawn["factors.png"] = pl.factors(table, color)
    for name, axes in drawn.items():
        axes.figure.savefig(folder / name, dpi=120)
        plt.close(axes.figure)


def _read_csv(path: Path, index: str | None, drop: list[str], side: list[str]) -> Any:
    """Read a .csv file: counts, names of rows, and columns that describe them."""
    import anndata  # type: ignore[import-untyped]
    import pandas as pd

    table = pd.read_csv(path)
    others = [*filter(None, [index]), *drop, *side]
    for name in others:
        if name not in table:
            raise DomainError(f"{path}: there is no column {name!r}")
    table.index = (table.index if index is None else pd.Index(table[index])).astype(str)
    counts = table.drop(columns=others)
    for name in counts.select_dtypes(exclude="number"):
        raise DomainError(
            f"{path}: column {name!r} has {str(counts[name].iloc[0])!r}, which is no count: --index {name} if it names "
            f"the rows, --drop [{name}] to leave it out"
        )
    return anndata.AnnData(counts.to_numpy("float32"), obs=table[side], var=pd.DataFrame(index=counts.columns))
