"""The figures of the paper's tables, to stand beside the measured ones.

A method's key is the estimator's name in the recipes, followed by GUIDED if a linear decoder guides.
"""

from typing import NamedTuple


class FixedFigures(NamedTuple):
    """Test figures of a linear decoder with fixed variance."""

    bpd: float
    mse: float


class Variance(NamedTuple):
    """Variance of the encoder's gradient at an epoch.

    Args:
        batch: The part of the mini-batches.
        est: The part of the estimator.
        est_percent: The estimator's part in percent of both.
    """

    batch: float
    est: float
    est_percent: float


class Mean(NamedTuple):
    """A figure over seeds.

    Args:
        mean: Mean over seeds.
        std: Standard deviation, which the paper gives for BPD only.
    """

    mean: float
    std: float | None = None


METHODS = {
    "silent": "Silent Gradients",
    "none": "None",
    "reparameterized": "Reparameterization",
    "gumbel-softmax": "Gumbel-Softmax",
    "reinforce": "REINFORCE",
}
GUIDED = "-sg"  # how the methods end that a linear decoder guides
SEEDS = 3  # behind each mean of the paper that has a deviation
BLOCKS = {"gaussian": "Continuous", "bernoulli": "Discrete"}

# latent, method -> a linear decoder with fixed variance on MNIST
FIXED = {
    ("gaussian", "silent"): FixedFigures(6.718, 3.011),
    ("gaussian", "reparameterized"): FixedFigures(6.722, 3.059),
    ("bernoulli", "silent"): FixedFigures(6.900, 6.103),
    ("bernoulli", "gumbel-softmax"): FixedFigures(6.990, 7.670),
    ("bernoulli", "reinforce"): FixedFigures(7.208, 9.289),
}

# latent, method -> epoch -> variance
VARIANCE = {
    ("gaussian", "silent"): {
        1: Variance(1.49e4, 0.0, 0.0),
        50: Variance(5.28e2, 0.0, 0.0),
        250: Variance(4.53e1, 0.0, 0.0),
    },
    ("gaussian", "reparameterized"): {
        1: Variance(6.97e4, 3.26e5, 82.36),
        50: Variance(2.96e3, 3.28e4, 91.72),
        250: Variance(6.52e2, 1.58e4, 96.04),
    },
    ("bernoulli", "silent"): {
        1: Variance(2.18e5, 0.0, 0.0),
        50: Variance(4.53e6, 0.0, 0.0),
        250: Variance(1.12e5, 0.0, 0.0),
    },
    ("bernoulli", "gumbel-softmax"): {
        1: Variance(6.29e4, 1.85e5, 74.64),
        50: Variance(2.12e4, 2.32e5, 91.63),
        250: Variance(1.20e4, 2.00e5, 94.34),
    },
    ("bernoulli", "reinforce"): {
        1: Variance(8.22e4, 2.07e7, 99.60),
        50: Variance(4.86e5, 8.30e7, 99.42),
        250: Variance(2.33e5, 3.29e7, 99.30),
    },
}

DATASETS = {"mnist": "MNIST", "imagenet32": "ImageNet", "cifar10": "CIFAR-10"}

# metric -> latent, method -> the figure of each dataset, in the order of DATASETS: learned variance
LEARNED: dict[str, dict[tuple[str, str], tuple[Mean, ...]]] = {
    "bpd": {
        ("gaussian", "none-sg"): (Mean(2.36, 0.07), Mean(5.99, 0.01), Mean(5.78, 0.03)),
        ("gaussian", "reparameterized"): (Mean(1.95, 0.04), Mean(5.81, 0.02), Mean(5.71, 0.01)),
        ("gaussian", "reparameterized-sg"): (Mean(1.83, 0.03), Mean(5.70, 0.01), Mean(5.53, 0.01)),
        ("bernoulli", "none-sg"): (Mean(2.74, 0.06), Mean(6.46, 0.01), Mean(6.72, 0.01)),
        ("bernoulli", "gumbel-softmax"): (Mean(2.50, 0.02), Mean(6.31, 0.01), Mean(6.21, 0.01)),
        ("bernoulli", "gumbel-softmax-sg"): (Mean(2.37, 0.04), Mean(6.20, 0.01), Mean(6.20, 0.02)),
        ("bernoulli", "reinforce"): (Mean(2.99, 0.08), Mean(6.88, 0.01), Mean(6.74, 0.01)),
        ("bernoulli", "reinforce-sg"): (Mean(2.93, 0.02), Mean(6.78, 0.01), Mean(6.67, 0.01)),
    },
    "kld": {
        ("gaussian", "none-sg"): (Mean(330.77), Mean(478.43), Mean(550.70)),
        ("gaussian", "reparameterized"): (Mean(155.15), Mean(382.87), Mean(427.79)),
        ("gaussian", "reparameterized-sg"): (Mean(165.76), Mean(533.20), Mean(577.25)),
        ("bernoulli", "none-sg"): (Mean(91.82), Mean(534.29), Mean(243.69)),
        ("bernoulli", "gumbel-softmax"): (Mean(94.64), Mean(368.02), Mean(446.75)),
        ("bernoulli", "gumbel-softmax-sg"): (Mean(96.24), Mean(404.57), Mean(442.58)),
        ("bernoulli", "reinforce"): (Mean(109.67), Mean(294.88), Mean(303.33)),
        ("bernoulli", "reinforce-sg"): (Mean(128.55), Mean(381.27), Mean(367.10)),
    },
    "mse": {
        ("gaussian", "none-sg"): (Mean(1.79), Mean(17.30), Mean(10.28)),
        ("gaussian", "reparameterized"): (Mean(1.36), Mean(14.56), Mean(12.54)),
        ("gaussian", "reparameterized-sg"): (Mean(1.60), Mean(12.69), Mean(8.18)),
        ("bernoulli", "none-sg"): (Mean(10.66), Mean(28.15), Mean(39.56)),
        ("bernoulli", "gumbel-softmax"): (Mean(5.63), Mean(29.34), Mean(21.12)),
        ("bernoulli", "gumbel-softmax-sg"): (Mean(6.02), Mean(23.04), Mean(20.36)),
        ("bernoulli", "reinforce"): (Mean(11.59), Mean(50.56), Mean(41.50)),
        ("bernoulli", "reinforce-sg"): (Mean(8.20), Mean(43.25), Mean(36.26)),
    },
}
