"""CountFactors: scikit-learn's own checks, and the fit behind it."""

import math
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt
from scipy import optimize, sparse
from scipy.stats import nbinom, poisson
from sklearn import config_context
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import adjusted_rand_score, mean_poisson_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor
from torch.nn.functional import softplus

import silentgrad as sg
from refusals import refused
from runs import Cli
from silentgrad.factors import count_factors, pieces, table
from silentgrad.factors.count_factors import CountFactors, LikelihoodOfCounts
from silentgrad.factors.deviance import beyond_poisson, deviances
from silentgrad.factors.latents import Posterior
from silentgrad.factors.state import Climb
from workers import worker_at

COUNTS = np.random.RandomState(0).poisson(np.exp(np.random.RandomState(1).randn(50, 1) + np.linspace(-1, 1, 6)))
COUNTS[:, 0] += 1


class Rounded(CountFactors):
    """The same on whole numbers below what it is given: scikit-learn's checks have fractions, which are no counts."""

    def _validated(self, X: Any, reset: bool) -> Any:  # noqa: N803
        found = super()._validated(X, reset)
        return found.floor() if sparse.issparse(found) else np.floor(found)


@parametrize_with_checks([Rounded(n_components=2, likelihood="poisson", max_iter=60)])
def test_scikit_learns_checks(estimator: Rounded, check: Callable[[Rounded], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("sizes", ["none", "median"])
def test_it_is_the_fit_of_the_library(sizes: str) -> None:
    model = CountFactors(2, likelihood="poisson", size_factors=sizes, tol=1e-7)
    factors = model.fit_transform(COUNTS)
    x = torch.from_numpy(COUNTS).float()
    log_size = (x.sum(1) / np.median(x.sum(1))).log() if sizes == "median" else None
    decoder = sg.LinearLikelihood(2, 6, sg.likelihoods.Poisson())
    decoder.init_from_data(x, offset=log_size)
    fit = sg.fit_factors(decoder, x, offset=log_size, tolerance=1e-7)
    assert model.elbo_ == pytest.approx(fit.elbo, rel=1e-5)
    np.testing.assert_allclose(factors, fit.latent.mean.numpy(), atol=2e-2)
    np.testing.assert_allclose(model.transform(COUNTS), factors, atol=1e-3)
    assert model.score(COUNTS) == pytest.approx(model.elbo_ / COUNTS.size, rel=1e-5)
    assert model.converged_


def test_sizes_are_of_whole_rows_where_columns_are_missing() -> None:
    """Half of the rows lack half of the columns, the frequent ones: their sizes are those of the other rows."""
    random = np.random.RandomState(0)
    sizes = np.exp(random.randn(400) / 2)
    counts = random.poisson(sizes[:, None] * np.repeat([20.0, 5.0], 10)).astype(float)
    counts[::2, :10] = np.nan
    model = CountFactors(1, likelihood="poisson", size_factors="median", missing="nan")
    factors = model.fit_transform(counts)
    ratio = model.size_factors_ / sizes
    assert np.mean(ratio[::2]) == pytest.approx(np.mean(ratio[1::2]), rel=0.05)
    expected = model.inverse_transform(factors, offset=np.log(model.size_factors_))
    assert expected[::2, :10].mean() == pytest.approx(20 * sizes[::2].mean(), rel=0.1)


def test_what_covariates_explain_is_told_apart() -> None:
    """Only the batches differ, so that a Poisson regression on them explains nearly all, and factors hardly more."""
    random = np.random.RandomState(0)
    batch = np.arange(300) % 2
    counts = random.poisson(3 * np.exp(random.randn(2, 30))[batch]).astype(float)
    model = CountFactors(2, likelihood="poisson").fit(counts, covariates=batch[:, None])
    means = np.stack([counts[batch == one].mean(0) for one in (0, 1)])[batch]  # of the regression on two groups
    null = np.broadcast_to(counts.mean(0), counts.shape)
    rest, whole = (mean_poisson_deviance(counts.ravel(), rates.ravel()) for rates in (means, null))
    oracle = 1 - rest / whole
    assert model.explained_by_covariates_ == pytest.approx(oracle, abs=2e-3)
    assert oracle < model.explained_deviance_ < oracle + 0.1
    assert CountFactors(1, likelihood="poisson").fit(counts).explained_by_covariates_ == 0


LINE = np.linspace(0, 1, len(COUNTS))
ADATA = anndata.AnnData(COUNTS.astype(np.float32), obs={"kind": ["a", "b"] * 25, "same": ["a"] * 50})
ADATA.obs["plate"] = np.arange(50) % 3  # batches may be numbered
ADATA.obs["age"] = np.where(LINE > 0.9, np.nan, LINE)


def with_row(row: int, value: float) -> np.ndarray:
    return np.where(np.arange(len(COUNTS))[:, None] == row, value, COUNTS)


def fitted(**side_info: Any) -> CountFactors:
    return CountFactors(2, likelihood="poisson", max_iter=5).fit(COUNTS, **side_info)


@pytest.mark.filterwarnings("ignore:the fit ended:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("Negative values.* row 0, column 0 has", lambda: CountFactors(2).fit(-COUNTS)),
        ("fractions", lambda: CountFactors(2).fit(COUNTS + 0.5)),
        ("NaN.* row 0, column 0 has nan, and .*missing='nan'", lambda: CountFactors(2).fit(with_row(0, np.nan))),
        ("infinite.* row 49, column 0", lambda: CountFactors(2).fit(with_row(49, np.inf))),
        ("row 3 has no counts", lambda: CountFactors(2, size_factors="median").fit(with_row(3, 0))),
        ("likelihood has to be one of", lambda: CountFactors(2, likelihood="gaussian").fit(COUNTS)),
        ("size_factors has to be one of", lambda: CountFactors(2, size_factors="depth").fit(COUNTS)),
        ("size_factors has shape", lambda: CountFactors(2, size_factors=[1.0]).fit(COUNTS)),
        ("finite numbers above 0", lambda: CountFactors(2, size_factors=LINE).fit(COUNTS)),
        ("scale has to be one of", lambda: CountFactors(2, scale="rates").fit(COUNTS)),
        ("n_components has to be a whole number", lambda: CountFactors(2.5).fit(COUNTS)),
        ("n_components=7 is above the number of columns", lambda: CountFactors(7).fit(COUNTS)),
        ("pass adata.X", lambda: CountFactors(2).fit(ADATA)),
        ("tol has to be a finite number", lambda: CountFactors(2, tol=float("nan")).fit(COUNTS)),
        ("ridge has to be a finite number", lambda: CountFactors(2, ridge=float("inf")).fit(COUNTS)),
        ("features", lambda: fitted().transform(COUNTS[:, :3])),
        ("offset holds a number that is not finite", lambda: fitted(offset=np.where(LINE > 0, 0, -np.inf))),
        ("offset has shape", lambda: fitted(offset=LINE[:4])),
        ("covariate 1 is the same in all rows", lambda: fitted(covariates=np.stack([LINE, LINE * 0 + 2], 1))),
        ("covariates have to be numbers", lambda: fitted(covariates=np.full((len(LINE), 1), "b1"))),
        ("covariate 1 is a sum of", lambda: fitted(covariates=np.stack([LINE, 3 - 2 * LINE], 1))),
        ("not finite", lambda: fitted(covariates=LINE * np.nan)),
        ("had 1 covariates, and 0", lambda: fitted(covariates=LINE).transform(COUNTS)),
        ("mask has to be bool", lambda: fitted(mask=COUNTS)),
        ("sample_weight has shape", lambda: fitted(sample_weight=LINE[:3])),
        ("expected factors of shape", lambda: fitted().inverse_transform(COUNTS)),
        ("adata.raw is not there", lambda: sg.tl.count_factors(ADATA, 2, use_raw=True)),
        ("adata.layers has no 'spliced'; it has none", lambda: sg.tl.count_factors(ADATA, 2, layer="spliced")),
        ("covariate_keys is a list", lambda: sg.tl.count_factors(ADATA, 2, covariate_keys="kind")),
        ("obs has no column 'donor'; it has 'kind'", lambda: sg.tl.count_factors(ADATA, 2, batch_key="donor")),
        ("'same' of obs is the same", lambda: sg.tl.count_factors(ADATA, 2, batch_key="same")),
        ("'age' of obs has rows without", lambda: sg.tl.count_factors(ADATA, 2, covariate_keys=["age"])),
        ("call silentgrad.tl.count_factors", lambda: sg.pl.loadings(ADATA, key="nothing")),
    ],
)
def test_bad_input_is_named(message: str, call: Callable[[], object]) -> None:
    refused(ValueError, message, call)


def test_a_fit_leaves_the_callers_matrix_and_the_random_state_and_one_that_fails_the_model() -> None:
    entries, columns = np.array([1.0, 2.0, 3.0, 1.0]), np.array([2, 2, 0, 1])  # one entry twice, none in order
    matrix = sparse.csr_matrix((entries, columns, np.array([0, 2, 3, 4])), shape=(3, 6))
    CountFactors(1, likelihood="poisson").fit(matrix)
    assert (matrix.indices.tolist(), matrix.data.tolist()) == ([2, 2, 0, 1], [1.0, 2.0, 3.0, 1.0])
    model = CountFactors(2, size_factors="median").fit(COUNTS)
    before, score = model.transform(COUNTS), model.score(COUNTS)
    refused(ValueError, "no counts", lambda: model.fit(9 * with_row(3, 0)))
    np.testing.assert_array_equal(model.transform(COUNTS), before)
    state = torch.random.get_rng_state()
    with torch.inference_mode():
        assert model.fit(COUNTS).score(COUNTS) == score
        sg.infer_factors(model.decoder_, torch.ones(3, 6))
    assert torch.equal(torch.random.get_rng_state(), state)


ROWS = np.array(
    [
        [0, 0, 0, 0],
        [2, 0, 5, 1],
        [0, 3000, 0, 4],
        [0, 0, 100_000, 0],
        [10_000_019, 2, 900_000, 31],
        [100_000_007, 0, 90_000_001, 50_000_000],
    ]
)
NODES, WEIGHTS = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(60))


class ByHand:
    """The likelihood of one row under a fitted model, from its parameters alone."""

    def __init__(self, model: CountFactors, row: np.ndarray) -> None:
        likelihood = model.decoder_.likelihood
        self.x = torch.from_numpy(row).double()
        self.w = torch.from_numpy(model.components_.T.copy())
        self.b = torch.from_numpy(model.intercept_)
        self.dimensions = self.w.shape[1]
        parameters = {name.split(".")[-1]: value.detach().double() for name, value in likelihood.named_parameters()}
        self.log_r = parameters.get("log_inverse_dispersion")
        self.zero_logit = parameters.get("zero_logit")

    def counted(self, u: Tensor) -> Tensor:
        """Return log p(x|u) of a count that is not inflated."""
        if self.log_r is None:
            return self.x * u - u.exp() - torch.lgamma(self.x + 1)
        r, v = self.log_r.exp(), u - self.log_r
        constant = torch.lgamma(self.x + r) - torch.lgamma(r) - torch.lgamma(self.x + 1)
        return constant - r * softplus(v) - self.x * softplus(-v)

    def inflated(self, log_prob: Tensor) -> Tensor:
        if self.zero_logit is None:
            return log_prob
        counted = log_prob - softplus(self.zero_logit)
        zero = -softplus(-self.zero_logit)
        return torch.where(self.x == 0, zero + softplus(counted - zero), counted)

    def elbo(self, parameters: Tensor) -> Tensor:
        """Return the bound for q = N(m, L L^T), from m, the logarithms of L's diagonal, and what is below it."""
        mean, logs, below = parameters.split([self.dimensions, self.dimensions, self.dimensions - 1])
        root = torch.diag(logs.exp())
        if self.dimensions == 2:
            root = root + torch.tensor([[0.0, 0.0], [1.0, 0.0]]) * below
        u, variance = self.w @ mean + self.b, (self.w @ root).square().sum(1)
        if self.log_r is None:
            expected = self.x * u - (u + variance / 2).exp() - torch.lgamma(self.x + 1)
        else:
            nodes = self.counted(u + variance.sqrt() * NODES.unsqueeze(1))
            expected = (WEIGHTS / WEIGHTS.sum()) @ nodes
        divergence = (mean.square().sum() + root.square().sum() - self.dimensions) / 2 - logs.sum()
        return self.inflated(expected).sum() - divergence

    def best_bound(self, posterior: Posterior) -> float:
        """Return the largest bound that a trust region of SciPy's finds from two starts."""
        free = torch.arange(3 * self.dimensions - 1) < (2 if posterior == "diagonal" else 3) * self.dimensions

        def bound(point: Tensor) -> Tensor:
            return self.elbo(torch.where(free, point, 0))

        def loss(point: np.ndarray) -> float:
            return -float(bound(torch.from_numpy(point)).nan_to_num(nan=-torch.inf))

        def slope(point: np.ndarray) -> np.ndarray:
            return -torch.autograd.functional.jacobian(bound, torch.from_numpy(point)).numpy()

        def hessian(point: np.ndarray) -> np.ndarray:
            return -torch.autograd.functional.hessian(bound, torch.from_numpy(point)).numpy()

        precision = torch.eye(self.dimensions).double() + self.w.T @ ((self.x + 0.5).unsqueeze(1) * self.w)
        target = self.w.T @ ((self.x + 0.5) * ((self.x + 0.5).log() - self.b))
        logs = -precision.diagonal().log() / 2
        ends = []
        for mean in (torch.zeros_like(logs), torch.linalg.solve(precision, target)):
            start = torch.cat([mean, logs, torch.zeros(self.dimensions - 1)]).numpy()
            while not loss(start) < 1e15:  # where rates are nearly infinite
                start[: self.dimensions] /= 2
            with np.errstate(over="ignore", invalid="ignore"):
                ends.append(-optimize.minimize(loss, start, jac=slope, hess=hessian, method="trust-ncg").fun)
        return max(ends)

    def log_evidence(self, mean: Tensor, root: Tensor) -> float:
        """Return log p(x) by a grid of twelve of q's deviations, beyond which q has no mass: above every bound by q."""
        axis = torch.linspace(-12, 12, {1: 2001, 2: 241}[self.dimensions], dtype=torch.float64)
        z = mean + torch.cartesian_prod(*[axis] * self.dimensions).reshape(-1, self.dimensions) @ root.T
        joint = self.inflated(self.counted(z @ self.w.T + self.b)).sum(1) - z.square().sum(1) / 2
        cell = self.dimensions * math.log((axis[1] - axis[0]) / math.sqrt(2 * math.pi))
        return float(joint.logsumexp(0) + cell + root.diagonal().log().sum())


@pytest.mark.filterwarnings("ignore:the fit ended:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("n_components", "posterior"), [(1, "full"), (2, "full"), (2, "diagonal")])
@pytest.mark.parametrize("likelihood", LikelihoodOfCounts.__args__)
def test_a_score_is_below_the_evidence(likelihood: str, n_components: int, posterior: Posterior) -> None:
    """And as large as another optimizer finds it."""
    model = CountFactors(n_components, likelihood=likelihood, posterior=posterior, max_iter=20).fit(COUNTS[:, :4])
    assert type(model.decoder_.likelihood).__name__.lower() == likelihood.replace("-", "")
    q = sg.infer_factors(model.decoder_, torch.from_numpy(ROWS)).latent
    for row, mean, root in zip(ROWS, q.loc.double(), q.scale_tril.double(), strict=True):
        by_hand, score = ByHand(model, row), model.score(row[None])
        assert score <= by_hand.log_evidence(mean, root) / 4 + 1e-6  # the digits that log x! of 1e8 leaves
        assert score == pytest.approx(by_hand.best_bound(posterior) / 4, rel=1e-9, abs=1e-6)


def test_a_zero_beside_a_rate_beyond_all_numbers_is_one_of_the_others() -> None:
    """One count needs a factor at which the rates of zeros are infinite: what is left of them is their probability."""
    decoder = sg.LinearLikelihood(1, 2, sg.likelihoods.ZeroInflatedPoisson(2)).double()
    with torch.no_grad():
        decoder.affine.weight.copy_(torch.tensor([[0.016], [0.8]]))
        decoder.affine.bias.zero_()
        decoder.likelihood.zero_logit.fill_(-15.0)
    found = sg.infer_factors(decoder, torch.tensor([[1e8, 0.0]], dtype=torch.float64))
    mean, variance = found.latent.loc[0, 0], found.latent.scale_tril[0, 0, 0].square()
    u = 0.016 * mean
    by_hand = 1e8 * u - (u + 0.016**2 * variance / 2).exp() - math.lgamma(1e8 + 1) - 2 * softplus(torch.tensor(-15.0))
    by_hand = by_hand - 15 - (mean.square() + variance - 1 - variance.log()) / 2
    assert found.converged.all()
    assert 0.8 * mean > 709
    assert float(found.elbo) == pytest.approx(float(by_hand), abs=1)


@pytest.mark.parametrize("count", [1e5, 1e6, 1e7])
def test_a_score_of_large_counts_is_no_rounding_error(count: float) -> None:
    """One factor of tiny weight: the posterior is Gaussian, so that the bound is the evidence."""
    counts = np.random.RandomState(0).poisson(count, size=(60, 4))
    model = CountFactors(1, likelihood="poisson").fit(counts)
    found = sg.infer_factors(model.decoder_, torch.from_numpy(counts))
    each = zip(counts, found.latent.loc.double(), found.latent.scale_tril.double(), strict=True)
    evidence = np.mean([ByHand(model, row).log_evidence(mean, root) for row, mean, root in each]) / 4
    assert model.score(counts) <= evidence + 1e-6
    assert model.elbo_ / counts.size == pytest.approx(evidence, abs=1e-4)


def test_fits_and_rows_that_do_not_converge_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(ConvergenceWarning, match="after 2 iterations"):
        CountFactors(2, max_iter=2).fit(COUNTS)
    model = CountFactors(1, likelihood="poisson").fit(COUNTS)
    monkeypatch.setattr(count_factors, "infer_factors", partial(sg.infer_factors, iterations=1))
    with pytest.warns(ConvergenceWarning, match="did not converge, the first of them row 0"):
        model.transform(COUNTS)


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, count_factors.__name__)
    told = r"CountFactors needs sklearn: pip install 'silentgrad\[counts\]'"
    refused(ModuleNotFoundError, told, lambda: sg.CountFactors)


def simulated(cells: int, genes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts of three types of cells in two batches; the types; the batches."""
    random = np.random.RandomState(seed)
    kinds, batches = random.randint(3, size=cells), random.randint(2, size=cells)
    u = random.randn(3, genes)[kinds] * 0.6 + random.randn(2, genes)[batches] * 0.8 + random.randn(cells, 1) * 0.3
    return random.poisson(np.exp(u)), kinds, batches


def test_a_covariate_has_the_weight_and_the_error_of_a_generalized_linear_model() -> None:
    """With one factor of nothing: a Poisson regression, whose information is that of its rates."""
    random = np.random.RandomState(0)
    covariate = random.randn(400)
    counts = random.poisson(np.exp(0.5 + np.outer(covariate, [0.4, -0.3, 0.0, 0.2])))
    model = CountFactors(1, likelihood="poisson", tol=1e-9).fit(counts, covariates=covariate)
    for column, weight, error in zip(counts.T, model.coefficients_, model.coefficient_errors_, strict=True):
        regression = PoissonRegressor(alpha=0, tol=1e-10).fit(covariate[:, None], column)
        rates = regression.predict(covariate[:, None])
        features = np.stack([np.ones(400), covariate], 1)
        expected = np.linalg.inv(features.T * rates @ features)[1, 1] ** 0.5
        assert weight[0] == pytest.approx(regression.coef_[0], abs=0.2 * expected)
        assert error[0] == pytest.approx(expected, rel=0.1)


def test_a_batch_that_is_a_covariate_is_no_factor() -> None:
    """Nor of principal components of logarithms with each batch's mean taken out, which tell types less well."""
    counts, kinds, batches = simulated(300, 30)
    logs = np.log1p(counts)
    centered = logs - np.stack([logs[batches == batch].mean(0) for batch in (0, 1)])[batches]
    model = CountFactors(2, likelihood="poisson")
    factors = {
        "with": model.fit_transform(counts, covariates=batches),
        "without": model.fit_transform(counts),
        "PCA": PCA(2, whiten=True, random_state=0).fit_transform(centered),
    }
    types_of = KMeans(3, n_init=5, random_state=0).fit_predict
    found = {name: adjusted_rand_score(kinds, types_of(points)) for name, points in factors.items()}
    assert found["with"] > 0.9 > found["PCA"] > found["without"]


def test_what_is_missing_is_imputed_and_what_is_hidden_is_missing() -> None:
    counts, _, _ = simulated(200, 20)
    seen = np.random.RandomState(1).rand(*counts.shape) > 0.1
    masked = CountFactors(3, likelihood="poisson").fit(counts, mask=seen)
    model = CountFactors(3, likelihood="poisson", missing="nan").fit(np.where(seen, counts, np.nan))
    assert model.elbo_ == masked.elbo_
    hidden = np.where(seen, counts, np.nan)
    imputed = model.inverse_transform(model.transform(hidden))
    errors = [np.square(guess - counts)[~seen].mean() for guess in (imputed, np.nanmean(hidden, 0) + 0 * counts)]
    assert errors[0] < 0.8 * errors[1]
    assert model.score(hidden) == pytest.approx(masked.score(counts, mask=seen))


def test_weights_are_repetitions_and_offsets_are_sizes() -> None:
    times = np.arange(len(COUNTS)) % 3
    for options in ({"likelihood": "poisson"}, {"likelihood": "negative-binomial", "posterior": "diagonal"}):
        model = CountFactors(2, tol=1e-9, **options)
        expected = model.fit(np.repeat(COUNTS, times, 0)).elbo_
        assert model.fit(COUNTS, sample_weight=times).elbo_ == pytest.approx(expected, rel=1e-5)
    sizes = COUNTS.sum(1) / np.median(COUNTS.sum(1))
    known = CountFactors(2, likelihood="poisson", size_factors=sizes).fit(COUNTS)
    given = CountFactors(2, likelihood="poisson").fit(COUNTS, offset=np.log(sizes))
    assert (known.elbo_, known.explained_deviance_) == (given.elbo_, given.explained_deviance_)


def test_loadings_scale_keeps_the_log_rates() -> None:
    standard = CountFactors(2, likelihood="poisson").fit(COUNTS)
    model = CountFactors(2, likelihood="poisson", scale="loadings").fit(COUNTS)
    factors = model.transform(COUNTS)
    np.testing.assert_allclose(np.linalg.norm(model.components_, axis=1), 1, rtol=1e-6)
    known = standard.transform(COUNTS)
    np.testing.assert_allclose(factors @ model.components_, known @ standard.components_, atol=1e-4)
    expected = standard.inverse_transform(known)
    np.testing.assert_allclose(model.inverse_transform(factors), expected, rtol=1e-4)


@pytest.mark.parametrize("likelihood", ["poisson", "negative-binomial"])
def test_the_rank_of_a_simulation_is_found(likelihood: str) -> None:
    """Also where one factor too few could pass for dispersion."""
    random = np.random.RandomState(0)
    rates = np.exp(random.randn(400, 3) @ random.randn(3, 40) * 0.5 + 0.5)
    if likelihood == "negative-binomial":
        rates = rates * random.gamma(2.0, 0.5, rates.shape)
    counts = random.poisson(rates)
    model = CountFactors("auto", likelihood=likelihood).fit(counts)
    assert model.n_components_ == model.rank_path_.best == 3
    path = CountFactors(likelihood=likelihood).rank_path(counts, [2, 3])
    assert path.ranks == [2, 3]
    assert path.explained[0] < path.explained[1] < 1


def test_deviances_are_those_of_scipy_and_scikit_learn() -> None:
    x, rate, r = np.arange(6.0), np.linspace(0.5, 4, 6), np.linspace(0.3, 30, 6)
    found = deviances(*map(torch.from_numpy, (x, rate, r))) + beyond_poisson(*map(torch.from_numpy, (x, r)))
    expected = 2 * (poisson.logpmf(x, x) - nbinom.logpmf(x, r, r / (r + rate)))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    model = CountFactors(2, likelihood="poisson").fit(COUNTS)
    expected = model.inverse_transform(model.transform(COUNTS))
    null = np.broadcast_to(COUNTS.mean(0), COUNTS.shape)
    left, all_of_it = (mean_poisson_deviance(COUNTS.ravel(), rates.ravel()) for rates in (expected, null))
    assert model.explained_deviance_ == pytest.approx(1 - left / all_of_it, abs=1e-3)


@pytest.mark.parametrize("likelihood", ["poisson", "negative-binomial"])
def test_blocks_and_places_change_nothing(likelihood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = simulated(700, 50)[0].astype(np.float32)  # more entries than torch gives to one thread
    adata = anndata.AnnData(sparse.csr_matrix(counts))
    adata.write_h5ad(tmp_path / "counts.h5ad")
    np.save(tmp_path / "counts.npy", counts)
    model = CountFactors(2, likelihood=likelihood, tol=1e-4)
    random = np.random.RandomState(1)
    known = {"offset": random.randn(700) / 2, "mask": random.rand(700, 50) < 0.8, "covariates": random.randn(700)}
    expected = model.fit_transform(counts, **known)
    mapped = np.load(tmp_path / "counts.npy", mmap_mode="r")
    backed = anndata.read_h5ad(tmp_path / "counts.h5ad", backed="r").X
    for data, entries, threads in ((mapped, 9000, 1), (backed, 2**19, 2), (adata.X, 20_000, 1)):
        monkeypatch.setattr(pieces, "ENTRIES", entries)
        torch.set_num_threads(threads)  # for which `one_thread` makes up
        np.testing.assert_allclose(model.fit_transform(data, **known), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the fit ended:sklearn.exceptions.ConvergenceWarning")
def test_threads_change_nothing_in_single_precision() -> None:
    counts = simulated(3500, 300)[0].astype(np.float32)
    assert counts.size > table.FEW
    model, factors = CountFactors(5, likelihood="poisson", max_iter=12), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        factors.append(model.fit_transform(counts))
    np.testing.assert_allclose(factors[1], factors[0], atol=1e-6, rtol=0)


def test_many_rows_start_from_some(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = simulated(600, 20)[0]
    expected = CountFactors(3, likelihood="poisson").fit(counts)
    monkeypatch.setattr(table, "START", 1280)
    model = CountFactors(3, likelihood="poisson").fit(counts)
    assert model.elbo_ == pytest.approx(expected.elbo_, rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # scanpy's own
def test_scanpy_goes_on_from_the_factors() -> None:
    scanpy = pytest.importorskip("scanpy")
    counts, kinds, batches = simulated(200, 30)
    adata = anndata.AnnData(counts.astype(np.float32), obs={"kind": kinds.astype(str), "batch": batches.astype(str)})
    adata.layers["counts"], adata.X = adata.X.copy(), np.log1p(adata.X)
    result = sg.tl.count_factors(adata, 2, layer="counts", batch_key="batch", likelihood="poisson", copy=True)
    assert "count_factors" not in adata.uns
    assert (result.obsm["X_count_factors"].shape, result.varm["count_factors"].shape) == ((200, 2), (30, 2))
    assert result.uns["count_factors"]["covariates"] == ["batch=1"]
    scanpy.pp.neighbors(result, use_rep="X_count_factors", n_neighbors=10)
    neighbors = result.obsp["connectivities"].tocoo()
    assert (kinds[neighbors.row] == kinds[neighbors.col]).mean() > 0.9


def test_results_are_stored_and_drawn(tmp_path: Path) -> None:
    adata = ADATA.copy()
    adata.raw = adata
    sg.tl.count_factors(adata, 1, batch_key="plate", key_added="one", likelihood="poisson")
    assert adata.uns["one"]["covariates"] == ["plate=1", "plate=2"]
    refused(ValueError, "cannot draw factor 1: the fit has factor 0 alone", lambda: sg.pl.factors(adata, key="one"))
    sg.tl.count_factors(adata, 2, use_raw=True, key_added="raw", likelihood="poisson")
    sg.tl.count_factors(adata, "auto", batch_key="kind", likelihood="poisson", posterior="diagonal", ridge=1e9)
    adata.write_h5ad(tmp_path / "fitted.h5ad")
    read = anndata.read_h5ad(tmp_path / "fitted.h5ad")
    params = read.uns["count_factors"]["params"]
    assert (params["batch_key"], params["posterior"], params["ridge"]) == ("kind", "diagonal", 1e9)
    assert np.abs(read.varm["count_factors"]).max() < 1e-9
    assert read.uns["count_factors"]["rank_path"]["deviances"].std() < 1e-6  # no rank has any loadings
    assert read.uns["raw"]["loadings"].shape == (6, 2)
    sg.pl.loadings(read, (0, 1), key="raw")
    sg.pl.factors(read, "kind", key="raw")
    sg.pl.factors(read, "age", key="raw")
    assert sg.pl.explained_deviance(read).get_xlabel() == "number of factors"
    assert sg.pl.explained_deviance(read, key="raw").get_xlabel() == "factor"
    plt.close("all")


def test_metadata_are_routed() -> None:
    model = CountFactors(2, likelihood="poisson")
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(covariates=True).set_transform_request(covariates=True)
        pipeline = make_pipeline(model, StandardScaler()).fit(COUNTS, covariates=LINE)
        found = pipeline.transform(COUNTS, covariates=LINE)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-3)
    assert pipeline[0].coefficients_.shape == (6, 1)


@pytest.mark.parametrize("form", ["h5ad", "csv"])
def test_the_command_fits_a_file(form: str, tmp_path: Path, cli: Cli) -> None:
    data, output = tmp_path / f"counts.{form}", tmp_path / f"counts-factors.{form}"
    table = pd.DataFrame(COUNTS, [f"c{row}" for row in range(50)], [*"abcdef"]).astype(object)
    table.iloc[3, 2] = None
    obs = pd.DataFrame({"kind": ["x", "y"] * 25, "age": LINE}, table.index)
    if form == "h5ad":
        anndata.AnnData(table.astype("float32"), obs=obs).write_h5ad(data)
    else:
        obs.assign(donor="me").join(table).to_csv(data, index_label="cell")
    words = ["factors", data, "--rank", 2, "--batch", "kind", "--covariates", "age", "--likelihood", "poisson"]
    words += ["--ridge", 2, "--posterior", "diagonal"]
    if form == "csv":
        assert "--index cell if it names the rows, --drop cell" in cli.fails(*words)
        words += ["--index", "cell", "--drop", "donor"]
    assert "missing" in cli.fails(*words)
    assert not output.exists()
    assert "of the deviance explained" in cli(*words, "--missing", "nan")
    expected = anndata.AnnData(table.astype("float32"), obs=obs)
    options = {"batch_key": "kind", "covariate_keys": ["age"], "posterior": "diagonal", "ridge": 2, "missing": "nan"}
    sg.tl.count_factors(expected, 2, likelihood="poisson", **options)
    factors, params = expected.obsm["X_count_factors"], expected.uns["count_factors"]["params"]
    if form == "csv":
        found = pd.read_csv(output, index_col="cell")
        assert list(found.index) == list(table.index)
        np.testing.assert_allclose(found, factors, atol=1e-5)
    else:
        np.testing.assert_allclose(anndata.read_h5ad(output).obsm["X_count_factors"], factors, atol=1e-5)
    folder = output.with_suffix("")
    pictures = {f"{name}.png" for name in ("loadings", "deviance", "factors", "convergence")}
    assert {path.name for path in folder.iterdir()} == {"loadings.csv", "report.html", *pictures}
    page = (folder / "report.html").read_text()
    for told in ("Converged after", "colored by kind", "columns that rise", f"ridge: {params['ridge']}"):
        assert told in page
    assert page.count("<img") == 4
    assert "--overwrite true" in cli.fails(*words)


@pytest.mark.parametrize("form", ["npy", "npz", "tsv"])
def test_the_command_reads_the_laboratorys_files(form: str, tmp_path: Path, cli: Cli) -> None:
    data, output = tmp_path / f"counts.{form}", tmp_path / "out.csv"
    if form == "npy":
        np.save(data, COUNTS)
    elif form == "npz":
        sparse.save_npz(data, sparse.csr_matrix(COUNTS))
    else:
        pd.DataFrame(COUNTS, columns=[*"abcdef"]).to_csv(data, sep="\t", index=False)
    cli("factors", data, "--output", output, "--rank", 1, "--likelihood", "poisson")
    expected = CountFactors(1, likelihood="poisson", size_factors="median").fit_transform(COUNTS)
    np.testing.assert_allclose(pd.read_csv(output, index_col=0), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")  # Dask's
def test_dask_arrays(scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """A real scheduler and two workers, one of which is killed on the way: its rows are made anew."""
    import dask.array
    import distributed

    random = np.random.RandomState(0)
    counts = random.poisson(np.exp(random.randn(300, 2) @ random.randn(2, 12) / 2)).astype(np.float32)
    covariate = random.randn(300)
    expected = CountFactors(2, likelihood="poisson").fit(counts, covariates=covariate)
    doomed, _ = [start(*worker_at(scheduler)) for _ in range(2)]
    advance = Climb.advance

    def advanced(climb: Climb) -> bool:
        if climb.accepted == 3:
            doomed.kill()
        return advance(climb)

    monkeypatch.setattr(Climb, "advance", advanced)
    with distributed.Client(scheduler) as client:
        client.wait_for_workers(2)
        model = CountFactors(2, likelihood="poisson")
        factors = model.fit_transform(dask.array.from_array(counts, chunks=(80, 12)), covariates=covariate)
        assert len(client.scheduler_info()["workers"]) == 1
    assert model.elbo_ == pytest.approx(expected.elbo_, rel=1e-10)
    np.testing.assert_allclose(factors, expected.transform(counts, covariates=covariate), atol=1e-3)
