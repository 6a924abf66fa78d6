"""What the documentation says is true: its code runs, its tables are those of the code."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from silentgrad.lab.networks import NETWORKS
from silentgrad.lab.runs.metrics import METRICS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code: str) -> None:
    with patch.dict(METRICS), patch.dict(NETWORKS):  # an entry that a block adds is not there for other tests
        exec(compile(code, "documentation", "exec"), {})


def test_table_of_latents_is_that_of_the_registries() -> None:
    assert (ROOT / "docs" / "latents.md").read_text() == tool("latent_table").table()


def test_table_of_estimators_is_what_they_declare() -> None:
    assert (ROOT / "docs" / "estimators.md").read_text().endswith(tool("estimator_table").table())


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
