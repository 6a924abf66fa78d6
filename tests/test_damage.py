"""A run whose files were damaged, moved or exchanged: it says which file and what to do, and nothing is lost."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusals import refused
from runs import Cli, CutError, content
from silentgrad.lab.data import DataError
from silentgrad.lab.store.records import Run, Summary
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, train_model
from silentgrad.lab.training.loop import Loop

MODEL = ModelConfig(latent_dim=2, hidden=[8], tractable="none")
TRAIN = TrainConfig(epochs=5, lr=0.5, accelerator="cpu", keep=[1])
FINISHED = 3  # epochs before the interruption
begin_epoch = Loop._begin_epoch


def interrupt(loop: Loop) -> None:
    if loop.epoch == FINISHED:
        raise CutError
    begin_epoch(loop)


class Runs:
    """A finished run and an interrupted one with the same settings, and one of another model."""

    def __init__(self, folder: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (24, 4, 4), dtype=np.uint8)
        self.images = folder / "images.npy"
        np.save(self.images, images)
        self.settings = Settings(DataConfig(name=str(self.images), batch_size=4), MODEL, TRAIN)
        self.whole, self.cut, self.other = folder / "whole", folder / "cut", folder / "other"
        self.summary = train_model(*self.settings, self.whole, quiet=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Loop, "_begin_epoch", interrupt)
            refused(CutError, "", partial(train_model, *self.settings, self.cut, quiet=True))
        wider = self.settings._replace(model=ModelConfig(latent_dim=3, hidden=[5], tractable="none"))
        train_model(*wider, self.other, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    torch.set_num_threads(1)
    found = Runs(tmp_path_factory.mktemp("runs"))
    assert found.summary.best_epoch < FINISHED  # so that its weights are not the last ones
    return found


def cut_at_a_line(content: bytes) -> bytes:
    """Leave what is YAML, or a table, of its own."""
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: 2 * len(lines) // 3])


def garble_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(64) + content[middle + 64 :]


def shuffled(content: bytes) -> bytes:
    header, *rows = content.splitlines(keepends=True)
    return b"".join([header, *reversed(rows)])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncate": lambda content: content[: len(content) // 3],
    "cut at a line": cut_at_a_line,
    "garble": lambda content: np.random.default_rng(0).bytes(300),
    "garble the middle": garble_the_middle,
    "bad UTF-8": lambda content: content.replace(b"e", b"\xff"),
    "no mapping": lambda content: b"[1, 2]",
    "fewer columns": lambda content: re.sub(rb",[^,\n]*\n", b"\n", content),
    "nonsense cells": lambda content: content.replace(b"0.", b"zero"),
    "shuffled": shuffled,
}  # beside "remove", "make a folder" and "others": the file of another run
BINARY = ["remove", "empty", "truncate", "garble", "make a folder", "others"]
TEXT = ["remove", "empty", "truncate", "garble", "bad UTF-8", "make a folder"]
TABLE = [*TEXT, "fewer columns", "nonsense cells", "shuffled"]
CONFIG = [*TEXT, "cut at a line", "no mapping"]


def but(damages: list[str], *names: str) -> list[str]:
    return [damage for damage in damages if damage not in names]


def figures(folder: Path) -> tuple[bytes, Summary, list[Any]]:
    """All that a run ends with, but for the time it took."""
    run = Run.read(folder)
    summary = dataclasses.replace(run.summary, seconds=0.0)
    metrics = {name: column for name, column in run.metrics.items() if name != "seconds"}
    return (folder / "model.safetensors").read_bytes(), summary, list(metrics.items())


def damaged(whole: Path, folder: Path, name: str, damage: str, runs: Runs) -> Path:
    shutil.copytree(whole, folder)
    path = folder / name
    if damage in DAMAGES:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    elif damage == "others":
        shutil.copy(runs.other / name, path)
    else:
        path.unlink()
    if damage == "make a folder":
        path.mkdir()
    return folder


LAST = "last.ckpt"
RESUME = ["train", "--resume", "true", "--quiet", "true", "--folder"]
COMMANDS = {"resume": RESUME, "evaluate": ["evaluate"], "compare": ["compare"]}
REFUSED = [
    *[(command, "config.yaml", damage, "") for command in COMMANDS for damage in CONFIG],
    *[("resume", "environment.json", damage, "remove it") for damage in but(TEXT, "remove")],
    ("resume", "metrics.csv", "make a folder", "remove it"),
    *[("resume", LAST, damage, "from a copy") for damage in [*but(BINARY, "others"), "garble the middle"]],
    ("resume", LAST, "others", "of another model"),
    *[("resume", "summary.json", damage, "go on with --resume") for damage in ("empty", "garble", "make a folder")],
    *[("compare", "metrics.csv", damage, "") for damage in but(TABLE, "truncate", "fewer columns")],
    *[("compare", "summary.json", damage, "") for damage in but([*TEXT, "no mapping"], "remove")],
    *[("compare", "environment.json", damage, "") for damage in but([*TEXT, "no mapping"], "remove")],
    *[("compare", "pictures.safetensors", damage, "") for damage in but(BINARY, "remove", "others")],
    *[("evaluate", "model.safetensors", damage, "") for damage in but(BINARY, "others")],
]


@pytest.mark.parametrize(("command", "name", "damage", "advice"), REFUSED)
def test_what_is_damaged_is_named_and_nothing_changes(
    command: str, name: str, damage: str, advice: str, runs: Runs, tmp_path: Path, cli: Cli
) -> None:
    unfinished = command == "resume" and name != "summary.json"
    folder = damaged(runs.cut if unfinished else runs.whole, tmp_path / "run", name, damage, runs)
    before = content(folder)
    beside = [runs.other] if command == "compare" else []
    said = cli.fails(*COMMANDS[command], folder, *beside, codes=(1,))
    assert (name in said, advice in said, said.count("\n")) == (True, True, 1)
    assert content(folder) == before


@pytest.mark.parametrize("damage", but(TABLE, "make a folder"))
def test_metrics_are_restored_from_the_checkpoint(damage: str, runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.cut, tmp_path / "run", "metrics.csv", damage, runs)
    with pytest.warns(UserWarning, match=r"metrics\.csv was damaged; its rows are restored"):
        train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


OTHERS_SETTINGS = [
    ("latent_dim", "latent_dim: 3", "size mismatch for"),
    ("kl_weight", f"kl_weight: {10**400}", "has to be a number"),
    ("guided", "annealing_rate: 0.1", "^(?!.*yaml.*yaml).* another version.* there is no setting model.annealing_rate"),
]


@pytest.mark.parametrize("command", ["evaluate", "export"])
@pytest.mark.parametrize(("name", "changed", "reason"), OTHERS_SETTINGS)
def test_others_settings_are_refused(
    command: str, name: str, changed: str, reason: str, runs: Runs, tmp_path: Path, cli: Cli
) -> None:
    config = shutil.copytree(runs.whole, tmp_path / "run") / "config.yaml"
    config.write_text(re.sub(f"{name}: .*", changed, config.read_text()))
    said = cli.fails(command, config.parent, codes=(1,))
    assert re.search(reason, said)
    assert (str(config.parent) in said, said.count("\n")) == (True, 1)


def test_without_its_summary_a_run_is_measured_again_to_the_same_figures(runs: Runs, tmp_path: Path) -> None:
    folder = damaged(runs.whole, tmp_path / "run", "summary.json", "remove", runs)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1234)  # whatever random state is left
    summary = train_model(*runs.settings, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)
    assert summary.seconds >= (Run.read(folder).metrics["seconds"][-1] or 0) - 0.05


def test_an_older_checkpoint_does_not_drop_newer_rows(runs: Runs, tmp_path: Path, cli: Cli) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    state = torch.load(folder / LAST, weights_only=True)
    torch.save(state | {"epoch": 1}, folder / LAST)
    assert f"metrics.csv goes up to epoch {FINISHED}" in cli.fails(*RESUME, folder, codes=(1,))
    assert len(Run.read(folder).metrics["epoch"]) == FINISHED


def test_seconds_are_those_of_all_processes(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    path = folder / LAST
    state = torch.load(path, weights_only=True)
    assert state["epoch"] == FINISHED  # every finished epoch has a checkpoint
    state["metrics"]["seconds"] = 1000.0
    torch.save(state, path)
    summary = train_model(*runs.settings, folder, resume=True, quiet=True)
    assert 1000 < Run.read(folder).metrics["seconds"][FINISHED] < 1100
    assert 1000 <= summary.seconds < 1100  # rounded


def test_other_images_are_refused(runs: Runs, tmp_path: Path) -> None:
    folder = shutil.copytree(runs.cut, tmp_path / "run")
    changed = np.load(runs.images)
    changed[-1, 0, 0] ^= 1
    np.save(tmp_path / "images.npy", changed)
    other = runs.settings._replace(data=DataConfig(name=str(tmp_path / "images.npy"), batch_size=4))
    told = "not those that the run was started with"
    refused(DataError, told, lambda: train_model(*other, folder, resume=True, quiet=True))
    np.save(tmp_path / "images.npy", np.load(runs.images))  # the same ones in another place are welcome
    train_model(*other, folder, resume=True, quiet=True)
    assert figures(folder) == figures(runs.whole)


def test_an_error_in_a_report_is_no_divergence(runs: Runs, tmp_path: Path) -> None:
    def broken(loop: Loop) -> None:
        raise ValueError("not about numbers")

    failing = partial(train_model, *runs.settings, tmp_path / "run", quiet=True, reports=[broken])
    refused(ValueError, "not about numbers", failing)
