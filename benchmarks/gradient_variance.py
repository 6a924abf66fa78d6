"""The two methods of `gradient_variance`: time, ratio, and the estimates with their standard errors.

    python benchmarks/gradient_variance.py             # about two minutes, most of it the last row

200 latents, the linear decoder with fixed variance 0.01, batches of 64, 200 draws: the setting of the paper's table,
with a fully connected encoder and the paper's convolutional one (batches of 16, to save time), untrained, on random
images. Both methods see the same batches and take turns; times are the processor's, medians per batch. `every` is the
definition: each draw by itself, through the decoder's own log-probability and the encoder's backward pass. `sketch` has
8 backward passes, and evaluates the decoder through its sufficient statistics, several draws at a time. Standard errors
are those over batches.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from silentgrad import Estimator, GuidedVAE, GumbelSoftmax, LinearGaussian, Reinforce, Reparameterized
from silentgrad.analysis import Decomposition, MethodName, gradient_variance
from silentgrad.lab.networks import Encoder, conv_body, mlp_body
from silentgrad.latents.families import FAMILIES

SHAPE, LATENTS, DRAWS, LIMIT = (1, 28, 28), 200, 200, 5.0
BODIES: dict[str, Callable[..., nn.Module]] = {"784-512": mlp_body, "convolutional": conv_body}
CASES: list[tuple[str, str, Estimator, int, int]] = [
    ("784-512", "gaussian", Reparameterized(), 64, 2),
    ("784-512", "bernoulli", GumbelSoftmax(), 64, 2),
    ("784-512", "bernoulli", Reinforce(), 64, 2),
    ("convolutional", "gaussian", Reparameterized(), 16, 1),
]


def compare(encoder: str, family: str, estimator: Estimator, size: int, rounds: int) -> float:
    """Print a row per method and returns the ratio of their times."""
    torch.manual_seed(0)
    latents = FAMILIES[family](LATENTS)
    body = BODIES[encoder](SHAPE, latents.numbers)
    model = GuidedVAE(Encoder(body, latents), LinearGaussian(LATENTS, SHAPE, 0.01)).eval()
    times: dict[MethodName, list[float]] = {"every": [], "sketch": []}
    found: dict[MethodName, list[Decomposition]] = {"every": [], "sketch": []}
    for seed in range(rounds):
        batches = torch.rand(4, size, *SHAPE)
        for method in times:
            start = time.process_time()
            (result,) = gradient_variance(model, batches, DRAWS, [estimator], method, seed=seed).values()
            times[method].append((time.process_time() - start) / len(batches))
            found[method].append(result)
    print(f"{encoder} encoder, {type(estimator).__name__}, {4 * rounds} batches of {size}")
    for method in times:
        print(f"  {method:6}  {statistics.median(times[method]):7.3f} s per batch   {described(found[method])}")
    ratio = statistics.median(times["every"]) / statistics.median(times["sketch"])
    print(f"  ratio   {ratio:.1f} (at least {LIMIT:.0f})")
    return ratio


def described(found: Sequence[Decomposition]) -> str:
    """Means over the rounds, which are independent, with their standard errors."""

    def pooled(figure: str) -> str:
        mean = statistics.mean(getattr(d, figure) for d in found)
        error = sum(getattr(d.errors, figure) ** 2 for d in found) ** 0.5 / len(found)
        return f"{mean:.4g} ± {error:.1g}"

    return f"Est {pooled('est')}   Batch {pooled('batch')}   Est % {pooled('est_percent')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs="*", choices=list(BODIES), default=list(BODIES))
    encoders = parser.parse_args().encoders
    ratios = [compare(*case) for case in CASES if case[0] in encoders]
    print(f"smallest ratio {min(ratios):.1f}")


if __name__ == "__main__":
    main()
