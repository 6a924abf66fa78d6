"""The gap between runs of several lengths and a figure, by their epochs: a fit, and its extrapolation.

    python benchmarks/epochs.py 1.95 200 RUN RUN ...    # a figure, the epochs behind it, and the runs' folders

Every run has fallen learning rates at its own end, so that runs of several lengths are needed, not one run's curve. The
mean test figure of all runs with n epochs is fitted by figure + b n^-c, by least squares of the logarithm of the gap.
"""

import statistics
import sys
from pathlib import Path

import numpy as np

from silentgrad.lab.store.records import Run


def main() -> None:
    target, epochs = float(sys.argv[1]), int(sys.argv[2])
    figures: dict[int, list[float]] = {}
    for folder in sys.argv[3:]:
        summary = Run.read(Path(folder)).summary
        assert summary is not None
        figures.setdefault(summary.epochs, []).append(summary.figure)
    means = {}
    for count, found in sorted(figures.items()):
        means[count] = statistics.fmean(found)
        print(f"{count:4} epochs: {means[count]:.3f}, {len(found)} runs, {min(found):.3f} to {max(found):.3f}")
    slope, start = np.polyfit(np.log(list(means)), np.log([mean - target for mean in means.values()]), 1)
    then = target + np.exp(start) * epochs**slope
    print(f"fit: {target} + {np.exp(start):.2f} n^{slope:.2f}; at {epochs} epochs {then:.2f}")


if __name__ == "__main__":
    main()
