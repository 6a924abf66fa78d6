"""The benchmark of estimators: toy problems with known answers, runs that go on to the same bits, and the command."""

import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import distributions as td

from browser import WIDTHS, look, needs_browser
from runs import fails
from silentgrad.analysis import Decomposition
from silentgrad.analysis.tally import Figures
from silentgrad.lab.cli.benchmark import run_benchmark
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import Observations
from silentgrad.lab.experiments.benchmark import runs
from silentgrad.lab.experiments.benchmark.comparison import Found, orders_table, told
from silentgrad.lab.experiments.benchmark.gradients import (
    ReferenceWeights,
    Toy,
    measure_toy,
    milliseconds_of,
    toys,
    variances_at,
)
from silentgrad.lab.experiments.benchmark.problem import build, fixed_batches, observations_of, with_estimator
from silentgrad.lab.experiments.benchmark.protocol import (
    SIZES,
    BenchmarkPlan,
    BenchmarkRun,
    Setting,
    estimator_named,
    settings_of,
)
from silentgrad.lab.experiments.benchmark.runs import (
    CHECKPOINT,
    CurvePoints,
    Result,
    loop_of,
    read_result,
    runs_by,
    train,
)
from silentgrad.lab.settings import EstimatorName
from silentgrad.lab.training.loop import Loop

SMOKE = SIZES["smoke"]
SETTINGS = settings_of(["mnist"], ["bernoulli", "gaussian"], ["linear", "nonlinear", "circuit"])
LINEAR = Setting("mnist", "gaussian", "linear")
NOTHING = BenchmarkPlan("smoke", SETTINGS, None, None, Path("folder"), None, "cpu")


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
    observations = observations_of(setting, NOTHING)
    one, other = (build(setting, SMOKE, observations, seed=1) for _ in range(2))
    with_estimator(one, estimator_named("relax", SMOKE.latents))
    for name, weight in other.state_dict().items():
        assert torch.equal(weight, one.state_dict()[name])
    another = build(setting, SMOKE, observations, seed=2)
    assert not all(torch.equal(a, b) for a, b in zip(other.parameters(), another.parameters(), strict=True))


def test_bits_are_drawn_anew_and_signed_images_lie_between_minus_one_and_one() -> None:
    bits = observations_of(SETTINGS[0], NOTHING)
    first = next(fixed_batches(bits, "train", 100))
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(first, next(fixed_batches(bits, "train", 100)))
    stored = bits.rows("train").between(0, 100)
    assert not torch.equal(bits.as_seen(stored), bits.as_seen(stored))
    signed = observations_of(LINEAR, NOTHING)
    x = next(fixed_batches(signed, "train", 100))
    assert -1 <= x.min() < -0.9
    assert 0.8 < x.max() <= 1
    rows = signed.rows("train").between(0, 100)
    many = torch.stack([signed.as_seen(rows) for _ in range(300)])
    torch.testing.assert_close(many.mean(0), signed.centre(rows), atol=0.02, rtol=0)
    assert many.std(0).mean().item() == pytest.approx(signed.noise_deviation, rel=0.01)


def test_a_uniform_density_over_signed_levels_costs_the_bits_of_a_level() -> None:
    signed = observations_of(LINEAR, NOTHING)
    uniform = -signed.event_shape.numel() * math.log(2)  # a density of 1/2 on [-1, 1]
    assert signed.figure(uniform) == pytest.approx(math.log2(signed.resolution))


# ----- runs


def plan_in(folder: Path, *names: EstimatorName) -> BenchmarkPlan:
    return NOTHING._replace(folder=folder, settings=[LINEAR], estimators=names)


def trained(folder: Path, run: BenchmarkRun) -> Result:
    train(run, plan_in(folder))
    return read_result(folder / run.name)


@pytest.mark.parametrize("estimator", ["relax", "reinforce", "double-cv"])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    tmp_path: Path, estimator: EstimatorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BenchmarkRun(SETTINGS[1], estimator, 0)
    whole = trained(tmp_path / "whole", run)
    report = CurvePoints.__call__

    def once(points: CurvePoints, loop: Loop) -> None:
        report(points, loop)
        if loop.epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CurvePoints, "__call__", once)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", run)
    assert (tmp_path / "cut" / run.name / CHECKPOINT).exists()
    torch.manual_seed(5)  # what other work draws is no matter
    cut = trained(tmp_path / "cut", run)
    for part in ("steps", "elbos", "test", "valid"):
        assert getattr(cut, part) == getattr(whole, part)
    assert not (tmp_path / "cut" / run.name / CHECKPOINT).exists()
    assert whole.elbos[-1] > whole.elbos[0]
    for kept in (tmp_path / "whole" / run.name).glob("*.safetensors"):
        assert kept.read_bytes() == (tmp_path / "cut" / run.name / kept.name).read_bytes()


def test_steps_are_those_of_adam_on_batches_that_all_estimators_share(tmp_path: Path) -> None:
    loops = []
    for name in ("rloo", "disarm"):
        loops.append(loop_of(BenchmarkRun(LINEAR, name, 0), NOTHING, observations_of(LINEAR, NOTHING)))
    assert [loop.steps for loop in loops] == [SMOKE.steps] * 2
    for loop in loops:
        assert type(loop.optimizer) is torch.optim.Adam
        assert {(group["lr"], group["weight_decay"], *group["betas"]) for group in loop.optimizer.param_groups} == {
            (1e-3, 0, 0.9, 0.999)
        }
    for (_, one), (_, other) in zip(*(loop.batches for loop in loops), strict=True):
        assert len(one) == 100
        assert torch.equal(one.stored, other.stored)


def changed_loop(monkeypatch: pytest.MonkeyPatch, change: Callable[[Loop], object]) -> None:
    """Let runs be trained by loops that were changed."""

    def changed(run: BenchmarkRun, plan: BenchmarkPlan, observations: Observations) -> Loop:
        loop = loop_of(run, plan, observations)
        change(loop)
        return loop

    monkeypatch.setattr(runs, "loop_of", changed)


def test_a_run_that_diverges_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def far(loop: Loop) -> None:
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e30)

    changed_loop(monkeypatch, far)
    result = trained(tmp_path, BenchmarkRun(LINEAR, "rloo", 0))
    assert result.diverged is not None
    assert result.test is None


def test_an_error_that_is_no_divergence_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a stranger's mistake")

    changed_loop(monkeypatch, lambda loop: monkeypatch.setattr(loop, "forward", fail))
    with pytest.raises(ValueError, match="a stranger's mistake"):
        trained(tmp_path, BenchmarkRun(LINEAR, "rloo", 0))
    assert not list(tmp_path.glob("*/result.json"))


def test_noise_and_time_are_measured_on_the_same_weights(tmp_path: Path) -> None:
    trained(tmp_path, BenchmarkRun(LINEAR, "rloo", 0))
    names = ["exact", "rloo", "nvil", "rebar", "reinmax"]
    plan = plan_in(tmp_path, *names)
    found = variances_at(plan, LINEAR, 20)
    assert found == variances_at(plan, LINEAR, 20) == ReferenceWeights(plan, LINEAR, 20).variances(plan.names(LINEAR))
    assert sorted(found) == sorted(names)
    assert found["exact"].est == 0
    assert found["exact"].cosine == pytest.approx(1)
    assert all(noise.est > 0 for name, noise in found.items() if name != "exact")
    assert [found[name].evaluations for name in names] == [0, 2, 1, 3, 1]
    times = milliseconds_of(plan, LINEAR)
    assert set(times) == set(names)
    assert milliseconds_of(plan, LINEAR) == times
    more = plan_in(tmp_path, *names, "disarm")
    added = variances_at(more, LINEAR, 20)
    assert added.pop("disarm").est > 0
    assert added == found
    assert "disarm" in milliseconds_of(more, LINEAR)


def noise(variance: float, evaluations: int) -> Decomposition:
    return Decomposition(variance, 1.0, 1.0, 1.0, Figures(0.1, 0.1, 0.1, 0.1), None, {}, evaluations)


def test_orders_compare_work_where_evaluations_differ() -> None:
    noises = {"rloo": noise(4.0, 2), "disarm": noise(3.0, 2), "arms": noise(2.5, 4)}
    table = orders_table({"here": {0: noises}})
    found = {column.name: part for column, part in zip(table.columns, table.rows[0], strict=True)}
    assert found["disarm / rloo (Dong et al. 2020)"] == 0.75
    assert found["arms / rloo (Dimitriev and Zhou 2021)"] == 1.25
    assert found["disarm / arm (Dong et al. 2020)"] is None
    assert told(table) == [
        "Orders of variance that papers claim: 1 of 2 hold.",
        "Not here: arms below rloo (here, step 0: 1.25).",
    ]


def result(elbos: list[float]) -> Result:
    return Result("", list(range(0, 10 * len(elbos), 10)), elbos, elbos[-1], None, None)


def test_a_curve_knows_when_it_first_was_so_high() -> None:
    curve = result([-5.0, -3.0, -4.0])
    assert (curve.first_reach(-4.5), curve.first_reach(-3.0), curve.first_reach(-1.0)) == (10, 10, None)


def test_rows_are_in_the_order_of_their_test_bound_behind_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found(plan_in(Path("folder"), "rloo", "arm", "disarm", "exact"), LINEAR)
    results = {name: [result([-9.0, end])] for name, end in {"exact": -3.0, "rloo": -2.0, "disarm": -1.0}.items()}
    monkeypatch.setitem(found.__dict__, "results", results)
    assert found.ranked == ["exact", "disarm", "rloo", "arm"]


# ----- the command

FEW = ["--estimators", "[exact,rloo,reinmax]", "--datasets", "[mnist]", "--accelerator", "cpu", "--jobs", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    main(["benchmark", "--scale", "smoke", "--folder", str(folder), *FEW])
    return folder


def test_a_benchmark_has_a_table_for_each_setting(finished: Path) -> None:
    record = json.loads((finished / "benchmark.json").read_text())
    tables, curves = record["parts"][0:-3:2], record["parts"][1:-3:2]
    assert [table["name"] for table in tables] == [setting.name for setting in SETTINGS]
    for table, lines in zip(tables, curves, strict=True):
        names = [row[0] for row in table["rows"]]
        assert sorted(names) == sorted(lines["lines"])
        assert ("exact" in names) == table["name"].endswith(("gaussian-linear", "gaussian-circuit"))
        heads = [column["name"] for column in table["columns"]]
        assert heads[:3] == ["estimator", "test bound", "training ELBO"]
        assert all(len(row) == len(heads) for row in table["rows"])
        assert table["best"] == []
        for progress in lines["lines"].values():
            assert progress["steps"] == [0, 10, 20]
            assert all(map(math.isfinite, progress["elbos"]))
    assert record["verdicts"] == []
    assert any("mean nothing" in note for note in record["notes"])
    text = (finished / "benchmark.md").read_text()
    assert "silentgrad benchmark --scale smoke" in text
    assert "digits, Gaussian, linear" in text
    assert "MNIST" not in text
    assert len((finished / "mnist-gaussian-linear.csv").read_text().splitlines()) == 4
    everything = (finished / "benchmark.csv").read_text().splitlines()
    assert len(everything) == 1 + sum(len(table["rows"]) for table in tables)
    assert "squared error of 10 draws, step 20" in everything[0]


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page(finished: Path, tmp_path: Path, width: int) -> None:
    assert look(finished / "benchmark.html", width, tmp_path).problems == []


def test_a_script_tunes_a_strangers_class_of_categories_without_a_guard(tmp_path: Path) -> None:
    """In one process; validation decides between runs of seed 0."""
    found = run_benchmark(
        ["rloo", "reinmax"], str(tmp_path / "here"), scale="smoke", tune=True, accelerator="cpu",
        datasets=["mnist"], likelihoods=["gaussian"], networks=["linear"], latents=["8x4"],
    )  # fmt: skip
    plan = plan_in(tmp_path / "here", "rloo", "reinmax")._replace(
        tune=True, settings=[Setting("mnist", "gaussian", "linear", "8x4")]
    )
    for name, count in (("rloo", 3), ("reinmax", 6)):
        runs = plan.candidates(plan.settings[0], name)
        assert len(runs) == count
        bounds = [read_result(plan.folder / run.name).valid for run in runs]
        assert runs_by(plan, plan.settings[0], name)[0] == runs[bounds.index(max(bounds))]
    assert found.tables[0].title == "digits, Gaussian, linear, 8 x 4 categories"
    assert "--latents 8x4" in found.command


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
    line = ["benchmark", "--scale", "smoke", "--folder", str(finished), *FEW]
    assert "was made with other settings" in fails(capsys, *line)
    results[0].write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--likelihoods", "[bernoulli]", "--networks", "[circuit]"], "circuit needs --likelihoods gaussian"),
        (["--estimators", "[exact]", "--likelihoods", "[bernoulli]"], "none of --estimators"),
        (["--estimators", "[rloo,stl]"], "--estimators stl is not for bits"),
        (["--estimators", "[rlo]"], "--estimators rlo is no estimator"),
        (["--estimators", "[rloo,no_such_module:Mine]"], "--estimators no_such_module:Mine cannot be imported"),
        (["--estimators", "[rloo,silentgrad:Mine]"], "--estimators silentgrad:Mine cannot be imported"),
        pytest.param(
            ["--accelerator", "mps"],
            "--accelerator mps (devices 1, precision 32-true) is not to be had on this machine",
            marks=pytest.mark.skipif(torch.backends.mps.is_available(), reason="it is to be had here"),
        ),
        (["--seeds", "0"], "--seeds"),
        (["--datasets", "[cifar10]"], "cifar10"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_made(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in fails(capsys, "benchmark", "--scale", "smoke", "--folder", str(tmp_path / "new"), *options)
    assert not (tmp_path / "new").exists()


def test_a_strangers_class_in_the_current_folder_is_trained_by_worker_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the current folder tells where the module is, neither here nor in the workers."""
    shutil.copy(Path(__file__).parents[1] / "examples" / "my_estimator.py", tmp_path / "stranger.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    words = ["--estimators", "rloo,stranger:MyEstimator", "--likelihoods", "bernoulli", "--networks", "linear"]
    main(["benchmark", "--scale", "smoke", *FEW[2:], *words])
    assert "stranger:MyEstimator" in (tmp_path / "benchmark" / "smoke" / "mnist-bernoulli-linear.csv").read_text()
    assert "" in sys.path
