"""The data and the model of a setting."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import Circuit, StandardizedGaussian, is_tractable
from silentgrad.estimators import Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Levels, Observations, Part, Rows, SplitName, load
from silentgrad.lab.experiments.benchmark.protocol import BATCH, BenchmarkPlan, Setting, Size
from silentgrad.lab.networks import Encoder, NonlinearBernoulli

SLOPE = 0.3  # of LeakyReLU below zero
CERTAIN = 1e-3  # the least probability that a decoder's bias starts at
STARTED_FROM = 5_000  # examples behind means and deviations


@dataclass(frozen=True)
class Signed(Levels):
    """Levels as the papers' Gaussian variant has them: x in [-1, 1], dequantized."""

    @property
    def noise_deviation(self) -> float:
        return 2 * super().noise_deviation

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        return 2 * super().as_seen(rows, generator, part) - 1

    def centre(self, rows: Rows) -> Tensor:
        return 2 * super().centre(rows) - 1

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        return super().figure(elbo, observed) - 1  # a level is twice as wide


def observations_of(setting: Setting, plan: BenchmarkPlan) -> Observations:
    """Return the images of a setting as its model sees them: bits, drawn anew each time, or levels in [-1, 1]."""
    if setting.likelihood == "bernoulli":
        return load(plan.data(setting), plan.root, "binarized")
    levels = load(plan.data(setting), plan.root)
    return Signed(**{part.name: getattr(levels, part.name) for part in fields(levels)})


def fixed_batches(observations: Observations, split: SplitName, count: int) -> Iterator[Tensor]:
    """Yield the first examples of a split in batches, each time with the same noise."""
    generator = torch.Generator().manual_seed(0)
    rows = observations.rows(split)
    count = min(count, len(rows))
    for start in range(0, count, BATCH):
        yield observations.as_seen(rows.between(start, min(start + BATCH, count)), generator)


class Centred(nn.Module):
    """x without its mean."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


class PixelGaussian(nn.Module):
    """p(x|z) = N(centre + scale u(z), scale^2), a learned scale for every pixel: a network's `StandardizedGaussian`.

    The network goes from latents to u, and the scale starts at a deviation.
    """

    centre: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("centre", mean)
        self.log_scale = nn.Parameter(deviation.log())

    def forward(self, z: Tensor) -> td.Independent:
        u = self.network(z.flatten(1)).unflatten(-1, self.centre.shape)
        scale = self.log_scale.exp().expand_as(u)
        return td.Independent(td.Normal(self.centre + scale * u, scale, validate_args=False), self.centre.dim())


def build(setting: Setting, size: Size, observations: Observations, seed: int) -> GuidedVAE:
    """Return the model of a setting, started from training examples; its estimator is set by :func:`with_estimator`.

    The seed decides all weights: models that differ in the estimator only start alike.
    """
    torch.manual_seed(seed)
    x = torch.cat(list(fixed_batches(observations, "train", STARTED_FROM)))
    mean = x.mean(0)
    family = setting.family(size)
    layers = _layers(setting, size, mean.numel(), family.numbers)
    encoder = Encoder(nn.Sequential(Centred(mean), nn.Flatten(), *layers), family)
    decoder = _decoder(setting, size, x)
    if is_tractable(decoder):
        return GuidedVAE(encoder, tractable=decoder)
    return GuidedVAE(encoder, nonlinear=decoder, estimator=Estimator())


def with_estimator(model: GuidedVAE, estimator: Estimator) -> GuidedVAE:
    """Return the model with an estimator in its place."""
    device = next(model.parameters()).device
    if model.nonlinear is None:
        model.tractable_estimator = estimator.to(device)
    else:
        model.estimator = estimator.to(device)
    return model


def _layers(setting: Setting, size: Size, inputs: int, outputs: int) -> list[nn.Module]:
    """One linear layer, or two hidden ones before it."""
    if setting.network == "linear":
        return [nn.Linear(inputs, outputs)]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, size.latents, size.latents]):
        layers += [nn.Linear(before, after), nn.LeakyReLU(SLOPE)]
    return [*layers, nn.Linear(size.latents, outputs)]


def _decoder(setting: Setting, size: Size, x: Tensor) -> nn.Module:
    mean, deviation, latents = x.mean(0), x.std(0), setting.family(size).numbers  # of bits and categories alike
    if setting.network == "circuit":
        circuit = Circuit(latents, mean.shape, size.components, gates="all")
        circuit.init_from_data(x)
        return circuit
    if setting.likelihood == "gaussian" and setting.network == "linear":
        linear = StandardizedGaussian(latents, mean.shape)
        weights = linear.affine.weight.detach() * deviation.flatten().unsqueeze(1)
        linear.start_outputs(mean.flatten(), deviation.flatten().square(), weights)
        return linear
    layers = _layers(setting, size, latents, mean.numel())
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    network = nn.Sequential(*layers)
    if setting.likelihood == "gaussian":
        nn.init.zeros_(last.bias)
        return PixelGaussian(network, mean, deviation)
    with torch.no_grad():
        last.bias.copy_(torch.logit(mean.flatten().clamp(CERTAIN, 1 - CERTAIN)))
    return NonlinearBernoulli(nn.Sequential(network, nn.Unflatten(1, tuple(mean.shape))), mean.shape)
