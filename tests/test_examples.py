"""Every example as a command in its smallest form, and what the comparison makes of its runs."""

import json
import math
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import clustering
import comparison
from refusals import refused
from silentgrad.lab.data import DataError, load_images

FOLDER = Path(__file__).parents[1] / "examples"
# Those without a host that is trained with and without a guide.
OTHERS = ("class_conditional", "clustering", "comparison", "counts", "my_estimator")
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in OTHERS)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning's use of torch
    "ignore:.*many workers:UserWarning",  # Lightning's advice
    "ignore:'pin_memory' argument:UserWarning",  # Hugging Face's default, without an accelerator
)
SMALLEST = ["--data", "digits", "--images", "128", "--epochs", "12"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, here: Path, command: Callable[..., str]) -> None:
    said = command(name, *SMALLEST, "--seeds", "1")
    kept = json.loads((here / "runs" / "examples" / f"{name}.json").read_text())["runs"]
    assert sorted(kept) == ["with, seed 0", "without, seed 0"]
    figures = [run["figure"] for run in kept.values()]
    assert all(map(math.isfinite, figures))
    assert figures[0] != figures[1]
    assert comparison.table(kept, 1, "BPD").splitlines()[2] in said


def test_counts_are_fitted_by_every_likelihood(tmp_path: Path, command: Callable[..., str]) -> None:
    counts = np.random.RandomState(0).poisson(2.0, size=(60, 12))
    np.savez(tmp_path / "counts.npz", counts=counts)
    lines = command("counts", str(tmp_path / "counts.npz")).splitlines()
    assert [line.split(":")[0] for line in lines][:2] == ["Poisson", "negative binomial"]
    for line in lines:
        assert -4 < float(line.split(": ")[1].split()[0]) < -1


def test_interrupted_comparison_goes_on(tmp_path: Path, command: Callable[..., str]) -> None:
    arguments = ["plain", *SMALLEST, "--keep", str(tmp_path / "kept.json")]
    command(*arguments, "--seeds", "1")
    said = command(*arguments, "--seeds", "2")
    assert [f"plain with, seed {seed}: 12 epochs" in said for seed in (0, 1)] == [False, True]
    refused(SystemExit, "other settings", lambda: command(*arguments, "--epochs", "13"))


def test_table_says_what_the_runs_say() -> None:
    runs = {
        f"{way}, seed {seed}": {"figure": start + seed / 10, "seconds": 10 * (seed + 1)}
        for way, start in (("without", 4.0), ("with", 3.5))
        for seed in range(3)
    }
    lines = comparison.table(runs, 3, "BPD").splitlines()
    assert lines[3] == "| seed 1 | 4.1000 | 3.6000 | -0.5000 |"
    assert lines[5] == "| mean | 4.1000 ± 0.1000 | 3.6000 ± 0.1000 | -0.5000 ± 0.0000 |"
    assert lines[6] == "| seconds a run | 20 | 20 | |"


def test_clusters_come_to_agree_with_labels_that_training_never_saw() -> None:
    digits, labels = load_images("digits"), clustering.unseen_labels("digits")
    x, unseen = digits.centre(digits.rows("train")), digits.centre(digits.rows("test"))
    centres = x[:10].flatten(1)  # ten images, of which several show the same digit
    before = clustering.agreement(clustering.train(x, centres, 0, epochs=0).clusters(unseen), labels)
    after = clustering.agreement(clustering.train(x, centres, 0, epochs=20).clusters(unseen), labels)
    assert after.accuracy > before.accuracy + 0.1
    assert after.information > before.information + 0.1


def test_clustering_prints_its_table(command: Callable[..., str]) -> None:
    said = command("clustering", "--data", "digits", "--epochs", "1", "--seeds", "2", "--components", "10")
    assert all(f"| 10 | {name} | 0." in said for name in ("mixture", "k-means"))
    refused(SystemExit, "no labels here", lambda: command("clustering", "--data", "cifar10"))
    refused(DataError, "no labels here", lambda: clustering.unseen_labels("cifar10"))


def test_agreement_of_clusters_and_labels() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    assert clustering.agreement(torch.tensor([5, 5, 5, 2, 2, 2]), labels) == (1.0, pytest.approx(1.0))
    accuracy, information = clustering.agreement(torch.tensor([0, 0, 1, 1, 1, 1]), labels)
    assert accuracy == pytest.approx(5 / 6)  # of each cluster the most frequent label: 2 of 2 and 3 of 4
    joint = torch.tensor([[2.0, 1.0], [0.0, 3.0]]) / 6  # label by cluster
    mutual = (joint * (joint / joint.sum(0) / joint.sum(1, keepdim=True)).log()).nan_to_num().sum()
    entropies = [-(p * p.log()).sum() for p in (joint.sum(0), joint.sum(1))]
    assert information == pytest.approx(float(mutual / (sum(entropies) / 2)), abs=1e-6)
