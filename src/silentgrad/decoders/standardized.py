r"""Linear decoders in units of their own scale, those that circuits learn best with as leaves; with or without context.

With :math:`u = Wz + b` the location of an output is :math:`c + s u`, with a learned scale s. That is a location linear
in z in other parameters, and what they change is training. Adam moves every number by about its learning rate. The
leaves of a circuit differ in s by factors of hundreds: the black of a digit's background varies by a thousandth, its
gray by a third. Steps that suit the broad leaves then shake the sharp ones by many widths, for every z. The encoder
quiets that by making q narrow, at a KL divergence that tells nothing about x, until z is not used at all. In units of
the scale, a step moves each leaf by the same part of its own width.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.decoders.causal import Causal
from silentgrad.decoders.context import Context, features_of, require_causal, start_contexts, told_of
from silentgrad.decoders.linear import ClosedForm, LinearDecoder
from silentgrad.decoders.protocol import Given
from silentgrad.errors import IntractableError, ShapeError
from silentgrad.latents.moments import AnyMoments
from silentgrad.ppca import PrincipalComponents, unexplained_variance
from silentgrad.side_info import SideInfo
from silentgrad.tracing import transformed, widened


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

    def closed_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
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
        self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution, features: Tensor | None = None
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
