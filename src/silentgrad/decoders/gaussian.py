r"""Linear decoders of a Gaussian whose variance does not depend on z, exact for every latent with mean and variance.

**Of fixed variance**, with :math:`u = Wz + b` and per-output variances :math:`\sigma_p^2`,

.. math::
    E[\log p(x|z)] = -\tfrac12 \sum_p \left( \frac{(x_p - E u_p)^2 + \mathrm{Var}\, u_p}{\sigma_p^2}
    + \log 2 \pi \sigma_p^2 \right).

Summed over outputs the variance is :math:`\mathrm{tr}(\Sigma\, W^T \mathrm{diag}(\sigma^{-2}) W)`: for independent
latents, column norms of W. The squared residual stays a square: expanded, it cancels in single precision.

**In units of their own scale** are the decoders that circuits learn best with as leaves. With :math:`u = Wz + b` the
location of an output is :math:`c + s u`, with a learned scale s. That is a location linear in z in other parameters,
and what they change is training. Adam moves every number by about its learning rate. The leaves of a circuit differ in
s by factors of hundreds: the black of a digit's background varies by a thousandth, its gray by a third. Steps that suit
the broad leaves then shake the sharp ones by many widths, for every z. The encoder quiets that by making q narrow, at a
KL divergence that tells nothing about x, until z is not used at all. In units of the scale, a step moves each leaf by
the same part of its own width.

For the Gaussian :math:`p(x|z) = N(c + s u, s^2)`, per output,

.. math:: E[\log p(x|z)] = -\tfrac12 \left( \left( \frac{x - c}{s} - E u \right)^2 + \mathrm{Var}\, u \right)
    - \log s - \tfrac12 \log 2\pi,

exactly, for every latent with a mean and a variance. Noise of deviation n around x, independent of z, adds
:math:`n^2 / s^2` to the expected square.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.decoders.context import Causal, Context, features_of, require_causal, start_contexts, told_of
from silentgrad.decoders.linear import ClosedForm, LinearDecoder
from silentgrad.decoders.projection import variance_of
from silentgrad.decoders.protocol import Given
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.moments import JointMoments, Moments
from silentgrad.ppca import PrincipalComponents, unexplained_variance
from silentgrad.side_info import SideInfo
from silentgrad.tracing import transformed, widened


class LinearGaussian(LinearDecoder):
    """p(x|z) = N(W z + b, variance), with a fixed variance.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        variance: One positive number, or one per output in the shape of an example.

    Example:
        >>> decoder = LinearGaussian(2, (28, 28), variance=0.01)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    variance: Tensor

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], variance: float | Tensor = 0.01) -> None:
        super().__init__(latent_dim, event_shape)
        self.register_buffer("variance", self._validated(variance))

    def set_variance(self, variance: float | Tensor) -> None:
        """Change the variance, as a schedule does during training."""
        given = self._validated(variance)
        if given.dim() > self.variance.dim():
            raise ShapeError("the decoder was built with one variance for all outputs, got one per output")
        self.variance.copy_(given)

    def forward(self, z: Tensor) -> td.Independent:
        mean = self.affine(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        return td.Independent(td.Normal(mean, self.variance.sqrt()), len(self.event_shape))

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT

    def closed_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        residual = self.affine(mean) - x  # in this order, the backward pass need not change a sign
        squares = self._over_variance(residual.square()) + self._projected_variance(moments, mean)
        log_volume = (2 * math.pi * self.variance).log().mean() * x.shape[-1]
        return -0.5 * (squares + log_volume)

    def output_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        squares = (self.affine(mean) - x).square() + variance_of(self.affine, moments, mean)
        variance = self.variance.expand(self.event_shape).flatten()
        return -0.5 * (squares / variance + (2 * math.pi * variance).log())

    def _over_variance(self, outputs: Tensor) -> Tensor:
        """Return the sum over outputs, each divided by its variance; one variance for all divides the sum."""
        if self.variance.dim() == 0:
            return outputs.sum(-1) / self.variance
        return (outputs / self.variance.flatten()).sum(-1)

    def _projected_variance(self, moments: Moments | JointMoments, mean: Tensor) -> Tensor:
        """Return the sum over outputs of Var(u) / variance."""
        weight = self.affine.weight
        if isinstance(moments, Moments):
            return moments.s2.reshape(mean.shape) @ self._over_variance(weight.square().T)
        size = moments.covariance.shape[-1]
        blocks = weight.T.unflatten(0, (-1, size))
        gram = blocks / self.variance.reshape(1, -1) @ blocks.transpose(-1, -2)
        return (moments.covariance.reshape(*mean.shape[:-1], len(gram), size, size) * gram).sum((-1, -2, -3))

    def start_variance(self, components: PrincipalComponents) -> float:
        return float(self.variance.mean())

    def _validated(self, variance: float | Tensor) -> Tensor:
        value = torch.as_tensor(variance, dtype=torch.float64).detach().to(self.affine.weight, copy=True)
        if value.dim() > 0 and value.shape != self.event_shape:
            shapes = f"{tuple(value.shape)}, expected one number or {tuple(self.event_shape)}"
            raise ShapeError(f"variance has shape {shapes}")
        if not (value > 0).all() or not value.isfinite().all():
            raise DomainError(f"variance has to be positive and finite, got {value.min():g} at the least")
        return value


def bent(values: Tensor, limit: float) -> Tensor:
    """Return values that are theirs near zero and stay within a limit."""
    return limit * torch.tanh(values / limit)


def zeros(layer: nn.Linear) -> nn.Linear:
    """Return a layer that says nothing at the start."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


# How far a context goes. Without an end to it a step may leave the numbers, and an output unlike all of its kind costs
# thousands of nats where a leaf is too sharp, or the broad one too unlikely.
WIDEST = 2.0  # in the logarithm of a scale
SUREST = 5.0  # in the logits of leaves
START_SCALE = 1 / 3


class StandardizedDecoder(LinearDecoder):
    """Base of decoders of location center + scale (W z + b), with a learned scale; the center is set by a start.

    With a context, the center moves by t times the data's deviation and the scale by a factor of e^d, where t is linear
    in the context's features of the output and d too, but bent to stay within 2, with weights that start at zero. The
    leaves of a circuit are weighed by the context too: it adds up to 5 to the logits of the sum over them. A factor
    `context_weight`, from 0 to 1, lets the context in late.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example, or, for the leaves of a circuit, with the components as a last dimension.
        context: Features of each output by earlier ones; see `CausalContext`.
    """

    unit_variance = 1.0  # of x at scale 1
    center: Tensor
    context_weight: Tensor
    reach: Tensor
    told: Tensor | None = None  # of each example, beside x

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], context: Context | None = None) -> None:
        super().__init__(latent_dim, event_shape)
        outputs = self.event_shape.numel()
        self.log_scale = nn.Parameter(torch.full((outputs,), math.log(START_SCALE)))
        self.register_buffer("center", torch.zeros(outputs))
        self.context = context
        self.weigh: nn.Linear | None = None
        if context is None:
            return
        if self.event_shape not in (context.event_shape, (*context.event_shape, self.event_shape[-1])):
            raise ShapeError(
                f"a context of examples of shape {tuple(context.event_shape)} is not for outputs of shape "
                f"{tuple(self.event_shape)}"
            )
        require_causal(context)
        leaves = outputs // context.event_shape.numel()
        self.shifts = zeros(nn.Linear(context.features, 2 * leaves))
        if self.event_shape != context.event_shape:
            self.weigh = zeros(nn.Linear(context.features, leaves))
        self.register_buffer("context_weight", torch.ones(()))
        self.register_buffer("reach", torch.ones(()))

    @property
    def scale(self) -> Tensor:
        """The scale of each output."""
        return self.log_scale.exp()

    def outputs(self, location: Tensor, scale: Tensor) -> td.Distribution:
        """Return the distribution of outputs with these locations and scales."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> td.Independent:
        u = self.affine(self.flatten_latent(z)).unflatten(-1, self.event_shape)
        if self.context is None:
            return td.Independent(self.shifted(u, u), len(self.event_shape))
        return td.Independent(Causal(self, self.context, u), len(self.event_shape))

    def shifted(self, x: Tensor, u: Tensor) -> td.Distribution:
        """Return the distribution of every output, given u = W z + b and the x whose earlier outputs are seen."""
        return self.at_features(self.features_at(self._seen(x)), u)

    def _seen(self, x: Tensor) -> Tensor:
        """Return examples without a dimension of leaves, for all of which they are the same."""
        if self.context is None or self.event_shape == self.context.event_shape:
            return x
        return x[..., 0]

    def at_features(self, features: Tensor | None, u: Tensor) -> td.Distribution:
        """Return the distribution of every output, given u = W z + b and the context's features."""
        dims = len(self.event_shape)
        center, log_scale = self.in_context(features)
        scale = log_scale.exp()
        location = center + scale * u.flatten(-dims)
        return self.outputs(
            location.unflatten(-1, self.event_shape), scale.expand_as(location).unflatten(-1, self.event_shape)
        )

    def features_at(self, x: Tensor) -> Tensor | None:
        """Return move, widening and weight of each output's leaves by the context; None while it does not count.

        All are linear in its features, which are the largest arrays: one product passes over them.
        """
        if self.context is None:
            return None
        if not torch.compiler.is_compiling() and not transformed() and self.context_weight == 0:
            return None
        heads = [self.shifts] if self.weigh is None else [self.shifts, self.weigh]
        weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
        leaves = self.event_shape.numel() // self.context.event_shape.numel()
        with torch.autocast(x.device.type, enabled=False):
            said = self.context_weight * linear(features_of(self.context, widened(x), self.told), weight, bias)
        return said.unflatten(-1, (-1, leaves)).movedim(-2, 0)

    def in_context(self, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return center and log-scale of each output, `(*batch, outputs)` if they depend on features."""
        if self.context is None or features is None:
            return self.center, self.log_scale
        move, widen = features[:2].flatten(-1 - len(self.context.event_shape))
        return self.center + self.reach * move, self.log_scale + bent(widen, WIDEST)

    def weights_at(self, features: Tensor | None) -> Tensor | None:
        """Return what the context adds to the logits of an output's leaves, `(*batch, *event_shape, leaves)`."""
        if features is None or self.weigh is None:
            return None
        return bent(features[2], SUREST)

    def _flatten_event(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return examples `(*batch, outputs)`, or one number for all leaves of an output where they have the same."""
        flat = mean.dim() - 1
        if x.dim() > flat + 1 and x.stride(-1) == 0:
            super()._flatten_event(x, mean)
            return x[..., 0].flatten(flat)
        return super()._flatten_event(x, mean)

    def against(self, x: Tensor, center: Tensor) -> Tensor:
        """Return x - center of each output, `(*batch, outputs)`, of examples as `_flatten_event` has them."""
        if x.shape[-1] == center.shape[-1]:
            return x - center
        return (x.unsqueeze(-1) - center.unflatten(-1, (x.shape[-1], -1))).flatten(-2)

    def given(self, side_info: SideInfo) -> "Given | Self":
        if side_info.context is None or self.context is None:
            return super().given(side_info)
        return told_of(self, side_info, self.log_scale)

    def given_form(self, output_form: ClosedForm, side_info: SideInfo) -> ClosedForm:
        self._require_no_context()
        return super().given_form(output_form, side_info)

    def _decoded(self, z: Tensor, known: SideInfo) -> td.Independent:
        self._require_no_context()
        return super()._decoded(z, known)

    def _require_no_context(self) -> None:
        if self.context is not None:
            raise IntractableError(
                f"{type(self).__name__} with a context takes no side information but what given(SideInfo(context=...)) "
                "tells it: an entry that was not observed would be seen by others"
            )

    def closed_form(self, x: Tensor, mean: Tensor, moments: Moments | JointMoments, q: td.Distribution) -> Tensor:
        features = None
        if self.context is not None:  # examples are as `_flatten_event` has them
            features = self.features_at(x.unflatten(-1, (*self.context.event_shape, -1))[..., 0])
        return self.output_form(x, mean, moments, q, features).sum(-1)

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        return self.expected_in_context(x, q)[0]

    def expected_in_context(self, x: Tensor, q: td.Distribution) -> tuple[Tensor, Tensor | None]:
        """Return E_q[log p(x_o|z)] of every output, and what the context adds to the logits of leaves."""
        features = self.features_at(self._seen(x))
        expected = self.evaluate(partial(self.output_form, features=features), x, q, checked=False)
        return expected, self.weights_at(features)

    def output_form(
        self,
        x: Tensor,
        mean: Tensor,
        moments: Moments | JointMoments,
        q: td.Distribution,
        features: Tensor | None = None,
    ) -> Tensor:
        raise NotImplementedError

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups() | {"precision": [self.log_scale]}
        if isinstance(self.context, nn.Module):
            heads = [self.shifts] if self.weigh is None else [self.shifts, self.weigh]
            groups["network"] = [parameter for own in (self.context, *heads) for parameter in own.parameters()]
        return groups

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        """Start from data like every linear decoder, with the mean at the center.

        The method "moments" starts the scale of every output too, and leaves the weights on z as they are.
        """
        start_contexts(self, data)
        with torch.no_grad():
            if method == "moments":
                variances, means = torch.var_mean(data.flatten(1), 0)
                self.start_outputs(means, variances, self.affine.weight * variances.sqrt().unsqueeze(1))
                return
            self.affine.weight *= self.scale.unsqueeze(1)  # in the units of x, as the others have them
            super().init_from_data(data, method, prior)
            self.center.copy_(self.affine.bias)
            self.affine.bias.zero_()
            self.affine.weight /= self.scale.unsqueeze(1)

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        with torch.no_grad():
            self.center.copy_(means)
            self.log_scale.copy_((variances / self.unit_variance).log() / 2)
            self.affine.bias.zero_()
            self.affine.weight.copy_(weights / self.scale.unsqueeze(1))

    def start_variance(self, components: PrincipalComponents) -> float:
        variance = unexplained_variance(components, self.latent_dim)
        nn.init.constant_(self.log_scale, math.log(variance / self.unit_variance) / 2)
        return variance


class StandardizedGaussian(StandardizedDecoder):
    """p(x|z) = N(center + scale (W z + b), scale^2), with a learned scale per output; the center is set by a start.

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        context: As for every `StandardizedDecoder`.
        noise: Standard deviation of independent noise around x that is integrated out: `expected_log_prob(x, q)` is
            then the expectation of log p(x + noise|z) over both. For the center of one of L levels of width 1/L it is
            1 / (L sqrt 12), that of dequantization.

    Example:
        >>> decoder = StandardizedGaussian(2, (28, 28))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        noise: float = 0.0,
        context: Context | None = None,
    ) -> None:
        super().__init__(latent_dim, event_shape, context)
        if not 0 <= noise < math.inf:
            raise DomainError(f"noise has to be a standard deviation, got {noise}")
        self.noise = noise

    def outputs(self, location: Tensor, scale: Tensor) -> td.Distribution:
        return td.Normal(location, scale, validate_args=False)

    def extra_repr(self) -> str:
        return f"{self.latent_dim}, {tuple(self.event_shape)}, noise={self.noise}"

    def exactness(self, q: td.Distribution) -> Exactness:
        """Exact; with noise a bound: the expectation over the noise too is less than that at x."""
        if self.noise:
            return Exactness.LOWER_BOUND
        return Exactness.EXACT

    def output_form(
        self,
        x: Tensor,
        mean: Tensor,
        moments: Moments | JointMoments,
        q: td.Distribution,
        features: Tensor | None = None,
    ) -> Tensor:
        center, log_scale = self.in_context(features)
        residual = self.against(x, center) * torch.exp(-log_scale) - self.affine(mean)
        variance = variance_of(self.affine, moments, mean)
        squares = torch.addcmul(variance, residual, residual)
        log_volume = log_scale + math.log(2 * math.pi) / 2
        if self.noise:
            log_volume = log_volume + self.noise**2 / 2 * torch.exp(-2 * log_scale)
        return torch.add(-log_volume, squares, alpha=-0.5)
