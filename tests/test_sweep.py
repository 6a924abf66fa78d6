"""A sweep trains every point of its grid once, whatever interrupts it, and says which was the best."""

import csv
import dataclasses
import json
import os
import re
import shlex
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
import yaml

import processes
from browser import WIDTHS, look, needs_browser
from silentgrad.errors import SilentgradError
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.sweep import sweep as sweep_command
from silentgrad.lab.data import Unit
from silentgrad.lab.experiments import runner, study
from silentgrad.lab.experiments import sweep as module
from silentgrad.lab.experiments.grid import Grid
from silentgrad.lab.experiments.plan import Sweep
from silentgrad.lab.experiments.space import search_space
from silentgrad.lab.experiments.study import EachPointOnce, SweepError, uninterrupted
from silentgrad.lab.experiments.sweep import run_sweep
from silentgrad.lab.reports.sweep import write_sweep_page
from silentgrad.lab.runs.records import RecordError, Run
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.runs.trials import SweepRecord, Trial, write_sweep
from silentgrad.lab.training import DataConfig, DivergedError, ModelConfig, Settings, TrainConfig, train_model
from summaries import WHOLE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
RATES, ANNEALING = [1e-3, 1e-4, 1e-5], [0.5, 0.05]
SMALL = Settings(
    DataConfig(batch_size=256), ModelConfig(latent_dim=2, hidden=[8]), TrainConfig(epochs=6, accelerator="cpu")
)


def planned(folder: Path, around: Settings = SMALL, **values: list[Any]) -> Sweep:
    return Sweep("study", around, values or {"lr": RATES, "guided": ANNEALING}, folder / "sweep")


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/study.db"


def final_bpd(model: ModelConfig, train: TrainConfig) -> float:
    return 3 + abs(train.lr - 1e-4) * 1e3 + model.guided


class Trainer:
    """Stands in for train_model: a curve instead of a training, and a log of what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float, str, bool]] = []
        self.at_epoch: Callable[[float, int], None] = lambda lr, epoch: None

    def __call__(
        self, data: Any, model: Any, train: Any, folder: Path, resume: bool, quiet: bool, callbacks: Any
    ) -> Summary:
        self.asked.append((train.lr, model.guided, folder.name, resume))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("{}")
        rows = []
        for epoch in range(1, train.epochs + 1):
            self.at_epoch(train.lr, epoch)
            bpd = final_bpd(model, train) + 2 / epoch
            rows.append([epoch, 10 * epoch, bpd])
            with (folder / "metrics.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["epoch", "seconds", "valid_bpd"], *rows])
            seen = SimpleNamespace(current_epoch=epoch - 1, callback_metrics={"valid_bpd": torch.tensor(bpd)})
            for callback in callbacks:
                callback.on_train_epoch_end(seen, None)
        return Summary.from_json(WHOLE | {"bpd": rows[-1][2] + 0.5, "epochs": train.epochs, "seconds": 60.0})


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    stub = Trainer()
    monkeypatch.setattr(runner, "train_model", stub)
    return stub


def records(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "sweep" / "trials.json").read_text())
    return content


def points(folder: Path, *states: str) -> list[tuple[float, ...]]:
    trials = [trial for trial in records(folder)["trials"] if not states or trial["state"] in states]
    return sorted(tuple(trial["point"].values()) for trial in trials)


ALL = sorted((lr, rate) for lr in RATES for rate in ANNEALING)


def test_the_grids_are_the_papers() -> None:
    long = SMALL._replace(train=TrainConfig(epochs=200))
    space = search_space(["lr", "guided", "cutoff"], Grid(), long)
    assert {name: set(values) for name, values in space.items()} == {
        "lr": {1e-4, 5e-4, 1e-5, 5e-5},
        "guided": {0.5, 0.1, 5.0, 1.0},
        "cutoff": {50, 80, 100, 150, 200},
    }


@pytest.mark.parametrize(
    ("over", "settings", "reason"),
    [
        (["momentum"], {}, "--over takes some of lr, guided, cutoff"),
        (["lr", "lr"], {}, "--over takes"),
        ([""], {}, "--over takes"),
        (["guided"], {"tractable": "none"}, "guided needs a guide"),
        (["guided"], {"nonlinear": False, "estimator": "exact"}, "guided needs a guide"),
        (["guided"], {"estimator": "none"}, "guided needs a guide"),
        (["cutoff"], {"tractable": "none"}, "a cut-off needs a guided VAE"),
        (["cutoff"], {}, r"cut-offs \[100, 150, 200\] come after the last of 80 epochs"),
    ],
)
def test_what_changes_nothing_is_not_swept(over: list[str], settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SweepError, match=reason):
        search_space(over, Grid(), Settings(DataConfig(), ModelConfig(**settings), TrainConfig(epochs=80)))


def test_values_are_tried_once_and_there_have_to_be_some() -> None:
    assert search_space(["cutoff"], Grid(cutoff=[5, 5]), SMALL) == {"cutoff": [5]}
    with pytest.raises(SweepError, match="nothing to try"):
        search_space(["lr"], Grid(lr=[]), SMALL)


def test_every_point_once_and_the_best_as_a_recipe(tmp_path: Path, trainer: Trainer) -> None:
    plan = planned(tmp_path)
    first = list(run_sweep(plan, url(tmp_path), trials=2))
    assert [trial.number for trial in first] == [0, 1]
    rest = list(run_sweep(plan, url(tmp_path)))
    assert list(run_sweep(plan, url(tmp_path))) == []
    assert len(first) + len(rest) == len(trainer.asked) == 6
    assert sorted(asked[:2] for asked in trainer.asked) == points(tmp_path) == ALL
    found = records(tmp_path)
    best = next(trial for trial in found["trials"] if trial["number"] == found["best"])
    assert best["point"] == {"lr": 1e-4, "guided": 0.05}
    assert best["valid"] == pytest.approx(3 + 0.05 + 2 / 6)
    text = (tmp_path / "sweep" / "best.yaml").read_text()
    header = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
    assert header["expects"] == f"test BPD {3.05 + 2 / 6 + 0.5:.4f}, validation BPD {3.05 + 2 / 6:.4f} (seed 0)"
    assert header["time"] == "60 seconds"
    assert header["command"] == f"silentgrad train --config {tmp_path}/sweep/best.yaml"
    settings = yaml.safe_load(text)
    assert (settings["train"]["lr"], settings["model"]["guided"], settings["train"]["epochs"]) == (
        1e-4,
        0.05,
        6,
    )


def test_a_trial_worse_than_the_median_is_pruned(tmp_path: Path, trainer: Trainer) -> None:
    """By hand: after three complete trials, from epoch 2 on, whose best BPD so far exceeds the others' median."""
    list(run_sweep(planned(tmp_path), url(tmp_path)))
    curves: list[float] = []
    for trial in records(tmp_path)["trials"]:
        own = 3 + abs(trial["point"]["lr"] - 1e-4) * 1e3 + trial["point"]["guided"]
        worse = len(curves) >= 3 and own > torch.tensor(curves).quantile(0.5).item()
        assert (trial["state"], trial["epochs"]) == (("pruned", 2) if worse else ("complete", 6))
        if not worse:
            curves.append(own)
    assert len(curves) < 6


def test_a_diverged_trial_is_done_and_the_sweep_goes_on(tmp_path: Path, trainer: Trainer) -> None:
    def diverge(lr: float, epoch: int) -> None:
        if lr == 1e-3 and epoch == 2:
            raise DivergedError("the loss became nan")

    trainer.at_epoch = diverge
    list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
    assert list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path))) == []
    (diverged,) = [trial for trial in records(tmp_path)["trials"] if trial["state"] == "diverged"]
    assert (diverged["point"], diverged["remark"], diverged["epochs"]) == ({"lr": 1e-3}, "the loss became nan", 1)
    assert len(trainer.asked) == 3
    assert "the loss became nan" in write_sweep_page(tmp_path / "sweep").read_text()


@pytest.mark.parametrize(
    ("stop", "raised"),
    [(SystemExit(1), KeyboardInterrupt), (KeyboardInterrupt(), KeyboardInterrupt), (OSError(), OSError)],
)
def test_an_interrupted_trial_is_taken_up_again(
    tmp_path: Path, trainer: Trainer, stop: BaseException, raised: type[BaseException]
) -> None:
    stops = [stop]

    def interrupt(lr: float, epoch: int) -> None:
        if len(trainer.asked) == 2 and epoch == 3 and stops:
            raise stops.pop()

    trainer.at_epoch = interrupt
    with pytest.raises(raised):
        list(run_sweep(planned(tmp_path), url(tmp_path)))
    assert len(points(tmp_path, "complete")) == 1
    list(run_sweep(planned(tmp_path), url(tmp_path)))
    interrupted, again = trainer.asked[1:3]
    assert again == (*interrupted[:3], True)  # the same point, in the same folder, resumed
    assert len(trainer.asked) == 7
    assert points(tmp_path) == ALL
    assert points(tmp_path, "running", "waiting") == []


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # asking for a trial outside of a sweep, to abandon it
def test_a_trial_of_a_process_that_died_is_taken_up_again(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, lr=RATES)
    monkeypatch.setattr(study, "HEARTBEAT", 1)
    monkeypatch.setattr(study, "PATIENCE", 1)
    with module._study(plan, url(tmp_path)) as found:
        lost = found.ask().suggest_categorical("lr", RATES)
        assert list(run_sweep(plan, url(tmp_path), trials=0)) == []
        time.sleep(2.5)  # longer than its silence is believed
    list(run_sweep(plan, url(tmp_path)))
    assert sorted(asked[0] for asked in trainer.asked) == sorted(RATES)
    assert [asked[2] for asked in trainer.asked if asked[0] == lost] == ["trial-0000"]
    assert points(tmp_path) == [(rate,) for rate in sorted(RATES)]


def test_two_workers_share_the_points(tmp_path: Path, trainer: Trainer) -> None:
    """While the first trains its first trial, the second comes, trains all the others, and leaves the first's alone."""
    other: list[dict[str, Any]] = []

    def second_worker(lr: float, epoch: int) -> None:
        if len(trainer.asked) == 1 and epoch == 2:
            other.extend(run_sweep(dataclasses.replace(plan, folder=tmp_path / "elsewhere"), url(tmp_path)))

    plan = planned(tmp_path)
    trainer.at_epoch = second_worker
    own = list(run_sweep(plan, url(tmp_path)))
    assert (len(own), len(other), len(trainer.asked)) == (1, 5, 6)
    assert sorted(asked[:2] for asked in trainer.asked) == points(tmp_path) == ALL
    assert (tmp_path / "sweep" / "best.yaml").exists()


def queued(plan: Sweep, storage: str, user: dict[str, Any], system: dict[str, Any]) -> None:
    """Puts a trial into the study, as anybody who reaches the database can."""
    lr = optuna.distributions.CategoricalDistribution(RATES)
    waiting = optuna.trial.TrialState.WAITING
    with module._study(plan, storage) as found:
        found.add_trial(
            optuna.create_trial(
                state=waiting, params={"lr": RATES[0]}, distributions={"lr": lr}, user_attrs=user, system_attrs=system
            )
        )


@pytest.mark.parametrize("outside", ["../outside", "/outside", 7])
def test_the_database_does_not_say_where_to_write(tmp_path: Path, trainer: Trainer, outside: object) -> None:
    plan = planned(tmp_path, lr=RATES)
    space = {"search_space": {"lr": RATES}}
    point = EachPointOnce(plan.space)._all_grids.index((RATES[0],))
    where = f"{tmp_path}{outside}" if outside == "/outside" else outside
    queued(plan, url(tmp_path), {"folder": where}, space | {"grid_id": point})
    list(run_sweep(plan, url(tmp_path)))
    assert {path.name for path in tmp_path.iterdir()} == {"sweep", "study.db"}
    assert sorted(asked[2] for asked in trainer.asked) == ["trial-0000", "trial-0001", "trial-0002"]


@pytest.mark.parametrize("point", ["../outside", -1, 99, None, {"a": 1}])
def test_a_point_that_does_not_exist_is_not_trained(tmp_path: Path, trainer: Trainer, point: object) -> None:
    plan = planned(tmp_path, lr=RATES)
    with module._study(plan, url(tmp_path)) as found:
        running = optuna.create_trial(state=optuna.trial.TrialState.RUNNING, system_attrs={"grid_id": point})
        found.add_trial(running)
    list(run_sweep(plan, url(tmp_path)))
    assert sorted(asked[2] for asked in trainer.asked) == ["trial-0000", "trial-0001", "trial-0002"]
    assert len(records(tmp_path)["trials"]) == 3


@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"data": 1}', "[]", "7"])
def test_a_damaged_study_is_refused(tmp_path: Path, trainer: Trainer, content: str) -> None:
    list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path), trials=1))
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("UPDATE study_user_attributes SET value_json = ?", [content])
    database.close()
    with pytest.raises(SweepError, match="study"):
        list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
    assert len(trainer.asked) == 1


def test_a_process_that_slept_too_long_leaves_its_point_to_others(tmp_path: Path, trainer: Trainer) -> None:
    """While the first trial trains, another process holds it to be dead: its point is trained again and counts once."""

    def given_up(lr: float, epoch: int) -> None:
        if len(trainer.asked) == 1 and epoch == 2:
            storage = optuna.storages.RDBStorage(url(tmp_path))
            storage.set_trial_state_values(1, optuna.trial.TrialState.FAIL)
            storage.engine.dispose()

    trainer.at_epoch = given_up
    done = list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
    assert len(done) == 3
    assert len(trainer.asked) == 4
    assert points(tmp_path) == [(rate,) for rate in sorted(RATES)]


def test_another_sweep_of_that_name_is_refused(tmp_path: Path, trainer: Trainer) -> None:
    list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path), trials=1))
    longer = SMALL._replace(train=TrainConfig(epochs=7, accelerator="gpu"))
    with pytest.raises(SweepError, match=r"started with other settings \(train.epochs\): .* another --study"):
        list(run_sweep(planned(tmp_path, longer, lr=RATES), url(tmp_path)))
    with pytest.raises(SweepError, match=r"\(space.lr\)"):
        list(run_sweep(planned(tmp_path, lr=RATES[:2]), url(tmp_path)))
    (tmp_path / "study.db").unlink()
    with pytest.raises(SweepError, match="holds trials of another study"):
        list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
    assert len(trainer.asked) == 1


@pytest.mark.parametrize("storage", ["nonsense", "nosuchbase://host/name", "sqlite:////nowhere/at/all.db"])
def test_a_database_that_cannot_be_opened(tmp_path: Path, storage: str) -> None:
    with pytest.raises(SweepError, match="cannot open the database of --storage") as caught:
        next(run_sweep(planned(tmp_path), storage))
    assert "\n" not in str(caught.value)


def test_a_database_whose_driver_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SweepError, match=r"driver .* is missing .*pip install 'psycopg\[binary\]'"):
        next(run_sweep(planned(tmp_path), "postgresql+psycopg://user@host/name"))


def test_a_database_that_fails_later(tmp_path: Path, trainer: Trainer) -> None:
    def lose(lr: float, epoch: int) -> None:
        raise optuna.exceptions.StorageInternalError("connection lost")

    trainer.at_epoch = lose
    with pytest.raises(SweepError, match="the same command goes on: connection lost"):
        next(run_sweep(planned(tmp_path), url(tmp_path)))


def test_what_cannot_be_trained_leaves_no_study(tmp_path: Path) -> None:
    wrong = SMALL._replace(model=ModelConfig(estimator="exact"))
    with pytest.raises(SilentgradError, match="no closed form"):
        next(run_sweep(planned(tmp_path, wrong), url(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_trial_takes_one_device(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="one device"):
        next(run_sweep(planned(tmp_path, SMALL._replace(train=TrainConfig(devices=2))), url(tmp_path)))
    assert not (tmp_path / "sweep").exists()


def test_optuna_speaks_again_after_a_sweep(tmp_path: Path, trainer: Trainer, capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""


def test_the_command_trains_and_its_recipe_gives_what_it_expects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model, train = SMALL
    train = dataclasses.replace(train, epochs=2)
    sweep_command(data, model, train, over=["lr"], grid=Grid(lr=[1e-3, 1e12]), folder=tmp_path / "sweep", quiet=True)
    said = capsys.readouterr().out
    assert said.startswith("sweep digits-lr: 2 points over lr")
    assert "diverged: lr 1e+12" in said
    assert "2 of 2 points done" in said
    assert (tmp_path / "sweep" / "sweep.html").exists()
    recipe = yaml.safe_load((tmp_path / "sweep" / "best.yaml").read_text())
    again = Settings(DataConfig(**recipe["data"]), ModelConfig(**recipe["model"]), TrainConfig(**recipe["train"]))
    summary = train_model(*again, tmp_path / "again", quiet=True)
    best = next(trial for trial in records(tmp_path)["trials"] if trial["state"] == "complete")
    assert summary.figure == best["test"]
    sweep_command(data, model, train, over=["lr"], grid=Grid(lr=[1e-3, 1e12]), folder=tmp_path / "sweep", quiet=True)
    assert "trial 2" not in capsys.readouterr().out


def test_a_recipe_can_be_swept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--recipe", "mnist-gaussian-reparameterized-cpu", "--over", "lr,guided"])
    assert "guided needs a guide" in capsys.readouterr().err  # so the recipe was read: it has none


def test_ctrl_c_and_the_same_command_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    words = (
        f"sweep --data.batch_size 32 --model.latent_dim 2 --model.hidden [8] --train.accelerator cpu --train.epochs 10 \
        --grid.lr [1e-3,1e-4] --quiet true --folder {folder}"
    )
    output = tmp_path / "said.txt"
    process = processes.start(processes.silentgrad, *words.split(), output=output)
    metrics = folder / "trial-0000" / "metrics.csv"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.is_alive(), "finished before it could be interrupted"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert f"interrupted; go on by: silentgrad {shlex.join(words.split())}\n" in output.read_text()
    assert process.exitcode == 130
    done = metrics.read_text().splitlines()
    assert 2 < len(done) < 11
    train = TrainConfig(epochs=10, accelerator="cpu")
    grid = Grid(lr=[1e-3, 1e-4])
    sweep_command(DataConfig(batch_size=32), SMALL.model, train, grid=grid, folder=folder, quiet=True)
    assert "2 of 2 points done" in capsys.readouterr().out
    resumed = metrics.read_text().splitlines()
    assert resumed[:2] == done[:2]  # the names and the first epoch, which was not trained again
    assert [line.split(",")[0] for line in resumed[1:]] == [str(epoch) for epoch in range(1, 11)]
    assert points(tmp_path, "complete") == [(1e-4,), (1e-3,)]
    assert {path.name for path in folder.glob("trial-*")} == {"trial-0000", "trial-0001"}


def made_up(folder: Path, complete: bool = True) -> Path:
    space = {"lr": [1e-4, 5e-4], "cutoff": [5, 10], "guided": [0.1, 0.2]}
    trials = [Trial(number, "running", {}, None, None, 0, None, "", None) for number in range(4)]
    if complete:
        for number, state in enumerate(("complete", "complete", "pruned")):
            point = {"lr": 1e-4 if number else 5e-4, "cutoff": 5 * (1 + number // 2), "guided": 0.1}
            test = 3.125 if state == "complete" else None
            trials[number] = Trial(number, state, point, 3.5 - number / 4, test, 12, 75.0, "", "<b>&" * 40)
    write_sweep(folder, SweepRecord("a <b>study", Unit("bpd"), 8, {}, space, 1 if complete else None, trials))
    return folder


def test_the_page_says_which_was_the_best(tmp_path: Path) -> None:
    page = write_sweep_page(made_up(tmp_path)).read_text()
    assert "<b>" not in page
    for text in ("3.250", "trial 1", "3.125", "3 of 8", "2 complete, 1 pruned, 1 running", "1 min 15 s", "0.0001"):
        assert text in page
    rows = page.split("<tr")[2:]
    assert [row.split("</td>")[0].rsplit(">", 1)[1] for row in rows] == ["1", "0", "2", "3"]
    assert 'class="marked"' in rows[0]


def test_the_page_of_a_sweep_without_a_complete_trial(tmp_path: Path) -> None:
    assert "No trial is complete yet" in write_sweep_page(made_up(tmp_path, complete=False)).read_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "holds no sweep"), ("{", "Expecting"), ("{}", "holds no sweep"), ("[]", "expected named values")],
)
def test_records_that_cannot_be_read(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "trials.json").write_text(content)
    with pytest.raises(RecordError, match=reason):
        write_sweep_page(tmp_path)
    assert issubclass(SweepError, SilentgradError)


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("complete", [True, False])
def test_a_browser_shows_the_page_whole(tmp_path: Path, width: int, complete: bool) -> None:
    seen = look(write_sweep_page(made_up(tmp_path, complete)), width, tmp_path)
    assert seen.problems == []
    assert seen.images == int(complete)


def test_ctrl_c_waits_for_the_database() -> None:
    """In the middle of a commit it left the database locked, and Optuna failed an assertion of its own."""
    reached = []

    def commit() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the commit")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            commit()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["the end of the commit"]


@pytest.mark.parametrize(
    ("kind", "linear", "told_in"),
    [("reals", "exp", "NLL nats per entry"), ("binarized", "linear", "NLL nats per example")],
)
def test_what_is_not_told_in_bits_is_swept_in_its_own_unit(
    kind: str, linear: str, told_in: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    np.savetxt(tmp_path / "table.csv", torch.cat([cause, 5 * cause + 1], 1).numpy(), delimiter=",")
    name = "digits" if kind == "binarized" else str(tmp_path / "table.csv")
    data = DataConfig(name=name, kind=kind, batch_size=512)
    model = ModelConfig(latent_dim=1, hidden=[4], tractable=linear)
    train = TrainConfig(epochs=2, accelerator="cpu")
    words = f"--data.name={name} --data.kind={kind} --data.batch_size=512 --model.tractable={linear} --train.epochs=2"
    small = "--model.latent_dim=1 --model.hidden=[4] --train.accelerator=cpu --quiet=true"
    main(["sweep", *words.split(), *small.split(), "--grid.lr=[1e-2,1e-9]", f"--folder={tmp_path / 'sweep'}"])

    figures = {}
    for lr in (1e-2, 1e-9):  # each point alone
        alone = tmp_path / f"alone-{lr}"
        summary = train_model(data, model, dataclasses.replace(train, lr=lr), alone, quiet=True)
        figures[lr] = min(Run.read(alone).metrics["valid_nll"]), summary.figure
    found = records(tmp_path)
    assert found["unit"] == told_in
    assert {trial["point"]["lr"]: (trial["valid"], trial["test"]) for trial in found["trials"]} == figures
    best = next(trial for trial in found["trials"] if trial["number"] == found["best"])
    assert best["point"]["lr"] == min(figures, key=lambda lr: figures[lr][0])

    title, _, of = told_in.partition(" ")
    told = f"test {title} {best['test']:.4f} {of}"
    assert told in capsys.readouterr().out
    assert told in (tmp_path / "sweep" / "best.yaml").read_text()
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert f"best valid. {title}" in page
    assert of in page
    assert "BPD" not in re.sub('base64,[^"]*', "", page)  # the letters of a picture may say anything


@pytest.mark.parametrize("figures", [[], {"bpd": 3.0}])
def test_a_damaged_trial_is_refused(tmp_path: Path, trainer: Trainer, figures: object) -> None:
    list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path), trials=1))
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("UPDATE trial_user_attributes SET value_json = ?", [json.dumps(figures)])
    database.close()
    with pytest.raises(SweepError, match="trial 0 in the database of --storage is damaged"):
        list(run_sweep(planned(tmp_path, lr=RATES), url(tmp_path)))
