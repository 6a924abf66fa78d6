"""The documentation's site is built without a warning, and leads somewhere. Tutorials are run by `make docs`, not here.

Links to other sites are not followed: a test that needs the network would fail without a fault of ours.
"""

import importlib.util
import re
import zlib
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import browser
import processes
import silentgrad
from silentgrad import estimators, likelihoods

BUILDERS = ("sphinx", "furo", "myst_nb")
missing = [name for name in BUILDERS if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"the extra `docs` is not installed: no {', '.join(missing)}")

DOCS = Path(__file__).parents[1] / "docs"
# Cells that were not run have no language, and nothing for the gallery.
UNRUN = "nb_execution_mode=off", "suppress_warnings=myst.header,myst-nb.lexer,mystnb.glue_ref"
WIDEST = ("index.html", "mathematics.html", "results.html", "tables/guide.html", "api/likelihoods.html", "tour.html")


def test_site(tmp_path: Path) -> None:
    """All in one test, since building the site takes twenty seconds of a core."""
    site = built(tmp_path)
    links_between_pages_lead_somewhere(site)
    pages_fetch_nothing_from_elsewhere(site)
    every_public_name_is_in_the_reference(site)
    if browser.BROWSER is not None:
        pages_fit_a_telephone_and_a_desk(site, tmp_path)


def built(folder: Path) -> Path:
    spec = importlib.util.find_spec("sphinx")
    assert spec is not None
    assert spec.origin is not None
    words = ["--fail-on-warning", "--keep-going", "--quiet"]
    for setting in UNRUN:
        words += ["-D", setting]
    program, said = Path(spec.origin).with_name("__main__.py"), folder / "said.txt"
    code = processes.run(processes.script, program, *words, str(DOCS), str(folder / "html"), output=said)
    assert code == 0, said.read_text()
    return folder / "html"


class Targets:
    """Where a page's links lead, and the places in it that a link can name."""

    def __init__(self, page: Path) -> None:
        tags = " ".join(re.findall(r"<[^>]*>", page.read_text()))
        self.links = [unescape(link) for link in re.findall(r'\s(?:href|src)="([^"]+)"', tags)]
        self.places = {unescape(place) for place in re.findall(r'\sid="([^"]+)"', tags)}


def links_between_pages_lead_somewhere(site: Path) -> None:
    pages = {page.resolve(): Targets(page) for page in site.rglob("*.html")}
    assert len(pages) > 40
    for page, targets in pages.items():
        for link in targets.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = page
            if url.path:
                target = (page.parent / unquote(url.path)).resolve()
            assert target.exists(), f"{page} links to {link}"
            # Pages of source code link back by one name of an object, which may be documented by another.
            if url.fragment and target in pages and "_modules" not in page.parts:
                assert unquote(url.fragment) in pages[target].places, f"{page} links to {link}"


def pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = re.compile(r"""<(?:script|img|link)\b[^>]*?(?:src|href)=["']((?:https?:)?//[^"']+)""")
    for page in site.rglob("*.html"):
        fetched = elsewhere.findall(page.read_text())
        assert fetched == [], f"{page} fetches {fetched}"


def every_public_name_is_in_the_reference(site: Path) -> None:
    documented = inventory(site / "objects.inv")
    documented |= {"silentgrad.families", "silentgrad.likelihoods"}  # modules, member by member
    for package in (silentgrad, estimators, likelihoods):
        for name in package.__all__:
            spelled = {f"silentgrad.{name}", f"{package.__name__}.{name}"}
            assert spelled & documented, f"{package.__name__}.{name} is in no page of docs/api"


def inventory(path: Path) -> set[str]:
    """Names of the Python objects that a site documents. The file is four lines of text, then others, compressed."""
    content = path.read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(content).decode().splitlines()
    return {line.split()[0] for line in lines if " py:" in line}


def pages_fit_a_telephone_and_a_desk(site: Path, scratch: Path) -> None:
    for name in WIDEST:
        for width in browser.WIDTHS:
            assert browser.look(site / name, width, scratch).problems == [], f"{name} at {width} pixels"
