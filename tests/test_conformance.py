"""Every decoder with every latent family: value and gradient equal the oracle, or a named error says why not."""

import pytest
import torch
from torch import Tensor

import silentgrad as sg
from members import ALL_DECODERS, ALL_LATENTS, BATCH, OUTPUTS, Decoder, Latent
from oracles import assert_close, derivatives

EACH_LATENT = pytest.mark.parametrize("latent", ALL_LATENTS, ids=lambda m: m.name)
EACH_DECODER = pytest.mark.parametrize("decoder", ALL_DECODERS, ids=lambda m: m.name)
X = torch.tensor([[0.2, -0.7, 1.1], [0.9, 0.4, -0.3]], dtype=torch.float64)
assert X.shape == (BATCH, OUTPUTS)


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest deviation, relative to the tensor's largest entry."""
    return float(((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-6)).detach())


@EACH_LATENT
@EACH_DECODER
def test_value_and_derivatives_equal_the_oracle(decoder: Decoder, latent: Latent) -> None:
    """And the second derivative along a direction; twice the same bits, nothing drawn, in single precision close."""
    parameters, model, x = latent.draw(), decoder.make(latent.latents), X.clone().requires_grad_()
    leaves = [x, *parameters, *model.parameters()]
    q = latent.build(*parameters)
    if not decoder.tractable(latent):
        with pytest.raises(sg.IntractableError, match=r"exp|register|Gaussian"):
            model.expected_log_prob(X, q)
        return
    state = torch.get_rng_state()
    found = derivatives(model.expected_log_prob(x, q), leaves)
    again = derivatives(model.expected_log_prob(x, latent.build(*parameters)), leaves)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    truth = derivatives(decoder.oracle(model, x, latent.expectation(q)), leaves)
    for gradient, expected in zip(found[: 1 + len(leaves)], truth[: 1 + len(leaves)], strict=True):
        assert error(gradient, expected) < 1e-10
    assert_close(found, truth, 1e-7)
    single = [leaf.detach().float().requires_grad_() for leaf in (x, *parameters)]
    value = model.float().expected_log_prob(single[0], latent.build(*single[1:]))
    weights = torch.linspace(1.0, -0.4, BATCH)  # those of `derivatives`
    for close, double in zip(
        [value, *torch.autograd.grad(value @ weights, [*single, *model.parameters()])], found, strict=False
    ):
        assert close.dtype == torch.float32
        assert error(close.double(), double) < 1e-4


@EACH_LATENT
def test_moments_equal_the_oracle(latent: Latent) -> None:
    q = latent.build(*latent.draw())
    moments, expectation = sg.latents.central_moments(q), latent.expectation(q)
    if isinstance(moments, sg.latents.JointMoments):
        size = moments.covariance.shape[-1]
        mean = torch.stack([expectation(lambda z, i=i: z.flatten(2)[..., i]) for i in range(latent.latents)], -1)
        assert error(moments.mean.flatten(1), mean) < 1e-10
        for i, j in ((0, 0), (0, 1), (1, 1)):
            cov = expectation(lambda z, i=i, j=j: (z.flatten(2) - mean)[..., i] * (z.flatten(2) - mean)[..., j])
            assert error(moments.covariance.reshape(BATCH, -1, size, size)[:, 0, i, j], cov) < 1e-10
        return
    for i in range(latent.latents):
        mean = expectation(lambda z, i=i: z[..., i])
        assert error(moments.mean[:, i], mean) < 1e-10
        for order, moment in ((2, moments.s2), (3, moments.s3()), (4, moments.s4())):
            truth = expectation(lambda z, i=i, n=order, m=mean: (z[..., i] - m) ** n)
            scale = moments.s2[:, i] ** (order / 2)
            assert ((moment[:, i] - truth) / scale).abs().max() < 1e-10


@pytest.mark.parametrize("latent", [m for m in ALL_LATENTS if m.tilts and m.independent], ids=lambda m: m.name)
@pytest.mark.parametrize("t", [-0.4, -1e-3, 0.0, 0.2, 0.5])
def test_cumulants_equal_the_oracle(latent: Latent, t: float) -> None:
    q = latent.build(*latent.draw())
    if "Chi2" in latent.name and t > 0.3:
        with pytest.raises(sg.DomainError, match="t < r"):
            sg.latents.generating_function(q)(torch.tensor(0.5, dtype=torch.float64))
        return
    k, expectation = sg.latents.generating_function(q)(torch.tensor(t, dtype=torch.float64)), latent.expectation(q)
    for i in range(latent.latents):
        mass = expectation(lambda z, i=i: (t * z[..., i]).exp())
        mean = expectation(lambda z, i=i: z[..., i] * (t * z[..., i]).exp()) / mass
        variance = expectation(lambda z, i=i, m=mean: (z[..., i] - m).square() * (t * z[..., i]).exp()) / mass
        for actual, truth in ((k.value[:, i], mass.log()), (k.mean[:, i], mean), (k.variance[:, i], variance)):
            torch.testing.assert_close(actual, truth, rtol=1e-10, atol=1e-12)
