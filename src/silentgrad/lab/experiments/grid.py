"""The values that a sweep tries."""

from dataclasses import dataclass, field


@dataclass
class Grid:
    """The values to try: the paper's, unless others are given.

    Args:
        lr: Learning rates.
        annealing_rate: Amounts by which the tractable decoder's weight falls every epoch.
        cutoff: Epochs at which the encoder is frozen.
    """

    lr: list[float] = field(default_factory=lambda: [1e-4, 5e-4, 1e-5, 5e-5])
    annealing_rate: list[float] = field(default_factory=lambda: [1e-2, 5e-2, 1e-3, 5e-3])
    cutoff: list[int] = field(default_factory=lambda: [50, 80, 100, 150, 200])
