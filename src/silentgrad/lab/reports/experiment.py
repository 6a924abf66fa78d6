"""The findings of an experiment as files: a page, Markdown, and every table as LaTeX and CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from silentgrad.lab.reports.compare import curve_section
from silentgrad.lab.reports.figures import reconstructions
from silentgrad.lab.reports.page import CommandLine, Page, Picture, Section
from silentgrad.lab.store.files import write_atomically, write_json_atomically
from silentgrad.lab.store.records import Run
from silentgrad.lab.tables import Findings, Reconstructions, Table, comma_separated, latex, markdown


def write_findings(folder: Path, found: Findings) -> Path:
    """Write findings as .json, .md and .html, each table as .csv and .tex, and return the page's path.

    The folder of the experiment holds the folders of its runs.
    """
    path = folder / found.name
    write_json_atomically(path.with_suffix(".json"), asdict(found))
    write_atomically(path.with_suffix(".md"), in_markdown(found).encode())
    for table in found.tables:
        write_atomically(folder / f"{table.name}.csv", comma_separated(table).encode())
        write_atomically(folder / f"{table.name}.tex", latex(table).encode())
    sections = _sections(folder, found)
    if found.notes:
        sections.append(Section("How it was made", found.notes))
    return Page(found.title, [CommandLine(found.command)], sections).write(path.with_suffix(".html"))


def in_markdown(found: Findings) -> str:
    """Return findings in Markdown: the command, what they say, the tables, and how they were made."""
    parts = [f"# {found.title}", f"`{found.command}`", _listed(found.verdicts)]
    for table in found.tables:
        parts += ["" if table.title == found.title else f"## {table.title}", markdown(table).strip()]
    return "\n\n".join(filter(None, [*parts, _listed(found.notes)])) + "\n"


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _read(folder: Path, names: Mapping[str, str]) -> dict[str, Run]:
    return {label: Run.read(folder / name) for label, name in names.items()}


def _sections(folder: Path, found: Findings) -> list[Section]:
    """Return a section for the verdicts, each table with its curves, and each picture."""
    sections = [Section("What it says", found.verdicts)] if found.verdicts else []
    for part in found.parts:
        if isinstance(part, Table):
            sections.append(Section("" if part.title == found.title else part.title, [part]))
        elif isinstance(part, Reconstructions):
            sections.append(Section(part.title, [_reconstructions(folder, part)]))
        elif len(part.runs) > 1:
            sections.append(curve_section(_read(folder, part.runs), "Convergence, first seed"))
    return sections


def _reconstructions(folder: Path, part: Reconstructions) -> Picture:
    """Draw the reconstructions of runs, on the page and as a file of their own."""
    runs = _read(folder, part.runs)
    drawn = reconstructions({label: run.pictures for label, run in runs.items() if run.pictures is not None})
    picture = Picture(drawn, part.caption)
    write_atomically(folder / f"{part.name}.png", picture.png)
    return picture
