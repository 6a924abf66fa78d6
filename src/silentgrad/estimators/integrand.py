"""Integrands of estimators: a plain function of z, or one that knows its own expectation.

A plain function takes latents of q's shape and returns one number per example; every estimator takes it. A
:class:`TractableIntegrand` also answers `expectation(q)`, which the exact estimator asks for. Of log p(x|z)
:func:`silentgrad.integrand_of` makes whichever the decoder allows. A :class:`PriorIntegrand` comes with the prior of
the latents, which bounds of several samples weigh them by.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import Statistical, Tractable, is_tractable
from silentgrad.decoders.protocol import Given
from silentgrad.errors import IntractableError
from silentgrad.estimators.base import Integrand
from silentgrad.exactness import Exactness
from silentgrad.latents.priors import Prior


class TractableIntegrand(ABC):
    """A function of z whose expectation is known without drawing anything.

    Example:
        >>> import torch
        >>> import silentgrad as sg
        >>> class Square(TractableIntegrand):
        ...     def __call__(self, z):
        ...         return z.square().sum(-1)
        ...
        ...     def expectation(self, q):
        ...         return (q.mean.square() + q.variance).sum(-1)
        ...
        ...     def exactness(self, q):
        ...         return sg.Exactness.EXACT
        >>> sg.Exact()(td.Normal(torch.zeros(3, 2), 1.0), Square())
        tensor([2., 2., 2.])
    """

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """Evaluate the function, one number per example."""

    @abstractmethod
    def expectation(self, q: td.Distribution) -> Tensor:
        """Compute E_q of the function, one number per example."""

    @abstractmethod
    def exactness(self, q: td.Distribution) -> Exactness:
        """Say of `expectation(q)`: exact, a lower bound or an approximation."""

    def __str__(self) -> str:
        return type(self).__name__


@runtime_checkable
class StatisticalIntegrand(Protocol):
    """A function F(s(z)) of statistics s whose expectations are known, as a decoder's may be."""

    def statistics(self, z: Tensor, /) -> list[Tensor]:
        """Compute s(z), each of the examples' shape and more dimensions."""

    def expected_statistics(self, q: td.Distribution, /) -> list[Tensor]:
        """Compute E_q[s(z)], exactly."""

    def from_statistics(self, statistics: Sequence[Tensor], /) -> Tensor:
        """Compute F(s), one number per example."""


class DecoderIntegrand(TractableIntegrand):
    """log p(x|z) of a tractable decoder.

    Args:
        decoder: The decoder p(x|z).
        x: Examples `(batch, ...)`.
    """

    def __init__(self, decoder: Tractable, x: Tensor) -> None:
        self.decoder, self.x = decoder, x

    def __call__(self, z: Tensor) -> Tensor:
        return log_prob_of(self.decoder, self.x, z)

    def expectation(self, q: td.Distribution) -> Tensor:
        return self.decoder.expected_log_prob(self.x, q)

    def exactness(self, q: td.Distribution) -> Exactness:
        return self.decoder.exactness(q)

    def statistics(self, z: Tensor) -> list[Tensor]:
        return self._statistical.statistics(self.x, z)

    def expected_statistics(self, q: td.Distribution) -> list[Tensor]:
        return self._statistical.expected_statistics(self.x, q)

    def from_statistics(self, statistics: Sequence[Tensor]) -> Tensor:
        return self._statistical.log_prob_from(self.x, statistics)

    @property
    def _statistical(self) -> Statistical:
        if not isinstance(self.decoder, Statistical):
            raise IntractableError(
                f"{self} is no function of statistics with known expectations, as circuits and LinearLikelihood are"
            )
        return self.decoder

    def __str__(self) -> str:
        """Name the decoder and its options, for messages."""
        decoder: object = self.decoder.decoder if isinstance(self.decoder, Given) else self.decoder
        options = decoder.extra_repr() if isinstance(decoder, nn.Module) else ""
        return f"{type(decoder).__name__}({options})"


class PriorIntegrand:
    """A function of z together with the prior p(z).

    Args:
        integrand: The function of z.
        prior: The prior that stands against the latents.
    """

    def __init__(self, integrand: Integrand, prior: Prior) -> None:
        self.integrand, self.prior = integrand, prior

    def __call__(self, z: Tensor) -> Tensor:
        return self.integrand(z)


def integrand_of(decoder: Callable[[Tensor], td.Distribution], x: Tensor) -> Integrand:
    """Take log p(x|z) as a function of z, for an estimator; a tractable decoder's knows its expectation.

    Args:
        decoder: From latents to the distribution of x, whose event is one example.
        x: Examples `(batch, ...)`.

    Example:
        >>> import torch
        >>> import silentgrad as sg
        >>> decoder, q = sg.LinearGaussian(2, 3), td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> sg.Reparameterized()(q, integrand_of(decoder, torch.zeros(5, 3))).shape
        torch.Size([5])
    """
    if is_tractable(decoder):
        return DecoderIntegrand(decoder, x)
    return lambda z: log_prob_of(decoder, x, z)


def log_prob_of(decoder: Callable[[Tensor], td.Distribution], x: Tensor, z: Tensor) -> Tensor:
    """Compute log p(x|z), one number per example: by the decoder's own `log_prob(x, z)`, if it has one."""
    own: Callable[[Tensor, Tensor], Tensor] | None = getattr(decoder, "log_prob", None)
    if own is not None:
        return own(x, z)
    log_prob: Tensor = decoder(z).log_prob(x)
    return log_prob
