"""CountFactors: scikit-learn's own checks, and the fit behind it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import silentgrad as sg
from silentgrad.lab import CountFactors
from silentgrad.lab.count_factors import LikelihoodOfCounts

COUNTS = np.random.RandomState(0).poisson(np.exp(np.random.RandomState(1).randn(50, 1) + np.linspace(-1, 1, 6)))
COUNTS[:, 0] += 1


class Rounded(CountFactors):
    """The same on whole numbers below what it is given: scikit-learn's checks have fractions, which are no counts."""

    def _validated(self, X: Any, reset: bool) -> Any:  # noqa: N803
        found = super()._validated(X, reset)
        if sparse.issparse(found):
            return found.floor()
        return np.floor(found)


@parametrize_with_checks([Rounded(n_components=2, likelihood="poisson", max_iter=15)])
def test_scikit_learns_checks(estimator: Rounded, check: Callable[[Rounded], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("offset", ["none", "size"])
def test_it_is_the_fit_of_the_library(offset: str) -> None:
    model = CountFactors(2, likelihood="poisson", offset=offset, tol=1e-7)
    factors = model.fit_transform(COUNTS)
    x = torch.from_numpy(COUNTS).float()
    log_size = None
    if offset == "size":
        log_size = (x.sum(1) / x.sum(1).mean()).log()
    decoder = sg.LinearLikelihood(2, 6, sg.likelihoods.Poisson())
    decoder.init_from_data(x, offset=log_size)
    fit = sg.fit_factors(decoder, x, offset=log_size, tolerance=1e-7)
    assert model.elbo_ == pytest.approx(fit.elbo, rel=1e-5)
    np.testing.assert_allclose(factors, fit.latent.mean.numpy(), atol=2e-2)
    np.testing.assert_allclose(model.transform(COUNTS), factors, atol=1e-3)
    assert model.score(COUNTS) == pytest.approx(model.elbo_ / COUNTS.size, rel=1e-5)
    assert model.converged_


def test_sparse_counts_give_what_dense_ones_give() -> None:
    dense = CountFactors(2, offset="size").fit(COUNTS)
    stored = CountFactors(2, offset="size").fit(sparse.csr_matrix(COUNTS))
    np.testing.assert_allclose(stored.components_, dense.components_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stored.transform(sparse.csr_matrix(COUNTS)), dense.transform(COUNTS), atol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_likelihood_has_a_name() -> None:
    for name in LikelihoodOfCounts.__args__:
        model = CountFactors(1, likelihood=name, max_iter=5).fit(COUNTS)
        assert type(model.decoder_.likelihood).__name__.lower() == name.replace("-", "")
        assert np.isfinite(model.elbo_)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("Negative values", lambda: CountFactors(2).fit(-COUNTS)),
        ("fractions", lambda: CountFactors(2).fit(COUNTS + 0.5)),
        ("NaN", lambda: CountFactors(2).fit(np.where(COUNTS > 3, np.nan, COUNTS))),
        ("row 3 has no counts", lambda: CountFactors(2, offset="size").fit(COUNTS * (np.arange(50) != 3)[:, None])),
        ("likelihood has to be one of", lambda: CountFactors(2, likelihood="gaussian").fit(COUNTS)),
        ("offset has to be one of", lambda: CountFactors(2, offset="depth").fit(COUNTS)),
        ("n_components has to be a whole number", lambda: CountFactors(0).fit(COUNTS)),
        ("n_components has to be a whole number", lambda: CountFactors(2.5).fit(COUNTS)),
        ("tol has to be a number", lambda: CountFactors(2, tol=float("nan")).fit(COUNTS)),
        ("features", lambda: CountFactors(2, likelihood="poisson").fit(COUNTS).transform(COUNTS[:, :3])),
    ],
)
def test_bad_input_is_named(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_column_that_is_always_zero_has_a_small_rate() -> None:
    counts = COUNTS * (np.arange(6) != 2)
    model = CountFactors(2, likelihood="poisson").fit(counts)
    assert np.isfinite(model.components_).all()
    assert np.exp(model.intercept_[2]) < 0.02


def test_a_fit_that_does_not_end_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="2 iterations"):
        CountFactors(2, max_iter=2).fit(COUNTS)


def test_the_callers_matrix_stays_as_it_is() -> None:
    entries, columns = np.array([1.0, 2.0, 3.0, 1.0]), np.array([2, 2, 0, 1])  # one entry twice, none in order
    matrix = sparse.csr_matrix((entries, columns, np.array([0, 2, 3, 4])), shape=(3, 6))
    CountFactors(1, likelihood="poisson").fit(matrix)
    assert matrix.indices.tolist() == [2, 2, 0, 1]
    assert matrix.data.tolist() == [1.0, 2.0, 3.0, 1.0]


def test_a_fit_that_fails_leaves_a_fitted_model_as_it_was() -> None:
    model = CountFactors(2, likelihood="poisson", offset="size").fit(COUNTS)
    before = model.transform(COUNTS)
    with pytest.raises(ValueError, match="no counts"):
        model.fit(COUNTS * (np.arange(50) != 3)[:, None] * 9)
    np.testing.assert_array_equal(model.transform(COUNTS), before)
