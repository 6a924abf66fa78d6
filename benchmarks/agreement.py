"""Agreement of a guide with its host: the cosine between the gradients that both send to the encoder.

A schedule that ends by itself would stop where they no longer agree. A guide that takes the whole training shows
whether there is such a point.

    python benchmarks/agreement.py [--data digits] [--epochs 60]
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import load
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, load_weights, train_model
from silentgrad.lab.training.measuring import training_batches

BATCHES, BATCH, DRAWS = 8, 512, 8


def cosine(model: GuidedVAE, batches: list[Tensor], epoch: float) -> float:
    """Return the cosine between the mean gradients of the guide's and the host's loss in the encoder's parameters."""
    parameters = list(model.encoder.parameters())
    sums = {"tractable": torch.zeros(()), "nonlinear": torch.zeros(())}
    for x in batches:
        q = model.encoder(x)
        for name, term in model.objective(q, epoch).terms.items():
            for _ in range(DRAWS):
                gradients = torch.autograd.grad(term.loss(x, q).mean(), parameters, retain_graph=True)
                sums[name] = sums[name] + torch.cat([gradient.flatten() for gradient in gradients])
    return float(torch.nn.functional.cosine_similarity(sums["tractable"], sums["nonlinear"], dim=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    epochs = options.epochs
    kept = sorted({max(1, round(epochs * part)) for part in (1 / 60, 1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 1)})
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train = TrainConfig(epochs=epochs, keep=kept)
        train_model(DataConfig(options.data), ModelConfig(guided=1.0), train, run, quiet=True)
        observations = load(options.data)
        batches = list(training_batches(observations, BATCH, BATCHES, seed=0))
        for epoch in kept:
            model = load_weights(run, RunFolder(run).kept(epoch), observations).eval()
            print(f"epoch {epoch} of {epochs}: cosine {cosine(model, batches, epochs / 2):+.2f}", flush=True)


if __name__ == "__main__":
    main()
