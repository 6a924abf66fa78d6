"""Training on counts and tables: figures by hand, side information, latents written back, and the page."""

import math
from dataclasses import replace
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from safetensors.torch import load_file
from scipy import stats
from scipy.spatial.distance import pdist

from browser import Look
from refusals import refused
from runs import SMALL, TWICE, Cli, CutError, cut_at, train, train_in_two
from silentgrad.lab.build import model_for
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import Counts, DataError, Reals, Splits, load
from silentgrad.lab.networks import NonlinearLikelihood
from silentgrad.lab.reports.figures import scatter
from silentgrad.lab.reports.page import Picture
from silentgrad.lab.runs.evaluation import evaluate_model
from silentgrad.lab.settings import ConfigError, Settings, resolve, resolve_model
from silentgrad.lab.store.files import read_json
from silentgrad.lab.store.records import Factors
from silentgrad.lab.training import DataConfig, ModelConfig, RunError, TrainConfig, load_run, read_config
from silentgrad.lab.training.loading import observations_of
from silentgrad.likelihoods import NegativeBinomial
from silentgrad.side_info import SideInfo

ROWS, GENES = 120, 8
ORDER = np.random.RandomState(0).permutation(ROWS)
TRAIN, TEST = ORDER[: ROWS * 8 // 10], ORDER[ROWS * 9 // 10 :]
MODEL = ModelConfig(latent_dim=2, hidden=[8])
SIDE_INFO = ["--data.label", "kind", "--data.covariates", "[batch]", "--data.offset", "size"]


def cells() -> anndata.AnnData:
    """Make counts of two kinds of cells, of different depth, from two batches."""
    rng = np.random.default_rng(0)
    kind, batch, depth = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS), rng.lognormal(1.0, 0.8, ROWS)
    signs = np.where(np.arange(GENES) % 2 == 0, 1.0, -1.0)
    logs = np.outer(2 * kind - 1, signs) + 0.5 * np.outer(batch, np.arange(GENES) < 2)
    counts = rng.poisson(depth[:, None] * np.exp(logs)).astype(np.float32)
    counts[:, 0] += 1  # no cell is empty
    obs = pd.DataFrame({"kind": pd.Categorical.from_codes(kind, ["left", "right"]), "batch": [f"b{b}" for b in batch]})
    obs.index = [f"cell{row}" for row in range(ROWS)]
    var = pd.DataFrame(index=[f"gene{column}" for column in range(GENES)])
    return anndata.AnnData(sp.csr_matrix(counts), obs, var)


@pytest.fixture(scope="module")
def h5ad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cells") / "cells.h5ad"
    cells().write_h5ad(path)
    return path


@pytest.fixture(scope="module")
def run(h5ad: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    main(["train", *words(h5ad), "--folder", str(folder)])
    return folder


def words(h5ad: Path) -> list[str]:
    return ["--data.name", str(h5ad), *SIDE_INFO, *SMALL, "--model.hidden", "8", "--train.epochs", "10"]


def test_counts_have_a_linear_decoder_alone_by_the_exact_gradient(run: Path) -> None:
    _, model, train = read_config(run)
    assert (model.tractable, model.nonlinear, model.estimator) == ("linear", False, "exact")
    assert (model.likelihood, train.lr, train.lr_network) == ("negative-binomial", 1e-2, 2e-3)
    summary = read_json(run / "summary.json")
    assert (summary["unit"], summary["exactness"]) == ("NLL nats per entry", "exact")


def test_what_was_given_is_never_changed() -> None:
    given = ModelConfig(nonlinear=True, estimator="none", likelihood="poisson", tractable="linear")
    assert resolve_model(given, "negative-binomial") == replace(given, start="ppca")
    assert resolve_model(ModelConfig(tractable="none"), "poisson").nonlinear
    for latent, estimator in {"categorical": "gumbel-softmax", "poisson": "rloo"}.items():
        assert resolve_model(ModelConfig(latent=latent), "gaussian").estimator == estimator
    assert resolve_model(ModelConfig(), "bernoulli").tractable == "linear"
    bits = {"latent": "bernoulli", "network": "conv"}
    for more in ({"tractable": "constant"}, {"nonlinear": False, "estimator": "exact"}, {"estimator": "none"}):
        assert resolve_model(ModelConfig(**bits, **more), "gaussian").tractable == "constant"
    needs_none = "a linear decoder of bits .* choose --model.tractable none"
    refused(ConfigError, needs_none, lambda: resolve_model(ModelConfig(**bits), "bernoulli"))
    for own, rates in ((TrainConfig(lr=1e-3), (1e-3, None)), (TrainConfig(lr_network=0.0), (1e-2, 0.0))):
        found = resolve(Settings(DataConfig(), ModelConfig(), own), ["poisson"]).train
        assert (found.lr, found.lr_network) == rates


def test_decoders_that_cannot_leave_entries_out_are_named() -> None:
    table = torch.rand(30, 4)
    mask = Splits(*3 * [torch.rand(30, 4) > 0.3])
    reals = Reals(table, table, table, "table", mask=mask)
    circuit, told = replace(MODEL, likelihood="circuit"), "--data.missing is for .* NonlinearCircuit are not"
    refused(ConfigError, told, lambda: model_for(circuit, reals))
    known = Reals(table, table, table, "table", covariates=Splits(table, table, table))
    refused(ConfigError, "--data.covariates is for counts", lambda: model_for(MODEL, known))


def test_the_figure_is_that_of_a_computation_by_hand(run: Path, h5ad: Path) -> None:
    """Nats per entry from the stored weights, with SciPy's negative binomial under quadrature."""
    known = anndata.read_h5ad(h5ad)
    counts = known.X.toarray().astype(float)
    size = counts.sum(1) / np.median(counts[TRAIN].sum(1))
    counts, size, batch = counts[TEST], size[TEST, None], pd.get_dummies(known.obs["batch"]).to_numpy(float)[TEST]
    w = {name: value.double().numpy() for name, value in load_file(run / "model.safetensors").items()}
    seen = np.hstack([np.log1p(counts / size), batch])
    hidden = np.maximum(seen @ w["encoder.body.1.weight"].T + w["encoder.body.1.bias"], 0)
    numbers = hidden @ w["encoder.body.3.weight"].T + w["encoder.body.3.bias"]
    mean, std = numbers[:, :2], np.exp(numbers[:, 2:])
    divergence = 0.5 * (mean**2 + std**2 - 1).sum() - np.log(std).sum()
    weight = w["tractable.affine.weight"]
    u = mean @ weight.T + w["tractable.affine.bias"] + batch @ w["tractable.covariate_affine.weight"].T + np.log(size)
    deviation = np.sqrt(std**2 @ weight.T**2)
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)
    r = np.exp(w["tractable.likelihood.log_inverse_dispersion"])
    expected = 0.0
    for node, share in zip(nodes, shares / shares.sum(), strict=True):
        rate = np.exp(u + node * deviation)
        expected += share * stats.nbinom.logpmf(counts, r, r / (r + rate)).sum()
    observations = observations_of(read_config(run))
    vae = load_run(run, observations)
    figure = evaluate_model(vae, observations).figure
    assert figure == pytest.approx((divergence - expected) / counts.size, rel=1e-5)
    assert figure == read_json(run / "summary.json")["figure"]
    assert evaluate_model(vae, observations, samples=50).figure < figure  # importance-weighted, given side information


def masked(offset: float = 0.0, hidden: int = 0) -> Counts:
    """Make counts of which a fifth was not observed, where something hides."""
    rng = torch.Generator().manual_seed(0)
    splits, masks, offsets = [], [], []
    for rows in (60, 20, 20):
        counts = torch.poisson(3 * torch.ones(rows, 5), generator=rng).int()
        mask = torch.rand(rows, 5, generator=rng) > 0.2
        splits.append(torch.where(mask, counts, hidden))
        masks.append(mask)
        offsets.append(offset * torch.rand(rows, generator=rng))
    return Counts(*splits, "counts", mask=Splits(*masks), offset=Splits(*offsets))


def weights_after(observations: Counts, folder: Path, model: ModelConfig = MODEL) -> dict[str, torch.Tensor]:
    train(folder, DataConfig(batch_size=30), TWICE, model=model, observations=observations)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("nonlinear", [False, True])
def test_what_was_not_observed_does_not_matter_and_offsets_do(nonlinear: bool, tmp_path: Path) -> None:
    model = replace(MODEL, nonlinear=nonlinear)
    first = weights_after(masked(), tmp_path / "first", model)
    other = weights_after(masked(hidden=1000), tmp_path / "other", model)
    for name, value in first.items():
        assert torch.equal(value, other[name]), name
    assert (tmp_path / "first" / "factors.json").read_text() == (tmp_path / "other" / "factors.json").read_text()
    moved = weights_after(masked(offset=1.0), tmp_path / "moved", model)
    assert not torch.equal(moved["tractable.affine.bias"], first["tractable.affine.bias"])


def test_figures_are_per_observed_entry() -> None:
    """A model without latents to speak of, whose figure is the mean over observed entries of a Poisson's."""
    counts = masked()
    vae = model_for(replace(MODEL, likelihood="poisson"), counts)
    for parameter in vae.parameters():
        torch.nn.init.zeros_(parameter)
    observed = counts.mask.test.numpy()
    expected = -stats.poisson.logpmf(counts.test.numpy(), 1.0)[observed].mean()
    assert evaluate_model(vae, counts).figure == pytest.approx(expected, rel=1e-6)


def test_an_entry_that_is_missing_takes_no_part_in_a_table_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(100, 1)) @ rng.normal(size=(1, 4)) + 0.1 * rng.normal(size=(100, 4)) + 5
    table[rng.random((100, 4)) < 0.2] = np.nan
    np.save(tmp_path / "table.npy", table)
    data = DataConfig(name=str(tmp_path / "table.npy"), missing=True)
    summary = train(tmp_path / "guided", data, TWICE, model=MODEL)
    fixed = replace(MODEL, nonlinear=False, estimator="exact", tractable="fixed")
    alone = train(tmp_path / "alone", data, TWICE, model=fixed)
    assert np.isfinite([summary.figure, alone.figure]).all()
    assert alone.limit is None  # which knows no missing entries
    reals = load(data.name, selection=data.selection)
    vae = model_for(fixed, reals)
    for parameter in vae.parameters():
        torch.nn.init.zeros_(parameter)
    order = np.random.RandomState(0).permutation(100)
    rows = table[order[:80]]
    density = stats.norm.logpdf(table[order[90:]], np.nanmean(rows, 0), 0.1 * np.nanstd(rows, 0))
    assert evaluate_model(vae, reals).figure == pytest.approx(-np.nanmean(density), rel=1e-5)


def test_a_nonlinear_decoder_takes_offsets_covariates_and_masks() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 4)
    decoder = NonlinearLikelihood(network, [4], NegativeBinomial(4), covariates=1).double()
    x, z = torch.poisson(2 * torch.ones(5, 4)).double(), torch.randn(5, 2).double()
    offset, covariates, mask = torch.randn(5).double(), torch.randn(5, 1).double(), torch.rand(5, 4) > 0.5
    decoder.init_from_data(x, offset, mask)
    found = decoder.given(SideInfo(offset=offset, covariates=covariates, mask=mask)).log_prob(x, z)
    u = decoder.center + network(torch.cat([z, covariates], 1)) + offset[:, None]
    r, rate = decoder.likelihood.inverse_dispersion.detach().numpy(), u.detach().exp().numpy()
    expected = stats.nbinom.logpmf(x.numpy(), r, r / (r + rate)) * mask.numpy()
    np.testing.assert_allclose(found.detach().numpy(), expected.sum(1), rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["poisson", "zero-inflated-poisson", "zero-inflated-negative-binomial"])
def test_every_likelihood_trains_alone_and_as_a_guide(likelihood: str, h5ad: Path, tmp_path: Path) -> None:
    data = DataConfig(name=str(h5ad), offset="size", covariates=["batch"])
    for nonlinear in (False, True):
        model = replace(MODEL, likelihood=likelihood, nonlinear=nonlinear)
        summary = train(tmp_path / str(nonlinear), data, TWICE, model=model)
        assert 0 < summary.figure < 20
        assert (summary.exactness == "sampled") == nonlinear


def test_a_resumed_run_has_the_same_bits(h5ad: Path, tmp_path: Path) -> None:
    data = DataConfig(name=str(h5ad), offset="size", covariates=["batch"], batch_size=16)
    four = replace(TWICE, epochs=4, decay="cosine", warmup=3)  # rates are functions of the step alone
    train(tmp_path / "whole", data, four, model=MODEL)
    refused(CutError, "", lambda: train(tmp_path / "cut", data, four, model=MODEL, reports=[cut_at(3)]))
    train(tmp_path / "cut", data, four, model=MODEL, resume=True)
    for name in ("model.safetensors", "loadings.csv", "factors.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_two_processes_equal_one(run: Path, h5ad: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    train_in_two(*words(h5ad), "--folder", str(folder), said=tmp_path / "said.txt")
    one, two = (read_json(each / "summary.json")["figure"] for each in (run, folder))
    assert two == pytest.approx(one, rel=1e-4)


def test_latents_are_in_the_order_of_the_file(run: Path, h5ad: Path, tmp_path: Path, cli: Cli) -> None:
    before = h5ad.read_bytes()
    copy, array = tmp_path / "copy.h5ad", tmp_path / "latents.npy"
    for output in (copy, array):
        cli("latents", run, "--output", output)
    latents = np.load(array)
    known = anndata.read_h5ad(copy)
    np.testing.assert_array_equal(known.obsm["X_silentgrad"], latents)
    assert (known.X != anndata.read_h5ad(h5ad).X).nnz == 0
    observations = observations_of(read_config(run))
    row = observations.rows("test").between(3, 4)
    mean = load_run(run, observations).encode(observations.as_seen(row), row.side_info).mean
    np.testing.assert_allclose(latents[TEST[3]], mean[0].detach().numpy(), rtol=1e-4, atol=1e-5)
    for command in ("variance", "export"):
        assert "x alone" in cli.fails(command, run)
    for again in (copy, h5ad):
        assert "replace it by --overwrite true" in cli.fails("latents", run, "--output", again)
    assert h5ad.read_bytes() == before
    cli("latents", run, "--output", copy, "--overwrite", "true")
    cli("latents", run)
    np.testing.assert_array_equal(np.load(run / "latents.npy"), latents)


def test_latents_of_other_files_are_arrays(tmp_path: Path, cli: Cli) -> None:
    np.save(tmp_path / "counts.npy", cells().X.toarray())
    train(tmp_path / "run", DataConfig(name=str(tmp_path / "counts.npy"), kind="counts"), TWICE, model=MODEL)
    for output, message in {"a.h5ad": "is for data of an .h5ad file", "a.txt": "has to be a .npy file"}.items():
        assert message in cli.fails("latents", tmp_path / "run", "--output", tmp_path / output)
    loadings = (tmp_path / "run" / "loadings.csv").read_text()
    assert loadings.splitlines()[1].startswith("1,")  # columns without names are numbers


def test_columns_that_hold_no_counts_name_the_rows_or_are_left_out(tmp_path: Path, cli: Cli) -> None:
    table, path = cells().to_df().astype(int), tmp_path / "counts.csv"
    table.assign(donor="me").to_csv(path, index_label="cell")
    words = ["train", "--data.name", str(path), "--data.kind", "counts"]
    assert "--data.index cell if it names the rows, --data.drop cell" in cli.fails(*words)
    table.assign(donor="me").reset_index(names="cell").to_parquet(tmp_path / "counts.parquet")
    parquet = str(tmp_path / "counts.parquet")
    refused(DataError, "--data.index cell if it names the rows", lambda: load(parquet, kind="counts"))
    data = DataConfig(name=str(path), kind="counts", index="cell", drop=["donor"])
    train(tmp_path / "run", data, TWICE, model=MODEL)
    for name in ("latents.csv", "latents.npy"):
        cli("latents", tmp_path / "run", "--output", tmp_path / name)
    found = pd.read_csv(tmp_path / "latents.csv", index_col="row")
    assert list(found.index) == list(table.index)
    np.testing.assert_allclose(found, np.load(tmp_path / "latents.npy"), rtol=1e-6)


def test_loadings_are_the_weights_and_points_lie_as_far_apart_as_their_u(run: Path, cli: Cli) -> None:
    weight = load_file(run / "model.safetensors")["tractable.affine.weight"]
    loadings = pd.read_csv(run / "loadings.csv", index_col="column")
    assert list(loadings) == ["latent 1", "latent 2"]
    np.testing.assert_allclose(loadings, weight.numpy(), rtol=1e-6)
    factors = read_json(run / "factors.json")
    assert (len(factors["points"]), factors["label_names"]) == (ROWS, ["left", "right"])
    first = factors["loadings"][0]
    column = weight[:, first["latent"] - 1]
    assert first["up"][0] == [f"gene{int(column.argmax())}", pytest.approx(column.max().item())]
    assert first["down"][0] == [f"gene{int(column.argmin())}", pytest.approx(column.min().item())]
    points, labels = np.array(factors["points"]), np.array(factors["labels"])
    left, right = points[labels == 0, 0], points[labels == 1, 0]
    assert abs(left.mean() - right.mean()) > left.std()  # the two kinds of cells
    cli("latents", run)
    u = np.load(run / "latents.npy")[ORDER] @ weight.numpy().T  # of two latents, all there is is two components
    np.testing.assert_allclose(pdist(points), pdist(u), rtol=1e-3, atol=1e-3)
    assert points[:, 0].std() >= points[:, 1].std()
    page = (run / "report.html").read_text()
    for said in ("Loadings", first["up"][0][0], "colored by kind", "nats per entry", "logarithm of the mean count"):
        assert said in page


def test_labels_of_every_kind_are_drawn() -> None:
    points = [(float(row), float(row % 5)) for row in range(30)]
    many = [f"$kind_{code} of a rather long name" for code in range(10)]
    drawn = scatter(Factors(points, (0.7, 0.3), [float(row % 10) for row in range(30)], many, []), "kind")
    said = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert (len(said), said[-1]) == (8, "others")
    assert all(len(name) <= 20 for name in said)
    numbers = [math.nan, *map(float, range(29))]
    drawn = scatter(Factors(points, (0.7, 0.3), numbers, [], []), "age")
    assert len(drawn.axes) == 2  # the second is the scale
    for figure in (drawn, scatter(Factors(points, (1.0, 0.0), None, [], []), "None")):
        assert Picture(figure, "").png.startswith(b"\x89PNG")


def test_the_page_is_whole_in_a_browser(run: Path, look: Look) -> None:
    seen = look(run / "report.html")
    assert (seen.problems, seen.images) == ([], 2)


def test_other_data_need_the_same_columns_in_the_same_order(tmp_path: Path) -> None:
    table = cells()
    for name, data in (("one", table), ("turned", table[:, ::-1].copy())):
        data.write_h5ad(tmp_path / f"{name}.h5ad")
    settings = Settings(DataConfig(str(tmp_path / "one.h5ad")), ModelConfig(), TrainConfig())
    assert len(observations_of(settings, str(tmp_path / "one.h5ad")).train) > 0
    turned = str(tmp_path / "turned.h5ad")
    refused(RunError, "column 1 of --data .*turned.h5ad", lambda: observations_of(settings, turned))
