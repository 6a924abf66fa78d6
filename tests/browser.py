"""Open a page in a real browser and says what is wrong with it.

The page is shown in a frame of the width asked for, since a headless window may refuse to be as narrow as a telephone.
The browser prints the framing document after it has written into it what it found.
"""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = TELEPHONE, DESK = (390, 1280)
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update",
    "disable-sync", "no-first-run", "window-size=1400,900",
)  # fmt: skip

# Runs first inside the page; "capture" also catches what an image or a style sheet reports when it cannot be loaded.
WATCH = """<script>
    window.seen = []
    addEventListener("error", event => seen.push(event.message || "cannot load " + event.target.outerHTML), true)
    addEventListener("unhandledrejection", event => seen.push(String(event.reason)))
    console.error = (...words) => seen.push(words.join(" "))
</script>"""
MEASURE = """<script>
    addEventListener("load", () => setTimeout(() => {
        const {contentWindow: view, contentDocument: page} = document.querySelector("iframe")
        const images = [...page.images]
        const broken = images.filter(image => !(image.complete && image.naturalWidth > 0)).map(image => image.alt)
        const boxes = [...page.querySelectorAll("div.box")]
        const clipped = boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.ariaLabel)
        const found = {
            width: view.innerWidth, content: page.documentElement.scrollWidth, images: images.length, broken,
            clipped, errors: view.seen,
        }
        document.body.setAttribute("data-found", JSON.stringify(found))
    }))
</script>"""


@dataclass(frozen=True)
class Seen:
    """A page as the browser showed it: widths in pixels, the number of images, what those say that are broken.

    `clipped` names the tables that have to be scrolled to be seen whole, which is no fault on a telephone.
    """

    width: int
    content: int
    images: int
    broken: list[str]
    clipped: list[str]
    errors: list[str]

    @property
    def problems(self) -> list[str]:
        """Sentences about all that is wrong; an empty list is what a test wants."""
        wide = [f"content {self.content} pixels wide in a window of {self.width}"] if self.content > self.width else []
        if self.width >= DESK:
            wide += [f"clipped table: {label}" for label in self.clipped]
        return [*wide, *(f"broken image: {alt}" for alt in self.broken), *(f"error: {error}" for error in self.errors)]


Look = Callable[[Path], Seen]  # the fixture


def look(page: Path, width: int, scratch: Path) -> Seen:
    """Open a page, everything unfolded, in a window of a width; `scratch` is a folder for the browser's files."""
    text = page.read_text().replace("<details>", "<details open>")
    assert "<head>" in text, f"{page} has no head"
    text = text.replace("<head>", f'<head><base href="{page.parent.as_uri()}/">{WATCH}', 1)
    frame = scratch / "framed.html"
    frame.write_text(f'<iframe srcdoc="{html.escape(text)}" style="width: {width}px; border: 0"></iframe>{MEASURE}')
    command = [str(BROWSER), *(f"--{flag}" for flag in FLAGS), "--dump-dom", f"--user-data-dir={scratch / 'profile'}"]
    dom = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found, f"the browser did not answer: {dom[-500:]}"
    seen = Seen(**json.loads(html.unescape(found[1])))
    assert seen.width == width
    return seen
