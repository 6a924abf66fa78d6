"""What the documentation says is true: its code runs, its tables are those of the code, and releases are one."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

import silentgrad
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


def test_table_of_latents_is_that_of_the_registries() -> None:
    assert (ROOT / "docs" / "latents.md").read_text() == tool("latent_table")["table"]()


def test_table_of_estimators_is_what_they_declare() -> None:
    assert (ROOT / "docs" / "estimators.md").read_text().endswith(tool("estimator_table")["table"]())


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
    assert form["name"]
    assert form["description"]
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) > 0
    for field in form["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]
