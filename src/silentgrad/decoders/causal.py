"""p(x|z) of outputs that see the earlier ones of their example: its logarithm, and draws one output after the other."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.decoders.context import CausalContext, Context, causal_order
from silentgrad.errors import IntractableError

if TYPE_CHECKING:
    from silentgrad.decoders.standardized import StandardizedDecoder


class Causal(td.Distribution):
    """p(x|z) of outputs that see the earlier ones; `log_prob` has one number per output, or per leaf of one.

    Args:
        decoder: The decoder.
        context: Its context.
        u: Its linear function of z, `(*batch, *event_shape)`, or `(*batch, *event_shape, components)` of leaves.
    """

    arg_constraints: ClassVar = {}

    def __init__(self, decoder: "StandardizedDecoder", context: Context, u: Tensor) -> None:
        self.decoder, self.context, self.u = decoder, context, u
        super().__init__(u.shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint | None:
        return self.decoder.shifted(torch.zeros_like(self.u), self.u).support

    @property
    def mean(self) -> Tensor:
        raise IntractableError(
            "with a context the mean of an output depends on the outputs before it: take the mean of samples"
        )

    @property
    def variance(self) -> Tensor:
        return self.mean

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "Causal":
        return Causal(self.decoder, self.context, self.u.expand(torch.Size(batch_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.decoder.shifted(value, self.u).log_prob(value)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw the outputs in order."""
        u = self.u.expand(torch.Size(sample_shape) + self.u.shape)
        return self._in_order(torch.zeros_like(u), lambda x, _: self.decoder.shifted(x, u).sample())

    def weighed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the log-density of each leaf, and what the context adds to their logits."""
        features = self.decoder.features_at(x[..., 0])
        log_probs = self.decoder.at_features(features, self.u).log_prob(x)
        return log_probs, self.decoder.weights_at(features)

    def sample_of(self, chosen: Callable[[Tensor | None, Tensor], Tensor]) -> Tensor:
        """Draw the outputs in order, each from its chosen leaf.

        Args:
            chosen: Leaves `(*batch, *event_shape, 1)`, from what the context adds to their logits and the outputs that
                are next.
        """

        def drawn(x: Tensor, front: Tensor) -> Tensor:
            features = self.decoder.features_at(x)
            leaves = self.decoder.at_features(features, self.u).sample()
            return leaves.gather(-1, chosen(self.decoder.weights_at(features), front)).squeeze(-1)

        return self._in_order(torch.zeros_like(self.u[..., 0]), drawn)

    def _in_order(self, x: Tensor, drawn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        dims = len(self.context.event_shape)
        flat = x.flatten(-dims)
        with torch.no_grad():
            one_by_one = causal_order(self.context.event_shape).unsqueeze(1)
            for front in self.context.fronts() if isinstance(self.context, CausalContext) else one_by_one:
                at = front.to(x.device)
                flat[..., at] = drawn(flat.unflatten(-1, self.context.event_shape), at).flatten(-dims)[..., at]
        return flat.unflatten(-1, self.context.event_shape)
