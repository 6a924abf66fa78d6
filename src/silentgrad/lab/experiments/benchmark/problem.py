"""The data and the model of a setting."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import Circuit, StandardizedGaussian, is_tractable
from silentgrad.estimators import Estimator, Nvil, Relax
from silentgrad.guided import GuidedVAE
from silentgrad.lab.data import Observations, SplitName, load
from silentgrad.lab.experiments.benchmark.protocol import BATCH, LikelihoodKind, Setting, Size
from silentgrad.lab.networks import Encoder, NonlinearBernoulli
from silentgrad.lab.training.suitable import ESTIMATORS, EstimatorName
from silentgrad.latents.families.bernoulli import Bernoulli

SLOPE = 0.3  # of LeakyReLU below zero
CERTAIN = 1e-3  # the least probability that a decoder's bias starts at
STARTED_FROM = 5_000  # examples behind means and deviations


class Data(NamedTuple):
    """Batches of x as a setting's model sees them.

    Args:
        observations: The images: bits are drawn anew each time, levels are dequantized.
        signed: Whether x is in [-1, 1] instead of [0, 1].
        device: Where the batches go.
    """

    observations: Observations
    signed: bool
    device: torch.device

    @classmethod
    def of(cls, dataset: str, likelihood: LikelihoodKind, root: Path | None, device: torch.device) -> "Data":
        """The data of a setting, by the name of the data set that is used."""
        if likelihood == "bernoulli":
            return cls(load(dataset, root, "binarized"), False, device)
        return cls(load(dataset, root), True, device)

    def training(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Batches of training examples, each drawn from all of them, without an end."""
        rows = self.observations.rows("train")
        while True:
            chosen = torch.randint(len(rows), (BATCH,), generator=generator)
            yield self._seen(self.observations.as_seen(rows.index_select(0, chosen), generator))

    def fixed(self, split: SplitName, count: int) -> Iterator[Tensor]:
        """The first examples of a split in batches, each time with the same noise."""
        generator = torch.Generator().manual_seed(0)
        rows = self.observations.rows(split)
        count = min(count, len(rows))
        for start in range(0, count, BATCH):
            yield self._seen(self.observations.as_seen(rows.between(start, min(start + BATCH, count)), generator))

    def start(self) -> Tensor:
        """Training examples to start decoders from."""
        return torch.cat(list(self.fixed("train", STARTED_FROM)))

    def _seen(self, x: Tensor) -> Tensor:
        if self.signed:
            x = 2 * x - 1
        return x.to(self.device)


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

    Args:
        network: From latents to u.
        mean: The centre, and the shape of an example.
        deviation: Where the scale starts.
    """

    centre: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("centre", mean)
        self.log_scale = nn.Parameter(deviation.log())

    def forward(self, z: Tensor) -> td.Independent:
        u = self.network(z).unflatten(-1, self.centre.shape)
        scale = self.log_scale.exp().expand_as(u)
        return td.Independent(td.Normal(self.centre + scale * u, scale, validate_args=False), self.centre.dim())


def build(setting: Setting, size: Size, x: Tensor, seed: int) -> GuidedVAE:
    """The model of a setting, started from examples x; its estimator is set by :func:`with_estimator`.

    The seed decides all weights: models that differ in the estimator only start alike.
    """
    torch.manual_seed(seed)
    mean = x.mean(0)
    layers = _layers(setting, size, mean.numel(), size.latents)
    encoder = Encoder(nn.Sequential(Centred(mean), nn.Flatten(), *layers), Bernoulli(size.latents))
    decoder = _decoder(setting, size, x)
    if is_tractable(decoder):
        return GuidedVAE(encoder, tractable=decoder).to(x.device)
    return GuidedVAE(encoder, nonlinear=decoder, estimator=Estimator()).to(x.device)


def estimator_named(name: EstimatorName, latents: int) -> Estimator:
    """An estimator with its default arguments; a network of its own is as wide as there are latents."""
    if name == "nvil":
        return Nvil(inputs=latents)
    if name == "relax":
        return Relax(inputs=latents)
    return ESTIMATORS[name]()


def with_estimator(model: GuidedVAE, estimator: Estimator) -> GuidedVAE:
    """The model with an estimator in its place."""
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
    for before, after in itertools.pairwise([inputs, size.width, size.width]):
        layers += [nn.Linear(before, after), nn.LeakyReLU(SLOPE)]
    return [*layers, nn.Linear(size.width, outputs)]


def _decoder(setting: Setting, size: Size, x: Tensor) -> nn.Module:
    mean, deviation = x.mean(0), x.std(0)
    if setting.network == "circuit":
        circuit = Circuit(size.latents, mean.shape, size.components, gates="all")
        circuit.init_from_data(x)
        return circuit
    if setting.likelihood == "gaussian" and setting.network == "linear":
        linear = StandardizedGaussian(size.latents, mean.shape)
        weights = linear.affine.weight.detach() * deviation.flatten().unsqueeze(1)
        linear.start_outputs(mean.flatten(), deviation.flatten().square(), weights)
        return linear
    layers = _layers(setting, size, size.latents, mean.numel())
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    network = nn.Sequential(*layers)
    if setting.likelihood == "gaussian":
        nn.init.zeros_(last.bias)
        return PixelGaussian(network, mean, deviation)
    with torch.no_grad():
        last.bias.copy_(torch.logit(mean.flatten().clamp(CERTAIN, 1 - CERTAIN)))
    return NonlinearBernoulli(nn.Sequential(network, nn.Unflatten(1, tuple(mean.shape))), mean.shape)
