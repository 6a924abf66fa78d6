"""What a change does, by seeds that both sides share: their differences, and an interval around the mean.

Runs of one seed see the same batches in the same order, so that some of what differs between seeds cancels. With
differences :math:`d_1, ..., d_n` of mean m and standard deviation s, Student's interval of 95 % is
:math:`m \\pm t_{n-1} s / \\sqrt n`; at three seeds t is 4.3.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit  # type: ignore[import-untyped]

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """The mean difference over seeds.

    Args:
        mean: The mean.
        margin: Half the width of its interval; None for one seed.
    """

    mean: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """What a change of a figure does of which less is better."""
        if self.margin is None:
            return "one seed"
        if self.mean + self.margin < 0:
            return "helps"
        if self.mean - self.margin > 0:
            return "hurts"
        return "undecided"

    def __str__(self) -> str:
        """The mean and its interval.

        Example:
            >>> str(Difference(-0.171, 0.05)), str(Difference(0.02, None))
            ('-0.171 [-0.221, -0.121]', '+0.020')
        """
        if self.margin is None:
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} [{self.mean - self.margin:+.3f}, {self.mean + self.margin:+.3f}]"


def paired(changed: Sequence[float], reference: Sequence[float]) -> Difference | None:
    """The difference of two sides' figures, in the order of their seeds; None if there is no seed.

    Example:
        >>> paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.5])
        Difference(mean=-1.1666666666666667, margin=0.7171...)
    """
    differences = [a - b for a, b in zip(changed, reference, strict=True)]
    if not differences:
        return None
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return Difference(mean, None)
    quantile = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2))
    return Difference(mean, quantile * statistics.stdev(differences) / math.sqrt(len(differences)))
