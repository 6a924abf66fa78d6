"""What the documentation says is true: its code runs, its tables are those of the code, and releases are one.

The site is built without a warning, and leads somewhere. Tutorials are run by `make docs`, not here. Links to other
sites are not followed: a test that needs the network would fail without a fault of ours.
"""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import zlib
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import browser
import processes
import silentgrad
from silentgrad import estimators, likelihoods
from silentgrad.lab.networks import NETWORKS
from silentgrad.lab.runs.evaluation import METRICS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def tool(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / f"{name}.py"))


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code: str) -> None:
    with patch.dict(METRICS), patch.dict(NETWORKS):  # an entry that a block adds is not there for other tests
        exec(compile(code, "documentation", "exec"), {})


def test_tables_are_those_of_the_registries() -> None:
    assert (ROOT / "docs" / "latents.md").read_text() == tool("latent_table")["table"]()
    assert (ROOT / "docs" / "estimators.md").read_text().endswith(tool("estimator_table")["table"]())


def test_tables_and_claims_are_what_the_committed_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")  # of which one imports another
    tables = tool("tables")
    for page in tables["PAGES"]:
        assert (ROOT / "docs" / "tables" / f"{page}.md").read_text(encoding="utf-8") == tables["page_of"](page), page
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == tables["results_page"](text)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_sentences_are_short_and_figures_have_a_source() -> None:
    assert tool("prose")["report"]() == []


def test_the_version_is_one() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == silentgrad.__version__
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    released = [heading for heading in headings if heading != "## Unreleased"]
    assert headings[-len(released) :] == released  # what is not released stands before all that is
    assert released[0] == f"## {silentgrad.__version__}, {citation['date-released']}"


def test_the_matrix_has_every_python_with_the_lowest_and_the_newest_torch() -> None:
    pytest.importorskip("nox")
    command = [sys.executable, "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), "--list", "--json"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    found = {(session["python"], session["call_spec"]["torch"]) for session in json.loads(process.stdout)}
    assert found == {(python, torch) for python in ("3.11", "3.12", "3.13") for torch in ("2.6", "2.13.0")}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.stem)
def test_forms_of_issues_have_what_they_need(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert all([form["name"], form["description"], *(field["attributes"]["label"] for field in form["body"])])
    assert {field["type"] for field in form["body"]} == {"textarea"}
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


# --- the site

BUILDERS = ("sphinx", "furo", "myst_nb")
# Cells that were not run have no language, and nothing for the gallery.
UNRUN = "nb_execution_mode=off", "suppress_warnings=myst.header,myst-nb.lexer,mystnb.glue_ref"
WIDEST = ("index.html", "mathematics.html", "results.html", "tables/guide.html", "api/likelihoods.html", "tour.html")


@pytest.mark.skipif(None in map(importlib.util.find_spec, BUILDERS), reason="the extra `docs` is not installed")
def test_site(tmp_path: Path) -> None:
    """All in one test, since building the site takes twenty seconds of a core."""
    site = built(tmp_path)
    links_lead_somewhere_and_nothing_is_fetched(site)
    every_public_name_is_in_the_reference(site)
    if browser.BROWSER is not None:
        pages_fit_a_telephone_and_a_desk(site, tmp_path)


def built(folder: Path) -> Path:
    spec = importlib.util.find_spec("sphinx")
    words = ["--fail-on-warning", "--keep-going", "--quiet"]
    for setting in UNRUN:
        words += ["-D", setting]
    program, said = Path(spec.origin).with_name("__main__.py"), folder / "said.txt"
    code = processes.run(processes.script, program, *words, str(ROOT / "docs"), str(folder / "html"), output=said)
    assert code == 0, said.read_text()
    return folder / "html"


class Targets:
    """Where a page's links lead, what it fetches from elsewhere, and the places in it that a link can name."""

    def __init__(self, page: Path) -> None:
        tags = " ".join(re.findall(r"<[^>]*>", page.read_text()))
        self.fetched = re.findall(r"""<(?:script|img|link)\b[^>]*?(?:src|href)=["']((?:https?:)?//[^"']+)""", tags)
        self.links = [unescape(link) for link in re.findall(r'\s(?:href|src)="([^"]+)"', tags)]
        self.places = {unescape(place) for place in re.findall(r'\sid="([^"]+)"', tags)}


def links_lead_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {page.resolve(): Targets(page) for page in site.rglob("*.html")}
    assert len(pages) > 40
    for page, targets in pages.items():
        assert targets.fetched == [], page
        for link in targets.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            assert target.exists(), f"{page} links to {link}"
            # Pages of source code link back by one name of an object, which may be documented by another.
            if url.fragment and target in pages and "_modules" not in page.parts:
                assert unquote(url.fragment) in pages[target].places, f"{page} links to {link}"


def every_public_name_is_in_the_reference(site: Path) -> None:
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]  # after four lines of text, others, compressed
    documented = {line.split()[0] for line in zlib.decompress(content).decode().splitlines() if " py:" in line}
    documented |= {"silentgrad.families", "silentgrad.likelihoods"}  # modules, member by member
    for package in (silentgrad, estimators, likelihoods):
        for name in package.__all__:
            spelled = {f"silentgrad.{name}", f"{package.__name__}.{name}"}
            assert spelled & documented, f"{package.__name__}.{name} is in no page of docs/api"


def pages_fit_a_telephone_and_a_desk(site: Path, scratch: Path) -> None:
    for name in WIDEST:
        for width in browser.WIDTHS:
            assert browser.look(site / name, width, scratch).problems == [], f"{name} at {width} pixels"
