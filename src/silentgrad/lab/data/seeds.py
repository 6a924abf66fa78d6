"""Seeds made of several numbers."""

from typing import Any

import numpy as np


def mixed(*numbers: int) -> int:
    """One seed out of several numbers, no two of which collide in practice."""
    state: Any = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))
