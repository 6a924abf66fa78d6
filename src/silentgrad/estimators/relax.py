r"""RELAX and REBAR: a control variate that is a function of the noise behind a sample, and is learned.

A sample z is the hard value of noisy logits x. Let c be any smooth function of x, and let :math:`\tilde x` be drawn
again given z. Then

.. math:: \nabla_l E f = E\bigl[(f(z) - c(\tilde x))\, \nabla \log q(z) + \nabla_l c(x) - \nabla_l c(\tilde x)\bigr],

since the terms of c cancel in expectation: x and :math:`\tilde x` have one distribution, of which the last two terms
are the gradient by reparameterization, and the first by the score function with a reparameterized remainder. The closer
:math:`c(\tilde x)` is to f(z), the less the score function's large variance counts. The parameters of c minimize the
variance of the estimate, whose mean they do not touch; that is, they minimize the expectation of its square.

REBAR's c is the integrand itself at a relaxed sample, with a scale and a temperature. RELAX adds a network of x.
"""

import math
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.estimators.base import (
    ESTIMATORS,
    Integrand,
    for_each_latent,
    per_example,
    require_positive,
    slope_of,
    value_with_slope,
)
from silentgrad.estimators.choices import Choices, choices_of
from silentgrad.estimators.learning import ExampleNetwork, Learning
from silentgrad.tracing import require_untransformed


class ControlVariate(Protocol):
    """A function of noisy logits, one number per example; a module, if it is to learn."""

    def __call__(self, integrand: Integrand, choices: Choices, noisy: Tensor) -> Tensor:
        """Compute c(noisy), for an integrand of the latents `choices`."""


class RelaxedIntegrand(nn.Module):
    """REBAR's control variate: a multiple of the integrand at a relaxed sample.

    Args:
        temperature: Temperature that the relaxation starts from.
        scale: Multiple that it starts from.
    """

    def __init__(self, temperature: float = 0.5, scale: float = 1.0) -> None:
        super().__init__()
        require_positive(temperature)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, integrand: Integrand, choices: Choices, noisy: Tensor) -> Tensor:
        temperature = self.log_temperature.exp().to(noisy.dtype)
        return self.scale.to(noisy.dtype) * integrand(choices.relaxed(noisy, temperature))


class RelaxedIntegrandAndNetwork(RelaxedIntegrand):
    """RELAX's control variate: REBAR's and a network of the noisy logits, which is 0 at the start.

    Args:
        inputs: The most logits that an example may have.
        hidden: Width of the network.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.network = ExampleNetwork(inputs, hidden)

    def forward(self, integrand: Integrand, choices: Choices, noisy: Tensor) -> Tensor:
        relaxed = super().forward(integrand, choices, noisy)
        return relaxed + self.network(torch.tanh(noisy / 2), relaxed.shape)


@ESTIMATORS.register("relax")
class RELAX(Learning):
    """A learned control variate on the noise behind the sample; unbiased whatever it learns.

    Take it when training is long enough to learn it, and bias is not allowed.

    Args:
        control: The control variate; if absent, REBAR's and a network.
        inputs: The most logits that an example may have, for the network.
        hidden: Width of the network.

    References:
        Grathwohl, Choi, Wu, Roeder and Duvenaud 2018, Backpropagation through the Void: Optimizing Control Variates for
        Black-Box Gradient Estimation, ICLR.
    """

    unbiased = True
    latents = (td.Bernoulli, td.OneHotCategorical)
    calls = 3
    differentiated_twice = 2

    def __init__(self, control: ControlVariate | None = None, inputs: int = 1024, hidden: int = 50) -> None:
        super().__init__()
        if control is None:
            control = RelaxedIntegrandAndNetwork(inputs, hidden)
        self.control = control

    @classmethod
    def sized(cls, numbers: int) -> Self:
        return cls(inputs=numbers)

    def estimate(self, q: td.Distribution, integrand: Integrand, learning: bool) -> Tensor:
        require_untransformed(type(self).__name__)
        latents = choices_of(q, self)
        with torch.enable_grad():
            leaf = latents.logits.detach().requires_grad_()
            choices = latents.at(leaf)
            noisy = choices.noisy()
            z = choices.hard(noisy.detach())
            f = per_example(integrand(z), q)
            free = self.control(integrand, choices, noisy)
            given = self.control(integrand, choices, choices.noisy_given(z))
            slope = slope_of(free - given, leaf, create_graph=learning and bool(self.learned()))
            gain = f.detach() - given
            gradient = for_each_latent(gain, leaf) * choices.score(z).detach() + slope
        if learning and f.numel() > 0:
            self.learn(gradient.square().sum() / f.numel())
        return value_with_slope(f, gradient, latents.logits)


@ESTIMATORS.register("rebar")
class REBAR(RELAX):
    """The relaxed sample's gradient, made unbiased by the score function; its scale and temperature are learned.

    Take it where `GumbelSoftmax` works but its bias matters, at three evaluations.

    Args:
        temperature: Temperature that the relaxation starts from.
        scale: Multiple of the control variate to start from.

    References:
        Tucker, Mnih, Maddison, Lawson and Sohl-Dickstein 2017, REBAR: Low-Variance, Unbiased Gradient Estimates for
        Discrete Latent Variable Models, NeurIPS.
    """

    def __init__(self, temperature: float = 0.5, scale: float = 1.0) -> None:
        super().__init__(RelaxedIntegrand(temperature, scale))

    @classmethod
    def sized(cls, numbers: int) -> Self:
        return cls()
