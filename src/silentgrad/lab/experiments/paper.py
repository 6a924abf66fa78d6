"""The figures of the paper's tables, to stand beside the measured ones; estimators have their names in the recipes."""

from typing import NamedTuple

from silentgrad.lab.tables import Spread


class FixedFigures(NamedTuple):
    """Test figures of a linear decoder with fixed variance."""

    bpd: float
    mse: float


METHODS = {
    "silent": "Silent Gradients",
    "none": "None",
    "reparameterized": "Reparameterization",
    "gumbel-softmax": "Gumbel-Softmax",
    "reinforce": "REINFORCE",
}
GUIDED = "-sg"  # how the methods end that the paper's linear decoder guides
OURS = "-ours"  # how those end that our guide does, which the paper does not have
SEEDS = 3  # behind each mean of the paper
BLOCKS = {"gaussian": "Continuous", "bernoulli": "Discrete"}

# latent, method -> a linear decoder with fixed variance on MNIST
FIXED = {
    ("gaussian", "silent"): FixedFigures(6.718, 3.011),
    ("gaussian", "reparameterized"): FixedFigures(6.722, 3.059),
    ("bernoulli", "silent"): FixedFigures(6.900, 6.103),
    ("bernoulli", "gumbel-softmax"): FixedFigures(6.990, 7.670),
    ("bernoulli", "reinforce"): FixedFigures(7.208, 9.289),
}

VARIANCE_EPOCHS = [1, 50, 250]
# latent, method -> the estimator's part of the gradient's variance in percent, at these epochs
VARIANCE = {
    ("gaussian", "silent"): (0.0, 0.0, 0.0),
    ("gaussian", "reparameterized"): (82.36, 91.72, 96.04),
    ("bernoulli", "silent"): (0.0, 0.0, 0.0),
    ("bernoulli", "gumbel-softmax"): (74.64, 91.63, 94.34),
    ("bernoulli", "reinforce"): (99.60, 99.42, 99.30),
}

DATASETS = {"mnist": "MNIST", "imagenet32": "ImageNet", "cifar10": "CIFAR-10"}

# latent -> method -> BPD, its deviation, KLD and MSE of each dataset, in the order of DATASETS: learned variance
_LEARNED = {
    "gaussian": {
        "none-sg": ((2.36, 0.07, 330.77, 1.79), (5.99, 0.01, 478.43, 17.30), (5.78, 0.03, 550.70, 10.28)),
        "reparameterized": ((1.95, 0.04, 155.15, 1.36), (5.81, 0.02, 382.87, 14.56), (5.71, 0.01, 427.79, 12.54)),
        "reparameterized-sg": ((1.83, 0.03, 165.76, 1.60), (5.70, 0.01, 533.20, 12.69), (5.53, 0.01, 577.25, 8.18)),
    },
    "bernoulli": {
        "none-sg": ((2.74, 0.06, 91.82, 10.66), (6.46, 0.01, 534.29, 28.15), (6.72, 0.01, 243.69, 39.56)),
        "gumbel-softmax": ((2.50, 0.02, 94.64, 5.63), (6.31, 0.01, 368.02, 29.34), (6.21, 0.01, 446.75, 21.12)),
        "gumbel-softmax-sg": ((2.37, 0.04, 96.24, 6.02), (6.20, 0.01, 404.57, 23.04), (6.20, 0.02, 442.58, 20.36)),
        "reinforce": ((2.99, 0.08, 109.67, 11.59), (6.88, 0.01, 294.88, 50.56), (6.74, 0.01, 303.33, 41.50)),
        "reinforce-sg": ((2.93, 0.02, 128.55, 8.20), (6.78, 0.01, 381.27, 43.25), (6.67, 0.01, 367.10, 36.26)),
    },
}
# metric -> latent, method -> the figure of each dataset
LEARNED: dict[str, dict[tuple[str, str], tuple[Spread, ...]]] = {"bpd": {}, "kld": {}, "mse": {}}
for _latent, _methods in _LEARNED.items():
    for _method, _figures in _methods.items():
        LEARNED["bpd"][_latent, _method] = tuple(Spread(bpd, deviation, SEEDS) for bpd, deviation, _, _ in _figures)
        LEARNED["kld"][_latent, _method] = tuple(Spread(kld, None, SEEDS) for _, _, kld, _ in _figures)
        LEARNED["mse"][_latent, _method] = tuple(Spread(mse, None, SEEDS) for _, _, _, mse in _figures)
_OURS = [(latent, method.replace(GUIDED, OURS)) for latent, method in LEARNED["bpd"] if method.endswith(GUIDED)]
COMPARED = [*LEARNED["bpd"], *_OURS]  # latent, method: the rows of the paper, and those with our guide

REACHED = 6.73  # test BPD of a linear decoder with fixed variance and Gaussian latents
REACHED_AFTER = {("gaussian", "silent"): 45.0, ("gaussian", "reparameterized"): 90.0}  # epochs

# Distance of the encoder's gradient from the enumerated one, with learned variance
BIAS = {"silent, taylor": 212.9, "gumbel-softmax": 6.1e3, "reinforce": 593.1}

# The searches: learning rates, variances, annealing rates an epoch, cut-off epochs
RATES = [1e-4, 5e-4, 1e-5, 5e-5]
VARIANCES = [0.1, 0.05, 0.01]
ANNEALING = [1e-2, 5e-2, 1e-3, 5e-3]
CUTOFFS = [50, 80, 100, 150, 200]


def learned(metric: str, dataset: str, latent: str, method: str) -> Spread | None:
    """Return a figure with learned variance; None if the paper does not have the method."""
    figures = LEARNED[metric].get((latent, method))
    return figures[list(DATASETS).index(dataset)] if figures else None


def alone(method: str) -> str:
    """Return the estimator of a method, without its guide."""
    return method.removesuffix(GUIDED).removesuffix(OURS)


def in_print(method: str) -> str:
    """Return a method as the tables call it."""
    guide = " + SG" if method.endswith(GUIDED) else " + our guide" if method.endswith(OURS) else ""
    return f"{METHODS[alone(method)]}{guide}"
