r"""Context: what the earlier outputs of an example tell a decoder about each output, beside z.

x is given where an expectation is taken, so only z has to be linear: the location and scale of output i may be any
function of the outputs before it, :math:`x_{<i}`, through any network. Every closed form holds as it stands,

.. math:: p(x|z) = \prod_i p_i(x_i \mid x_{<i}, z), \qquad
    E_q \log p(x|z) = \sum_i E_q \log p_i(x_i \mid x_{<i}, z).

The leaves of a circuit may be :math:`p_l(x_i | x_{<i}, z)` too, whatever its region graph. As a polynomial of its
leaves the circuit has one leaf of every output in each monomial. Sum out the last output first, which stands in its own
leaves only, each of which sums to one; then the one before; so the circuit is normalized.

A conditional context is told something of each example besides, by `SideInfo(context=...)`: a label, another image.
The features of every output may depend on all of it.

A context that is there from the first step leaves nothing for z to tell, and z collapses. Let it in late: see
`context_weight`.

References:
    van den Oord et al. (2016), Conditional image generation with PixelCNN decoders, NeurIPS.
    Gulrajani et al. (2017), PixelVAE: a latent variable model for natural images, ICLR.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad, relu

from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.latents.independent import shape_of
from silentgrad.side_info import SideInfo
from silentgrad.tracing import transformed

if TYPE_CHECKING:
    from silentgrad.decoders.standardized import StandardizedDecoder

Module = TypeVar("Module", bound=nn.Module)
CHECKED = 256  # examples at a time, of which each is cut off after another output
RESOLUTION = 1e-3  # relative change of a feature that rounding does not explain


@runtime_checkable
class Context(Protocol):
    """A network from an example to features of each of its outputs, which may depend on earlier outputs only.

    One with a true attribute `conditional` takes what `SideInfo(context=...)` tells of them as a second argument.
    """

    event_shape: torch.Size
    features: int

    def __call__(self, x: Tensor, /) -> Tensor:
        """Go from examples `(*batch, *event_shape)` to `(*batch, *event_shape, features)`."""


class CausalContext(nn.Module):
    """Features of each output from the outputs within a radius that come before it: rows from the top, then columns.

    The colors of a pixel come one after the other, and each sees those before it.

    Args:
        event_shape: Shape of one example: `(channels, height, width)`, `(height, width)` or `(length,)`.
        radius: How far it sees, in rows and columns.
        hidden: Number of features, and of units of the layer before them.
        given: Network from what `SideInfo(context=...)` tells of an example to what is added to the features of all
            outputs, `(*batch, hidden)`, or of each, `(*batch, *event_shape, hidden)`: `nn.Embedding(10, hidden)` for
            ten classes.

    Example:
        >>> context = CausalContext((3, 8, 8), radius=2, hidden=16)
        >>> context(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 3, 8, 8, 16])
    """

    center: Tensor
    spread: Tensor
    earlier: Tensor
    colors: Tensor

    def __init__(
        self, event_shape: int | Sequence[int], radius: int = 2, hidden: int = 48, given: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.given = given
        self.event_shape, self.features, self.radius = shape_of(event_shape), hidden, radius
        if not 1 <= len(self.event_shape) <= 3:
            raise ShapeError(f"a causal context is for vectors and images, got examples of {tuple(self.event_shape)}")
        if radius < 1 or hidden < 1:
            raise DomainError(f"radius and hidden have to be at least 1, got {radius} and {hidden}")
        self.image = torch.Size([1] * (3 - len(self.event_shape)) + list(self.event_shape))
        channels = self.image[0]
        rows = min(radius, self.image[1] - 1)  # above
        self.neighbors = nn.Conv2d(channels + 1, hidden, (rows + 1, 2 * radius + 1))
        earlier = torch.ones(rows + 1, 2 * radius + 1)
        earlier[-1, radius:] = 0
        self.mix = nn.Linear(hidden, hidden)
        self.own_colors = nn.ParameterList()  # of those before a color in its own pixel
        if channels > 1:
            self.own_colors.append(torch.randn(channels, hidden, channels) / channels**0.5)
        self.own_bias = nn.Parameter(torch.zeros(channels, hidden))
        self.register_buffer("earlier", earlier, persistent=False)
        self.register_buffer("colors", torch.ones(channels, channels).tril(-1).unsqueeze(1), persistent=False)
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    @property
    def conditional(self) -> bool:
        """Return whether it is told something of each example beside x."""
        return self.given is not None

    def init_from_data(self, data: Tensor) -> None:
        """Set the unit in which x is seen, by the mean and deviation of some examples."""
        self.center.copy_(data.mean())
        self.spread.copy_(data.std().clamp_min(torch.finfo(data.dtype).tiny))

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        images = ((x - self.center) / self.spread).reshape(-1, *self.image)
        inside = torch.ones_like(images[:, :1])
        seen = pad(torch.cat([images, inside], 1), [self.radius, self.radius, self.earlier.shape[0] - 1, 0])
        if not transformed():  # under vmap torch knows no other layout
            seen = seen.contiguous(memory_format=torch.channels_last)  # features are neighbors in memory from here on
        near = conv2d(seen, self.neighbors.weight * self.earlier, self.neighbors.bias).relu_()
        shared = linear(near.movedim(1, -1), self.mix.weight, self.mix.bias + self.own_bias[0]).unsqueeze(1)
        for weights in self.own_colors:
            own = torch.cat([weights * self.colors, (self.own_bias - self.own_bias[0]).unsqueeze(-1)], -1)
            rows = torch.cat([images, inside], 1).movedim(1, -1).flatten(0, -2)
            colors = [torch.addmm(shared.reshape(-1, self.features), rows, part.T) for part in own]
            shared = torch.stack([color.reshape_as(near.movedim(1, -1)) for color in colors], 1)
        features = shared.reshape(*x.shape, self.features)
        if self.given is not None and given is not None:
            told = self.given(given)
            if told.shape[-1 - len(self.event_shape) : -1] != self.event_shape:
                told = told.reshape(*told.shape[:-1], *[1] * len(self.event_shape), self.features)
            features = features + told
        return relu(features)

    def fronts(self) -> Iterator[Tensor]:
        """Yield outputs that do not see each other, in an order in which all that they see was there before."""
        channels, height, width = self.image
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        time = (row * (self.radius + 1) + column).flatten()
        for front in range(int(time.max()) + 1):
            pixels = (time == front).nonzero().squeeze(1)
            for channel in range(channels):
                yield channel * height * width + pixels

    def extra_repr(self) -> str:
        return f"{tuple(self.event_shape)}, radius={self.radius}, hidden={self.features}"


def causal_order(event_shape: torch.Size) -> Tensor:
    """Return the flattened outputs in order: rows from the top, columns, and the colors of a pixel.

    Example:
        >>> causal_order(torch.Size([2, 1, 2])).tolist()
        [0, 2, 1, 3]
    """
    outputs = torch.arange(event_shape.numel())
    if len(event_shape) < 3:
        return outputs
    return outputs.reshape(event_shape[0], -1).T.flatten()


def require_causal(context: Context) -> None:
    """Raise unless the features of every output depend on earlier outputs only.

    For each output a random example is changed from there on, and the features up to there have to stay the same. The
    check is of a copy with random noise on its weights, so that a network whose last layer starts at zero cannot pass.
    """
    name, shape = type(context).__name__, context.event_shape
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        noisy = copy.deepcopy(context)
        like = torch.zeros(())
        if isinstance(noisy, nn.Module):
            noisy.eval()
            for parameter in noisy.parameters():
                like = parameter
                parameter.add_(0.1 * torch.randn_like(parameter))
        order = causal_order(shape).to(like.device)
        x, other = torch.rand(2, shape.numel()).to(like)
        features = noisy(x.reshape(1, *shape))
        if features.shape != (1, *shape, context.features):
            raise ShapeError(
                f"{name} gives features of shape {tuple(features.shape[1:])} for examples of shape {tuple(shape)}; "
                f"expected {(*shape, context.features)}"
            )
        features = features.reshape(len(order), -1)[order]
        limit = RESOLUTION * features.abs().amax(0)
        for first in range(0, len(order), CHECKED):
            at = torch.arange(first, min(first + CHECKED, len(order)), device=like.device).unsqueeze(1)
            places = torch.arange(len(order), device=like.device)
            changed = torch.where(places < at, x[order], other[order])  # from the output on, in order
            found = noisy(changed[:, order.argsort()].reshape(-1, *shape)).reshape(len(at), len(order), -1)[:, order]
            moved = ((found - features).abs() > limit).any(-1) & (places <= at)
            if moved.any():
                peeking = order[moved.nonzero()[0, 1]].item()
                raise DomainError(
                    f"{name} is not causal: its features of output {peeking} depend on that output or a later one. "
                    "The order is rows from the top, columns from the left, and the colors of a pixel"
                )


def features_of(context: Context, x: Tensor, told: Tensor | None) -> Tensor:
    """Return a context's features, once it was found to be told of the examples if it is conditional."""
    if not getattr(context, "conditional", False):
        return context(x)
    if told is None:
        raise IntractableError(
            f"{type(context).__name__} has to be told something of each example: decoder.given(SideInfo(context=...))"
        )
    examples = x.shape[: x.dim() - len(context.event_shape)]  # of which one may stand for many, after samples
    rows = [list(zip(examples[samples:], told.shape, strict=False)) for samples in range(len(examples))]
    if examples and not any(all(own in (row, 1) for own, row in pairs) for pairs in rows):
        raise ShapeError(f"context has shape {tuple(told.shape)}, expected one row for each of {tuple(examples)}")
    features: Tensor = context(x, told)  # type: ignore[call-arg]
    return features


def told_of(decoder: Module, side_info: SideInfo, like: Tensor) -> Module:
    """Return a decoder of this batch, with the same parameters, whose contexts are told of its examples."""
    name = type(decoder).__name__
    side_info.require_none(name, "offset", "covariates", "mask", "scale")
    if not any(getattr(module, "conditional", False) for module in decoder.modules()):
        side_info.require_none(name, "context")
    return _with_told(decoder, side_info.to(like).context)


def _with_told(module: Module, told: Tensor | None) -> Module:
    bound = copy.copy(module)
    bound._modules = {name: child and _with_told(child, told) for name, child in module._modules.items()}
    if hasattr(bound, "context_weight"):
        cast("StandardizedDecoder", bound).told = told
    return bound


def start_contexts(decoder: nn.Module, data: Tensor) -> None:
    """Start the contexts of a decoder from examples `(examples, *event_shape)`."""
    for module in decoder.modules():
        if isinstance(module, CausalContext):
            module.init_from_data(data)
    for own in _with_context(decoder):
        own.reach.fill_(data.std().clamp_min(torch.finfo(data.dtype).tiny))


def set_context_weight(decoder: nn.Module, weight: float) -> None:
    """Set how much the contexts of a decoder count, from 0 to 1.

    Raise it from 0 after the first tenth of the training to 1 within another: z then has time to become of use.
    """
    for own in _with_context(decoder):
        own.context_weight.fill_(weight)


def context_weight(decoder: nn.Module) -> float:
    """Return how much the contexts of a decoder count, the least of them; 1 if it has none."""
    return min([float(own.context_weight) for own in _with_context(decoder)], default=1.0)


def _with_context(decoder: nn.Module) -> list["StandardizedDecoder"]:
    """Return the decoders inside one that have a context."""
    return [cast("StandardizedDecoder", module) for module in decoder.modules() if hasattr(module, "context_weight")]
