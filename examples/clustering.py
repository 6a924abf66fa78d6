"""Digits told apart without their labels: one mixture per image, whose components are linear decoders.

    python examples/clustering.py                                       # MNIST, 10 and 50 components, three seeds
    python examples/clustering.py --data digits --epochs 20 --seeds 1

With `per="example"` a mixture is a mixture of factor analyzers with an encoder: an image belongs to one component, and
z says where it lies in it. `responsibilities(x, q)` is the posterior of the component; the likeliest one is the image's
cluster. Nothing is sampled in training. Two figures are told, of test images and labels that training never saw: the
accuracy if every cluster is called by its most frequent label, and the normalized mutual information of cluster and
label. k-means with as many clusters, at whose centres the mixture starts, stands beside it.
"""

import argparse
import gzip
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import silentgrad as sg
from silentgrad.lab.data import DataError, load_images
from silentgrad.lab.data.batches import permuted
from silentgrad.lab.data.sources import locate

LATENTS, HIDDEN, BATCH = 8, 256, 128


def unseen_labels(name: str) -> Tensor:
    """The labels of the test images, in their order."""
    if name == "digits":
        return permuted(torch.from_numpy(load_digits().target))[1547:]
    if name not in ("mnist", "fashion-mnist"):
        raise DataError(f"{name!r} has no labels here: there are those of digits, mnist and fashion-mnist")
    path = next(iter(locate(name, None).values())).with_name("t10k-labels-idx1-ubyte.gz")
    if not path.exists():
        raise DataError(f"{path} is missing: only images are downloaded; put the file of labels beside them")
    with gzip.open(path) as file:
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64))


class Agreement(NamedTuple):
    """How far clusters and labels agree."""

    accuracy: float
    information: float


def agreement(clusters: Tensor, labels: Tensor) -> Agreement:
    """Accuracy of each cluster's most frequent label, and normalized mutual information."""
    right = 0
    for cluster in clusters.unique():
        members = labels[clusters == cluster]
        right += int(members.bincount().max())
    return Agreement(right / len(labels), float(normalized_mutual_info_score(labels, clusters)))


class Clustering(nn.Module):
    """A VAE whose decoder is a mixture of linear decoders of whole images.

    Args:
        event_shape: Shape of one image.
        components: Number of clusters.
        variance: Variance of a pixel around its component's mean.
    """

    def __init__(self, event_shape: torch.Size, components: int, variance: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(event_shape.numel(), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENTS)
        )
        leaves = sg.LinearGaussian(LATENTS, (*event_shape, components), variance)
        self.decoder = sg.Mixture(LATENTS, event_shape, components, per="example", gates=False, leaves=leaves)

    def latent(self, x: Tensor) -> Normal:
        loc, log_scale = self.body(x).chunk(2, dim=-1)
        return Normal(loc, log_scale.exp())

    def elbo(self, x: Tensor) -> Tensor:
        q = self.latent(x)
        return self.decoder.expected_log_prob(x, q) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)

    @torch.no_grad()
    def clusters(self, x: Tensor) -> Tensor:
        """The likeliest component of each image."""
        found = [self.decoder.responsibilities(part, self.latent(part)).argmax(-1) for part in x.split(500)]
        return torch.cat(found)

    def start(self, centres: Tensor) -> None:
        """Starts every component at one of these images, and where z moves it at nothing."""
        with torch.no_grad():
            affine = self.decoder.leaves.decoder.affine
            affine.bias.copy_(centres.T.flatten())
            affine.weight.normal_(std=0.01)


def train(x: Tensor, centres: Tensor, seed: int, epochs: int) -> Clustering:
    """The mixture, started at these images `(components, pixels)`."""
    torch.manual_seed(seed)
    components = len(centres)
    model = Clustering(x.shape[1:], components, float(x.flatten(1).var(0).mean()))
    model.start(centres)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, epochs + 1):
        for batch in x[torch.randperm(len(x))].split(BATCH):
            loss = -model.elbo(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{components} components, seed {seed}, epoch {epoch}: ELBO of the last batch {-loss:.2f}", flush=True)
    return model


def judge(x: Tensor, unseen: Tensor, labels: Tensor, components: int, seed: int, epochs: int) -> dict[str, Agreement]:
    """The agreement of the mixture and of k-means on images that neither was fitted to."""
    kmeans = KMeans(components, n_init=1, random_state=seed).fit(x.flatten(1))
    model = train(x, torch.from_numpy(kmeans.cluster_centers_), seed, epochs)
    by_kmeans = torch.from_numpy(kmeans.predict(unseen.flatten(1)))
    return {"mixture": agreement(model.clusters(unseen), labels), "k-means": agreement(by_kmeans, labels)}


def row(components: int, name: str, found: Sequence[Agreement]) -> str:
    """A row of the table: mean and deviation over the seeds."""
    cells = []
    for values in zip(*found, strict=True):
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.fmean(values):.3f} ± {deviation:.3f}")
    return f"| {components} | {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", help="digits, mnist or fashion-mnist (mnist)")
    parser.add_argument("--components", type=int, nargs="+", default=[10, 50], help="numbers of clusters (10 50)")
    parser.add_argument("--epochs", type=int, default=10, help="of each run (10)")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 (3)")
    given = parser.parse_args()
    try:
        labels, images = unseen_labels(given.data), load_images(given.data)
    except DataError as error:
        sys.exit(str(error))
    x, unseen = images.centre(images.rows("train")), images.centre(images.rows("test"))
    lines = ["| components | | accuracy | normalized mutual information |", "|---|---|---|---|"]
    for components in given.components:
        runs = [judge(x, unseen, labels, components, seed, given.epochs) for seed in range(given.seeds)]
        for name in runs[0]:
            lines.append(row(components, name, [run[name] for run in runs]))
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
