"""Count factors beside their peers: held-out deviance, seconds, memory, neighbors; the cost of an iteration.

    python -m venv peers && python -m venv scvi
    peers/bin/pip install torch==2.13.0 'setuptools<80' glmpca statsmodels fastglmpca pyPLNmodels scikit-learn
    scvi/bin/pip install torch==2.13.0 scvi-tools scikit-learn
    python benchmarks/factors.py --peer peers/bin/python --scvi scvi/bin/python     # adds to results/factors.csv
    python benchmarks/factors.py --table                # writes its rows into docs/factors.md
    python benchmarks/factors.py --speed 100000         # seconds of an iteration beside those of its matrix products
    python -P benchmarks/factors.py --again 1000 5000   # the largest change of a factor from another place or thread
    python -P benchmarks/factors.py --batches           # types of cells told apart where batches differ

Simulated after sgdGMF's paper: log-rates of five factors, Poisson or negative binomial (r = 2), cells of three types.
Or 2,000 real cells of three types (pyPLNmodels' scRNA, 1,000 genes, 10 factors), with sizes of cells and a Poisson
likelihood. A tenth of the entries is hidden, by seed. This library is told so by a mask; peers, which have none, find
each column's mean there, rounded, and so does this library in a row of its own. Judged are the expected counts of
hidden entries, by the deviance of the likelihood, of a simulation by its own, per entry. Seconds are those of the
processor, one thread each, with the start; memory is the process's peak. Of each cell's 15 nearest neighbors by the
factors, the share of its own type is told.
"""

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FACTORS, TYPES, R, NEIGHBORS = 5, 3, 2.0, 15
DATA = ("poisson", "negative-binomial", "scRNA")
ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "factors.csv", ROOT / "docs" / "factors.md"
BEGIN, END = "<!-- made by benchmarks/factors.py --table -->\n", "<!-- until here -->\n"
SCRNA = """
import sys, numpy
from pyPLNmodels import load_scrna

found = load_scrna(n_samples=2000, dim=1000)
numpy.savez(sys.argv[1], counts=found["endog"].to_numpy(), types=found["labels"].to_numpy().astype(str))
"""
Array = np.ndarray[Any, Any]
Fit = Callable[[], tuple[Array, Array]]


class Data(NamedTuple):
    """Counts with a tenth hidden.

    Args:
        counts: The counts.
        hidden: Which entries are hidden.
        filled: The counts with each column's rounded mean where they are hidden.
        sizes: By how much a row's rates are multiplied; 1 in a simulation.
        likelihood: "poisson" or "negative-binomial".
        rank: Number of factors.
    """

    counts: Array
    hidden: Array
    filled: Array
    sizes: Array
    likelihood: str
    rank: int


def simulate(likelihood: str, cells: int, genes: int, seed: int) -> dict[str, Array]:
    """Draw counts and the types of the rows."""
    random = np.random.RandomState(seed)
    types = random.randint(TYPES, size=cells)
    z = random.randn(TYPES, FACTORS)[types] + random.randn(cells, FACTORS) * 0.7
    rates = np.exp(z @ random.randn(FACTORS, genes) * 0.4 + random.randn(genes) * 0.7)
    if likelihood == "negative-binomial":
        rates = rates * random.gamma(R, 1 / R, size=rates.shape)
    return {"counts": random.poisson(rates), "types": types}


def of_silentgrad(data: Data, masked: bool = True, **options: Any) -> Fit:
    import torch

    from silentgrad import CountFactors

    torch.set_num_threads(1)

    def fit() -> tuple[Array, Array]:
        model = CountFactors(data.rank, likelihood=data.likelihood, **options)
        offset = np.log(data.sizes)
        if masked:
            factors = model.fit_transform(data.counts.astype(np.float32), mask=~data.hidden, offset=offset)
        else:
            factors = model.fit_transform(data.filled.astype(np.float32), offset=offset)
        return model.inverse_transform(factors, offset=offset), factors

    return fit


def of_glmpca(data: Data) -> Fit:
    from glmpca.glmpca import glmpca

    np.random.seed(0)

    def fit() -> tuple[Array, Array]:
        family = "poi" if data.likelihood == "poisson" else "nb"
        found = glmpca(data.filled.T, data.rank, fam=family, sz=data.sizes)
        u = found["coefX"] @ np.ones((1, len(data.filled))) + found["loadings"] @ found["factors"].T
        return np.exp(u).T * data.sizes[:, None], found["factors"]

    return fit


def of_fastglmpca(data: Data) -> Fit:
    import fastglmpca
    import torch

    torch.set_num_threads(1)

    def fit() -> tuple[Array, Array]:
        sized = bool((data.sizes != 1).any())
        model = fastglmpca.poisson(
            data.filled, data.rank, row_intercept=sized, return_model=True, progress_bar=False, device="cpu"
        )
        return model.reconstruct_counts(), model.U

    return fit


def of_pln(data: Data) -> Fit:
    import torch
    from pyPLNmodels import PlnPCA

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def fit() -> tuple[Array, Array]:
        offsets = np.log(data.sizes)[:, None] + np.zeros(data.filled.shape)
        model = PlnPCA(data.filled, rank=data.rank, offsets=offsets, add_const=True)
        model.fit(verbose=False)
        factors, weights = model.latent_mean.numpy(), model.components.numpy()
        spread = model.latent_sqrt_variance.numpy() ** 2 @ (weights**2).T
        return np.exp(offsets + factors @ weights.T + model.coef.numpy().ravel() + spread / 2), factors

    return fit


def of_scvi(data: Data) -> Fit:
    import anndata
    import scvi
    import torch

    torch.set_num_threads(1)
    scvi.settings.seed = 0

    def fit() -> tuple[Array, Array]:
        cells = anndata.AnnData(data.filled.astype(np.float32))
        scvi.model.LinearSCVI.setup_anndata(cells)
        likelihood = "poisson" if data.likelihood == "poisson" else "nb"
        model = scvi.model.LinearSCVI(cells, n_latent=data.rank, gene_likelihood=likelihood)
        model.train(enable_progress_bar=False, accelerator="cpu")
        expected = model.get_normalized_expression(library_size="latent", return_numpy=True)
        return expected, model.get_latent_representation()

    return fit


def of_pca(data: Data) -> Fit:
    from sklearn.decomposition import PCA

    def fit() -> tuple[Array, Array]:
        model = PCA(data.rank, random_state=0)
        factors = model.fit_transform(np.log1p(data.filled / data.sizes[:, None]))
        return np.expm1(model.inverse_transform(factors)) * data.sizes[:, None], factors

    return fit


def of_nmf(data: Data) -> Fit:
    from sklearn.decomposition import NMF

    def fit() -> tuple[Array, Array]:
        model = NMF(data.rank, beta_loss="kullback-leibler", solver="mu", max_iter=500, random_state=0)
        factors = model.fit_transform(data.filled)
        return factors @ model.components_, factors

    return fit


METHODS: dict[str, Callable[[Data], Fit]] = {
    "silentgrad": of_silentgrad,
    "silentgrad, diagonal": partial(of_silentgrad, posterior="diagonal"),
    "silentgrad, ridge 1": partial(of_silentgrad, ridge=1.0),
    "silentgrad, ridge 4": partial(of_silentgrad, ridge=4.0),
    "silentgrad, filled": partial(of_silentgrad, masked=False),
    "silentgrad, filled, 4 iterations": partial(of_silentgrad, masked=False, max_iter=4),
    "silentgrad, filled, ridge 1": partial(of_silentgrad, masked=False, ridge=1.0),
    "silentgrad, filled, ridge 4": partial(of_silentgrad, masked=False, ridge=4.0),
    "glmpca": of_glmpca,
    "fastglmpca": of_fastglmpca,
    "pyPLNmodels": of_pln,
    "LinearSCVI": of_scvi,
    "PCA of log1p": of_pca,
    "NMF": of_nmf,
}
POISSON_ONLY = ("fastglmpca",)


def fit_and_judge(name: str, method: str, seed: int, path: str) -> None:
    """Fit in a process of its own, and print the figures."""
    stored = dict(np.load(path))
    counts = stored["counts"].astype(float)
    hidden = np.random.RandomState(seed).rand(*counts.shape) < 0.1
    filled = np.where(hidden, np.rint((counts * ~hidden).sum(0) / (~hidden).sum(0)), counts)
    sizes, rank = np.ones(len(counts)), FACTORS
    if name == "scRNA":
        sizes, rank = filled.sum(1) / np.median(filled.sum(1)), 10
    data = Data(counts, hidden, filled, sizes, "poisson" if name == "scRNA" else name, rank)
    fit = METHODS[method](data)
    start = time.process_time()
    expected, factors = fit()
    seconds = time.process_time() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    from sklearn.neighbors import NearestNeighbors

    x, rate = counts[hidden], np.maximum(expected[hidden], 1e-3)
    deviance = x * np.log(np.maximum(x, 1) / rate)
    if data.likelihood == "poisson":
        deviance -= x - rate
    else:
        deviance -= (x + R) * np.log((x + R) / (rate + R))
    neighbors = NearestNeighbors(n_neighbors=NEIGHBORS).fit(factors).kneighbors(return_distance=False)
    purity = (stored["types"][neighbors] == stored["types"][:, None]).mean()
    print("figures", 2 * deviance.mean(), seconds, gib, purity)


def compare(arguments: argparse.Namespace) -> None:
    """Fit methods to data sets, and write a row for each into the results."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    own = [method for method in METHODS if method.startswith("silentgrad")]
    pythons = dict.fromkeys(own, sys.executable) | {"LinearSCVI": arguments.scvi}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.data:
            for seed in range(arguments.seeds):
                path = f"{folder}/{name}-{seed}.npz"
                if name == "scRNA":
                    subprocess.run([arguments.peer, "-c", SCRNA, path], check=True, capture_output=True)
                else:
                    np.savez(path, **simulate(name, arguments.cells, arguments.genes, seed))
            for method in arguments.methods:
                python = pythons.get(method, arguments.peer)
                if python is None or (method in POISSON_ONLY and name == "negative-binomial"):
                    continue
                found = []
                for seed in range(arguments.seeds):
                    words = [python, "-P", __file__, "--fit", name, method, str(seed), f"{folder}/{name}-{seed}.npz"]
                    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
                    told = [line for line in done.stdout.splitlines() if line.startswith("figures ")]
                    if not told:
                        print(f"{method}, {name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
                        break
                    found.append([float(word) for word in told[0].split()[1:]])
                if len(found) == arguments.seeds:
                    note(name, method, found, np.load(path)["counts"].shape)


def note(name: str, method: str, found: list[list[float]], shape: tuple[int, ...]) -> None:
    """Write a row, in place of one of the same data and method."""
    deviances, seconds, gib, purity = zip(*found, strict=True)
    row = {
        "data": name, "cells": str(shape[0]), "genes": str(shape[1]), "seeds": str(len(found)), "method": method,
        "deviance": f"{statistics.mean(deviances):.4f}", "lowest": f"{min(deviances):.4f}",
        "highest": f"{max(deviances):.4f}", "seconds": f"{statistics.mean(seconds):.1f}", "gib": f"{max(gib):.2f}",
        "purity": f"{statistics.mean(purity):.3f}",
    }  # fmt: skip
    print(row, flush=True)
    keys = ("data", "cells", "genes", "method")
    rows = [other for other in stored() if any(other[key] != row[key] for key in keys)] + [row]
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows(rows)


def stored() -> list[dict[str, str]]:
    """Read the rows that were measured."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> str:
    """Return the rows in Markdown, by data and deviance."""
    lines = [
        "| data | method | held-out deviance, range over seeds | processor seconds | GiB | neighbors of one type |",
        "|---|---|---|---|---|---|",
    ]

    def place(row: dict[str, str]) -> tuple[int, int, float]:
        return DATA.index(row["data"]), int(row["cells"]), float(row["deviance"])

    for row in sorted(stored(), key=place):
        deviance = f"{row['deviance']} ({row['lowest']} to {row['highest']})"
        cells = [f"{row['data']}, {row['cells']} x {row['genes']}", row["method"], deviance]
        lines.append(f"| {' | '.join([*cells, row['seconds'], row['gib'], row['purity']])} |")
    return "\n".join(lines) + "\n"


def write_table() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


def write_counts(folder: Path, cells: int, genes: int, rank: int) -> None:
    """Write sparse Poisson counts of some factors to disk, the three arrays of a CSR matrix."""
    from scipy import sparse

    random = np.random.RandomState(0)
    w, b = random.randn(rank, genes) * 0.35, random.randn(genes) * 0.8 - 1.25
    ends = [0]
    with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
        for start in range(0, cells, 20_000):
            z = random.randn(min(20_000, cells - start), rank)
            block = sparse.csr_matrix(random.poisson(np.exp(z @ w + b)).astype(np.float32))
            block.data.tofile(data)
            block.indices.astype(np.int32).tofile(indices)
            ends.extend((ends[-1] + block.indptr[1:]).tolist())
    np.array(ends, dtype=np.int32).tofile(folder / "indptr")


def speed(cells: int, folder: Path, genes: int = 500, rank: int = 10) -> None:
    """Print processor seconds of a Poisson fit of mapped counts, and an iteration's over its matrix products'."""
    import torch
    from scipy import sparse

    import silentgrad as sg
    from silentgrad.factors.state import Climb

    torch.set_num_threads(1)
    if not (folder / "indptr").exists():
        words = [sys.executable, __file__, "--write", str(cells), str(genes), str(rank), str(folder)]
        subprocess.run(words, check=True)  # in a process of its own, whose memory is not told
    types = {"data": np.float32, "indices": np.int32, "indptr": np.int32}
    arrays = [np.memmap(folder / name, dtype=dtype, mode="r") for name, dtype in types.items()]
    counts = sparse.csr_matrix(tuple(arrays), shape=(cells, genes))
    ends: list[float] = []
    advance = Climb.advance

    def noted(climb: Climb) -> bool:
        went_on = advance(climb)
        ends.append(time.process_time())
        return went_on

    Climb.advance = noted  # type: ignore[method-assign]
    began = time.process_time()
    model = sg.CountFactors(rank, likelihood="poisson").fit(counts)
    seconds = time.process_time() - began
    iteration = statistics.median(np.diff(ends[-model.n_iter_ :]))
    rows, triangle = 1024, rank * (rank + 1) // 2
    entries, theta, squares = torch.randn(rows, genes), torch.randn(genes, rank + 1), torch.randn(genes, triangle)
    features, spreads = torch.randn(rows, rank + 1), torch.randn(rows, triangle)
    sums = torch.randn(rows, triangle + (rank + 1) * (rank + 2) // 2)
    began = time.process_time()
    for _ in range(200):
        for _ in range(2):
            features @ theta.T, spreads @ squares.T
        entries @ theta, entries @ squares, entries.T @ features, entries.T @ sums
    products = (time.process_time() - began) / 200 * cells / rows
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told = f"{cells} x {genes}: {seconds:.1f} s in {model.n_iter_} iterations of {iteration:.2f} s, {gib:.2f} GiB"
    print(f"{told}; an iteration takes {iteration / products:.2f} times its matrix products, {products:.2f} s")


def again(cells: int, folder: Path, genes: int = 300) -> None:
    """Print the largest differences of factors that are fitted again, from other places and on two threads."""
    import anndata
    import dask.array
    import torch
    from scipy import sparse

    from silentgrad import CountFactors

    counts = simulate("poisson", cells, genes, 0)["counts"].astype(np.float32)
    np.save(folder / "counts.npy", counts)
    anndata.AnnData(sparse.csr_matrix(counts)).write_h5ad(folder / "counts.h5ad")
    places = {
        "the same": counts,
        "sparse": sparse.csr_matrix(counts),
        "mapped": np.load(folder / "counts.npy", mmap_mode="r"),
        "backed": anndata.read_h5ad(folder / "counts.h5ad", backed="r").X,
        "Dask, blocks of 77 rows": dask.array.from_array(counts, chunks=(77, genes)),
    }
    fit = CountFactors(FACTORS, likelihood="poisson").fit_transform
    torch.set_num_threads(1)
    expected = fit(counts)
    found = {name: np.abs(fit(data) - expected).max() for name, data in places.items()}
    torch.set_num_threads(2)
    found["two threads"] = np.abs(fit(counts) - expected).max()
    print(f"{cells} x {genes}: " + ", ".join(f"{name} {difference:.1e}" for name, difference in found.items()))


def batches(seeds: int, cells: int = 300, genes: int = 30) -> None:
    """Print the adjusted Rand index of three types in two batches: factors, and PCA with the batch regressed out."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.metrics import adjusted_rand_score

    from silentgrad import CountFactors

    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        random = np.random.RandomState(seed)
        kinds, batch = random.randint(3, size=cells), random.randint(2, size=cells)
        u = random.randn(3, genes)[kinds] * 0.6 + random.randn(2, genes)[batch] * 0.8 + random.randn(cells, 1) * 0.3
        counts = random.poisson(np.exp(u))
        logs = np.log1p(counts)
        centered = logs - np.stack([logs[batch == number].mean(0) for number in (0, 1)])[batch]
        model = CountFactors(2, likelihood="poisson")
        points = {
            "factors, batch a covariate": model.fit_transform(counts, covariates=batch),
            "whitened PCA, batch regressed out": PCA(2, whiten=True, random_state=0).fit_transform(centered),
            "factors, batch not told": model.fit_transform(counts),
        }
        for name, own in points.items():
            clusters = KMeans(3, n_init=5, random_state=0).fit_predict(own)
            found.setdefault(name, []).append(adjusted_rand_score(kinds, clusters))
    for name, scores in found.items():
        print(f"{name}: {statistics.mean(scores):.3f}, {min(scores):.3f} to {max(scores):.3f} over {seeds} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the Python that has the peers")
    parser.add_argument("--scvi", help="the Python that has scvi-tools; without it that peer is left out")
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--genes", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--speed", type=int, metavar="CELLS", help="measure an iteration on this many cells instead")
    parser.add_argument("--again", type=int, nargs="+", metavar="CELLS", help="compare fits from other places instead")
    parser.add_argument("--batches", action="store_true", help="tell types apart in spite of batches instead")
    parser.add_argument("--folder", type=Path, help="where its counts are kept; a temporary folder if absent")
    parser.add_argument("--table", action="store_true", help="write the rows into docs/factors.md instead")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--fit", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        *sizes, folder = arguments.write
        write_counts(Path(folder), *map(int, sizes))
    elif arguments.fit:
        name, method, seed, path = arguments.fit
        fit_and_judge(name, method, int(seed), path)
    elif arguments.speed:
        with tempfile.TemporaryDirectory() as temporary:
            speed(arguments.speed, arguments.folder or Path(temporary))
    elif arguments.again:
        for cells in arguments.again:
            with tempfile.TemporaryDirectory() as temporary:
                again(cells, Path(temporary))
    elif arguments.batches:
        batches(arguments.seeds)
    elif arguments.table:
        write_table()
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
