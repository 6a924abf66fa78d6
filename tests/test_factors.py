"""The deterministic fit: against probabilistic PCA, against autograd at its end, and with side information."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from refusals import refused
from silentgrad import likelihoods
from silentgrad.factors.latents import Posterior

DOUBLE = torch.float64
ROWS, OUTPUTS, LATENTS = 60, 7, 2


def simulated() -> tuple[Tensor, Tensor]:
    """Return counts of a model with two factors, and the logarithm of each row's size."""
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(ROWS, LATENTS, generator=generator, dtype=DOUBLE)
    w = torch.randn(LATENTS, OUTPUTS, generator=generator, dtype=DOUBLE)
    size = torch.randn(ROWS, generator=generator, dtype=DOUBLE) / 2
    rates = (z @ w / 2 + 0.7 + size.unsqueeze(1)).exp()
    return torch.poisson(rates, generator=generator), size


X, SIZE = simulated()
COVARIATES = torch.linspace(-1, 1, ROWS, dtype=DOUBLE).unsqueeze(1)
MASK = torch.rand(ROWS, OUTPUTS, generator=torch.Generator().manual_seed(0)) < 0.8
LIKELIHOODS: dict[str, Callable[[], nn.Module]] = {
    "Poisson": likelihoods.Poisson,
    "NegativeBinomial": lambda: likelihoods.NegativeBinomial(OUTPUTS),
    "ZeroInflatedPoisson": lambda: likelihoods.ZeroInflatedPoisson(OUTPUTS),
    "Multinomial": likelihoods.Multinomial,
    "Normal": lambda: likelihoods.Normal(()),
    "Gamma": lambda: likelihoods.Gamma(()),
}


def data_of(name: str) -> Tensor:
    """Return the counts, moved to where the likelihood takes them."""
    return X + 0.5 if name == "Gamma" else X


def decoder_of(name: str, covariates: int = 0) -> sg.LinearLikelihood:
    decoder = sg.LinearLikelihood(LATENTS, OUTPUTS, LIKELIHOODS[name](), covariates=covariates).double()
    decoder.init_from_data(data_of(name))
    return decoder


def elbo(decoder: sg.LinearLikelihood, x: Tensor, q: td.MultivariateNormal, **side_info: Tensor) -> Tensor:
    """Return the bound of each example by the decoder's own closed form."""
    standard = td.MultivariateNormal(torch.zeros(LATENTS, dtype=DOUBLE), torch.eye(LATENTS, dtype=DOUBLE))
    return decoder.expected_log_prob(x, q, **side_info) - td.kl_divergence(q, standard)


@pytest.mark.parametrize("posterior", ["full", "diagonal"])
@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(
    ("side_info", "ridge"),
    [({}, 0.0), ({"mask": MASK, "covariates": COVARIATES, "offset": SIZE}, 0.0), ({"mask": MASK}, 5.0)],
    ids=["x", "side information", "ridge"],
)
def test_the_end_is_stationary(name: str, side_info: dict[str, Tensor], ridge: float, posterior: Posterior) -> None:
    """And its bound is the decoder's."""
    decoder, x = decoder_of(name, int("covariates" in side_info)), data_of(name)
    fit = sg.fit_factors(decoder, x, **side_info, tolerance=1e-12, posterior=posterior, ridge=ridge)
    assert fit.converged
    loc = fit.latent.mean.clone().requires_grad_()
    full = posterior == "full"
    root = (fit.latent.scale_tril if full else fit.latent.stddev).clone().requires_grad_()
    q = td.MultivariateNormal(loc, scale_tril=root.tril() if full else root.diag_embed())
    bound = elbo(decoder, x, q, **side_info).sum()
    assert fit.elbo == pytest.approx(bound.item(), rel=1e-9)
    penalized = bound - ridge / 2 * decoder.affine.weight.square().sum()
    assert fit.history[-1] == pytest.approx(penalized.item(), rel=1e-9)
    for gradient in torch.autograd.grad(penalized, [loc, root, *decoder.parameters()]):
        assert gradient.abs().max() < 1e-2  # curvatures are tens of nats: what is left to gain is below 1e-5
    assert fit.history == sorted(fit.history)
    found = sg.infer_factors(decoder, x, **side_info, tolerance=1e-12, posterior=posterior)
    torch.testing.assert_close(found.latent.mean, fit.latent.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.elbo, elbo(decoder, x, q, **side_info).detach(), rtol=1e-6, atol=1e-6)
    gram = decoder.affine.weight.T @ decoder.affine.weight
    assert gram[0, 0] > gram[1, 1]
    second_moment = loc.T @ loc / ROWS + q.covariance_matrix.mean(0)
    torch.testing.assert_close(second_moment.diagonal(), 1 + ridge / ROWS * gram.diagonal(), rtol=0, atol=1e-3)
    if full:
        assert gram[0, 1].abs() < 1e-9 * gram[0, 0]
        assert second_moment[0, 1].abs() < 1e-3
    else:
        assert fit.latents.covariances.shape == (ROWS, LATENTS)
        full_fit = sg.fit_factors(decoder, x, **side_info, ridge=ridge)
        assert fit.history[-1] <= full_fit.history[-1] + 1e-6  # for principal components the same


@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_a_large_ridge_leaves_outputs_that_are_independent(posterior: Posterior) -> None:
    decoder = decoder_of("Poisson")
    fit = sg.fit_factors(decoder, X, posterior=posterior, ridge=1e9, tolerance=1e-12)
    assert fit.converged
    assert decoder.affine.weight.abs().max() < 1e-9
    torch.testing.assert_close(decoder.affine.bias.detach().exp(), X.mean(0))
    torch.testing.assert_close(fit.latent.mean, torch.zeros(ROWS, LATENTS, dtype=DOUBLE))
    assert fit.elbo == pytest.approx(td.Poisson(X.mean(0)).log_prob(X).sum().item(), rel=1e-9)


def test_a_normal_likelihood_ends_at_probabilistic_pca() -> None:
    """Its posterior is Gaussian, so the bound is the likelihood, whose largest value Tipping and Bishop give."""
    decoder = decoder_of("Normal")
    fit = sg.fit_factors(decoder, X, tolerance=1e-13, iterations=3000)
    variances = torch.linalg.eigvalsh(torch.cov(X.T, correction=0)).flip(0)
    left = variances[LATENTS:].mean()
    logs = variances[:LATENTS].log().sum() + (OUTPUTS - LATENTS) * left.log()
    largest = -ROWS / 2 * (OUTPUTS * math.log(2 * math.pi) + logs + OUTPUTS)
    assert fit.elbo == pytest.approx(float(largest), rel=1e-9)
    assert float(decoder.likelihood.scale.detach().square()) == pytest.approx(float(left), rel=1e-4)


def test_a_likelihood_that_is_not_concave_climbs_too() -> None:
    decoder = sg.LinearLikelihood(LATENTS, OUTPUTS, likelihoods.StudentT(OUTPUTS)).double()
    decoder.init_from_data(X)
    fit = sg.fit_factors(decoder, X, iterations=10)
    assert fit.elbo == pytest.approx(elbo(decoder, X, fit.latent).sum().item(), rel=1e-9)
    assert fit.elbo > fit.history[0] + 10
    assert fit.history == sorted(fit.history)
    assert sg.infer_factors(decoder, X).converged.all()


@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial"])
def test_extremes_end_finite(name: str) -> None:
    x = X.clone()
    x[:, 0] = 0  # an output that was never seen
    x[0] = 0  # an example without counts
    x[1, 1] = 1e6
    mask = torch.ones(ROWS, OUTPUTS, dtype=torch.bool)
    mask[2] = False  # an example of which nothing was observed
    decoder = sg.LinearLikelihood(LATENTS, OUTPUTS, LIKELIHOODS[name]()).float()
    decoder.init_from_data(x.float(), mask=mask)
    fit = sg.fit_factors(decoder, x, mask=mask, iterations=60)
    assert math.isfinite(fit.elbo)
    for parameter in decoder.parameters():
        assert parameter.isfinite().all()
    assert decoder.affine.bias[0].exp() < 0.02
    torch.testing.assert_close(fit.latent.loc[2], torch.zeros(LATENTS), rtol=0, atol=0.1)


def fitted(x: Tensor = X, **options: object) -> object:
    return sg.fit_factors(decoder_of("Poisson"), x, **options)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (sg.ShapeError, "expected examples of shape", lambda: fitted(X[:, :3])),
        (sg.ShapeError, "weights", lambda: fitted(weights=torch.ones(3))),
        (sg.ShapeError, "offset has 61 rows", lambda: fitted(offset=torch.zeros(61))),
        (sg.ShapeError, "mask has 120", lambda: sg.infer_factors(decoder_of("Poisson"), X, mask=MASK.repeat(2, 1))),
        (sg.ShapeError, "built for 1 covariates", lambda: sg.fit_factors(decoder_of("Poisson", 1), X)),
        (sg.ShapeError, "no weights for cov", lambda: fitted(covariates=COVARIATES)),
        (sg.DomainError, "negative", lambda: fitted(weights=-torch.ones(ROWS))),
        (sg.DomainError, "all of them zero", lambda: fitted(weights=torch.zeros(ROWS))),
        (sg.DomainError, "tolerance", lambda: fitted(tolerance=-1.0)),
        (sg.DomainError, "ridge has to be a finite number from 0 on", lambda: fitted(ridge=-1.0)),
        (sg.DomainError, "posterior has to be one of full, diagonal", lambda: fitted(posterior="scalar")),
        (sg.DomainError, "iterations", lambda: sg.infer_factors(decoder_of("Poisson"), X, iterations=0)),
        (sg.DomainError, "too narrow", lambda: sg.fit_factors(decoder_of("Poisson").bfloat16(), X)),
        (sg.DomainError, "x has to be a tensor", lambda: fitted(X.numpy())),
        (sg.DomainError, "offset has to be", lambda: fitted(offset=SIZE.numpy())),
        (sg.DomainError, "start from data takes counts", lambda: decoder_of("Poisson").init_from_data(-X)),
        (sg.IntractableError, "LinearLikelihood", lambda: sg.fit_factors(sg.LinearGaussian(2, OUTPUTS), X)),
        (sg.DomainError, "counts", lambda: fitted(X - 0.5)),
    ],
)
def test_bad_input_is_named(error: type[Exception], message: str, call: Callable[[], object]) -> None:
    refused(error, message, call)


@pytest.mark.parametrize("name", ["NegativeBinomial", "ZeroInflatedPoisson", "Gamma"])
def test_what_has_converged_gains_no_more_by_going_on(name: str) -> None:
    decoder, x = decoder_of(name), data_of(name)
    first = sg.fit_factors(decoder, x, tolerance=1e-7)
    second = sg.fit_factors(decoder, x, tolerance=1e-10)
    assert first.converged
    assert second.elbo - first.elbo < 1e-4 * ROWS  # per row a ten-thousandth of a nat, 140 tolerances


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 2000.0), (1e-4, 0.0), (1e4, 0.0)])
def test_the_units_of_covariates_do_not_matter(scale: float, shift: float) -> None:
    fits = []
    for covariates in (COVARIATES, scale * COVARIATES + shift):
        decoder = decoder_of("Poisson", 1)
        fits.append(sg.fit_factors(decoder, X, covariates=covariates, tolerance=1e-10))
        bound = elbo(decoder, X, fits[-1].latent, covariates=covariates).sum()
        assert fits[-1].elbo == pytest.approx(bound.item(), rel=1e-8)
    assert fits[1].elbo == pytest.approx(fits[0].elbo, rel=1e-7)


def test_a_fit_tells_its_progress_and_one_that_is_interrupted_leaves_the_decoder_as_it_was() -> None:
    seen: list[list[float]] = []
    fit = sg.fit_factors(decoder_of("Poisson"), X, iterations=4, report=lambda bounds: seen.append(bounds[:]))
    assert not fit.converged
    assert seen == [fit.history[:length] for length in (1, 2, 3, 4)]

    def interrupt(bounds: list[float]) -> None:
        if len(bounds) == 5:
            raise KeyboardInterrupt

    decoder = decoder_of("NegativeBinomial")
    before = [parameter.clone() for parameter in decoder.parameters()]
    refused(KeyboardInterrupt, "", lambda: sg.fit_factors(decoder, X, report=interrupt))
    torch.testing.assert_close(list(decoder.parameters()), before, rtol=0, atol=0)
    decoder.likelihood.requires_grad_(False)  # nor does a fit change what is frozen
    sg.fit_factors(decoder, X, iterations=5)
    assert torch.equal(decoder.likelihood.log_inverse_dispersion, before[-1])
    assert not torch.equal(decoder.affine.weight, before[0])


def test_one_row_of_a_negative_binomial_ends_without_an_error() -> None:
    for seed in range(6):
        x = torch.poisson(torch.full((1, 7), 4.0, dtype=DOUBLE), generator=torch.Generator().manual_seed(seed))
        decoder = sg.LinearLikelihood(2, 7, likelihoods.NegativeBinomial(7)).double()
        decoder.init_from_data(x)
        assert math.isfinite(sg.fit_factors(decoder, x, iterations=40).elbo)


def test_large_counts_have_their_bound_in_single_precision() -> None:
    x = torch.poisson(2e5 * (1 + torch.rand(80, 6, generator=torch.Generator().manual_seed(0))).double())
    decoder = sg.LinearLikelihood(2, 6, likelihoods.Poisson())
    decoder.init_from_data(x.float())
    fit = sg.fit_factors(decoder, x.float(), iterations=30)
    double = sg.infer_factors(decoder.double(), x).elbo.sum()
    assert fit.elbo == pytest.approx(float(double), rel=1e-5)
