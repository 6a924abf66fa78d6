"""Nonlinear decoders by the paper's networks and a fully connected one: outputs independent given z, or a circuit."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import softplus

from silentgrad.decoders import CircuitDistribution, LinearLikelihood
from silentgrad.decoders import DiscretizedLogistic as DiscretizedLogisticDecoder
from silentgrad.decoders.likelihood import own_parameters
from silentgrad.decoders.protocol import Given
from silentgrad.decoders.region_graphs import RegionGraph
from silentgrad.decoders.starts import clusters, require_examples, shares_of
from silentgrad.decoders.sums import SumProduct
from silentgrad.distributions import DiscretizedLogistic
from silentgrad.errors import ShapeError
from silentgrad.lab.networks.encoders import channels_last, fully_connected, strided_size
from silentgrad.side_info import NOTHING, SideInfo

SHARPEST = 2 * math.log(10.0)  # log-precision of a scale of a tenth of a level: a sharper one is no better
START_LOG_PRECISION = math.log(9.0)  # where a network that says zero begins: standard deviation 1/3
SPREAD = 1.5  # of the components' means around the network's, in standard deviations: alike, they would stay so


class NonlinearDecoder(nn.Module):
    """A decoder with a network, which gives numbers for each output of an example.

    Args:
        network: From latents `(batch, latent_dim)` to an example's numbers, of channels as many times those of an
            example as an output has numbers.
        event_shape: Shape of one example.
        levels: Number of levels of an output.
    """

    def __init__(self, network: nn.Module, event_shape: Sequence[int], levels: int = 256) -> None:
        super().__init__()
        self.network, self.levels = network, levels
        self.event_shape = torch.Size(event_shape)

    def numbers(self, z: Tensor, each: int) -> Tensor:
        """Return what the network gives of z, which has to be so many numbers of each output."""
        numbers: Tensor = self.network(z.flatten(1))
        channels, *size = self.event_shape
        expected = each * channels, *size
        if numbers.shape[-len(expected) :] != expected:
            raise ShapeError(f"the decoder's network has to give {expected} numbers, got {tuple(numbers.shape[1:])}")
        return numbers

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that may have learning rates of their own: the network's."""
        return {"network": list(self.network.parameters())}


class Elementwise(NonlinearDecoder):
    """A nonlinear decoder whose outputs are independent given z, so that some of them may be missing."""

    def decode(self, z: Tensor, side_info: SideInfo) -> td.Independent:
        """Return p(x|z) given side information; which entries were observed makes no difference to it."""
        side_info.require_none(type(self).__name__, "offset", "covariates", "scale")
        decoded: td.Independent = self(z)
        return decoded

    def log_prob_given(self, x: Tensor, z: Tensor, side_info: SideInfo) -> Tensor:
        """Return log p(x|z) over the observed entries, one number per example."""
        known = side_info.flattened(x.shape[:1], self.event_shape)
        x = known.observed(x.flatten(1), 0.0).unflatten(1, self.event_shape)
        return known.total(self.decode(z, side_info).base_dist.log_prob(x).flatten(1))

    def given(self, side_info: SideInfo) -> Given:
        """Return p(x|z) given side information, as linear decoders have it."""
        return Given(self, side_info)


class NonlinearGaussian(Elementwise):
    """p(x|z) = N(mean(z), exp(-g(z))), both from one network that doubles the channels.

    Within a bin of width 1/levels the dequantization noise alone has standard deviation 1/(levels sqrt 12), so a
    log-precision g beyond log(12 levels^2) gains nothing; it is bent smoothly below that.
    """

    def forward(self, z: Tensor) -> td.Independent:
        mean, g = self.numbers(z, 2).chunk(2, dim=1)
        most = math.log(12 * self.levels**2)
        log_precision = most - softplus(most - START_LOG_PRECISION - g)
        return td.Independent(td.Normal(mean, torch.exp(-log_precision / 2)), len(self.event_shape))


class NonlinearLogistic(Elementwise):
    """p(x|z) of whole levels: logistic variables, rounded, location and log-scale from one network."""

    def forward(self, z: Tensor) -> td.Independent:
        mean, g = self.numbers(z, 2).chunk(2, dim=1)
        log_precision = SHARPEST - softplus(SHARPEST + 2 * math.log(self.levels / 8) - g)
        scale = torch.exp(-log_precision / 2)
        outputs = DiscretizedLogistic(self.levels * (0.5 + mean), scale, self.levels, validate_args=False)
        return td.Independent(outputs, len(self.event_shape))


class NonlinearStandardized(Elementwise):
    """p(x|z) = N(center + scale u(z), scale^2): a network's `silentgrad.StandardizedGaussian`.

    The network gives one u per output, and the scale is learned, the same for every z.
    """

    center: Tensor

    def __init__(self, network: nn.Module, event_shape: Sequence[int]) -> None:
        super().__init__(network, event_shape)
        self.register_buffer("center", torch.zeros(self.event_shape))
        self.log_scale = nn.Parameter(torch.full(self.event_shape, -START_LOG_PRECISION / 2))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return super().parameter_groups() | {"precision": [self.log_scale]}

    def forward(self, z: Tensor) -> td.Independent:
        u = self.numbers(z, 1)
        scale = self.log_scale.exp().expand_as(u)
        return td.Independent(td.Normal(self.center + scale * u, scale, validate_args=False), len(self.event_shape))

    def init_from_data(self, data: Tensor) -> None:
        """Start where every output has its mean and its deviation."""
        with torch.no_grad():
            self.center.copy_(data.mean(0))
            self.log_scale.copy_(data.std(0).log())


class NonlinearLikelihood(Elementwise):
    """p(x|z) = likelihood(u(z)), one u per output; an offset is added to u, covariates join z.

    Args:
        network: From latents and covariates, `(batch, latents + covariates)`, to `(batch, *event_shape)`.
        event_shape: Shape of one example.
        likelihood: From u to the distribution of x, elementwise.
        covariates: Number of covariates of each example, to be given with x.
    """

    center: Tensor

    def __init__(
        self, network: nn.Module, event_shape: Sequence[int], likelihood: nn.Module, covariates: int = 0
    ) -> None:
        super().__init__(network, event_shape)
        self.likelihood, self.covariates = likelihood, covariates
        self.register_buffer("center", torch.zeros(self.event_shape))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return super().parameter_groups() | {"precision": own_parameters(self.likelihood)}

    def forward(self, z: Tensor) -> td.Independent:
        return self.decode(z, NOTHING)

    def decode(self, z: Tensor, side_info: SideInfo) -> td.Independent:
        side_info.require_none(type(self).__name__, "scale")
        given = 0
        inputs = z.flatten(1)
        if side_info.covariates is not None:
            given = side_info.covariates.shape[-1]
            inputs = torch.cat([inputs, side_info.covariates.to(inputs)], 1)
        if given != self.covariates:
            raise ShapeError(f"the decoder was built for {self.covariates} covariates, and {given} were given")
        u = self.center + self.numbers(inputs, 1)
        known = side_info.flattened(z.shape[:1], self.event_shape)
        if known.offset is not None:
            u = (u.flatten(1) + known.offset).unflatten(1, self.event_shape)
        return td.Independent(self.likelihood(u), len(self.event_shape))

    def init_from_data(self, data: Tensor, offset: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Start where x has its mean, and the likelihood's own parameters as a linear decoder starts them."""
        constant = LinearLikelihood(1, self.event_shape, self.likelihood)
        nn.init.zeros_(constant.affine.weight)
        constant.init_from_data(data, "mean", offset=offset, mask=mask)
        self.center.copy_(constant.affine.bias.detach().unflatten(0, self.event_shape))


# Each network gives as many numbers per output as the likelihood has parameters: two for mean and precision.


def mlp_network(
    latent_dim: int,
    event_shape: Sequence[int],
    numbers: int = 2,
    hidden: Sequence[int] = (512,),
    unit: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    """Return a fully connected network, for small machines; its hidden layers have the encoder's widths, backwards."""
    colors, *size = event_shape
    widths = [latent_dim, *reversed(hidden), numbers * torch.Size(event_shape).numel()]
    return nn.Sequential(*fully_connected(widths, unit), nn.Unflatten(1, (numbers * colors, *size)))


def conv_network(latent_dim: int, event_shape: Sequence[int], numbers: int = 2, channels: int = 32) -> nn.Module:
    """Return the paper's decoder for MNIST: a linear layer, four 3x3 convolutions and one of 1x1."""
    colors, height, width = event_shape
    layers: list[nn.Module] = [
        nn.Linear(latent_dim, channels * height * width),
        nn.Unflatten(1, (channels, height, width)),
    ]
    for _ in range(4):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return channels_last(nn.Sequential(*layers, nn.Conv2d(channels, numbers * colors, 1)))


def strided_network(latent_dim: int, event_shape: Sequence[int], numbers: int = 2, channels: int = 64) -> nn.Module:
    """Return the paper's decoder for CIFAR-10 and ImageNet: transposed 4x4 convolutions with batch normalization."""
    colors = event_shape[0]
    rows, columns = strided_size("decoder makes", event_shape)
    widths = [4 * channels, 4 * channels, 2 * channels, channels]
    layers: list[nn.Module] = [
        nn.Linear(latent_dim, widths[0] * rows * columns),
        nn.Unflatten(1, (widths[0], rows, columns)),
        nn.ConvTranspose2d(widths[0], widths[1], 4),
        nn.ReLU(),
        nn.BatchNorm2d(widths[1]),
    ]
    for before, after in itertools.pairwise(widths[1:]):
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], numbers * colors, 4, stride=2, padding=1))


class NonlinearCircuit(NonlinearDecoder):
    """p(x|z) as a circuit whose leaves and whose weights over leaves a network computes from z.

    As in `silentgrad.StandardizedGaussian` the network moves a leaf's mean in units of a deviation of its own.

    Args:
        network: From latents `(batch, latent_dim)` to `(batch, 3 * components * channels, ...)`: of each component the
            mean, the log-precision and the logit of its weight. Outputs that one region holds add up their logits.
        event_shape: Shape of one example.
        components: Number of leaves of each output, and of nodes of each region.
        region_graph: The regions of outputs.
        levels: Number of levels of an output, which bounds the precision as in `NonlinearGaussian`.
        whole: Whether x are whole levels, and the leaves rounded logistic variables instead of Gaussian ones.
    """

    center: Tensor

    def __init__(
        self,
        network: nn.Module,
        event_shape: Sequence[int],
        components: int,
        region_graph: RegionGraph,
        levels: int = 256,
        whole: bool = False,
    ) -> None:
        super().__init__(network, event_shape, levels)
        self.components, self.whole = components, whole
        self.sums = SumProduct(region_graph, components)
        self.most = SHARPEST if whole else math.log(12 * levels**2)
        scale = math.exp(-START_LOG_PRECISION / 2)
        spread = torch.linspace(-SPREAD, SPREAD, components) * scale
        self.register_buffer("center", spread.expand(*self.event_shape, components).clone())
        self.log_scale = nn.Parameter(torch.full_like(self.center, math.log(scale)))

    def forward(self, z: Tensor) -> CircuitDistribution:
        numbers, channels = self.numbers(z, 3 * self.components), self.event_shape[0]
        mean, g, logits = numbers.unflatten(1, (3, self.components, channels)).movedim(2, -1).unbind(1)
        log_precision = self.most - softplus(self.most + 2 * self.log_scale - g)
        location, scale = self.center + self.log_scale.exp() * mean, torch.exp(-log_precision / 2)
        leaves: td.Distribution = td.Normal(location, scale)
        if self.whole:
            leaves = DiscretizedLogistic(location, scale, self.levels, validate_args=False)
        outputs_first = logits.flatten(1, -2).movedim(0, -1)
        gates = [  # of every layer's regions, summed over the outputs that a region holds itself
            layer.over_outputs(outputs_first).movedim(-1, 0) if layer.holds_outputs else None
            for layer in self.sums.layers
        ]
        return CircuitDistribution(leaves, self.sums, gates, len(self.event_shape))

    def init_from_data(self, data: Tensor) -> None:
        """Start the leaves and the weights over them from data, as `silentgrad.Circuit` does."""
        require_examples(data, self.event_shape)
        flat = data.flatten(1)
        found = clusters(flat, self.components, shared=len(self.event_shape) > 1)
        shares = shares_of(found, flat).log()
        outputs = flat.shape[1]
        with torch.no_grad():
            self.center.copy_(found.means.expand(outputs, -1).reshape(self.center.shape))
            unit = DiscretizedLogisticDecoder.unit_variance if self.whole else 1.0
            variances = found.variances.expand(outputs, -1) / unit
            self.log_scale.copy_(variances.log().reshape(self.center.shape) / 2)
            for layer in self.sums.layers:
                if layer.holds_outputs:
                    layer.logits.add_(layer.over_outputs(shares).unsqueeze(1))
