"""A run that is killed at any of its writes and resumed ends as if nothing had happened."""

import os
import subprocess
import sys
from pathlib import Path

MEMORY = Path("/dev/shm")  # where flushing to disk costs nothing
TOOL = Path(__file__).parents[1] / "tools" / "kill_runs.py"


def test_killed_at_every_write(tmp_path: Path) -> None:
    """With the temporary folder on the same or another filesystem in turn, and the run's folder moved or not."""
    place = MEMORY if MEMORY.is_dir() else tmp_path
    killed = subprocess.run(
        [sys.executable, str(TOOL), "--quick", "--folder", str(place), "--elsewhere", str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == 0, killed.stdout + killed.stderr
    operations = int(killed.stdout.split()[0])
    assert operations > 50
    good, _, total, *_ = killed.stdout.splitlines()[-1].split()
    assert int(good) == int(total) >= operations
