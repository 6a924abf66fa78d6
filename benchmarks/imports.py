"""The CPU time that the library and the command line take to start, beyond torch: medians, side by side in one run.

python benchmarks/imports.py              # about two minutes
"""

import os
import statistics
import subprocess
import sys

ROUNDS = 7
TORCH = "import torch, torch.distributions"
COMMAND = "from silentgrad.command import main; main()"
STARTS = {
    "import silentgrad": ("import silentgrad", [], 0.3),
    "silentgrad --help": (COMMAND, ["--help"], 1.0),
    "silentgrad train --help": (COMMAND, ["train", "--help"], 1.0),
}


def cpu_seconds(code: str, words: list[str]) -> float:
    """User and system time of a process that runs some code."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    torch: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(ROUNDS):
        torch.append(cpu_seconds(TORCH, []))
        for name, (code, words, _) in STARTS.items():
            found[name].append(cpu_seconds(code, words))
    reference = statistics.median(torch)
    print(f"{TORCH}: {reference:.2f} s")
    for name, (_, _, most) in STARTS.items():
        beyond = statistics.median(found[name]) - reference
        print(f"{name}: {beyond:.2f} s beyond that, at most {most}")
        assert beyond <= most, name


if __name__ == "__main__":
    main()
