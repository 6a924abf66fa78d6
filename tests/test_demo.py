"""The demonstration: three runs of its own every time, and a table of the figures that they left."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import processes
from silentgrad.lab.cli.main import main
from silentgrad.lab.experiments import demo
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, read_config

RUNS = ("network", "guided", "circuit")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def row(said: str, folder: Path) -> list[str]:
    """The words of the table's row about the run in a folder."""
    (line,) = [line for line in said.splitlines() if line.split()[:1] == [str(folder)]]
    return line.split()


def test_the_table_has_the_figures_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "EPOCHS", 2)
    main(["demo", "--seed", "3"])
    said = capsys.readouterr().out
    place = Path("runs/demo-001")
    assert {path.name for path in place.iterdir()} == {*RUNS, "compare.html"}
    bpd = {}
    for name in RUNS:
        left = summary(place / name)
        bpd[name] = left["bpd"]
        elbo = left.get("sampled", left["bpd"])
        figures = [f"{left['bpd']:.4f}", f"{elbo:.4f}", f"{left['seconds']:.1f}"]
        assert row(said, place / name)[-3:] == figures
        assert read_config(place / name).train.seed == 3
        assert (place / name / "report.html").exists()
    assert "sampled" in summary(place / "circuit")
    words = {
        "network": "network without a guide",
        "guided": "the same with the guide",
        "circuit": "silent circuit, no samples",
    }
    best = min(bpd, key=bpd.__getitem__)
    assert f"best by test BPD on this one seed, which is no verdict: {words[best]}\n" in said
    assert said.endswith("page: runs/demo-001/compare.html\n")
    page = (place / "compare.html").read_text()
    for name in RUNS:
        assert f">{name}</td>" in page


def test_the_next_one_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    earlier = tmp_path / "runs" / "demo-001" / "precious"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("mine")
    main(["demo"])
    assert [path.name for path in earlier.parent.iterdir()] == ["precious"]
    assert {path.name for path in (tmp_path / "runs" / "demo-002").iterdir()} == {*RUNS, "compare.html"}


def test_the_runs_are_what_they_are_said_to_be() -> None:
    network, guided, circuit = demo.demo_runs(5)
    train = TrainConfig(seed=5)
    assert guided.settings == Settings(DataConfig(), ModelConfig(), train)
    assert network.settings == Settings(DataConfig(), ModelConfig(tractable="none"), train)
    model = circuit.settings.model
    assert (model.tractable, model.nonlinear, model.estimator) == ("circuit", False, "exact")
    assert (model.latent_dim, model.hidden) == (ModelConfig().latent_dim, ModelConfig().hidden)
    assert circuit.settings.data == DataConfig()
    assert (circuit.settings.train.epochs, circuit.settings.train.seed) == (train.epochs, train.seed)


def test_ctrl_c_leaves_a_run_to_go_on_with(tmp_path: Path) -> None:
    folder, output = tmp_path / "demo", tmp_path / "said.txt"
    process = processes.start(processes.silentgrad, "demo", "--folder", str(folder), output=output)
    metrics = folder / "network" / "metrics.csv"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.is_alive(), "ended before it could be interrupted"
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert f"go on by: silentgrad train --folder {folder}/network --resume true\n" in output.read_text()
    assert "Traceback" not in output.read_text()
    assert [path.name for path in folder.iterdir()] == ["network"]
