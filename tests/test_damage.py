"""A run whose files were damaged, moved or exchanged: it says which file and what to do, and nothing is lost."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch

from silentgrad.lab.cli.main import main
from silentgrad.lab.reports import write_report
from silentgrad.lab.runs.records import RecordError, Run
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, read_config, train_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
MODEL = ModelConfig(latent_dim=2, hidden=[8], tractable="none")
TRAIN = TrainConfig(epochs=5, lr=0.5, accelerator="cpu", keep=[1])
FINISHED = 3  # epochs before the interruption


class StoppedError(Exception):
    """What stops a run."""


class Interruption(lightning.Callback):
    def on_train_epoch_start(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
        if trainer.current_epoch == FINISHED:
            raise StoppedError


class Runs:
    """A finished run and an interrupted one with the same settings, and one of another model."""

    def __init__(self, folder: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (24, 4, 4), dtype=np.uint8)
        self.images = folder / "images.npy"
        np.save(self.images, images)
        self.settings = Settings(DataConfig(name=str(self.images), batch_size=4), MODEL, TRAIN)
        self.whole, self.cut, self.other = folder / "whole", folder / "cut", folder / "other"
        self.summary = train_model(*self.settings, self.whole, quiet=True)
        with pytest.raises(StoppedError):
            train_model(*self.settings, self.cut, quiet=True, callbacks=[Interruption()])
        wider = self.settings._replace(model=ModelConfig(latent_dim=3, hidden=[5], tractable="none"))
        train_model(*wider, self.other, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    torch.set_num_threads(1)
    found = Runs(tmp_path_factory.mktemp("runs"))
    assert found.summary.best_epoch < FINISHED  # so that best.ckpt cannot be made again from last.ckpt
    return found


def remove(path: Path, other: Path) -> None:
    path.unlink()


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def cut_at_a_line(path: Path, other: Path) -> None:
    """What is left is YAML, or a table, of its own."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: 2 * len(lines) // 3]))


def garble(path: Path, other: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(300))


def garble_the_middle(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(bytes(content))


def bad_utf8(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"e", b"\xff"))


def no_mapping(path: Path, other: Path) -> None:
    path.write_text("[1, 2]")


def make_folder_of(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def others(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def fewer_columns(path: Path, other: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))


def nonsense_cells(path: Path, other: Path) -> None:
    path.write_text(path.read_text().replace("0.", "zero"))


def shuffled(path: Path, other: Path) -> None:
    header, *rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, *reversed(rows)]))


def torn(path: Path, other: Path) -> None:
    with path.open("a") as file:
        file.write("4,1.5,3.")


Damage = Callable[[Path, Path], None]
BINARY: list[Damage] = [remove, empty, truncate, garble, make_folder_of, others]
TEXT: list[Damage] = [remove, empty, truncate, garble, bad_utf8, make_folder_of]
TABLE: list[Damage] = [*TEXT, fewer_columns, nonsense_cells, shuffled]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def figures(folder: Path) -> tuple[bytes, Summary, list[Any]]:
    """All that a run ends with, but for the time it took."""
    run = Run.read(folder)
    summary = dataclasses.replace(run.summary, seconds=0.0)
    metrics = {name: column for name, column in run.metrics.items() if name != "seconds"}
    return (folder / "model.safetensors").read_bytes(), summary, list(metrics.items())


def damaged(whole: Path, folder: Path, name: str, damage: Damage, runs: Runs) -> Path:
    shutil.copytree(whole, folder)
    damage(folder / name, runs.other / name)
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code == 1
    return capsys.readouterr().err


def resume(folder: Path) -> list[str]:
    return ["train", "--folder", str(folder), "--resume", "true", "--quiet", "true"]


RESUMED_REFUSED = [
    *[("config.yaml", damage, "config.yaml") for damage in [*TEXT, cut_at_a_line, no_mapping]],
    *[("environment.json", damage, "remove it") for damage in TEXT if damage is not remove],
    ("metrics.csv", make_folder_of, "remove it"),
    *[("checkpoints/last.ckpt", damage, "copy best.ckpt over it") for damage in BINARY if damage is not others],
    ("checkpoints/last.ckpt", garble_the_middle, "copy best.ckpt over it"),
    ("checkpoints/last.ckpt", others, "of another model"),
    *[("checkpoints/best.ckpt", damage, "from a copy") for damage in BINARY],
]


@pytest.mark.parametrize(("name", "damage", "advice"), RESUMED_REFUSED)
def test_resuming_refuses_what_is_damaged_and_changes_nothing(
    name: str, damage: Damage, advice: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged(runs.cut, tmp_path / "run", name, damage, runs)
    before = contents(folder)
    said = refusal(capsys, *resume(folder))
    assert Path(name).name in said
    assert advice in said
    assert said.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize("damage", [damage for damage in TABLE if damage is not make_folder_of])
def test_metrics_are_restored_from_the_checkpoint(damage: Damage, runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.cut, tmp_path / "run", "metrics.csv", damage, runs)
    with pytest.warns(UserWarning, match=r"metrics\.csv was damaged; its rows are restored"):
        train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


def test_a_torn_row_is_no_damage(runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.cut, tmp_path / "run", "metrics.csv", torn, runs)
    assert Run.read(folder).metrics["epoch"] == [1, 2, 3]
    train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[("config.yaml", damage) for damage in [*TEXT, cut_at_a_line, no_mapping]],
        *[("metrics.csv", damage) for damage in TABLE if damage not in (truncate, fewer_columns)],
        *[("summary.json", damage) for damage in [*TEXT, no_mapping] if damage is not remove],
        *[("environment.json", damage) for damage in [*TEXT, no_mapping] if damage is not remove],
        *[("pictures.safetensors", damage) for damage in BINARY if damage not in (remove, others)],
    ],
)
def test_a_report_names_what_is_damaged(name: str, damage: Damage, runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.whole, tmp_path / "run", name, damage, runs)
    with pytest.raises(RecordError, match=name) as raised:
        write_report(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[("config.yaml", damage) for damage in [*TEXT, cut_at_a_line, no_mapping]],
        *[("model.safetensors", damage) for damage in BINARY if damage is not others],
    ],
)
def test_evaluation_names_what_is_damaged(
    name: str, damage: Damage, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged(runs.whole, tmp_path / "run", name, damage, runs)
    assert name in refusal(capsys, "evaluate", str(folder))


def test_a_finished_run_is_not_rewritten(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(runs.whole, tmp_path / "run")
    write_report(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    main(resume(folder))
    said = capsys.readouterr().out
    assert f"{folder} is finished" in said
    assert f"test BPD {runs.summary.figure:.4f}" in said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("damage", [empty, garble, make_folder_of])
def test_a_damaged_summary_is_named_and_made_again(
    damage: Damage, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged(runs.whole, tmp_path / "run", "summary.json", damage, runs)
    said = refusal(capsys, *resume(folder))
    assert "summary.json" in said
    assert "remove it and go on with --resume true" in said


def test_without_its_summary_a_run_is_measured_again_to_the_same_figures(runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.whole, tmp_path / "run", "summary.json", remove, runs)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1234)  # whatever random state is left
    summary = train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)
    assert summary.seconds >= (Run.read(folder).metrics["seconds"][-1] or 0) - 0.05


def test_a_lost_checkpoint_can_be_made_up_by_the_best(runs: Runs, tmp_path: Path) -> None:
    """What the message advises works: the run goes on from its best epoch and ends the same."""
    folder = damaged(runs.cut, tmp_path / "run", "checkpoints/last.ckpt", garble, runs)
    shutil.copyfile(folder / "checkpoints" / "best.ckpt", folder / "checkpoints" / "last.ckpt")
    (folder / "metrics.csv").unlink()
    with pytest.warns(UserWarning, match="restored"):
        train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


def test_an_older_checkpoint_does_not_drop_newer_rows(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    shutil.copyfile(folder / "checkpoints" / "best.ckpt", folder / "checkpoints" / "last.ckpt")
    said = refusal(capsys, *resume(folder))
    assert f"metrics.csv goes up to epoch {FINISHED}" in said
    assert len(Run.read(folder).metrics["epoch"]) == FINISHED


def test_a_moved_run_remembers_its_best_epoch(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "moved" / "elsewhere")
    summary = train_model(*runs.settings, folder, resume=True, quiet=True)
    assert summary.best_epoch == runs.summary.best_epoch
    assert figures(folder) == figures(runs.whole)


def test_every_finished_epoch_has_a_checkpoint(runs: Runs) -> None:
    last = torch.load(runs.cut / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] + 1 == FINISHED


def test_seconds_are_those_of_all_processes(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    path = folder / "checkpoints" / "last.ckpt"
    state = torch.load(path, weights_only=True)
    state["callbacks"]["Recorder"]["seconds"] = 1000.0
    torch.save(state, path)
    summary = train_model(*runs.settings, folder, resume=True, quiet=True)
    seconds = Run.read(folder).metrics["seconds"]
    assert seconds[FINISHED] is not None
    assert 1000 < seconds[FINISHED] < 1100
    assert 1000 <= summary.seconds < 1100  # rounded


def test_other_images_are_refused(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    changed = np.load(runs.images)
    changed[-1, 0, 0] ^= 1
    np.save(tmp_path / "images.npy", changed)
    other = runs.settings._replace(data=DataConfig(name=str(tmp_path / "images.npy"), batch_size=4))
    with pytest.raises(Exception, match="not those that the run was started with"):
        train_model(*other, folder, resume=True, quiet=True)
    np.save(tmp_path / "images.npy", np.load(runs.images))  # the same ones in another place are welcome
    train_model(*other, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


@pytest.mark.parametrize(
    "left", [[], [".environment.json.77.unfinished"], ["environment.json", ".config.yaml.77.unfinished"]]
)
def test_what_was_killed_before_it_was_a_run_can_be_started(left: list[str], runs: Runs, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    train_model(*runs.settings, folder, quiet=True)
    assert figures(folder) == figures(runs.whole)
    assert contents(folder).keys() == contents(runs.whole).keys()


def test_leftovers_are_removed(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    for name in (".metrics.csv.77.unfinished", "checkpoints/.last.ckpt.77.unfinished"):
        (folder / name).write_bytes(b"half of it")
    train_model(*runs.settings, folder, resume=True, quiet=True)
    assert contents(folder).keys() == contents(runs.whole).keys()


def test_an_error_in_a_callback_is_no_divergence(runs: Runs, tmp_path: Path) -> None:
    class Broken(lightning.Callback):
        def on_train_epoch_end(self, trainer: lightning.Trainer, plan: lightning.LightningModule) -> None:
            raise ValueError("not about numbers")

    with pytest.raises(ValueError, match="not about numbers"):
        train_model(*runs.settings, tmp_path / "run", quiet=True, callbacks=[Broken()])


def test_summaries_are_on_disk_as_they_are_returned(runs: Runs) -> None:
    assert json.loads((runs.whole / "summary.json").read_text()) == runs.summary.as_json()
    assert read_config(runs.whole) == runs.settings.resolved(["gaussian"])
