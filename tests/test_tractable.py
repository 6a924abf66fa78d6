"""Tractable decoders by what they can do, not by what they inherit; and what estimators and likelihoods declare."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from refusals import refused
from silentgrad.decoders import is_tractable
from silentgrad.estimators import Exact, integrand_of
from silentgrad.evaluation import evaluate
from silentgrad.guided import GuidedVAE
from silentgrad.lab.networks import Encoder, NonlinearGaussian, mlp_body, mlp_network
from silentgrad.latents.families import FAMILIES
from silentgrad.likelihoods import Needs
from silentgrad.schedules import constant

SHAPE, LATENTS, VARIANCE = (1, 2, 2), 2, 0.3
NORMAL = td.Normal(torch.zeros(5, LATENTS), torch.ones(5, LATENTS))
BITS = td.Bernoulli(torch.full((5, LATENTS), 0.3))


class KnownLoadings:
    """N(L z, variance) with a loading matrix that is known: a decoder that inherits from nothing."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.loadings = torch.randn(4, LATENTS, generator=generator, dtype=torch.float64)

    def __call__(self, z: Tensor) -> td.Independent:
        mean = (z @ self.loadings.T).unflatten(-1, SHAPE)
        return td.Independent(td.Normal(mean, VARIANCE**0.5), 3)

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        residual = x.flatten(1) - q.mean @ self.loadings.T
        squares = residual.square().sum(-1) + q.variance @ self.loadings.square().sum(0)
        return -0.5 * (squares / VARIANCE + 4 * math.log(2 * math.pi * VARIANCE))

    def exactness(self, q: td.Distribution) -> sg.Exactness:
        return sg.Exactness.EXACT


def twin(decoder: KnownLoadings) -> sg.LinearGaussian:
    """The same decoder as a linear one, whose every use is tested elsewhere."""
    linear = sg.LinearGaussian(LATENTS, SHAPE).double().requires_grad_(False)
    linear.set_variance(VARIANCE)
    linear.affine.weight.copy_(decoder.loadings)
    nn.init.zeros_(linear.affine.bias)
    return linear


def batches(count: int = 4) -> Tensor:
    return torch.rand(count, 6, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def vae(decoder: sg.decoders.Tractable, family: str, **options: object) -> GuidedVAE:
    torch.manual_seed(0)
    latents = FAMILIES[family](LATENTS)
    encoder = Encoder(mlp_body(SHAPE, latents.numbers, (5,)), latents)
    return GuidedVAE(encoder, decoder, **options).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_a_decoder_that_inherits_from_nothing_is_trained_evaluated_and_guides(family: str) -> None:
    own, x = KnownLoadings(), batches()[0]
    assert is_tractable(own)
    torch.manual_seed(0)
    nonlinear = NonlinearGaussian(mlp_network(LATENTS, SHAPE, hidden=(5,)), SHAPE).double()
    options = {"nonlinear": nonlinear, "estimator": sg.Reinforce(), "schedule": constant(0.7)}
    ends, losses = [], []
    for decoder in (own, twin(own)):
        model = vae(decoder, family)
        optimizer = torch.optim.Adam(model.encoder.parameters(), lr=0.05)
        start = evaluate(model, x).elbo
        for _ in range(20):
            optimizer.zero_grad()
            model(x, epoch=1).total.backward()
            optimizer.step()
        ends.append(evaluate(model, x).elbo)
        assert ends[-1] > start + 1
        guiding = vae(decoder, family, **options)
        torch.manual_seed(2)
        losses.append(guiding(x, epoch=1).tractable)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=0)
    torch.testing.assert_close(*losses)
    q, nll = model.encoder(x), torch.full((len(x),), 5.0, dtype=torch.float64)
    guided = sg.Guide(own, constant(0.7))(x, q, nll, epoch=1)
    torch.testing.assert_close(guided, -0.7 * own.expected_log_prob(x, q) + 0.3 * nll)


def test_a_decoder_that_inherits_from_nothing_is_measured() -> None:
    own, x = KnownLoadings(), batches()
    found, expected = (
        sg.gradient_variance(vae(d, "bernoulli"), x, 50, [Exact(), sg.DisARM()]) for d in (own, twin(own))
    )
    assert found["Exact"].est == 0.0
    assert found["Exact"].cosine == pytest.approx(1)
    assert found["DisARM"].est == pytest.approx(expected["DisARM"].est, rel=0.5)
    bias = sg.gradient_bias(vae(own, "bernoulli"), x[0], [Exact(), sg.StraightThrough()], draws=50)
    assert bias["Exact"].deviation < 1e-12 < bias["StraightThrough"].deviation


# --- exactness


class Below(KnownLoadings):
    """A decoder that knows a bound only."""

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        return -torch.ones(len(x))

    def exactness(self, q: td.Distribution) -> sg.Exactness:
        return sg.Exactness.LOWER_BOUND


def test_exact_takes_a_lower_bound() -> None:
    assert (Exact()(NORMAL, integrand_of(Below(), torch.zeros(5, *SHAPE))) == -1).all()


@pytest.mark.filterwarnings("ignore:the guide starts at random")
@pytest.mark.parametrize("link", ["linear", "exp"])
def test_a_guide_refuses_an_approximation_unless_it_is_allowed(link: str) -> None:
    x, nll = torch.rand(5, 3), torch.full((5,), 3.0)
    guide = sg.SilentGuide(LATENTS, 3, constant(0.5), link=link)  # type: ignore[arg-type]
    if link == "exp":
        assert guide(x, BITS, nll, epoch=1).shape == (5,)
        return
    refused(sg.IntractableError, "allow_approximation", lambda: guide(x, BITS, nll, epoch=1))
    allowed = sg.SilentGuide(LATENTS, 3, constant(0.5), link="linear", allow_approximation=True)
    assert allowed(x, BITS, nll, epoch=1).shape == (5,)


# --- likelihoods that declare what they need


class KnownNoise:
    """N(u, scale^2) with a scale of its own for every output, in a class that inherits from nothing."""

    needs = Needs.MOMENTS
    exactness = sg.Exactness.EXACT
    scale = torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=torch.float64)

    def __call__(self, u: Tensor) -> td.Normal:
        return td.Normal(u, self.scale)

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return td.Normal(mean, self.scale).log_prob(x) - variance / (2 * self.scale.square())


class Waiting:
    """Waiting times of rate scale e^u, with a scale of its own for every output."""

    needs = Needs.GENERATING_FUNCTION
    exactness = sg.Exactness.EXACT
    scale = torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=torch.float64)

    def __call__(self, u: Tensor) -> td.Exponential:
        return td.Exponential(self.scale * u.exp())

    def expectation(self, x: Tensor, mean: Tensor, log_mass: Tensor) -> Tensor:
        return self.scale.log() + mean - x * self.scale * log_mass.exp()


@pytest.mark.parametrize("likelihood", [KnownNoise(), Waiting()], ids=lambda value: type(value).__name__)
def test_a_likelihood_of_ones_own_takes_the_latents_it_declares(likelihood: object) -> None:
    torch.manual_seed(5)
    decoder = sg.LinearLikelihood(3, (2, 2), likelihood).double()  # type: ignore[arg-type]
    x, q = torch.rand(4, 2, 2).double(), td.Bernoulli(torch.rand(4, 3).double())
    integrand = integrand_of(decoder, x)
    torch.testing.assert_close(Exact()(q, integrand), sg.Enumerate()(q, integrand), rtol=1e-12, atol=1e-12)
    normal = td.Normal(torch.rand(4, 3).double(), 0.5)
    by_quadrature = sg.LinearLikelihood(3, (2, 2), lambda u: likelihood(u)).double()  # type: ignore[operator]
    by_quadrature.load_state_dict(decoder.state_dict())
    torch.testing.assert_close(
        decoder.expected_log_prob(x, normal), by_quadrature.expected_log_prob(x, normal), rtol=1e-9, atol=1e-9
    )


def test_moments_alone_take_heavy_tails_and_nothing_declared_a_gaussian() -> None:
    decoder = sg.LinearLikelihood(3, (2, 2), KnownNoise()).double()
    heavy = td.StudentT(torch.full((4, 3), 3.0).double())
    assert decoder.expected_log_prob(torch.zeros(4, 2, 2).double(), heavy).isfinite().all()
    undeclared = sg.LinearLikelihood(LATENTS, 3, lambda u: td.Exponential(u.exp()))
    missing = r"not Gaussian for Bernoulli latents.*`needs`"
    refused(sg.IntractableError, missing, lambda: undeclared.expected_log_prob(torch.ones(5, 3), BITS))


# --- estimators


def test_an_estimator_takes_a_plain_function_of_z() -> None:
    q = td.Normal(torch.full((4, 2), 3.0), 1e-6)
    torch.testing.assert_close(sg.Reparameterized()(q, lambda z: z.sum(-1)), torch.full((4,), 6.0), rtol=1e-4, atol=0)
