"""What the papers say about which estimator varies less, held against what was measured.

Where both take the same evaluations the variances are compared, elsewhere the variances times evaluations.
"""

from collections.abc import Mapping
from typing import NamedTuple

from silentgrad.lab.experiments.benchmark.measuring import Noise
from silentgrad.lab.runs.tables import Column, Content, Table


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


def ratios(found: Mapping[str, Noise]) -> list[float | None]:
    """Of each claim, the variance of the one in parts of the other's; below 1 the claim holds. None without either."""
    parts: list[float | None] = []
    for order in ORDERS:
        if order.less in found and order.more in found:
            parts.append(_work(order, found, order.less) / _work(order, found, order.more))
        else:
            parts.append(None)
    return parts


def orders_table(noises: Mapping[str, Mapping[int, Mapping[str, Noise]]]) -> Table:
    """The claims in every setting at every step that was measured.

    Args:
        noises: The noise of every estimator, by step, by the setting's title.
    """
    columns = [Column("setting"), Column("step")]
    for order in ORDERS:
        columns.append(Column(f"{order.less} / {order.more} ({order.source})", 2))
    rows: list[list[Content]] = []
    for title, by_step in noises.items():
        for step, found in by_step.items():
            rows.append([title, f"{step:,}", *ratios(found)])
    return Table("orders", "Variances in the order of the papers: below 1 is as they say", columns, rows)


def told(table: Table) -> list[str]:
    """How many of the claims hold, and which do not, in sentences."""
    held, broken = 0, []
    for setting, step, *parts in table.rows:
        for order, part in zip(ORDERS, parts, strict=True):
            if not isinstance(part, float):
                continue
            if part < 1:
                held += 1
            else:
                broken.append(f"{order.less} below {order.more} ({setting}, step {step}: {part:.2f})")
    sentences = [f"Orders of variance that papers claim: {held} of {held + len(broken)} hold."]
    if broken:
        sentences.append(f"Not here: {'; '.join(broken)}.")
    return sentences


def _work(order: Order, found: Mapping[str, Noise], name: str) -> float:
    """The variance, times evaluations where the two differ in them."""
    if found[order.less].evaluations == found[order.more].evaluations:
        return found[name].variance
    return found[name].variance * found[name].evaluations
