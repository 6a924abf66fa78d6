"""Factors of counts without an encoder and without a sample: Poisson log-normal PCA, and what else counts can be.

    python examples/counts.py                  # the digits: how many of the 16 dots of each block are black
    python examples/counts.py counts.npz       # an .npz file with an array `counts`, or a sparse matrix of SciPy's

Nine tenths of the rows are fitted; told is the bound on the log-likelihood of the rest, in nats per observed entry. For
the last row, a fifth of the entries is hidden from a fit, which then tells how likely the hidden ones are given the
others.
"""

import sys
import time

import numpy as np
import torch
from scipy import sparse
from sklearn.datasets import load_digits

import silentgrad as sg
from silentgrad import likelihoods


def read(path: str | None) -> torch.Tensor:
    """Counts `(rows, columns)`, in a fixed random order of the rows."""
    if path is None:
        counts = load_digits().data
    elif "counts" in np.load(path):
        counts = np.load(path)["counts"]
    else:
        counts = sparse.load_npz(path).toarray()
    return torch.from_numpy(np.random.RandomState(0).permutation(counts)).float()


def fitted(x: torch.Tensor, likelihood: torch.nn.Module, mask: torch.Tensor | None = None) -> sg.LinearLikelihood:
    """A decoder with ten factors, fitted to all rows at once."""
    decoder = sg.LinearLikelihood(10, x.shape[1], likelihood)
    if not isinstance(likelihood, likelihoods.Binomial):
        decoder.init_from_data(x, mask=mask)
    sg.fit_factors(decoder, x, mask=mask, tolerance=1e-6)
    return decoder


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else None
    x = read(path)
    train, test = x[: -len(x) // 10], x[-len(x) // 10 :]
    columns = x.shape[1]
    models = {
        "Poisson": likelihoods.Poisson(),
        "negative binomial": likelihoods.NegativeBinomial(columns),
        "Poisson with more zeros": likelihoods.ZeroInflatedPoisson(columns),
        "negative binomial with more zeros": likelihoods.ZeroInflatedNegativeBinomial(columns),
    }
    if path is None:
        models["binomial, 16 trials"] = likelihoods.Binomial(16)
    for name, likelihood in models.items():
        start = time.perf_counter()
        decoder = fitted(train, likelihood)
        bound = sg.infer_factors(decoder, test).elbo.sum() / test.numel()
        print(f"{name}: {bound:.4f} nats per entry, {time.perf_counter() - start:.1f} s", flush=True)
    seen = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.8
    decoder = fitted(x, likelihoods.NegativeBinomial(columns), mask=seen)
    latent = sg.infer_factors(decoder, x, mask=seen).latent
    hidden = decoder.expected_log_prob(x, latent, mask=~seen).sum() / (~seen).sum()
    print(f"negative binomial, a fifth missing: {hidden:.4f} nats per hidden entry given the others")


if __name__ == "__main__":
    main()
