"""Findings, what would help, and the whole check-up: records that print."""

import textwrap
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silentgrad.analysis import Estimate

if TYPE_CHECKING:
    from silentgrad.checkup.measurements import Measurements

Verdict = Literal["wrong", "suspicious", "fine"]
SEVERITY: tuple[Verdict, ...] = ("wrong", "suspicious", "fine")
WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """One thing that was measured.

    Args:
        name: What was looked at.
        number: What was found.
        unit: Unit of the number.
        verdict: "fine", "suspicious" or "wrong".
        cause: The suspected cause; empty where all is well.
        change: The line to change; empty where all is well.
        error: Standard error of the number; 0 if it is exact for the examples that were looked at.
    """

    name: str
    number: float
    unit: str
    verdict: Verdict
    cause: str = ""
    change: str = ""
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.verdict:<11}{self.name}: {Estimate(self.number, self.error)} {self.unit}"


@dataclass(frozen=True)
class Advice:
    """Something that would help, with the expected size of its effect and the standard error of that."""

    action: str
    gain: float
    unit: str
    error: float = 0.0

    def __str__(self) -> str:
        return f"{Estimate(self.gain, self.error)} {self.unit}: {self.action}"


@dataclass(frozen=True)
class CheckUp:
    """The findings on a model, the gravest first, and what would help. `print` shows them in 80 columns.

    Args:
        model: Name of the model's class.
        findings: The findings; of equally grave ones, what may cause the others comes first, and a weight that was
            measured in the loss before all that was learned under it.
        advice: What would help, the largest gain in nats first.
        skipped: What could not be measured, and why.
        measurements: What the figures of `to_html` are drawn from.
    """

    model: str
    findings: list[Finding]
    advice: list[Advice]
    skipped: dict[str, str]
    measurements: "Measurements" = field(repr=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """The gravest of all verdicts."""
        return min((finding.verdict for finding in self.findings), key=SEVERITY.index)

    def __getitem__(self, name: str) -> Finding:
        if name not in (known := {finding.name: finding for finding in self.findings}):
            raise KeyError(f"no finding {name!r}: {self.skipped.get(name, list(known))}")
        return known[name]

    def __str__(self) -> str:
        lines = _wrapped(f"Check-up of {self.model}: {self.measurements}", 0)
        for finding in self.findings:
            lines += ["", *_wrapped(str(finding), 0), *_wrapped(finding.cause, 11)]
            lines += _wrapped(f"-> {finding.change}" * bool(finding.change), 11)
        lines += ["", "What would help" if self.advice else "Nothing that was measured would help"]
        for advice in self.advice:
            lines += _wrapped(f"- {advice}", 2)
        for name, reason in self.skipped.items():
            lines += _wrapped(f"not measured: {name}: {reason}", 0)
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in numbers and text, as `json.dumps` takes it."""
        found = {"model": self.model, "verdict": self.verdict, "skipped": dict(self.skipped)}
        return found | {name: [asdict(one) for one in getattr(self, name)] for name in ("findings", "advice")}

    def to_html(self, path: str | Path) -> Path:
        """Write a page with the findings and figures; needs matplotlib."""
        from silentgrad.checkup.page import page

        Path(path).write_text(page(self), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * max(indent, 4))
