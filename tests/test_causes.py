"""The experiment that separates a guide's causes: its statistics, its measurements, its cells, and its table."""

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import ttest_rel  # type: ignore[import-untyped]
from torch import Tensor

import silentgrad as sg
from silentgrad.analysis import training_variance
from silentgrad.lab.data import load
from silentgrad.lab.experiments import causes, causes_table
from silentgrad.lab.experiments.causes import CAUSES, HOSTS, NONE, cause_cells, measured_epochs
from silentgrad.lab.experiments.effects import best_by, compared
from silentgrad.lab.experiments.paired import Difference, paired
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.experiments.runner import run_all
from silentgrad.lab.networks import Encoder, NonlinearGaussian, mlp_body, mlp_network
from silentgrad.lab.runs.records import read_summary
from silentgrad.lab.training.build import build_model, model_for
from silentgrad.schedules import constant, linear_decay
from summaries import WHOLE

SHAPE, LATENTS = (1, 3, 3), 2


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_a_paired_t_test(seeds: int) -> None:
    torch.manual_seed(seeds)
    changed, reference = torch.randn(2, seeds, dtype=torch.float64).tolist()
    found = paired(changed, reference)
    assert found is not None
    assert found.margin is not None
    interval = ttest_rel(changed, reference).confidence_interval(0.95)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Difference(-0.2, 0.1), "helps"),
        (Difference(-0.2, 0.3), "undecided"),
        (Difference(0.2, 0.1), "hurts"),
        (Difference(-9.0, None), "one seed"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(difference: Difference, verdict: str) -> None:
    assert difference.verdict == verdict


def test_no_pair_no_difference() -> None:
    assert paired([], []) is None
    one = paired([1.0], [3.0])
    assert one == Difference(-2.0, None)


def guided(estimator: sg.Estimator, tractable_estimator: sg.Estimator | None = None) -> sg.GuidedVAE:
    torch.manual_seed(0)
    family = sg.families.Gaussian(LATENTS)
    return sg.GuidedVAE(
        Encoder(mlp_body(SHAPE, family.numbers, [6]), family),
        sg.LinearGaussian(LATENTS, SHAPE, 0.1),
        NonlinearGaussian(mlp_network(LATENTS, SHAPE, [6]), SHAPE),
        estimator=estimator,
        tractable_estimator=tractable_estimator,
        schedule=linear_decay(epochs=4),
    ).eval()


def batches() -> Tensor:
    return torch.rand(4, 5, *SHAPE, generator=torch.Generator().manual_seed(1))


def flat_gradient(model: sg.GuidedVAE, x: Tensor, epoch: float) -> Tensor:
    parameters = list(model.encoder.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(model(x, epoch).total, parameters)])


@pytest.mark.parametrize("epoch", [1, 4])
@pytest.mark.parametrize(
    "of_guide", [None, sg.Reparameterized(), sg.Averaged(sg.Reparameterized(), 3)], ids=["exact", "1", "3"]
)
def test_the_training_variance_is_that_of_all_gradients_kept(of_guide: sg.Estimator | None, epoch: int) -> None:
    """By the definition: every draw's gradient at once, with the draws of the same seed."""
    model, draws = guided(sg.Reparameterized(), of_guide).double(), 6
    found = training_variance(model, batches().double(), draws, epoch, seed=5)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        gradients = []
        for x in batches().double():
            gradients.append(torch.stack([flat_gradient(model, x, epoch) for _ in range(draws)]))
    by_batch = torch.stack(gradients)
    est = by_batch.var(1).mean(0).sum()
    spread = by_batch.mean(1).var(0).sum()
    batch = spread - est / draws
    signal = by_batch.mean((0, 1)).square().sum() - spread / len(by_batch)
    expected = (est, batch, 100 * est / (est + batch), signal / (est + batch))
    assert (found.est, found.batch, found.est_percent, found.snr) == pytest.approx([float(e) for e in expected])


def test_an_exact_guide_alone_has_no_variance() -> None:
    model = guided(sg.Reparameterized())
    model.schedule = constant(1.0)
    assert training_variance(model, batches(), 4, 1).est == 0.0


def test_what_cannot_be_measured_is_refused() -> None:
    model = guided(sg.Reparameterized())
    with pytest.raises(sg.DomainError, match="at least 2 draws"):
        training_variance(model, batches(), 1, 1)
    with pytest.raises(sg.DomainError, match="at least 4 batches"):
        training_variance(model, batches()[:3], 2, 1)


def test_rows_of_a_host_differ_in_their_cause_only() -> None:
    cells = cause_cells("cpu", causes.DATASETS, 3)
    assert len(cells) == 3 * 2 * len(HOSTS) * len(CAUSES) * 3
    assert len({cell.name for cell in cells}) == len(cells)
    by_name = {cell.name: cell.settings for cell in cells}
    for cell in cells:
        cell.settings.validate()
        assert cell.settings.train.keep[-1] == cell.settings.train.epochs
        host, _, cause = cell.method.partition("-")
        none = by_name[cell._replace(method=f"{host}-{NONE}").name]
        differing = {"tractable", "lr_mean", "lr_precision"} if CAUSES[cause].guided else set()
        differing |= {*CAUSES[cause].model, *CAUSES[cause].train}
        if "guide_draws" in differing:
            differing.add("guide_estimator")
        found = set()
        for ours, theirs in zip(cell.settings, none, strict=True):
            found |= {name for name, value in vars(ours).items() if value != getattr(theirs, name)}
        assert found <= differing
        assert "tractable" not in differing or "tractable" in found


def test_the_hosts_can_be_built() -> None:
    shapes = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
    for cell in cause_cells("cpu", causes.DATASETS, 1):
        build_model(cell.settings.model, torch.Size(shapes[cell.dataset]), 256)
    digits = load("digits")
    for cell in cause_cells("smoke", ["mnist", "cifar10"], 1):
        model_for(cell.settings.model, digits)


def test_gradients_are_measured_where_the_guide_has_weight_and_where_it_has_none() -> None:
    for epochs in (4, 8, 12, 24):
        weight = linear_decay(epochs=causes.GUIDED * epochs)
        first, *_, last = measured_epochs(epochs)
        assert weight(first - 0.5) >= 0.5
        assert weight(last - 0.5) == 0.0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One family of latents, one network and three causes."""
    kept = {name: CAUSES[name] for name in (NONE, "exact", "sampled-16")}
    monkeypatch.setattr(causes, "CAUSES", kept)
    monkeypatch.setattr(causes, "FAMILIES", {"gaussian": causes.FAMILIES["gaussian"]})
    monkeypatch.setattr(causes, "HOSTS", {"mlp": HOSTS["mlp"]})


@pytest.mark.usefixtures("few")
def test_the_table_has_the_runs_figures_and_their_differences(tmp_path: Path) -> None:
    cells = cause_cells("smoke", ["mnist"], 2)
    run_all(cells, tmp_path, 2, None, "cpu")
    smoke = causes_table.causes_table(Results(tmp_path, cells), "smoke", None)
    assert smoke.verdicts == []
    assert {row[0] for row in smoke.rows} == {"digits"}
    assert "verdict" not in [column.name for column in smoke.columns]
    by_title = {row[3]: row for row in smoke.rows}
    assert set(by_title) == {cause.title for cause in causes.CAUSES.values()}
    figures = {}
    for cell in cells:
        figures[cell.method, cell.seed] = read_summary(tmp_path / cell.name / "summary.json").figure
    for name, cause in causes.CAUSES.items():
        own = [figures[f"mlp-{name}", seed] for seed in (0, 1)]
        assert by_title[cause.title][4].mean == pytest.approx(sum(own) / 2)
    shown = compared(Results(tmp_path, cells), cells[2:4], cells[:2])
    assert cells[0].method == f"mlp-{NONE}"
    expected = [figures[cells[2].method, seed] - figures[cells[0].method, seed] for seed in (0, 1)]
    assert shown is not None
    assert shown.mean == pytest.approx(sum(expected) / 2)


def made_up(results: Results, figures: dict[str, list[float]], epoch_seconds: dict[str, list[float]]) -> None:
    """Finished runs of two epochs, after which validation figures are 2 and 1 above the test's."""
    for cell in results.cells:
        bpd, seconds = figures[cell.method][cell.seed], epoch_seconds[cell.method][cell.seed]
        folder = results.folder / cell.name
        (folder / "epochs").mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(WHOLE | {"bpd": bpd, "seconds": 2 * seconds}))
        rows = [f"1,{seconds},{bpd + 2}", f"2,{2 * seconds},{bpd + 1}"]
        (folder / "metrics.csv").write_text("\n".join(["epoch,seconds,valid_bpd", *rows]) + "\n")
        for epoch in cell.settings.train.keep:
            noise = {"est_percent": 10.0 * epoch, "snr": 1 / epoch}
            (folder / "epochs" / f"{epoch}-variance-cpu.json").write_text(json.dumps(noise))


@pytest.mark.usefixtures("few")
def test_effects_after_the_same_steps_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes_table, "load", lambda name, root: None)
    results = Results(tmp_path, cause_cells("cpu", ["mnist"], 3))
    figures = {"mlp-none": [4.0, 4.1, 4.2], "mlp-exact": [3.7, 3.8, 3.95], "mlp-sampled-16": [4.1, 3.9, 4.3]}
    # Other work slowed one run: its row counts as in the two others, half as quick as none.
    seconds = {"mlp-none": [10.0, 10.0, 10.0], "mlp-exact": [15.0, 90.0, 15.0], "mlp-sampled-16": [10.0, 10.0, 10.0]}
    made_up(results, figures, seconds)
    table = causes_table.causes_table(results, "cpu", None)
    rows = {row[3]: row for row in table.rows}
    assert rows["none"][5:11] == [None] * 6
    margin = 4.302652730 * 0.0288675 / 3**0.5
    low, high = -0.28333 - margin, -0.28333 + margin
    assert rows["guide, exact"][5:7] == [f"-0.283 [{low:+.3f}, {high:+.3f}]", "helps"]
    # In none's 20 seconds the guided runs had a third of their second epoch, which takes them from 2 to 1 above.
    low, high = 2 / 3 + low, 2 / 3 + high
    assert rows["guide, exact"][7:9] == [f"+0.383 [{low:+.3f}, {high:+.3f}]", "hurts"]
    assert rows["guide, exact"][9:11] == [None, None]
    assert rows["guide, 16 samples"][6] == "undecided"
    assert rows["guide, 16 samples"][9].startswith("+0.283")
    assert rows["none"][12:14] == ["10, 20, 80", "1, 0.5, 0.12"]
    assert table.verdicts[0] == "guide, exact: helps 1 of 1 hosts; mean change -0.283 BPD."
    assert table.verdicts[-1].startswith(
        "guide, 16 samples, against the exact guide: undecided 1 of 1 hosts; mean change"
    )
    (tmp_path / results.cells[-1].name / "failure.json").write_text("{}")
    (tmp_path / results.cells[-1].name / "summary.json").unlink()
    diverged = causes_table.causes_table(results, "cpu", None).rows[-1]
    assert diverged[4] == "diverged (1 of 3)"
    assert diverged[5:11] == [None] * 6  # the seeds that are left would be chosen


def test_a_row_that_is_hardly_slower_is_hardly_behind() -> None:
    figures = [4.5, 4.1, 3.9, 3.8]
    quick, slow = [10.0, 20.0, 30.0, 40.0], [10.1, 20.2, 30.3, 40.4]
    assert best_by(slow, figures, 40.0) == pytest.approx(best_by(quick, figures, 40.0), abs=0.005)
    assert best_by(quick, [4.0, 5.0, 3.0, 9.0], 1e9) == 3.0
    assert best_by(quick, figures, 1.0) == 4.5


def test_a_measurement_takes_the_estimators_of_its_epoch_and_leaves_them_alone() -> None:
    torch.manual_seed(0)
    family = sg.families.Bernoulli(LATENTS)
    encoder = Encoder(mlp_body(SHAPE, family.numbers, [6]), family)
    network = NonlinearGaussian(mlp_network(LATENTS, SHAPE, [6]), SHAPE)
    cooling = sg.GumbelSoftmax(lambda epoch: 1.0 / epoch)
    model = sg.GuidedVAE(encoder, nonlinear=network, estimator=cooling)
    late = training_variance(model, batches(), 4, 7.5)
    assert cooling.temperature == 1.0
    cooling.on_epoch(8)
    assert training_variance(model, batches(), 4, 7.5) == late
    scoring = sg.Reinforce()
    training_variance(sg.GuidedVAE(encoder, nonlinear=network, estimator=scoring).train(), batches(), 4, 1)
    assert scoring.seen == 0
