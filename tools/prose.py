"""List long sentences, paragraphs full of figures, and numbers without a source: `python tools/prose.py`.

The rules hold for the prose of README and docs; tables, code, formulas and citations are left out.

1. No sentence has more than 30 words.
2. No paragraph has more than two figures: numbers with a decimal point, percentages, integers from 10 on.
3. Measured numbers, with two decimals or more, stand in a section that names the command or the file they come from.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("docs/changelog.md", "docs/tables/")  # a list, and generated tables
LONGEST, MOST_FIGURES = 30, 2

APART = re.compile(r"\A---\n.*?\n---\n|^( *)(```|~~~).*?^\1\2|\$\$.*?\$\$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"``[^`]+``|`[^`]+`|\$[^$]+\$|<[^>]+>")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
NO_PROSE = ("|", "#", "<!--", "+++", "(", "![")
ITEM = re.compile(r"^\s*(?:[-*>]|\d+\.)\s+")
SENTENCE = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[\"'(*_]*[A-Z`])")
FIGURE = re.compile(r"(?<![\w.,/-])[-+±]?(?:\d+\.\d+|\d+(?= ?%)|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d+)(?![\w/-]|[.,]\d)")
YEAR = re.compile(r"(?:19|20)\d\d")
MEASURED = re.compile(r"(?<![\w.])\d+\.\d{2,}(?![\w.])")
SOURCE = re.compile(r"```bash|`(?:silentgrad|python|pytest|make) |`results/|made by tools/")


def without(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without the matches of a pattern, with all its line breaks."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the prose of each paragraph or item of a list.

    Code and formulas are one word each, links their words.
    """
    start, lines = 0, list[str]()
    for number, line in enumerate([*without(APART, page).splitlines(), ""], 1):
        ends = not line.strip() or line.lstrip().startswith(NO_PROSE)
        if (ends or ITEM.match(line)) and lines:
            yield start, INLINE.sub("X", LINK.sub(r"\1", " ".join(lines)))
            lines = []
        if not ends:
            start = start if lines else number
            lines.append(ITEM.sub("", line).strip())


def broken_rules(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page where a rule is broken, and the rule."""
    for line, text in paragraphs(page):
        for sentence in SENTENCE.split(text):
            if (words := len(sentence.split())) > LONGEST:
                yield line, f"sentence of {words} words: {sentence[:60]} ..."
        figures = [figure for figure in FIGURE.findall(text) if not YEAR.fullmatch(figure)]
        if len(figures) > MOST_FIGURES:
            yield line, f"paragraph with {len(figures)} figures: {', '.join(figures)}"
    number = 1
    for section in re.split(r"^(?=##? )", page, flags=re.MULTILINE):
        measured = MEASURED.findall(INLINE.sub("", without(APART, section)))
        if measured and not SOURCE.search(section):
            yield number, f"numbers without a command in this section: {', '.join(measured[:5])}"
        number += section.count("\n")


def report() -> list[str]:
    """Return a line for each place in README and docs where a rule is broken."""
    pages = {str(page.relative_to(ROOT)): page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    return [
        f"{name}:{line}: {rule}"
        for name, page in pages.items()
        if not name.startswith(LEFT_OUT)
        for line, rule in broken_rules(page.read_text("utf-8"))
    ]


if __name__ == "__main__":
    found = report()
    print("\n".join(found))
    sys.exit(bool(found))
