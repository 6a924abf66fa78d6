"""What counts of six neighbors tell about a pixel of MNIST, without latents and without a network.

    python benchmarks/neighbors.py    # a minute on one core

A pixel's context is the four before it around it and the two behind these, each in one of a few bins. Its level has the
smoothed frequencies that it had in this context in the training images; what is added to each count is mass spread as
the levels are spread overall. Validation images choose the bins and the mass.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from silentgrad.lab.data import Levels, load_images

LEVELS = 256
NEIGHBORS = [(0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0)]  # down, right
EDGES = {"3 bins": [1, 200], "4 bins": [1, 128, 250], "5 bins": [1, 64, 160, 250], "6 bins": [1, 50, 120, 200, 250]}
MASSES = [3, 10, 30, 100]


def contexts(images: Tensor, edges: list[int]) -> Tensor:
    """Return the context of every pixel as one number; outside an image it is dark."""
    binned = pad(torch.bucketize(images, torch.tensor(edges), right=True), [2, 2, 2, 0])
    height, width = images.shape[-2:]
    found = torch.zeros_like(binned[..., 2 : 2 + height, 2 : 2 + width])
    for down, right in NEIGHBORS:
        near = binned[..., 2 + down : 2 + down + height, 2 + right : 2 + right + width]
        found = found * (len(edges) + 1) + near
    return found


def main() -> None:
    data = load_images("mnist")
    assert isinstance(data, Levels)
    train, valid, test = (split.squeeze(1).long() for split in (data.train, data.valid, data.test))
    overall = np.bincount(train.flatten(), minlength=LEVELS) + 1.0
    overall /= overall.sum()
    figures = []
    for bins, edges in EDGES.items():
        at, size = contexts(train, edges), (len(edges) + 1) ** len(NEIGHBORS)
        counts = np.bincount((at * LEVELS + train).flatten(), minlength=size * LEVELS).reshape(size, LEVELS)
        for mass in MASSES:
            chances = counts + mass * overall
            bits = -np.log2(chances / chances.sum(1, keepdims=True))
            by_split = [bits[contexts(split, edges), split].mean() for split in (valid, test)]
            figures.append((*by_split, f"{bins}, mass {mass}"))
            print(f"{bins}, mass {mass}: validation {by_split[0]:.4f}", flush=True)
    _, best, name = min(figures)
    print(f"chosen by validation: {name}; test {best:.4f} BPD")


if __name__ == "__main__":
    main()
