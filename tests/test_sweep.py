"""A sweep trains every point of its space once, whatever interrupts it, and says which was the best."""

import dataclasses
import re
import shlex
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from refusals import refused
from runs import SMALL as WORDS
from runs import Cli, interrupted, rows, train
from silentgrad.lab.cli.main import setting
from silentgrad.lab.experiments import runner, study
from silentgrad.lab.experiments import sweep as module
from silentgrad.lab.experiments.space import Sweep, SweepError, search_space
from silentgrad.lab.experiments.sweep import Outcome
from silentgrad.lab.settings.documents import read_settings
from silentgrad.lab.store.records import Run, Summary
from silentgrad.lab.training import Settings, TrainConfig
from workers import AROUND, write_metrics, write_summary

RATES, ANNEALING = ["1e-3", "1e-4", "1e-5"], ["0.5", "0.05"]
ONE = f"train.lr={','.join(RATES)}"
BOTH = (ONE, f"model.guided={','.join(ANNEALING)}")
SMALL = AROUND._replace(train=dataclasses.replace(AROUND.train, epochs=6))


def planned(folder: Path, *over: str, around: Settings = SMALL, **options: Any) -> Sweep:
    return Sweep("study", around, search_space(over or BOTH, setting), folder / "sweep", **options)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with Optuna's tables, which take a second to make."""
    path = tmp_path_factory.mktemp("database") / "study.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/study.db"


def run_sweep(plan: Sweep, storage: str) -> Outcome:
    return module.run_sweep(plan, storage, runner.INLINE, quiet=True)


class Trainer:
    """Stands in for train_model: a curve instead of a training, and a log of what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float, str, bool]] = []
        self.at_epoch: Callable[[float, int], None] = lambda lr, epoch: None
        self.watch: Callable[[], float] = lambda: 0.0

    def __call__(
        self, data: Any, model: Any, train: Any, folder: Path, resume: bool, quiet: bool, reports: Any, rows: Any
    ) -> Summary:
        self.asked.append((train.lr, model.guided, folder.name, resume))
        watch = self.watch
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("{}")
        curve: list[tuple[float, float]] = []
        for epoch in range(1, train.epochs + 1):
            self.at_epoch(train.lr, epoch)
            curve.append((10.0 * epoch, 3 + abs(train.lr - 1e-4) * 1e3 + model.guided + 2 / epoch))
            write_metrics(folder, curve)
            watch()
            for report in reports:
                report(SimpleNamespace(epoch=epoch))
        return write_summary(folder, figure=curve[-1][1] + 0.5, epochs=train.epochs, seconds=60.0)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, template: Path, tmp_path: Path) -> Trainer:
    """Trains in this process, and has each trial watched after each epoch; the database is empty."""
    stub = Trainer()
    shutil.copy(template, tmp_path / "study.db")

    class Taken(module._Taken):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            stub.watch = self.watch

    monkeypatch.setattr(runner, "train_model", stub)
    monkeypatch.setattr(module, "_Taken", Taken)
    return stub


def points(folder: Path, *states: str) -> list[tuple[str, ...]]:
    names = ("train.lr", "model.guided")
    found = [trial for trial in rows(folder / "sweep" / "trials.csv") if not states or trial["state"] in states]
    return sorted(tuple(trial[name] for name in names if name in trial) for trial in found)


ALL = sorted((lr, rate) for lr in RATES for rate in ANNEALING)


def test_any_setting_is_varied_and_the_papers_grid_is_known() -> None:
    space = search_space(["train.lr,model.guided,model.cutoff"], setting)
    assert {name: set(varied.values.values()) for name, varied in space.items()} == {
        "train.lr": {1e-4, 5e-4, 1e-5, 5e-5},
        "model.guided": {0.5, 0.1, 5.0, 1.0},
        "model.cutoff": {50, 80, 100, 150, 200},
    }
    assert search_space(["train.lr", "model.guided,model.cutoff"], setting) == space
    over = ["train.lr=1e-4..1e-2", "model.kl_weight=0.5..1", "model.latent_dim=2..9", "model.hidden=[8,8],[4],16"]
    over += ["model.latent=laplace, gaussian", "train.lr_mean=null,0.0,0"]
    space = search_space(over, setting)
    rate, weight, size, *lists = space.values()
    ranges = FloatDistribution(1e-4, 1e-2, log=True), FloatDistribution(0.5, 1.0), IntDistribution(2, 9)
    assert (rate.distribution, weight.distribution, size.distribution) == ranges
    found = [list(varied.values.values()) for varied in lists]
    assert found == [[[8, 8], [4], [16]], ["laplace", "gaussian"], [None, 0.0]]  # each value once
    sweep = Sweep("study", SMALL, space, Path(), grid=False, trials=1)
    drawn = dict(zip(space, (1e-3, 0.75, 5, "[8,8]", "laplace", "null"), strict=True))
    _, model, train = sweep.at(drawn)
    found = train.lr, model.kl_weight, model.latent_dim, model.hidden, model.latent, train.lr_mean
    assert found == (1e-3, 0.75, 5, [8, 8], "laplace", None)


def test_every_point_once_and_the_worse_pruned(tmp_path: Path, trainer: Trainer, capfd: pytest.CaptureFixture) -> None:
    before = optuna.logging.get_verbosity()
    assert run_sweep(planned(tmp_path, trials=2), url(tmp_path)).done == len(trainer.asked) == 2
    assert (optuna.logging.get_verbosity(), capfd.readouterr().err) == (before, "")  # silent, for this long only
    outcome = run_sweep(planned(tmp_path), url(tmp_path))
    assert run_sweep(planned(tmp_path), url(tmp_path)) == outcome
    assert outcome.done == len(trainer.asked) == 6
    assert sorted(asked[:2] for asked in trainer.asked) == sorted((float(lr), float(rate)) for lr, rate in ALL)
    assert points(tmp_path) == ALL
    assert sorted(asked[2] for asked in trainer.asked) == [f"trial-{number:04}" for number in range(6)]
    best = rows(tmp_path / "sweep" / "trials.csv")[0]
    assert (best["train.lr"], best["model.guided"], best["state"]) == ("1e-4", "0.05", "complete")
    assert float(best["valid. BPD"]) == pytest.approx(3 + 0.05 + 2 / 6)
    text = (tmp_path / "sweep" / "best.yaml").read_text()
    header = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
    assert header["expects"] == f"test BPD {3.05 + 2 / 6 + 0.5:.4f}, validation BPD {3.05 + 2 / 6:.4f} (seed 0)"
    assert header["time"] == "60 seconds"
    assert header["command"] == f"silentgrad train --config {tmp_path}/sweep/best.yaml"
    settings = yaml.safe_load(text)
    assert (settings["train"]["lr"], settings["model"]["guided"], settings["train"]["epochs"]) == (1e-4, 0.05, 6)
    # By hand: pruned after three complete trials, from epoch 2 on, if the best BPD so far exceeds the others' median.
    states = {trial["trial"]: trial["state"] for trial in rows(tmp_path / "sweep" / "trials.csv")}
    curves: list[float] = []
    for lr, guided, name, _ in trainer.asked:
        own = 3 + abs(lr - 1e-4) * 1e3 + guided
        worse = len(curves) >= 3 and own > torch.tensor(curves).quantile(0.5).item()
        epochs = len((tmp_path / "sweep" / name / "metrics.csv").read_text().splitlines()) - 1
        assert (states[name], epochs) == (("pruned", 2) if worse else ("complete", 6))
        if not worse:
            curves.append(own)
    assert len(curves) < 6


def test_suggestions_within_ranges_go_on_where_they_were_stopped(tmp_path: Path, trainer: Trainer) -> None:
    def stop(lr: float, epoch: int) -> None:
        if len(trainer.asked) == 3 and epoch == 2:
            raise KeyboardInterrupt

    plan = planned(tmp_path, "train.lr=1e-5..1e-3", "model.guided=0.5,0.05", grid=False, trials=8)
    trainer.at_epoch = stop
    refused(KeyboardInterrupt, "", lambda: run_sweep(plan, url(tmp_path)))
    stopped = trainer.asked[-1]
    trainer.at_epoch = lambda lr, epoch: None
    assert (run_sweep(plan, url(tmp_path)).done, len(trainer.asked)) == (8, 9)
    assert trainer.asked[3] == (*stopped[:3], True)
    assert len({asked[:2] for asked in trainer.asked}) == len({asked[2] for asked in trainer.asked}) == 8
    assert all(1e-5 <= asked[0] <= 1e-3 for asked in trainer.asked)
    assert (run_sweep(plan, url(tmp_path)).done, len(trainer.asked)) == (8, 9)
    run_sweep(dataclasses.replace(plan, folder=tmp_path / "again", trials=1), f"sqlite:///{tmp_path}/again.db")
    assert trainer.asked[-1][:2] == trainer.asked[0][:2]  # by the same seed


def test_a_sampler_that_asks_again_trains_nothing_twice(tmp_path: Path, trainer: Trainer) -> None:
    plan = planned(tmp_path, "train.lr=1e-4,1e-3", grid=False, trials=9)
    done = run_sweep(plan, url(tmp_path)).done
    assert done == len(trainer.asked) == len(rows(tmp_path / "sweep" / "trials.csv")) == 2
    with study.opened(plan, url(tmp_path)) as found:
        assert [trial.state for trial in found.trials].count(TrialState.COMPLETE) == 2


def test_the_trial_of_a_dead_process(tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken up once its silence is no longer believed."""
    plan = planned(tmp_path, ONE)
    with study.opened(plan, url(tmp_path)) as found:
        taken = study.take(found, plan)
    assert run_sweep(plan, url(tmp_path)).done == 2
    assert points(tmp_path, "running") == [(taken.params["train.lr"],)]
    monkeypatch.setattr(study, "PATIENCE", 0)  # longer than its silence is believed
    run_sweep(plan, url(tmp_path))
    assert sorted(asked[0] for asked in trainer.asked) == sorted(map(float, RATES))
    assert trainer.asked[2][0::2] == (float(taken.params["train.lr"]), "trial-0000")
    assert points(tmp_path) == [(rate,) for rate in sorted(RATES)]


def test_the_database_does_not_say_what_to_write_where(tmp_path: Path, trainer: Trainer) -> None:
    plan = planned(tmp_path, ONE)
    with study.opened(plan, url(tmp_path)) as found:
        other: Any = {"params": {"train.epochs": 9}, "distributions": {"train.epochs": IntDistribution(1, 9)}}
        for state in (TrialState.FAIL, TrialState.RUNNING):
            found.add_trial(optuna.create_trial(state=state, **other, user_attrs={"point": "../outside", "test": -1}))
    run_sweep(plan, url(tmp_path))
    assert sorted(asked[0] for asked in trainer.asked) == sorted(map(float, RATES))
    assert points(tmp_path) == [(rate,) for rate in sorted(RATES)]
    plan, damaged = dataclasses.replace(plan, folder=tmp_path / "again"), f"sqlite:///{tmp_path}/damaged.db"
    with study.opened(plan, damaged) as found:
        lr = {"train.lr": CategoricalDistribution(["../outside"])}
        outside = optuna.create_trial(state=TrialState.WAITING, params={"train.lr": "../outside"}, distributions=lr)
        found.add_trial(outside)
    refused(SweepError, "holds a trial that is none of this sweep", lambda: run_sweep(plan, damaged))
    assert {path.name for path in tmp_path.iterdir()} == {"sweep", "again", "study.db", "damaged.db"}


def test_a_process_that_slept_too_long_leaves_its_point_to_others(tmp_path: Path, trainer: Trainer) -> None:
    """While the first trial trains, another process holds it to be dead: its point is told again and counts once."""

    def given_up(lr: float, epoch: int) -> None:
        if len(trainer.asked) == 1 and epoch == 2:
            with study.opened(planned(tmp_path, ONE), url(tmp_path)) as found:
                found.tell(0, state=TrialState.FAIL)

    trainer.at_epoch = given_up
    assert run_sweep(planned(tmp_path, ONE), url(tmp_path)).done == len(trainer.asked) == 3
    assert points(tmp_path) == [(rate,) for rate in sorted(RATES)]


def test_another_or_a_damaged_sweep_of_that_name_is_refused(tmp_path: Path, trainer: Trainer) -> None:
    run_sweep(planned(tmp_path, ONE, trials=1), url(tmp_path))
    longer = SMALL._replace(train=TrainConfig(epochs=7, accelerator="gpu"))
    for option, other in {
        "--train.epochs": planned(tmp_path, ONE, around=longer),
        "--over train.lr": planned(tmp_path, "train.lr=1e-3,1e-4"),
        "--sampler": planned(tmp_path, ONE, grid=False, trials=3),
    }.items():
        message = rf"started with other settings \({option}\): .* another --study"
        refused(SweepError, message, partial(run_sweep, other, url(tmp_path)))
    for content in ("[" * 100_000, "{", '{"data": 1}', "[]", "7"):  # damaged
        with sqlite3.connect(tmp_path / "study.db") as database:
            database.execute("UPDATE study_user_attributes SET value_json = ?", [content])
        database.close()
        refused(SweepError, "study", lambda: run_sweep(planned(tmp_path, ONE), url(tmp_path)))
    (tmp_path / "study.db").unlink()
    refused(SweepError, "holds trials of another study", lambda: run_sweep(planned(tmp_path, ONE), url(tmp_path)))
    assert len(trainer.asked) == 1


def test_databases_that_fail(tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = r"^the driver .* is missing .*pip install 'psycopg\[binary\]'$"
    refused(SweepError, told, lambda: run_sweep(planned(tmp_path), "postgresql+psycopg://user@host/name"))

    def lose(lr: float, epoch: int) -> None:
        raise optuna.exceptions.StorageInternalError("connection lost")

    trainer.at_epoch = lose
    told = "the same command goes on: connection lost"
    refused(SweepError, told, lambda: run_sweep(planned(tmp_path), url(tmp_path)))


def test_the_command_trains_in_the_datas_unit_and_its_recipe_gives_what_it_expects(tmp_path: Path, cli: Cli) -> None:
    cause = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    np.savetxt(tmp_path / "table.csv", torch.cat([cause, 5 * cause + 1], 1).numpy(), delimiter=",")
    words = ["sweep", *WORDS, "--data.name", str(tmp_path / "table.csv"), "--train.epochs", "2", "--jobs", "2"]
    words += ["--over", "train.lr=1e-2,1e12", "--over=train.seed=3", "--folder", str(tmp_path / "sweep")]
    said, folder = cli(*words), tmp_path / "sweep"
    assert said.startswith("sweep table-lr-seed: 2 trials over train.lr, train.seed")
    assert "2 of 2 trials done" in said
    best, diverged = rows(folder / "trials.csv")
    assert (best["train.lr"], diverged["train.lr"]) == ("1e-2", "1e12")
    assert diverged["state"].startswith("diverged: ")
    run = Run.read(folder / best["trial"])
    assert (float(best["valid. NLL"]), float(best["test NLL"])) == (min(run.metrics["valid_nll"]), run.summary.figure)
    recipe, page = (folder / "best.yaml").read_text(), (folder / "sweep.html").read_text()
    for text in (said, recipe, page):
        assert f"test NLL {run.summary.figure:.4f} nats per entry" in text
    assert "BPD" not in re.sub('base64,[^"]*', "", page)  # the letters of a picture may say anything
    again = read_settings(folder / "best.yaml")
    assert again.train.seed == 3
    assert train(tmp_path / "again", again.data, again.train, model=again.model).figure == run.summary.figure
    kept = [path for path in folder.glob("trial-*/*") if path.is_file()]
    files = [folder / "trials.csv", *kept]
    content, written = [path.read_bytes() for path in files], [path.stat().st_mtime_ns for path in files[1:]]
    cli(*words)  # the diverged trial is done too: nothing but the table is written again
    assert [path.read_bytes() for path in files] == content
    assert [path.stat().st_mtime_ns for path in files[1:]] == written


def test_ctrl_c_and_the_same_command_again(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "sweep"
    words = ["sweep", *WORDS, "--data.batch_size=32", "--train.epochs=10", "--jobs=1", "--over=train.lr=1e-3,1e-4"]
    said = interrupted(folder, "trial-0000/metrics.csv", *words)
    words += ["--folder", str(folder)]
    assert f"interrupted; go on by: silentgrad {shlex.join(words)}\n" in said
    metrics = folder / "trial-0000" / "metrics.csv"
    done = metrics.read_text().splitlines()
    assert 2 < len(done) < 11
    assert "2 of 2 trials done" in cli(*words)
    resumed = metrics.read_text().splitlines()
    assert resumed[:2] == done[:2]  # the names and the first epoch, which was not trained again
    assert [line.split(",")[0] for line in resumed[1:]] == [str(epoch) for epoch in range(1, 11)]
    assert points(tmp_path, "complete") == [("1e-3",), ("1e-4",)]
    assert {path.name for path in folder.glob("trial-*")} == {"trial-0000", "trial-0001"}


def test_ctrl_c_waits_for_the_database() -> None:
    """In the middle of a commit it left the database locked, and Optuna failed an assertion of its own."""
    reached = []

    def commit() -> None:
        with study.writing():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the commit")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    refused(KeyboardInterrupt, "^$", commit)
    assert reached == ["the end of the commit"]
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
