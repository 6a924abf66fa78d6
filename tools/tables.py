"""Writes what the docs say of the runs in `results/*.csv`: pages of `docs/tables`, and the claims in `results.md`.

    python tools/tables.py

A test holds the pages to what this writes.
"""

from functools import cache
from pathlib import Path

from claims import claims_table

from silentgrad.lab.cli.reproduce import EXPERIMENTS, SHARED, command_of
from silentgrad.lab.experiments.cells import Request
from silentgrad.lab.experiments.ledger import Ledger
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.reports.experiment import in_markdown
from silentgrad.lab.tables import Findings, markdown

ROOT = Path(__file__).parents[1]
PAPER = Request("cpu", 3, ["mnist", "imagenet32", "cifar10"], tune=True)
REQUESTS = {
    "linear": Request("cpu", 5, ["mnist", "fashion-mnist"], tune=True),
    "guide": Request("cpu", 5, ["digits", "mnist", "fashion-mnist", "cifar10"], tune=True),
    "circuits": Request("cpu", 3, ["digits", "mnist", "fashion-mnist", "cifar10", "imagenet32"]),
    "fixed": Request("cpu", 3, ["mnist"], tune=True),
    **dict.fromkeys(("bpd", "kld", "mse"), PAPER),
}


@cache  # many claims are of one table
def results_of(name: str) -> Results:
    """Return the runs of a table that are in its CSV."""
    ledger = Ledger(ROOT / "results" / f"{SHARED.get(name, name)}.csv")
    return Results(ROOT, EXPERIMENTS[name].finished(REQUESTS[name], ledger), ledger)


def page_of(name: str) -> str:
    """Return a page of `docs/tables`."""
    experiment, request, results = EXPERIMENTS[name], REQUESTS[name], results_of(name)
    found = [name for name in request.datasets if any(cell.dataset == name for cell in results.cells)]
    command = command_of(name, request)
    if not found:
        unmeasured = ["No run of this table is finished."]
        return in_markdown(Findings(name, f"{name}: not measured yet", [], unmeasured, command=command))
    findings = experiment.build(results, request._replace(datasets=found))
    missing = [name for name in request.datasets if name not in found]
    notes = [*findings.notes, *[f"Not finished: {', '.join(missing)}." for _ in missing[:1]]]
    return in_markdown(Findings(name, findings.title, findings.parts, findings.verdicts, notes, command=command))


PAGES = tuple(REQUESTS)
BEGIN, END = "<!-- made by tools/tables.py from results/*.csv -->\n", "<!-- until here -->"


def results_page(text: str) -> str:
    """Return `docs/results.md` with the table of claims as the runs have it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{markdown(claims_table(results_of))}{END}{after}"


if __name__ == "__main__":
    results = ROOT / "docs" / "results.md"
    results.write_text(results_page(results.read_text(encoding="utf-8")), encoding="utf-8")
    for page in PAGES:
        (ROOT / "docs" / "tables" / f"{page}.md").write_text(page_of(page), encoding="utf-8")
