"""The laboratory: data, training, experiments, reports and the command line. Needs the extra `silentgrad[lab]`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silentgrad.lab.count_factors import CountFactors

__all__ = ["CountFactors"]


def __getattr__(name: str) -> Any:
    """`CountFactors`, imported when it is asked for: scikit-learn takes seconds, which others need not pay."""
    if name == "CountFactors":
        from silentgrad.lab.count_factors import CountFactors

        return CountFactors
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
