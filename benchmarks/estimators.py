"""The cost of an estimator's step beside the evaluations of the decoder that it declares.

    python benchmarks/estimators.py

A step is `estimator(q, log p(x|z))` and its gradient in the decoder's parameters and those of the latents, 200 bits (or
200 Gaussian ones, for what takes no bits) and 100 examples: with the nonlinear decoder of `silentgrad benchmark`, whose
evaluation takes about 3 ms, and with the paper's convolutions of 8 channels, where the estimator's own work counts for
less. It is compared with as many plain evaluations of log p(x|z) at samples of z, with their gradients in the decoder
and in z, as the estimator declares. Of those that it declares to be differentiated twice the slope in z is taken, and
that of the slope's product with a random vector. Processor time of one thread, the two by turns, median of the ratios.
The limit is 1.15 for every estimator.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from silentgrad.estimators import ESTIMATORS, PriorIntegrand, integrand_of
from silentgrad.lab.networks import NonlinearLikelihood, conv_network
from silentgrad.lab.settings import EstimatorName, suitable_estimators
from silentgrad.latents.families import Bernoulli, Family, Gaussian
from silentgrad.likelihoods import Bernoulli as Bits

BATCH, LATENTS, WIDTH, SIDE = 100, 200, 200, 28
ROUNDS = {"fully connected": 31, "convolutions": 7}
LIMIT = 1.15


def measured() -> dict[EstimatorName, Family]:
    """All estimators that evaluate a decoder, and the latents that they are measured with."""
    found: dict[EstimatorName, Family] = dict.fromkeys(suitable_estimators(Gaussian), Gaussian(LATENTS))
    found |= dict.fromkeys(suitable_estimators(Bernoulli), Bernoulli(LATENTS))
    del found["none"], found["exact"]
    return found


def fully_connected() -> nn.Module:
    return nn.Sequential(
        nn.Linear(LATENTS, WIDTH),
        nn.LeakyReLU(0.3),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.3),
        nn.Linear(WIDTH, SIDE * SIDE),
        nn.Unflatten(1, (1, SIDE, SIDE)),
    )


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(name: EstimatorName, family: Family, decoder: nn.Module, x: Tensor, rounds: int) -> float:
    """Return the time of a step in parts of that of its evaluations."""
    integrand = PriorIntegrand(integrand_of(decoder, x), family.prior())
    numbers, vector = torch.randn(BATCH, family.numbers), torch.randn(BATCH, LATENTS)
    estimator = ESTIMATORS[name].sized(LATENTS)
    twice = estimator.differentiated_twice
    once = estimator.evaluations(LATENTS) - twice

    def step() -> None:
        value: Tensor = estimator(q, integrand).sum()
        loss = estimator.auxiliary_loss()
        if loss is not None:
            value = value + loss
        value.backward()

    def sample() -> Tensor:
        return q.sample().requires_grad_()

    def evaluations() -> None:
        mean = torch.stack([integrand(sample()) for _ in range(once)]).mean(0)
        if twice > 0:
            points = [sample() for _ in range(twice)]
            total = torch.stack([integrand(z) for z in points]).sum()
            slopes = torch.autograd.grad(total, points, create_graph=True)
            torch.autograd.grad((torch.stack(slopes) * vector).sum(), points)
        mean.sum().backward()

    ratios = []
    for _ in range(1 + rounds):
        taken = []
        for work in (step, evaluations):
            decoder.zero_grad(set_to_none=True)
            q = family.latent(numbers.clone().requires_grad_())
            taken.append(seconds(work))
        ratios.append(taken[0] / taken[1])
    return statistics.median(ratios[1:])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = (1, SIDE, SIDE)
    x = torch.bernoulli(torch.full((BATCH, *shape), 0.2))
    networks = {"fully connected": fully_connected(), "convolutions": conv_network(LATENTS, shape, 1, channels=8)}
    print(f"{'estimator':24} {'evaluations':>12} {'fully connected':>16} {'convolutions':>13}")
    for name, family in measured().items():
        declared = ESTIMATORS[name].sized(LATENTS).evaluations(LATENTS)
        told = f"{name:24} {declared:12}"
        for title, network in networks.items():
            rounds = ROUNDS[title]
            if declared > 20:
                rounds = 1
            told += f" {ratio(name, family, NonlinearLikelihood(network, shape, Bits()), x, rounds):14.2f}"
        print(told, flush=True)
    print(f"the limit is {LIMIT}")


if __name__ == "__main__":
    main()
