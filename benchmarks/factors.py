"""Count factors beside their peers: held-out deviance, seconds, memory, types of cells; the cost of an iteration.

    python -m venv peers && peers/bin/pip install torch==2.13.0 'setuptools<80' glmpca pyPLNmodels scikit-learn
    python benchmarks/factors.py --peer peers/bin/python --output results/factors.csv
    python benchmarks/factors.py --speed 100000       # seconds of an iteration beside those of its matrix products

Simulated after sgdGMF's paper: log-rates of five factors, Poisson or negative binomial (r = 2), cells of three types.
A tenth of the entries is hidden. This library is told so by a mask; peers, which have none, find each column's mean
there. Judged are the expected counts of hidden entries, by the deviance of the simulation's own likelihood, per entry.
Seconds are those of the processor, one thread each, with the start; memory is the process's peak. The error of telling
types apart is a linear discriminant's on the factors, in five folds.
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
from pathlib import Path

import numpy as np

FACTORS, TYPES, R = 5, 3, 2.0
METHODS = ("silentgrad", "glmpca", "pyPLNmodels", "PCA", "NMF")
Result = dict[str, float]


def simulate(likelihood: str, cells: int, genes: int, seed: int) -> dict[str, np.ndarray]:
    """Counts, the types of the rows, and which entries are hidden."""
    random = np.random.RandomState(seed)
    types = random.randint(TYPES, size=cells)
    z = random.randn(TYPES, FACTORS)[types] + random.randn(cells, FACTORS) * 0.7
    rates = np.exp(z @ random.randn(FACTORS, genes) * 0.4 + random.randn(genes) * 0.7)
    if likelihood == "negative-binomial":
        rates = rates * random.gamma(R, 1 / R, size=rates.shape)
    return {"counts": random.poisson(rates), "types": types, "hidden": random.rand(cells, genes) < 0.1}


def fit(method: str, likelihood: str, path: str) -> None:
    """Fit in a process of its own; the file gets expected counts, factors, seconds and memory."""
    data = dict(np.load(path))
    counts, hidden = data["counts"].astype(float), data["hidden"]
    filled = np.where(hidden, (counts * ~hidden).sum(0) / (~hidden).sum(0), counts)
    start = 0.0
    if method == "silentgrad":
        import torch

        from silentgrad import CountFactors

        torch.set_num_threads(1)
        start = time.process_time()
        model = CountFactors(FACTORS, likelihood=likelihood)  # type: ignore[arg-type]
        factors = model.fit_transform(counts, mask=~hidden)
        expected = model.inverse_transform(factors)
    elif method == "glmpca":
        from glmpca.glmpca import glmpca

        np.random.seed(0)
        start = time.process_time()
        family = "poi" if likelihood == "poisson" else "nb"
        found = glmpca(np.rint(filled).T, FACTORS, fam=family)
        factors = found["factors"]
        u = found["coefX"] @ np.ones((1, len(counts))) + found["loadings"] @ factors.T
        expected = np.exp(u).T * (np.rint(filled).mean(1, keepdims=True))
    elif method == "pyPLNmodels":
        import torch
        from pyPLNmodels import PlnPCA

        torch.set_num_threads(1)
        torch.manual_seed(0)
        start = time.process_time()
        model = PlnPCA(np.rint(filled), rank=FACTORS, compute_offsets_method="zero", add_const=True)
        model.fit(verbose=False)
        factors = model.latent_mean.numpy()
        weights = model.components.numpy()
        spread = model.latent_sqrt_variance.numpy() ** 2 @ (weights**2).T
        expected = np.exp(factors @ weights.T + model.coef.numpy().ravel() + spread / 2)
    elif method == "PCA":
        from sklearn.decomposition import PCA

        start = time.process_time()
        model = PCA(FACTORS, random_state=0)
        factors = model.fit_transform(np.log1p(filled))
        expected = np.expm1(model.inverse_transform(factors)).clip(1e-3)
    else:
        from sklearn.decomposition import NMF

        start = time.process_time()
        model = NMF(FACTORS, beta_loss="kullback-leibler", solver="mu", max_iter=500, random_state=0)
        factors = model.fit_transform(filled)
        expected = (factors @ model.components_).clip(1e-3)
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    np.savez(path + ".out.npz", expected=expected, factors=factors, seconds=seconds, memory=memory)


def judged(path: str, likelihood: str) -> Result:
    """The figures of a fit."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    data, found = dict(np.load(path)), dict(np.load(path + ".out.npz"))
    x, rate = data["counts"][data["hidden"]], found["expected"][data["hidden"]]
    deviance = np.where(x > 0, x * np.log(np.maximum(x, 1) / rate), 0)
    r = np.inf if likelihood == "poisson" else R
    deviance = deviance - (x - rate if np.isinf(r) else (x + r) * np.log((x + r) / (rate + r)))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    right = cross_val_score(LinearDiscriminantAnalysis(), found["factors"], data["types"], cv=folds).mean()
    return {
        "deviance": float(2 * deviance.mean()),
        "seconds": float(found["seconds"]),
        "gib": float(found["memory"]),
        "error": 1 - float(right),
    }


def compare(peer: str, cells: int, genes: int, seeds: int, output: Path) -> None:
    """Fit all methods to all simulations, and write and print a row for each method."""
    rows = []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for likelihood in ("poisson", "negative-binomial"):
        for method in METHODS:
            results: list[Result] = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    path = f"{folder}/data.npz"
                    np.savez(path, **simulate(likelihood, cells, genes, seed))
                    python = sys.executable if method == "silentgrad" else peer
                    words = [python, __file__, "--fit", method, likelihood, path]
                    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
                    if done.returncode:
                        print(f"{method}, {likelihood}: {done.stderr.strip().splitlines()[-1]}", flush=True)
                        break
                    results.append(judged(path, likelihood))
            if results:
                means = {name: statistics.mean(result[name] for result in results) for name in results[0]}
                spread = max(r["deviance"] for r in results) - min(r["deviance"] for r in results)
                row = {"data": likelihood, "cells": cells, "genes": genes, "seeds": len(results), "method": method}
                rows.append(row | {name: f"{value:.4g}" for name, value in means.items()} | {"spread": f"{spread:.2g}"})
                print(rows[-1], flush=True)
    output.parent.mkdir(exist_ok=True)
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def speed(cells: int, genes: int = 500, rank: int = 10) -> None:
    """Print processor seconds of a Poisson fit of sparse counts, and an iteration over its matrix products."""
    import torch
    from scipy import sparse

    import silentgrad as sg

    torch.set_num_threads(1)
    random = np.random.RandomState(0)
    w, b = random.randn(rank, genes) * 0.35, random.randn(genes) * 0.8 - 1.25
    blocks = []
    for start in range(0, cells, 20_000):
        z = random.randn(min(20_000, cells - start), rank)
        blocks.append(sparse.csr_matrix(random.poisson(np.exp(z @ w + b)).astype(np.float32)))
    counts = sparse.vstack(blocks, format="csr")
    start = time.process_time()
    model = sg.CountFactors(rank, likelihood="poisson").fit(counts)
    seconds = time.process_time() - start
    rows, triangle = 1024, rank * (rank + 1) // 2
    entries, theta, squares = torch.randn(rows, genes), torch.randn(genes, rank + 1), torch.randn(genes, triangle)
    features, spreads = torch.randn(rows, rank + 1), torch.randn(rows, triangle)
    sums = torch.randn(rows, triangle + (rank + 1) * (rank + 2) // 2)
    start = time.process_time()
    for _ in range(50):
        for _ in range(2):
            features @ theta.T, spreads @ squares.T
        entries @ theta, entries @ squares, entries.T @ features, entries.T @ sums
    products = (time.process_time() - start) / 50 * cells / rows
    times = seconds / model.n_iter_ / products
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told = (
        f"{cells} x {genes}: {seconds:.1f} s, {model.n_iter_} iterations, each {times:.2f} times its {products:.2f} s"
    )
    print(f"{told} of matrix products (start and deviance included), {memory:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the Python that has the peers")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--genes", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/factors.csv"))
    parser.add_argument("--speed", type=int, metavar="CELLS", help="measure an iteration on this many cells instead")
    parser.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        fit(*arguments.fit)
    elif arguments.speed:
        speed(arguments.speed)
    else:
        compare(arguments.peer, arguments.cells, arguments.genes, arguments.seeds, arguments.output)


if __name__ == "__main__":
    main()
