"""A run that is killed at any of its writes and resumed ends as if nothing had happened."""

from pathlib import Path

import processes

MEMORY = Path("/dev/shm")  # where flushing to disk costs nothing
TOOL = Path(__file__).parents[1] / "tools" / "kill_runs.py"


def test_killed_at_every_write(tmp_path: Path) -> None:
    """With the temporary folder on the same or another filesystem in turn, and the run's folder moved or not."""
    place = MEMORY if MEMORY.is_dir() else tmp_path
    output = tmp_path / "said.txt"
    words = ["--quick", "--folder", str(place), "--elsewhere", str(tmp_path)]
    code = processes.run(processes.script, TOOL, *words, output=output)
    said = output.read_text()
    assert code == 0, said
    operations = int(said.split()[0])
    assert operations > 50
    good, _, total, *_ = said.splitlines()[-1].split()
    assert int(good) == int(total) >= operations
