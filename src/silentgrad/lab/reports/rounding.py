"""How numbers are rounded in print: one rule for all pages, tables and what commands print.

A number with an error has two significant digits of the error, and is itself rounded to the same place.
"""

import math

SMALLEST, LARGEST = 1e-4, 1e7  # what is written without an exponent


def finite(value: object) -> float | None:
    """The number that a value is; None if it is no finite number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def number(value: object) -> str:
    """A value in print: four significant digits, whole numbers in full, nothing for None, anything else as it stands.

    Example:
        >>> [number(value) for value in (2.34567, 1087.2, 100000.5, 6, 5e-5, None, "exp")]
        ['2.346', '1087', '100,000', '6', '5.000e-05', '', 'exp']
    """
    if value is None:
        return ""
    known = finite(value)
    if known is None or isinstance(value, bool):
        return str(value)
    if known.is_integer() or abs(known) >= 10_000:
        return f"{known:,.0f}"
    return f"{known:#.4g}".rstrip(".")


def with_error(value: float, error: float | None) -> str:
    """A number and its error in print; the number alone if the error is not known.

    Args:
        value: The number.
        error: Its error: a standard error or a standard deviation.

    Example:
        >>> with_error(139.2, 10.3), with_error(0.02143, 0.00332), with_error(183456, 5123)
        ('139 ± 10', '0.0214 ± 0.0033', '183,500 ± 5,100')
        >>> with_error(3.2145e-7, 2.5e-9), with_error(2.5, 0.0), with_error(2.34567, None)
        ('(3.215 ± 0.025)e-07', '2.500 ± 0', '2.346')
    """
    if error is None:
        return number(value)
    if not (math.isfinite(value) and math.isfinite(error)) or error == 0:
        return f"{number(value)} ± {number(error)}"
    largest = max(abs(value), abs(error))
    if SMALLEST <= largest < LARGEST:
        return _to_the_place_of(value, error)
    exponent = _exponent(largest, digits=4)
    scale = 10.0**exponent
    return f"({_to_the_place_of(value / scale, error / scale)})e{exponent:+03d}"


def _to_the_place_of(value: float, error: float) -> str:
    """Both rounded to the second significant digit of the error."""
    decimals = 1 - _exponent(error, digits=2)
    shown = max(0, decimals)
    return f"{round(value, decimals):,.{shown}f} ± {round(error, decimals):,.{shown}f}"


def _exponent(value: float, digits: int) -> int:
    """The power of ten of the first digit, once the number is rounded to some significant digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])
