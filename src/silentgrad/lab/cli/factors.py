"""`silentgrad factors`: the fit of counts without an encoder, from a file to a file and a page."""

from pathlib import Path
from typing import Any

import torch

from silentgrad.errors import DomainError
from silentgrad.factors.count_factors import LikelihoodOfCounts, Missing, SizeFactors
from silentgrad.factors.latents import Posterior
from silentgrad.lab.cli.shared import require_output, show_table
from silentgrad.lab.data.files import DataError, names_or_numbers
from silentgrad.lab.data.h5ad import read_anndata
from silentgrad.lab.data.tabular import READERS
from silentgrad.lab.kinds import Selection
from silentgrad.lab.reports.page import Listing, Page, Picture, Section
from silentgrad.lab.reports.run import LOG_RATES, loadings_table
from silentgrad.lab.store.files import write_atomically
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.store.records import named_loadings
from silentgrad.lab.tables import Table
from silentgrad.sparse import SparseMatrix


def factors(
    data: Path,
    output: Path | None = None,
    rank: str = "10",
    likelihood: LikelihoodOfCounts = "negative-binomial",
    size_factors: SizeFactors = "median",
    posterior: Posterior = "full",
    ridge: float = 0.0,
    missing: Missing = "error",
    layer: str | None = None,
    batch: str | None = None,
    covariates: list[str] | None = None,
    color: str | None = None,
    index: str | None = None,
    drop: list[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Fit count factors without an encoder, and write them with their loadings and a page about them.

    Args:
        data: Counts, rows by columns: an .h5ad file; a table with names of columns, .csv, .tsv or .parquet; or an
            array or a sparse matrix, .npy or .npz.
        output: An .h5ad file for data, factors and loadings; or a .csv file for the factors alone. A folder beside it,
            named after it, has the loadings, the pictures and the page, report.html. If absent, named after the data,
            NAME-factors.h5ad or NAME-factors.csv.
        rank: Number of factors, or auto, which tries up to 50 on held-out entries.
        likelihood: Likelihood of the counts.
        size_factors: By how much a row's rates are multiplied.
        posterior: Covariances of the rows' posteriors; diagonal ones take less memory.
        ridge: Shrinks the loadings; 0 leaves them as they are.
        missing: nan if empty cells and NaN are entries that were not observed.
        layer: Layer that holds the counts.
        batch: Column of obs, or of the table, whose values, numbers too, are categories with log-rates of their own.
        covariates: Further columns: categories, or numbers with a slope each.
        color: Column by which the picture of the rows is colored.
        index: Column of a table that names its rows.
        drop: Columns of a table that are no counts.
        overwrite: Whether to replace an output that is there.
    """
    if rank != "auto" and not rank.isdecimal():
        raise DomainError(f"--rank has to be a whole number or auto, got {rank!r}")
    n_comps: Any = rank if rank == "auto" else int(rank)
    if data.suffix not in READERS:
        raise DomainError(f"{data}: expected a name that ends in {', '.join(READERS)}")
    output = output or data.with_name(f"{data.stem}-factors{'.h5ad' if data.suffix == '.h5ad' else '.csv'}")
    place = RunFolder(output.with_suffix(""))
    _require_free(data, output, place.path, overwrite)
    side = [*filter(None, [batch, *(covariates or []), color])]
    selection = Selection(None, None, tuple(side), missing=missing == "nan", index=index, drop=tuple(drop or []))
    table = _read(data, selection)
    from silentgrad import tl

    tl.count_factors(
        table, n_comps, layer=layer, batch_key=batch, covariate_keys=covariates or (), size_factors=size_factors,
        likelihood=likelihood, posterior=posterior, ridge=ridge, missing=missing, verbose=True,
    )  # fmt: skip
    place.path.mkdir(exist_ok=True)
    loadings, told = _write(table, output, place), _told(table)
    weights = torch.from_numpy(loadings.to_numpy())
    largest = loadings_table(named_loadings(weights, torch.ones(weights.shape[1]), loadings.index), LOG_RATES)
    _page(f"Count factors of {data.name}", told, table, largest, color or batch, place)
    show_table(largest)
    print(f"{told}\n{output}, and its page: {place.report}")


def _require_free(data: Path, output: Path, folder: Path, overwrite: bool) -> None:
    require_output(output, ".csv" if output.suffix == ".csv" else ".h5ad")
    if data.resolve() == output.resolve():
        raise DomainError(f"{output} is the file of the data: name another output")
    for path in (output, folder):
        if path.exists() and not overwrite:
            raise DomainError(f"{path} is there already: --overwrite true replaces it")


def _read(path: Path, selection: Selection) -> Any:
    """Read counts, and the columns that are known of their rows, as an AnnData object."""
    if path.suffix == ".h5ad":
        for option in {"index", "drop"} & {*selection.given}:
            raise DomainError(f"--{option} is for tables, but {path} has names of rows and columns: leave it out")
        return read_anndata(path)
    import anndata  # type: ignore[import-untyped]
    import pandas as pd  # type: ignore[import-untyped]
    from scipy import sparse  # type: ignore[import-untyped]

    try:
        found = READERS[path.suffix](path, selection)
    except DataError as error:
        raise DataError(str(error).replace("--data.missing true", "--missing nan").replace("--data.", "--")) from None
    counts: Any = found.values
    if isinstance(counts, SparseMatrix):
        shape = len(counts), counts.width
        counts = sparse.csr_matrix((counts.entries, counts.indices, counts.starts), shape=shape)
    else:
        counts = counts.numpy()
    rows = names_or_numbers(found.row_names, counts.shape[0])
    columns = names_or_numbers(found.columns, counts.shape[1])
    known = {name: column.to_numpy() for name, column in found.side_columns.items() if name in selection.covariates}
    return anndata.AnnData(
        counts,
        obs=pd.DataFrame(known, index=pd.Index(rows, name=selection.index)),
        var=pd.DataFrame(index=list(columns)),
    )


def _write(table: Any, output: Path, place: RunFolder) -> Any:
    """Write factors and loadings, and return the loadings with their names."""
    import pandas as pd

    names = [f"factor{number + 1}" for number in range(table.uns["count_factors"]["params"]["n_comps"])]
    loadings = pd.DataFrame(table.varm["count_factors"], index=table.var_names, columns=names)
    loadings.to_csv(place.loadings)
    if output.suffix == ".h5ad":
        table.write_h5ad(output)
    else:
        pd.DataFrame(table.obsm["X_count_factors"], index=table.obs_names, columns=names).to_csv(output)
    return loadings


def _told(table: Any) -> str:
    found = table.uns["count_factors"]
    end = "Converged" if found["converged"] else "Did not converge"
    shares = f"{found['explained_deviance']:.1%} of the deviance explained"
    if len(found["covariates"]):
        shares += f", {found['explained_by_covariates']:.1%} by the covariates alone"
    bound = f"ELBO {found['elbo'] / (table.n_obs * table.n_vars):.4f} nats per entry of {table.n_obs} x {table.n_vars}"
    return f"{end} after {found['n_iter']} iterations; {shares}; {bound}."


def _page(title: str, told: str, data: Any, largest: Table, color: str | None, place: RunFolder) -> None:
    """Write the pictures, and the page that has them."""
    from matplotlib import pyplot as plt

    from silentgrad import pl

    drawn: dict[str, tuple[Any, str]] = {}
    if len(largest.rows) > 1:
        colored = "" if color is None else f", colored by {color}"
        drawn["factors"] = pl.factors(data, color), f"The rows in the plane of the first two factors{colored}."
    shown = range(min(3, len(largest.rows)))
    drawn["loadings"] = pl.loadings(data, shown)[0], "The columns that rise and fall most with the first factors."
    drawn["deviance"] = pl.explained_deviance(data), "The share of the deviance; after auto, held-out deviance by rank."
    drawn["convergence"] = pl.convergence(data), "By how many nats each iteration's bound was below the last one's."
    sections = []
    for name, (axes, caption) in drawn.items():
        picture = Picture(axes.figure, caption, small=name != "loadings")
        write_atomically(place.figure(name), picture.png)
        plt.close(picture.figure)
        sections.append(Section(name.capitalize(), [picture]))
    sections += [Section(largest.title, [largest]), Section("Settings", [Listing(data.uns["count_factors"]["params"])])]
    Page(title, [told], sections).write(place.report)
