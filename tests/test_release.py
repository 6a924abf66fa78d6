"""What is said of a release in several places is the same in all of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import silentgrad

ROOT = Path(__file__).parents[1]


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
    assert form["name"]
    assert form["description"]
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) > 0
    for field in form["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]
