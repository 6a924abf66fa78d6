"""The values that a sweep tries."""

from dataclasses import dataclass, field


@dataclass
class Grid:
    """The values to try: the paper's, unless others are given.

    Args:
        lr: Learning rates to try (--train.lr).
        guided: Parts of the training to try in which the tractable decoder guides (--model.guided); the paper's rates,
            0.05 to 0.005 an epoch, make parts of 0.1 to 1 of its 200 epochs, and its smallest, 0.001, never reaches 0.
        cutoff: Epochs to try at which the encoder is frozen (--model.cutoff).
    """

    lr: list[float] = field(default_factory=lambda: [1e-4, 5e-4, 1e-5, 5e-5])
    guided: list[float] = field(default_factory=lambda: [0.5, 0.1, 5.0, 1.0])
    cutoff: list[int] = field(default_factory=lambda: [50, 80, 100, 150, 200])
