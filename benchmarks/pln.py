"""Poisson log-normal PCA of 2,000 cells and 1,000 genes: this library's deterministic fit beside pyPLNmodels'.

    python -m venv pln && pln/bin/pip install torch==2.13.0 'setuptools<80' pyPLNmodels
    python benchmarks/pln.py --peer pln/bin/python          # about three minutes, on a machine that does nothing else

The data are those that come with pyPLNmodels (scRNA, three types of cells), offsets zero, rank 10. The peer makes 400
iterations, as many as it allows itself by default. Both fits take turns; seconds are the medians of whole fits with
their starts. Both sets of parameters are judged by one function, in double precision: the bound

    sum of x u - exp(u + V / 2) - log x!  -  KL(N(m, S) || N(0, I)),    u = b + W m, V = w' S w,

which lacks nothing; the figure that the peer prints has other constants. The peer's S is diagonal, this library's full.
The error of telling the three types apart is a linear discriminant's on the latents' means, in 5 folds.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

import silentgrad as sg

RANK, GENES, CELLS, ITERATIONS = 10, 1000, 2000, 400
PEER = f"""
import sys, time
import numpy, torch
from pyPLNmodels import PlnPCA, load_scrna

data = load_scrna(n_samples={CELLS}, dim={GENES})
counts = data["endog"].to_numpy().astype(numpy.float32)
PlnPCA(counts[:100, :50], rank=2).fit(maxiter=5, tol=0.0)  # whatever torch does once
torch.manual_seed(int(sys.argv[2]))
model = PlnPCA(counts, rank={RANK}, compute_offsets_method="zero", add_const=True)
start = time.perf_counter()
model.fit(maxiter={ITERATIONS}, tol=0.0)
seconds = time.perf_counter() - start
numpy.savez(
    sys.argv[1], counts=counts, labels=data["labels"].to_numpy().astype(str), seconds=seconds,
    means=model.latent_mean.numpy(), deviations=model.latent_sqrt_variance.numpy(), weights=model.components.numpy(),
    bias=model.coef.numpy().ravel(),
)
"""


class Fitted(NamedTuple):
    """The end of a fit: N(means, covariances) for each cell, weights and bias for each gene."""

    means: Tensor
    covariances: Tensor
    weights: Tensor
    bias: Tensor
    seconds: float


def elbo(counts: Tensor, fitted: Fitted) -> float:
    """Return the bound of a Poisson log-normal PCA, in nats over all cells; the same for whoever fitted it."""
    counts = counts.double()
    means, covariances, weights, bias = (part.double() for part in fitted[:4])
    u = means @ weights.T + bias
    variance = torch.einsum("ka,nab,kb->nk", weights, covariances, weights)
    likelihood = (counts * u - torch.exp(u + variance / 2) - torch.lgamma(counts + 1)).sum()
    traces = covariances.diagonal(dim1=1, dim2=2).sum() + means.square().sum()
    return float(likelihood - (traces - means.numel() - torch.logdet(covariances).sum()) / 2)


def peers(python: str, folder: Path, seed: int) -> tuple[dict[str, NDArray], Fitted]:
    """Return the peer's fit, made by the Python that has it."""
    path = folder / f"peer-{seed}.npz"
    subprocess.run([python, "-c", PEER, str(path), str(seed)], check=True, capture_output=True)
    found = dict(np.load(path))
    means, deviations, weights, bias = (
        torch.from_numpy(found[name]) for name in ("means", "deviations", "weights", "bias")
    )
    return found, Fitted(means, torch.diag_embed(deviations.square()), weights, bias, float(found["seconds"]))


def ours(counts: Tensor, likelihood: torch.nn.Module) -> tuple[Fitted, list[tuple[float, float]], float]:
    """Return this library's fit, its bound over seconds, and the bound at its end."""
    curve: list[tuple[float, float]] = []
    start = time.perf_counter()
    decoder = sg.LinearLikelihood(RANK, GENES, likelihood)
    decoder.init_from_data(counts)
    fit = sg.fit_factors(
        decoder, counts, report=lambda progress: curve.append((time.perf_counter() - start, progress.elbo))
    )
    seconds = time.perf_counter() - start
    affine = decoder.affine
    fitted = Fitted(
        fit.latent.mean, fit.latent.covariance_matrix, affine.weight.detach(), affine.bias.detach(), seconds
    )
    return fitted, curve, fit.elbo


def discriminant_error(latents: Tensor, labels: NDArray) -> float:
    """Return the part of cells whose type a linear discriminant of the other folds' cells tells wrongly."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return 1 - float(cross_val_score(LinearDiscriminantAnalysis(), latents.double().numpy(), labels, cv=folds).mean())


def reached(curve: list[tuple[float, float]], level: float) -> float:
    """Return the seconds after which a curve is at a level."""
    return next((seconds for seconds, bound in curve if bound >= level), float("nan"))


class Round(NamedTuple):
    """One turn of both fits."""

    theirs: Fitted
    fitted: Fitted
    curve: list[tuple[float, float]]


def row(title: str, bound: str, seconds: str, error: str) -> None:
    """Print a row of the table."""
    print(f"| {title} | {bound} | {seconds} | {error} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="the Python that has pyPLNmodels")
    parser.add_argument("--rounds", type=int, default=3, help="how many times each fit is made, the peer's by seeds")
    arguments = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.rounds):
            found, theirs = peers(arguments.peer, Path(folder), seed)
            counts, labels = torch.from_numpy(found["counts"]), found["labels"]
            fitted, curve, _ = ours(counts, sg.likelihoods.Poisson())
            rounds.append(Round(theirs, fitted, curve))
            print(f"round {seed}: {theirs.seconds:.1f} and {fitted.seconds:.1f} s", flush=True)
    bounds = [elbo(counts, turn.theirs) for turn in rounds]
    errors = [discriminant_error(turn.theirs.means, labels) for turn in rounds]
    to_reach = [reached(turn.curve, bound) for turn, bound in zip(rounds, bounds, strict=True)]
    row("fit", "bound, nats", "seconds", "discriminant error")
    row("---", "---", "---", "---")
    title = f"pyPLNmodels, {ITERATIONS} iterations, {len(rounds)} seeds"
    spread = f"{statistics.mean(bounds):,.0f} ({min(bounds):,.0f} to {max(bounds):,.0f})"
    row(
        title,
        spread,
        f"{statistics.median(turn.theirs.seconds for turn in rounds):.1f}",
        f"{statistics.mean(errors):.3f}",
    )
    row("`fit_factors`, up to that bound", "", f"{statistics.median(to_reach):.2f}", "")
    seconds = f"{statistics.median(turn.fitted.seconds for turn in rounds):.1f}"
    row(
        "`fit_factors`, Poisson",
        f"{elbo(counts, fitted):,.0f}",
        seconds,
        f"{discriminant_error(fitted.means, labels):.3f}",
    )
    fitted, _, bound = ours(counts, sg.likelihoods.NegativeBinomial(GENES))
    error = f"{discriminant_error(fitted.means, labels):.3f}"
    row("`fit_factors`, negative binomial", f"{bound:,.0f}", f"{fitted.seconds:.1f}", error)
    ratio = statistics.median(own / turn.theirs.seconds for own, turn in zip(to_reach, rounds, strict=True))
    print(f"\nto the peer's bound in {ratio:.3f} of its time (limit 0.25)")


if __name__ == "__main__":
    main()
