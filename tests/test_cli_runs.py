"""Runs from the command line: what they show while they are trained, and how they go on."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest

import processes
from silentgrad.lab.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
TINY = ["--data.batch_size", "512", "--model.latent_dim", "2", "--model.hidden", "4", "--train.accelerator", "cpu"]
STEPS = 3  # of an epoch: 1,297 rows in batches of 512


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def interrupted(output: Path, awaited: Path, *words: str) -> str:
    """What a command says that Ctrl-C ends when a file of figures has two epochs."""
    process = processes.start(processes.silentgrad, *words, output=output)
    while not (awaited.exists() and len(awaited.read_text().splitlines()) > 2):
        assert process.is_alive(), "ended before it could be interrupted"
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    said = output.read_text()
    assert "Traceback" not in said
    return said


def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a run"
    words = ["train", *TINY, "--train.epochs", "100", "--quiet", "true", "--folder", str(folder)]
    said = interrupted(tmp_path / "said.txt", folder / "metrics.csv", *words)
    assert f"interrupted; go on by: silentgrad train --folder '{folder}' --resume true\n" in said
    before = len((folder / "metrics.csv").read_text().splitlines())
    assert before < 101
    time.sleep(0.5)  # while nobody works at it
    main(["train", "--folder", str(folder), "--resume", "true", "--quiet", "true"])
    capsys.readouterr()
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 101))
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)  # those of both processes, one after the other
    done = content(folder)
    main(["train", "--folder", str(folder), "--resume", "true"])
    assert "is finished: nothing was trained" in capsys.readouterr().out
    assert content(folder) == done


def test_the_bar_counts_steps_and_epochs_from_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", *TINY, "--train.epochs", "2", "--folder", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "epoch 2 of 2" in said
    assert f"{2 * STEPS}/{2 * STEPS} steps 0:00:00 left, validation BPD " in said


def test_reproduce_goes_on_by_the_same_command(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    words = ["reproduce", "fixed", "--scale", "smoke", "--seeds", "1", "--jobs", "1", "--folder", str(folder)]
    output = tmp_path / "said.txt"
    process = processes.start(processes.silentgrad, *words, output=output)
    while not any(folder.glob("*/metrics.csv")):
        assert process.is_alive(), "ended before it could be interrupted"
        time.sleep(0.01)
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers too
    process.join()
    assert process.exitcode == 130
    said = output.read_text()
    assert f"interrupted; go on by: silentgrad {' '.join(words)}\n" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("latent", "estimator"), [("bernoulli", "gumbel-softmax"), ("categorical", "gumbel-softmax"), ("poisson", "rloo")]
)
def test_an_estimator_that_suits_the_latents_is_chosen(
    latent: str, estimator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    main(["train", *TINY, "--model.latent", latent, "--train.epochs", "1", "--quiet", "true", "--folder", str(folder)])
    assert f"estimator: {estimator}\n" in (folder / "config.yaml").read_text()
    main(["evaluate", str(folder), "--samples", "20"])
    assert "(importance-weighted bound, 20 samples)" in capsys.readouterr().out
