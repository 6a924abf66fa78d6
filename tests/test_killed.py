"""What a kill leaves behind: no process, and nothing that the same command could not go on with."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from silentgrad.errors import SilentgradError
from silentgrad.lab.experiments import runner
from silentgrad.lab.experiments.cells import Cell, learned_cells
from silentgrad.lab.training import Settings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
EPOCHS, JOBS = 20, 2  # two jobs: each takes one core, though there is but one run
REPRODUCE = """
import sys
from pathlib import Path
from test_killed import JOBS, long_run
from silentgrad.lab.experiments.runner import run_all
if __name__ == "__main__":
    run_all([long_run()], Path(sys.argv[1]), JOBS, None, "cpu")
"""


def long_run() -> Cell:
    (cell, *_) = learned_cells("smoke", ["mnist"], 1)
    data, model, train = cell.settings
    return cell._replace(settings=Settings(replace(data, batch_size=256), model, replace(train, epochs=EPOCHS)))


def epochs_done(folder: Path) -> list[str]:
    metrics = folder / long_run().name / "metrics.csv"
    return metrics.read_text().splitlines()[1:] if metrics.exists() else []


@pytest.fixture
def reproducing(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that trains a long run in a worker; both hold the write end of its standard output."""
    script = tmp_path / "reproduce.py"
    script.write_text(REPRODUCE)
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path, reproducing: "subprocess.Popen[str]") -> None:
    while not epochs_done(tmp_path):
        assert reproducing.poll() is None, "ended before it could be killed"
        time.sleep(0.02)
    reproducing.kill()
    reproducing.communicate(timeout=2)  # standard output ends with the last process that holds it
    done = epochs_done(tmp_path)
    assert len(done) < EPOCHS
    runner._train(long_run().settings, tmp_path / long_run().name)  # what a worker does with it the next time
    after = epochs_done(tmp_path)
    assert len(after) == EPOCHS
    assert after[0] == done[0]  # with its seconds: it was not trained again


def test_a_process_killed_while_it_wrote_the_settings_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.123.unfinished").write_text("data:\n  na")
    data, model, train = long_run().settings
    runner._train(Settings(data, model, replace(train, epochs=1)), tmp_path)
    assert runner.finished(tmp_path)
    assert not (tmp_path / ".config.yaml.123.unfinished").exists()


@pytest.mark.parametrize("content", ["[" * 10_000, "data: {nonsense: 1}", "- 1", "", "{"])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / long_run().name / "config.yaml"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(SilentgradError, match=str(path)) as caught:
        runner.run_all([long_run()], tmp_path, 1, None, "cpu")
    assert "\n" not in str(caught.value)
