"""What the papers say about which estimator varies less, held against what was measured.

Where both take the same evaluations the variances are compared, elsewhere the variances times evaluations.
"""

from collections.abc import Mapping
from typing import NamedTuple

from silentgrad.lab.experiments.benchmark.measuring import Noise


class Order(NamedTuple):
    """A claim that one estimator's gradient varies less than another's.

    Args:
        less: The one.
        more: The other.
        source: Whose claim it is.
    """

    less: str
    more: str
    source: str


ORDERS = [
    Order("disarm", "arm", "Dong et al. 2020"),
    Order("disarm", "rloo", "Dong et al. 2020"),
    Order("arms", "rloo", "Dimitriev and Zhou 2021"),
    Order("double-cv", "rloo", "Titsias and Shi 2022"),
    Order("double-cv", "disarm", "Titsias and Shi 2022"),
    Order("rebar", "reinforce", "Tucker et al. 2017"),
    Order("relax", "rebar", "Grathwohl et al. 2018"),
    Order("muprop", "reinforce", "Gu et al. 2016"),
    Order("nvil", "reinforce", "Mnih and Gregor 2014"),
]


def orders(title: str, noises: Mapping[int, Mapping[str, Noise]]) -> list[str]:
    """A sentence for each step: which of the papers' orders hold there, and which do not."""
    sentences = []
    for step, found in noises.items():
        held, broken = [], []
        for order in ORDERS:
            if order.less not in found or order.more not in found:
                continue
            ratio = _work(order, found, order.less) / _work(order, found, order.more)
            told = f"{order.less} below {order.more} ({order.source}): {ratio:.2f} of it"
            if ratio < 1:
                held.append(told)
            else:
                broken.append(told)
        if held or broken:
            sentences.append(f"{title}, variance at step {step:,}: as in the papers: {_joined(held)}; not here: "
                             f"{_joined(broken)}.")  # fmt: skip
    return sentences


def _work(order: Order, found: Mapping[str, Noise], name: str) -> float:
    """The variance, times evaluations where the two differ in them."""
    if found[order.less].evaluations == found[order.more].evaluations:
        return found[name].variance
    return found[name].variance * found[name].evaluations


def _joined(parts: list[str]) -> str:
    return ", ".join(parts) or "none"
