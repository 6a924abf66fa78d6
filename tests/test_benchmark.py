"""The benchmark of estimators: toy problems with known answers, runs that go on to the same bits, and the command."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch import distributions as td

from browser import WIDTHS, look, needs_browser
from silentgrad.lab.cli.main import main
from silentgrad.lab.experiments.benchmark.loop import Training
from silentgrad.lab.experiments.benchmark.measuring import Noise, Weights, measure_noise, milliseconds, read_noise
from silentgrad.lab.experiments.benchmark.orders import orders_table, told
from silentgrad.lab.experiments.benchmark.problem import Data, build, estimator_named, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import SIZES, BenchmarkRun, Setting, settings_of
from silentgrad.lab.experiments.benchmark.records import CHECKPOINT, Curve, read_result
from silentgrad.lab.experiments.benchmark.tables import Found
from silentgrad.lab.experiments.benchmark.toys import Toy, measure_toy, toys
from silentgrad.lab.runs.benchmark import read_benchmark
from silentgrad.lab.training.suitable import EstimatorName

CPU = torch.device("cpu")
SMOKE = SIZES["smoke"]
SETTINGS = settings_of(["mnist"], ["bernoulli", "gaussian"], ["linear", "nonlinear", "circuit"])
LINEAR = Setting("mnist", "gaussian", "linear")


# ----- toy problems


def small_toy() -> Toy:
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    centre, logits = torch.rand(5, generator=generator).double(), torch.randn(5, generator=generator).double()
    return Toy("five bits", centre, root @ root.T, logits)


@pytest.mark.parametrize("toy", [*toys()[:2], small_toy()], ids=lambda toy: toy.title)
def test_the_gradient_of_a_toy_is_that_of_the_sum_over_all_bits(toy: Toy) -> None:
    logits = toy.logits.clone().requires_grad_()
    q = td.Bernoulli(logits=logits)
    total = torch.zeros((), dtype=torch.float64)
    for bits in itertools.product([0.0, 1.0], repeat=logits.numel()):
        z = torch.tensor(bits, dtype=torch.float64)
        total = total + q.log_prob(z).sum().exp() * toy(z)
    (slope,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(toy.gradient(), slope)


def test_the_twenty_bits_have_a_quadratic_that_is_no_sum_over_bits() -> None:
    matrix = toys()[-1].matrix
    assert matrix.shape == (20, 20)
    assert (matrix - torch.diag(matrix.diagonal())).abs().max() > 0.1


@pytest.mark.parametrize("toy", toys()[:2], ids=lambda toy: toy.title)
def test_the_variance_of_leave_one_out_is_that_of_all_pairs(toy: Toy) -> None:
    p, (f0, f1) = torch.sigmoid(toy.logits).item(), (toy(torch.tensor([z]).double()).item() for z in (0.0, 1.0))
    # The two samples differ with probability 2p(1 - p), and the gradient is then (f1 - f0) / 2, else 0.
    second_moment = 2 * p * (1 - p) * ((f1 - f0) / 2) ** 2
    truth = p * (1 - p) * (f1 - f0)
    found = measure_toy(toy, "rloo", 20_000)
    assert found.variance == pytest.approx((second_moment - truth**2) / truth**2, rel=0.05)
    assert not found.biased
    assert found.work == pytest.approx(2 * found.variance)


def test_the_bias_of_straight_through_is_the_one_that_is_known() -> None:
    toy = toys()[1]
    p = torch.sigmoid(toy.logits).item()
    slope, difference = 2 * (p - 0.499), 1 - 2 * 0.499  # E f'(z) and f(1) - f(0)
    found = measure_toy(toy, "straight-through", 50_000)
    assert found.biased
    assert found.bias == pytest.approx(slope / difference - 1, abs=4 * found.bias_error)


def test_the_sum_over_a_single_bit_has_neither_bias_nor_variance() -> None:
    found = measure_toy(toys()[0], "indecater", 1_000)
    assert not found.biased
    assert found.variance < 1e-20


# ----- settings and models


def test_the_exact_gradient_is_the_first_row_where_there_is_a_closed_form_and_no_row_elsewhere() -> None:
    for setting in SETTINGS:
        names = setting.estimators()
        assert (names[0] == "exact") == ("exact" in names) == setting.tractable
    assert Setting("mnist", "bernoulli", "circuit") not in SETTINGS
    assert [s.network for s in SETTINGS if s.tractable] == ["linear", "circuit"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_models_that_differ_in_the_estimator_only_start_alike(setting: Setting) -> None:
    x = Data.of("digits", setting.likelihood, None, CPU).start()
    one, other = (build(setting, SMOKE, x, seed=1) for _ in range(2))
    with_estimator(one, estimator_named("relax", SMOKE.latents))
    for name, weight in other.state_dict().items():
        assert torch.equal(weight, one.state_dict()[name])
    another = build(setting, SMOKE, x, seed=2)
    assert not all(torch.equal(a, b) for a, b in zip(other.parameters(), another.parameters(), strict=True))


def test_bits_are_drawn_anew_and_signed_images_lie_between_minus_one_and_one() -> None:
    bits = Data.of("digits", "bernoulli", None, CPU)
    first, second = next(bits.training(torch.Generator().manual_seed(0))), next(bits.fixed("train", 100))
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(second, next(bits.fixed("train", 100)))
    stored = bits.observations.rows("train").between(0, 100)
    assert not torch.equal(bits.observations.as_seen(stored), bits.observations.as_seen(stored))
    signed = next(Data.of("digits", "gaussian", None, CPU).training(torch.Generator().manual_seed(0)))
    assert -1 <= signed.min() < -0.9
    assert 0.8 < signed.max() <= 1


# ----- runs


def training(folder: Path, estimator: EstimatorName = "relax", setting: Setting = SETTINGS[1]) -> Training:
    return Training(BenchmarkRun(setting, estimator, 0), "smoke", SMOKE, folder, None, CPU)


@pytest.mark.parametrize("estimator", ["relax", "reinforce", "double-cv"])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    tmp_path: Path, estimator: EstimatorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silentgrad.lab.experiments.benchmark.loop.SAVED_EVERY", 0.0)
    training(tmp_path / "whole", estimator).finish()
    advance, calls = Training._advance, []

    def once(self: Training, batches: object) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(self)
        advance(self, batches)  # type: ignore[arg-type]

    monkeypatch.setattr(Training, "_advance", once)
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "cut", estimator).finish()
    monkeypatch.undo()
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    torch.manual_seed(5)  # what other work draws is no matter
    training(tmp_path / "cut", estimator).finish()
    whole, cut = read_result(tmp_path / "whole"), read_result(tmp_path / "cut")
    assert cut.curve == whole.curve
    assert cut.test == whole.test
    assert not (tmp_path / "cut" / CHECKPOINT).exists()
    assert whole.curve.elbos[-1] > whole.curve.elbos[0]


def test_a_run_that_diverges_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training(tmp_path, "rloo", LINEAR)
    monkeypatch.setattr(run, "optimizer", torch.optim.SGD(run.model.parameters(), lr=1e30))
    run.finish()
    result = read_result(tmp_path)
    assert result.diverged is not None
    assert result.test is None


def test_noise_and_time_are_measured_on_the_same_weights(tmp_path: Path) -> None:
    training(tmp_path, "rloo", LINEAR).finish()
    names: list[EstimatorName] = ["exact", "rloo", "nvil", "rebar", "reinmax"]
    weights = Weights(LINEAR, "smoke", SMOKE, tmp_path, 20)
    for path in (tmp_path / "noise.json", tmp_path / "again.json"):
        measure_noise(weights, names, path, None, CPU)
    found = read_noise(tmp_path / "noise.json")
    assert found == read_noise(tmp_path / "again.json")
    assert list(found) == names
    assert found["exact"].variance == 0
    assert found["exact"].cosine == pytest.approx(1)
    assert all(noise.variance > 0 for name, noise in found.items() if name != "exact")
    assert [noise.evaluations for noise in found.values()] == [0, 2, 1, 3, 1]
    assert set(milliseconds(weights, names, None, CPU)) == set(names)


def test_orders_compare_work_where_evaluations_differ() -> None:
    noises = {
        "rloo": Noise(4.0, 0.1, 1.0, 2, None),
        "disarm": Noise(3.0, 0.1, 1.0, 2, None),
        "arms": Noise(2.5, 0.1, 1.0, 4, None),
    }
    table = orders_table({"here": {0: noises}})
    found = {column.name: part for column, part in zip(table.columns, table.rows[0], strict=True)}
    assert found["disarm / rloo (Dong et al. 2020)"] == 0.75
    assert found["arms / rloo (Dimitriev and Zhou 2021)"] == 1.25
    assert found["disarm / arm (Dong et al. 2020)"] is None
    assert told(table) == [
        "Orders of variance that papers claim: 1 of 2 hold.",
        "Not here: arms below rloo (here, step 0: 1.25).",
    ]


def test_a_curve_knows_when_it_first_was_so_high() -> None:
    curve = Curve([0, 10, 20], [-5.0, -3.0, -4.0])
    assert (curve.first_reach(-4.5), curve.first_reach(-3.0), curve.first_reach(-1.0)) == (10, 10, None)


def test_rows_are_in_the_order_of_their_elbo_behind_the_exact_one(tmp_path: Path) -> None:
    results = {}
    for name, end in {"exact": -3.0, "rloo": -2.0, "disarm": -1.0}.items():
        folder = tmp_path / name
        training(folder, "rloo", LINEAR).finish()
        results[name] = [read_result(folder)]
        results[name][0].curve.elbos[-1] = end
    found = Found(LINEAR, results, {}, {})  # type: ignore[arg-type]
    assert found.ranked(["rloo", "indecater", "disarm", "exact"]) == ["exact", "disarm", "rloo", "indecater"]


# ----- the command

FEW = ["--estimators", "[exact,rloo,reinmax]", "--datasets", "[mnist]", "--accelerator", "cpu", "--jobs", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    main(["benchmark", "--scale", "smoke", "--folder", str(folder), *FEW])
    return folder


def test_a_benchmark_has_a_table_for_each_setting(finished: Path) -> None:
    record = read_benchmark(finished / "benchmark.json")
    assert [panel.table.name for panel in record.panels] == [setting.name for setting in SETTINGS]
    for panel in record.panels:
        names = [row[0] for row in panel.table.rows]
        assert sorted(map(str, names)) == sorted(panel.curves)
        assert ("exact" in names) == panel.table.name.endswith(("gaussian-linear", "gaussian-circuit"))
        heads = [column.name for column in panel.table.columns]
        assert ("cosine to exact, step 20" in heads) == ("exact" in names)
        assert all(len(row) == len(heads) for row in panel.table.rows)
        assert panel.table.best == []
        for progress in panel.curves.values():
            assert progress.steps == [0, 10, 20]
            assert all(map(math.isfinite, progress.elbos))
    assert record.verdicts == []
    assert any("mean nothing" in note for note in record.notes)
    text = (finished / "benchmark.md").read_text()
    assert "silentgrad benchmark --scale smoke" in text
    assert "digits, Gaussian, linear" in text
    assert "MNIST" not in text
    assert len((finished / "mnist-gaussian-linear.csv").read_text().splitlines()) == 4


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page(finished: Path, tmp_path: Path, width: int) -> None:
    assert look(finished / "benchmark.html", width, tmp_path).problems == []


def test_what_is_finished_is_kept_and_other_settings_are_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = sorted(finished.glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    main(["benchmark", "--scale", "smoke", "--folder", str(finished), *FEW])
    assert [path.stat().st_mtime_ns for path in results] == before
    assert f"{len(results)} of them finished before" in capsys.readouterr().out
    content = json.loads(results[0].read_text())
    results[0].write_text(json.dumps({**content, "protocol": "another"}))
    with pytest.raises(SystemExit):
        main(["benchmark", "--scale", "smoke", "--folder", str(finished), *FEW])
    assert "was made with other settings" in capsys.readouterr().err
    results[0].write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--likelihoods", "[bernoulli]", "--networks", "[circuit]"], "circuit needs --likelihoods gaussian"),
        (["--estimators", "[exact]", "--likelihoods", "[bernoulli]"], "none of --estimators"),
        (["--estimators", "[stl]"], "none of --estimators"),
        (["--seeds", "0"], "--seeds"),
        (["--datasets", "[cifar10]"], "cifar10"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_made(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["benchmark", "--scale", "smoke", "--folder", str(tmp_path / "new"), *options])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
