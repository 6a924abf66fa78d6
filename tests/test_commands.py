"""The list of commands, and how the words of a command line become its call."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import silentgrad
from silentgrad import command
from silentgrad.lab.cli import parsing
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.table import COMMANDS, Command, Group
from silentgrad.lab.training import Settings
from silentgrad.lab.training.recipes import read_recipe, recipe_names, recipe_path

LABORATORY = ("jsonargparse", "lightning", "matplotlib", "optuna", "PIL", "pooch", "rich", "safetensors", "sklearn",
              "sqlalchemy", "torchmetrics", "yaml")  # fmt: skip
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
RECIPE = "mnist-gaussian-none-sg-cpu"


def entries() -> Iterator[Command]:
    for entry in COMMANDS.values():
        if isinstance(entry, Group):
            yield from entry.commands.values()
        else:
            yield entry


STARTS = """
import sys
import silentgrad
print(*sys.modules, file=sys.stderr)
from silentgrad.command import main
for words in [["--help"], ["train", "--help"], ["sweep", "--help"]]:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as stop:
        assert stop.code == 0
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    """The modules of a fresh process after the library was imported, and after the help of commands was shown."""
    process = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return [set(line.split()) for line in process.stderr.splitlines()]


def test_the_library_imports_torch_and_numpy_only(loaded: list[set[str]]) -> None:
    modules = loaded[0]
    assert {"silentgrad", "torch", "numpy"} <= modules
    assert modules.isdisjoint([*LABORATORY, *COMPILER])
    assert not any(name.startswith("silentgrad.lab") for name in modules)


def test_help_waits_for_no_trainer(loaded: list[set[str]]) -> None:
    modules = loaded[1]
    assert {"silentgrad.lab.cli.train", "silentgrad.lab.cli.sweep"} <= modules
    heavy = {"lightning", "matplotlib", "optuna", "PIL", "pooch", "safetensors", "sklearn", "sqlalchemy", *COMPILER}
    assert modules.isdisjoint(heavy)


def test_the_core_names_no_other_package() -> None:
    root = Path(silentgrad.__file__).parent
    core = [path for path in root.rglob("*.py") if "lab" not in path.relative_to(root).parts]
    assert len(core) > 20
    found = {package for path in core for package in _packages(path)}
    assert found - set(sys.stdlib_module_names) == {"numpy", "silentgrad", "torch"}


def _packages(path: Path) -> Iterator[str]:
    """The packages that a file imports from, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


@pytest.mark.parametrize(
    ("missing", "importing"), [("jsonargparse", ["main", "parsing"]), ("rich.table", ["recipes", "console"])]
)
def test_without_its_extra_the_command_says_what_to_install(
    missing: str, importing: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in importing:
        monkeypatch.delitem(sys.modules, f"silentgrad.lab.cli.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["silentgrad", "recipes"])
    with pytest.raises(SystemExit, match="1"):
        command.main()
    assert capsys.readouterr().err == f"silentgrad: the command needs {missing}: pip install 'silentgrad[lab]'\n"


def test_the_list_says_what_the_commands_say() -> None:
    for entry in entries():
        function = parsing._function(entry)
        assert function.__doc__ is not None
        assert function.__doc__.splitlines()[0] == entry.help


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(f"    {name}" in said for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"silentgrad {silentgrad.__version__}\n"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `silentgrad train` would train with."""
    calls: list[Settings] = []
    monkeypatch.setattr("silentgrad.lab.cli.training.train_and_report", lambda settings, *_: calls.append(settings))
    return calls


@pytest.mark.parametrize("words", [["--recipe", RECIPE], [f"--recipe={RECIPE}"], ["--recipe", str(recipe_path(RECIPE))],
                                   ["--config", str(recipe_path(RECIPE))]])  # fmt: skip
def test_a_recipe_is_given_by_its_name_or_its_file(words: list[str], trained: list[Settings]) -> None:
    main(["train", *words])
    assert trained == [read_recipe(RECIPE)]


def test_an_option_after_a_recipe_changes_it(trained: list[Settings]) -> None:
    main(["train", "--recipe", RECIPE, "--train.epochs", "3"])
    (settings,) = trained
    assert settings.train.epochs == 3
    assert settings.model == read_recipe(RECIPE).model


def test_the_help_shows_the_recipe_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    assert "--recipe RECIPE" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["a", "[b]", "--output", "c.html"], ["--output=c.html", "a", "[b]"]])
def test_runs_are_given_one_after_the_other(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[Path, ...], Path]] = []
    monkeypatch.setattr("silentgrad.lab.cli.compare.compare", _comparing(calls))
    main(["compare", *words])
    assert calls == [((Path("a"), Path("[b]")), Path("c.html"))]


def _comparing(calls: list[tuple[tuple[Path, ...], Path]]) -> object:
    def compare(*runs: Path, output: Path) -> None:
        """Remembers what it was given."""
        calls.append((runs, output))

    return compare


def test_lists_need_no_brackets(trained: list[Settings]) -> None:
    main(["train", "--model.hidden", "64,32", "--train.keep=7", "--data.covariates", "age, batch: 1"])
    main(["train", "--model.hidden", "[64,32]", "--train.keep", "[7]", "--data.covariates", '["age", "batch: 1"]'])
    assert trained[0] == trained[1]
    assert trained[0].model.hidden == [64, 32]
    assert trained[0].train.keep == [7]
    assert trained[0].data.covariates == ["age", "batch: 1"]


def test_recipes_are_chosen_by_words_and_named_whole(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "mnist", "circuit"])
    said = capsys.readouterr().out
    names = [line for line in said.splitlines() if not line.startswith(" ")]
    assert names == [name for name in recipe_names() if "mnist" in name and "circuit" in name]
    main(["recipes"])
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if not line.startswith(" ")] == recipe_names()


@pytest.mark.parametrize(
    "name", [*(name for name in COMMANDS if name != "data"), "data list", "data get", "data check"]
)
def test_help_is_in_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*name.split(), "--help"])
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith(f"usage: silentgrad {name}")
    for notation in ("Literal", "Optional", "null", "type:", "Which data", "How to train"):
        assert notation not in said
