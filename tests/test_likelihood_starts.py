"""How linear decoders with a likelihood of their own start from data."""

import math

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from silentgrad import likelihoods

OUTPUTS = 5


@pytest.mark.parametrize("prior", [None, td.Normal(0.5, 2.0)])
def test_a_start_from_data_has_its_mean_and_components_to_first_order(prior: td.Distribution | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 2, generator=generator) @ torch.tensor([[1.0, -1.0, 0.5, 0.0], [0.0, 1.0, 1.0, 2.0]])
    images = (torch.rand(400, 4, generator=generator) < logits.sigmoid()).float().unflatten(1, (2, 2))
    linear, decoder = sg.LinearGaussian(2, (2, 2)), sg.LinearLikelihood(2, (2, 2), likelihoods.Bernoulli())
    linear.set_variance(torch.linalg.eigvalsh(torch.cov(images.flatten(1).T, correction=0))[:2].mean().item())
    for model in (linear, decoder):
        model.init_from_data(images, prior=prior)
    center = torch.full((2,), 0.0 if prior is None else 0.5)
    torch.testing.assert_close(decoder(center).mean, images.mean(0), rtol=1e-4, atol=1e-5)
    slope = torch.autograd.functional.jacobian(lambda z: decoder(z).mean.flatten(), center)
    torch.testing.assert_close(slope, linear.affine.weight.detach(), rtol=1e-3, atol=1e-4)


def test_a_start_from_data_sets_the_scale() -> None:
    data = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.5, 0.5])
    for likelihood in (likelihoods.Laplace(3), likelihoods.StudentT(3, 5.0), likelihoods.Logistic(3)):
        decoder = sg.LinearLikelihood(1, 3, likelihood)
        decoder.init_from_data(data)
        torch.testing.assert_close(decoder(torch.zeros(1)).variance, torch.full((3,), 0.25), rtol=0.1, atol=0)


@pytest.fixture
def counts() -> tuple[Tensor, Tensor]:
    """Counts of rates that differ between outputs and with a hidden number, and the logarithms of examples' sizes."""
    generator = torch.Generator().manual_seed(0)
    hidden, size = torch.randn(600, 1, generator=generator), torch.randn(600, generator=generator) / 2
    log_rate = torch.tensor([-1.0, 0.0, 1.0, 2.0, -30.0]) + hidden * torch.tensor([0.5, -0.5, 0.3, 0.1, 0.0])
    return torch.poisson(torch.exp(log_rate + size.unsqueeze(1)), generator=generator), size


def expected_counts(decoder: sg.LinearLikelihood, offset: Tensor) -> Tensor:
    """E[x] of every example under z ~ N(0, 1): a Gaussian u has E[e^u] = e^(mean + variance / 2)."""
    with torch.no_grad():
        log_rate = decoder.affine.bias + decoder.affine.weight.square().sum(1) / 2
        return torch.exp(offset.reshape(len(offset), -1) + log_rate)


@pytest.mark.parametrize("level", [0.0, -9.0, 20.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("offset", ["per example", "per entry"])
def test_counts_start_at_their_means(counts: tuple[Tensor, Tensor], level: float, masked: bool, offset: str) -> None:
    """Whatever the unit of the sizes, as offsets of log-sizes may be per read or per million."""
    x, size = counts
    if offset == "per entry":
        size = size.unsqueeze(1) + torch.linspace(-1, 1, OUTPUTS)
    mask = torch.ones_like(x, dtype=torch.bool)
    if masked:
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.7
        x = torch.where(mask, x, math.nan)
    decoder = sg.LinearLikelihood(2, OUTPUTS, likelihoods.Poisson())
    decoder.init_from_data(x, offset=size + level, mask=mask if masked else None)
    expected = torch.where(mask, expected_counts(decoder, size + level), 0).sum(0) / mask.sum(0)
    means = torch.where(mask, x, 0).sum(0) / mask.sum(0)
    torch.testing.assert_close(expected[:4], means[:4], rtol=1e-4, atol=0)
    assert expected[4] == pytest.approx(0.02, rel=1e-4)  # never seen, and not beyond recall
    assert decoder.affine.weight[4].abs().max() < 1e-4
    assert decoder.affine.weight.norm() > 0.3


def test_a_prior_of_another_scale_and_more_zeros_leave_the_means(counts: tuple[Tensor, Tensor]) -> None:
    x, size = counts
    decoder = sg.LinearLikelihood(2, OUTPUTS, likelihoods.Poisson())
    decoder.init_from_data(x, prior=td.Normal(0.5, 2.0))
    with torch.no_grad():
        mean, variance = decoder.affine(torch.full((2,), 0.5)), 4 * decoder.affine.weight.square().sum(1)
    torch.testing.assert_close(torch.exp(mean + variance / 2)[:4], x.mean(0)[:4], rtol=1e-4, atol=0)
    decoder = sg.LinearLikelihood(2, OUTPUTS, likelihoods.ZeroInflatedPoisson(OUTPUTS))
    decoder.init_from_data(x, offset=size)
    shown = torch.sigmoid(-decoder.likelihood.zero_logit.detach())
    torch.testing.assert_close((shown * expected_counts(decoder, size).mean(0))[:4], x.mean(0)[:4], rtol=1e-4, atol=0)


def test_the_dispersion_starts_at_that_of_the_counts() -> None:
    torch.manual_seed(0)
    r, size = torch.tensor([0.5, 2.0, 8.0]), torch.exp(torch.randn(20_000, 1) / 3)
    rate = size * torch.tensor([1.0, 4.0, 9.0])
    x = td.NegativeBinomial(r, logits=rate.log() - r.log()).sample()
    for level in (0.0, -9.0):
        decoder = sg.LinearLikelihood(1, 3, likelihoods.NegativeBinomial(3))
        decoder.init_from_data(x, "mean", offset=size.squeeze(1).log() + level)
        torch.testing.assert_close(decoder.likelihood.inverse_dispersion.detach(), r, rtol=0.3, atol=0)
    shared = sg.LinearLikelihood(1, 3, likelihoods.NegativeBinomial(()))
    shared.init_from_data(x)
    assert 0.5 < shared.likelihood.inverse_dispersion < 8


def test_leaves_start_in_units_of_u() -> None:
    means, variances = torch.tensor([2.0, 5.0, 1.0, 4.0]), torch.tensor([0.04, 0.25, 0.01, 0.16])
    for likelihood, u in (
        (likelihoods.Binomial(torch.tensor([[10, 10], [10, 10]])), (means / 10).logit()),
        (likelihoods.LogNormal((2, 2)), means.log()),
    ):
        decoder = sg.LinearLikelihood(1, (2, 2), likelihood)
        decoder.start_outputs(means, variances, torch.ones(4, 1))
        torch.testing.assert_close(decoder.affine.bias.detach(), u)
    law = decoder(torch.zeros(1))
    torch.testing.assert_close(law.stddev.flatten().detach(), variances.sqrt(), rtol=0.1, atol=0)
