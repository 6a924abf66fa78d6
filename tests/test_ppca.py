"""Probabilistic PCA: the bound against the density it stands for, and against what training can reach."""

import math
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from refusals import refused
from silentgrad.lab.data import load_images
from silentgrad.ppca import ppca_weights, principal_components, unexplained_variance


def correlated(examples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(examples, 6, generator=generator, dtype=torch.float64)
    return torch.randn(examples, 3, generator=generator, dtype=torch.float64) @ mixing + 0.3 * noise + 1


@pytest.mark.parametrize("latents", [1, 3, 6, 9])
@pytest.mark.parametrize("variance", [0.01, 0.09, 2.0])
def test_bound_is_the_likelihood_of_the_fitted_density(latents: int, variance: float) -> None:
    data = correlated(200)
    components = principal_components(data)
    w = ppca_weights(components, latents, variance)
    density = td.MultivariateNormal(components.mean, w @ w.T + variance * torch.eye(6, dtype=torch.float64))
    assert sg.ppca_bound(data, latents, variance) == pytest.approx(density.log_prob(data).mean().item(), rel=1e-10)
    test = correlated(50, seed=1)  # of another distribution, on which what was fitted to the first can be no limit
    assert sg.ppca_bound(test, latents, variance) > density.log_prob(test).mean().item()


@pytest.mark.parametrize("latents", [3, 6, 9])
@pytest.mark.parametrize("link", ["linear", "exp"])
def test_precision_decoder_starts_from_data(link: str, latents: int) -> None:
    """With as many latents as outputs, no precision starts without bound."""
    data = correlated(300)
    decoder = sg.LinearPrecisionGaussian(latents, 6, link=link).double()
    decoder.init_from_data(data)
    start, left_over = decoder(torch.zeros(1, latents).double()), 0.01 * data.var(0, correction=0).mean()
    if latents < 6:
        left_over = principal_components(data).variances[latents:].mean()
    torch.testing.assert_close(start.variance, left_over.expand(1, 6))
    torch.testing.assert_close(start.mean, data.mean(0, keepdim=True))
    weight = decoder.affine.weight.clone()
    decoder.init_from_data(data + 1, "mean")
    torch.testing.assert_close(decoder.affine.bias, data.mean(0) + 1)
    assert torch.equal(decoder.affine.weight, weight)


@pytest.mark.parametrize("data", [torch.zeros(0, 3), torch.zeros(3)], ids=["empty", "flat"])
def test_wrong_data_is_named(data: Tensor) -> None:
    refused(sg.ShapeError, "examples", lambda: sg.ppca_bound(data, 2, 0.1))
    refused(sg.DomainError, "NaN", lambda: sg.ppca_bound(torch.full((4, 3), float("nan")), 2, 0.1))
    refused(sg.DomainError, "variance", lambda: sg.ppca_bound(torch.zeros(4, 3), 2, 0.0))


def test_limit_on_mnist() -> None:
    root = Path(os.environ.get("SILENTGRAD_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (root / "mnist").is_dir():
        pytest.skip("mnist is in neither SILENTGRAD_DATA nor beside the repository")
    images = load_images("mnist", root).test.flatten(1)
    data = (images + torch.rand(images.shape, generator=torch.Generator().manual_seed(0))) / 256
    bits_per_dimension = -sg.ppca_bound(data, 200, 0.01) / (784 * math.log(2)) + 8
    assert bits_per_dimension == pytest.approx(6.7062, abs=5e-4)


@pytest.mark.parametrize("latents", [3, 5])
def test_unexplained_variance_is_the_most_likely_one(latents: int) -> None:
    data = correlated(500)
    found = unexplained_variance(principal_components(data), latents)
    best, *others = (sg.ppca_bound(data, latents, found * factor) for factor in (1, 0.9, 1.1))
    assert best > max(others)
