"""Writes the last part of docs/estimators.md: a table of all estimators, as they declare themselves.

python tools/estimator_table.py
"""

import inspect
import re
from pathlib import Path

from silentgrad.estimators import ESTIMATORS, Estimator, Reparameterized

OUTPUT = Path(__file__).parents[1] / "docs" / "estimators.md"
BITS = 10
START = "## All of them"
HEADER = f"""{START}

Made by `python tools/estimator_table.py` from what the classes declare, with their default arguments. Evaluations are
those of a step with {BITS} bits. Differentiated twice: while the estimator learns, the slopes of so many of them are
differentiated in turn, which costs about as much again. The option is what `--model.estimator` calls it, in place of
which `package.module:Class` names [one of your own](extending.md#an-estimator).

| estimator | option | latents | gradient | evaluations | learns | reference |
|---|---|---|---|---|---|---|
"""


def members() -> list[type[Estimator]]:
    """All registered estimators."""
    return sorted(ESTIMATORS.values(), key=lambda member: member.__name__.lower())


def latents(member: type[Estimator]) -> str:
    """The latents that an estimator takes."""
    if issubclass(member, Reparameterized):
        return "with `rsample`"
    if member.latents == Estimator.latents:
        return "all"
    return ", ".join(f"`{kind.__name__}`" for kind in member.latents)


def claim(member: Estimator) -> str:
    """What an estimator says of its gradient."""
    if member.exact:
        return "exact"
    if member.uses_prior and member.evaluations() > 1:
        return "unbiased, of the bound of several samples"
    if member.unbiased:
        return "unbiased"
    return "biased"


def cost(member: Estimator) -> str:
    """The evaluations of a step."""
    evaluations = str(member.evaluations(BITS, 2))
    if member.differentiated_twice > 0:
        evaluations += f", {member.differentiated_twice} differentiated twice"
    return evaluations


def learned(member: Estimator) -> str:
    """The parameters and averages of an estimator, by name."""
    names: list[str] = []
    for name in member.state_dict():
        short = name.removeprefix("control.").partition(".")[0].replace("_", " ")
        if short not in names:
            names.append(short)
    return ", ".join(names)


def reference(member: type[Estimator]) -> str:
    """The paper that an estimator's documentation cites."""
    _, _, cited = inspect.cleandoc(member.__doc__ or "").partition("References:\n")
    return " ".join(cited.partition("\n\n")[0].split())


def advice(member: type[Estimator]) -> str:
    """When to take it, in the words of its documentation."""
    found = re.search(r"\n\n(Take it.*?)\n\n", inspect.cleandoc(member.__doc__ or "") + "\n\n", re.DOTALL)
    assert found is not None, f"{member.__name__} does not say when to take it"
    return " ".join(found[1].split())


def row(member: type[Estimator]) -> str:
    """An estimator's line of the table."""
    built = member()
    names = [f"`{member.__name__}`", *(f"`{name}`" for name, one in ESTIMATORS.items() if one is member)]
    cells = (*names, latents(member), claim(built), cost(built), learned(built), reference(member))
    return "| " + " | ".join(cells) + " |\n"


def table() -> str:
    """That part of the page."""
    lines = ["\n## When, in a line\n\n"]
    for member in members():
        lines.append(f"- `{member.__name__}`: {advice(member)}\n")
    return HEADER + "".join(map(row, members())) + "".join(lines)


if __name__ == "__main__":
    by_hand, _, _ = OUTPUT.read_text().partition(START)
    OUTPUT.write_text(by_hand + table())
