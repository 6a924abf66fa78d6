r"""Negative binomial factors of 2,000 cells and 1,000 genes on held-out cells: this library beside LinearSCVI.

    python -m venv scvi && scvi/bin/pip install torch==2.13.0 scvi-tools
    pln/bin/python -c "import numpy; from pyPLNmodels import load_scrna; d = load_scrna(n_samples=2000, dim=1000); \
        numpy.savez('scrna.npz', counts=d['endog'].to_numpy(), labels=d['labels'].to_numpy().astype(str))"
    python benchmarks/scvi.py --peer scvi/bin/python --data scrna.npz       # about twelve minutes, one thread each

Eight tenths of the cells train, one tenth is the test. Both have 10 latents and a dispersion per gene. LinearSCVI
trains an encoder by samples, 400 epochs by default; its mean is a library size times the softmax of a linear map, with
the size a latent of its own (its default) or observed. This library's mean is e^u with u linear, without an offset, or
with the logarithm of the cell's size: by the deterministic fit, the test cells' latents inferred with the decoder held.

The figure is the bound on the log-likelihood of the test cells, in nats per entry, with all KL divergences: by 100
samples for the peer, in closed form here. Where the size is observed, it is that of the counts given their size. The
discriminant error is that of `benchmarks/pln.py`, on all cells.
"""

import argparse
import json
import statistics
import subprocess
import time
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pln import discriminant_error, row
from torch import Tensor

import silentgrad as sg

LATENTS = 10
PEER = """
import json, sys, time, warnings
import anndata, numpy, scvi, torch
from torch.distributions import kl_divergence

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
path, seed, observed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "observed"
counts = numpy.load(path)["counts"].astype(numpy.float32)
order = numpy.random.RandomState(0).permutation(len(counts))
tenth = len(counts) // 10
train, valid, test = order[: -2 * tenth], order[-2 * tenth : -tenth], order[-tenth:]
data = anndata.AnnData(counts)
scvi.settings.seed = seed
scvi.model.LinearSCVI.setup_anndata(data)
model = scvi.model.LinearSCVI(data, n_latent=10, gene_likelihood="nb", use_observed_lib_size=observed)
start = time.process_time()
splits = {"external_indexing": [train, valid, test]}
model.train(datasplitter_kwargs=splits, enable_progress_bar=False, accelerator="cpu")
seconds = time.process_time() - start
model.module.eval()
x = torch.tensor(counts[test])
batch = torch.zeros(len(x), 1)
with torch.inference_mode():
    found = model.module.inference(x, batch)
    latent, size = found["qz"], found["ql"]
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(100):
        library = torch.log(x.sum(1, keepdim=True)) if size is None else size.sample()
        made = model.module.generative(latent.sample(), library, batch.long())
        total += made["px"].log_prob(x).sum(-1).double()
    total /= 100
    total -= kl_divergence(latent, made["pz"]).sum(-1)
    if size is not None:
        total -= kl_divergence(size, made["pl"]).sum(-1)
latents = model.get_latent_representation().tolist()
print(json.dumps({"bound": float(total.mean()) / counts.shape[1], "seconds": seconds, "latents": latents}))
"""


class Result(NamedTuple):
    """A bound in nats per entry of the test cells, seconds of processor time, and a discriminant error."""

    bound: float
    seconds: float
    error: float


def peers(python: str, data: str, seed: int, size: str, labels: NDArray) -> Result:
    """Return the peer's, by the Python that has it; its own log goes before the line of results."""
    finished = subprocess.run([python, "-c", PEER, data, str(seed), size], check=True, capture_output=True, text=True)
    found = json.loads(finished.stdout.splitlines()[-1])
    error = discriminant_error(torch.tensor(found["latents"]), labels)
    return Result(found["bound"], found["seconds"], error)


def ours(counts: Tensor, log_size: Tensor | None, labels: NDArray) -> Result:
    """Return this library's deterministic fit to the training cells, and what the test cells come to under it."""
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(counts)))
    tenth = len(counts) // 10
    train, test = order[: -2 * tenth], order[-tenth:]

    def beside(cells: Tensor) -> Tensor | None:
        if log_size is None:
            return None
        return log_size[cells]

    start = time.process_time()
    decoder = sg.LinearLikelihood(LATENTS, counts.shape[1], sg.likelihoods.NegativeBinomial(counts.shape[1]))
    decoder.init_from_data(counts[train], offset=beside(train))
    sg.fit_factors(decoder, counts[train], offset=beside(train), tolerance=1e-6)
    seconds = time.process_time() - start
    held_out = sg.infer_factors(decoder, counts[test], offset=beside(test))
    everyone = sg.infer_factors(decoder, counts, offset=log_size)
    bound = float(held_out.elbo.mean()) / counts.shape[1]
    return Result(bound, seconds, discriminant_error(everyone.latent.mean, labels))


def tell(title: str, results: list[Result]) -> None:
    """Print a row: means over seeds, and how far the seeds are apart."""
    bounds = [result.bound for result in results]
    told = f"{statistics.mean(bounds):.4f}"
    if len(bounds) > 1:
        told += f" ({min(bounds):.4f} to {max(bounds):.4f})"
    seconds = statistics.mean(result.seconds for result in results)
    error = statistics.mean(result.error for result in results)
    row(title, told, f"{seconds:.0f}", f"{error:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="the Python that has scvi-tools")
    parser.add_argument("--data", required=True, help="the .npz file with counts and labels")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds the peer has; the fit here has none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = np.load(arguments.data)
    counts, labels = torch.from_numpy(found["counts"].astype(np.float32)), found["labels"]
    log_size = (counts.sum(1) / counts.sum(1).mean()).log()
    row("model", "test bound, nats per entry", "processor seconds", "discriminant error")
    row("---", "---", "---", "---")
    tell("`fit_factors`, no offset", [ours(counts, None, labels)])
    tell("`fit_factors`, size observed", [ours(counts, log_size, labels)])
    for size, title in (("latent", "library size latent"), ("observed", "library size observed")):
        results = []
        for seed in range(arguments.seeds):
            results.append(peers(arguments.peer, arguments.data, seed, size, labels))
        tell(f"LinearSCVI, {title}, {arguments.seeds} seeds", results)


if __name__ == "__main__":
    main()
