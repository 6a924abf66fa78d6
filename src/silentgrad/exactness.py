"""Claims of a number that was computed without sampling."""

from enum import StrEnum


class Exactness(StrEnum):
    """Relation of the result of `expected_log_prob` to the expectation itself.

    `EXACT` is up to rounding: a closed form, or a rule whose stated error is of the size of rounding, whatever its
    input. `LOWER_BOUND` is never above the expectation. `APPROXIMATION` may lie on either side of it.
    """

    EXACT = "exact"
    LOWER_BOUND = "lower bound"
    APPROXIMATION = "approximation"


def weakest(*claims: Exactness) -> Exactness:
    """Return what a sum of numbers with these claims may claim.

    Example:
        >>> weakest(Exactness.EXACT, Exactness.LOWER_BOUND)
        <Exactness.LOWER_BOUND: 'lower bound'>
    """
    return max(claims, key=list(Exactness).index)
