"""The names of a run's files stand in one module, and its rows come back as they were written."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import silentgrad
from silentgrad.lab.runs.folder import RunFolder, SweepFolder
from silentgrad.lab.runs.records import RecordError, read_metrics, write_rows_atomically

LABORATORY = Path(silentgrad.__file__).parent / "lab"
OWNER = LABORATORY / "runs" / "folder.py"


def file_names() -> set[str]:
    """The names of files that do not depend on anything."""
    folders = [RunFolder(Path("run")), SweepFolder(Path("sweep"))]
    paths = {getattr(folder, name) for folder in folders for name in _properties(folder)}
    return {path.name for path in paths if path.suffix}


def _properties(folder: object) -> list[str]:
    return [name for name, member in vars(type(folder)).items() if isinstance(member, property)]


def texts(path: Path) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not documented:
            yield from (each.value for each in ast.iter_child_nodes(node) if _is_text(each))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("path", sorted(LABORATORY.rglob("*.py")), ids=lambda path: str(path.relative_to(LABORATORY)))
def test_no_other_module_spells_a_files_name(path: Path) -> None:
    names = file_names()
    assert {"config.yaml", "metrics.csv", "summary.json", "trials.json"} <= names
    spelt = {name for text in texts(path) for name in names if name in text}
    assert spelt == set() or path == OWNER


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_rows_atomically(path, [{"epoch": 1, "bpd": 0.1 + 0.2}, {"epoch": 2}])
    assert read_metrics(path) == {"epoch": [1.0, 2.0], "bpd": [0.1 + 0.2, None]}


def test_a_row_with_a_column_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        write_rows_atomically(tmp_path / "rows.csv", [{"epoch": 1}, {"epoch": 2, "nonsense": 3}])
    assert list(tmp_path.iterdir()) == []


def test_rows_of_the_wrong_length_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,bpd\n1,2\n2,3,4\n")
    with pytest.raises(RecordError, match="line 3 has 3 cells, expected 2"):
        read_metrics(tmp_path / "metrics.csv")
