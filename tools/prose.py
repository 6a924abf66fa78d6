"""Find what readers stumble over: `python tools/prose.py` lists long sentences, walls of figures and bare numbers.

The rules hold for the prose of README and docs: tables, code, formulas and citations are left out.

1. No sentence has more than 30 words.
2. No paragraph has more than two figures: numbers with a decimal point, percentages, integers from 10 on.
3. Measured numbers, those with two decimals or more, stand in a section that also has the command which makes them, or
   says from which file they are generated.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("docs/changelog.md", "docs/tables/")  # the changelog is a list; tables are generated
LONGEST, MOST_FIGURES = 30, 2

CODE_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
MATH_BLOCK = re.compile(r"\$\$.*?\$\$", re.DOTALL)
INLINE = re.compile(r"``[^`]+``|`[^`]+`|\$[^$]+\$|<[^>]+>")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[-*>]|\d+\.)\s+")
SENTENCE = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[\"'(*_]*[A-Z`])")
FIGURE = re.compile(r"(?<![\w.,/-])[-+−±]?(?:\d+\.\d+|\d+(?= ?%)|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d+)(?![\w/-]|[.,]\d)")
YEAR = re.compile(r"(?:19|20)\d\d")
MEASURED = re.compile(r"(?<![\w.])\d+\.\d{2,}(?![\w.])")
COMMAND = re.compile(r"```bash|`(?:silentgrad|python|pytest|make) |`results/|made by tools/")


class Paragraph(NamedTuple):
    """A paragraph, or an item of a list.

    Args:
        line: Number of its first line.
        text: Its prose in one line.
    """

    line: int
    text: str


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text without what matches, on as many lines."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def paragraphs(page: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a page: neither tables nor code, headings or formulas."""
    page = blanked(re.sub(r"\A---\n.*?\n---\n", lambda front: "\n" * front[0].count("\n"), page, flags=re.DOTALL), CODE_BLOCK)
    start, words = 0, list[str]()
    for number, line in enumerate([*blanked(page, MATH_BLOCK).splitlines(), ""], 1):
        ends = not line.strip() or line.lstrip().startswith(("|", "#", "<!--", "+++", "(", "!["))
        if (ends or ITEM.match(line)) and words:
            yield Paragraph(start, " ".join(words))
            words = []
        if not ends:
            start = start if words else number
            words.append(ITEM.sub("", line).strip())


def told(text: str) -> str:
    """Return a paragraph with code and formulas as one word each, and links as their words."""
    return INLINE.sub("X", LINK.sub(r"\1", text))


def figures(text: str) -> list[str]:
    """Return the figures of a paragraph; years are none."""
    return [figure for figure in FIGURE.findall(told(text)) if not YEAR.fullmatch(figure)]


def stumbles(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page where a rule is broken, and how."""
    for line, text in paragraphs(page):
        for sentence in SENTENCE.split(told(text)):
            if (words := len(sentence.split())) > LONGEST:
                yield line, f"sentence of {words} words: {sentence[:60]} ..."
        if len(found := figures(text)) > MOST_FIGURES:
            yield line, f"paragraph with {len(found)} figures: {', '.join(found)}"
    number = 1
    for section in re.split(r"^(?=##? )", page, flags=re.MULTILINE):
        prose = INLINE.sub("", blanked(blanked(section, CODE_BLOCK), MATH_BLOCK))
        if (bare := MEASURED.findall(prose)) and not COMMAND.search(section):
            yield number, f"numbers without a command in this section: {', '.join(bare[:5])}"
        number += section.count("\n")


def pages() -> list[Path]:
    """Return README and the pages of the docs."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    return [page for page in every if not str(page.relative_to(ROOT)).startswith(LEFT_OUT)]


def report() -> list[str]:
    """Return a line for each place where a rule is broken."""
    return [
        f"{page.relative_to(ROOT)}:{line}: {what}" for page in pages() for line, what in stumbles(page.read_text("utf-8"))
    ]


if __name__ == "__main__":
    found = report()
    print("\n".join(found))
    sys.exit(bool(found))
