"""The list of commands, and how the words of a command line become its call."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import silentgrad
from refusals import refused
from runs import Cli
from silentgrad import command
from silentgrad.lab.cli.main import COMMANDS, function_of, main, summary
from silentgrad.lab.experiments.recipes import FOLDER, NOT_MEASURED, read_recipe, recipe_header, recipe_names
from silentgrad.lab.training import Settings

LABORATORY = ("docstring_parser", "lightning", "matplotlib", "optuna", "PIL", "pooch", "pydantic", "rich",
              "safetensors", "sklearn", "sqlalchemy", "torchmetrics", "yaml")  # fmt: skip
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
RECIPE = "mnist-circuit-cpu"
RECIPE_FILE = str(FOLDER / f"{RECIPE}.yaml")
MADE_BY_NAME = "mnist-gaussian-reparameterized-sg-cpu"


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
sys.argv[1:] = ["train", "--train.epochs=1", "--model.latent_dim=2", "--model.hidden=8", "--quiet=true"]
main()
print(*sys.modules, file=sys.stderr)
"""


def test_a_fresh_process_imports_what_it_needs(tmp_path: Path) -> None:
    """The library torch and NumPy only, help no trainer, and a run at most 120 modules of ours."""
    words = [sys.executable, "-W", "ignore", "-c", STARTS]
    process = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    loaded = [set(line.split()) for line in process.stderr.splitlines() if "silentgrad.errors" in line]
    library, helped, trained = loaded
    assert {"silentgrad", "torch", "numpy"} <= library
    assert library.isdisjoint([*LABORATORY, *COMPILER])
    assert not any(name.startswith("silentgrad.lab") for name in library)
    assert {"silentgrad.lab.cli.training", "silentgrad.lab.cli.sweep"} <= helped
    assert helped.isdisjoint({*LABORATORY, *COMPILER} - {"docstring_parser", "rich", "yaml"})
    others = {"silentgrad.lab.cli.sweep", "silentgrad.command"}  # of the help before, and the entry point itself
    ours = {name for name in trained if name.partition(".")[0] == "silentgrad"} - others
    assert {"silentgrad.lab.training.run", "silentgrad.estimators"} <= ours
    assert len(ours) <= 120, sorted(ours)


OF_EXTRAS = [  # modules that are imported where an extra, or the host of an adapter, is installed
    *("pl.py", "tl.py", "factors/count_factors.py", "factors/cluster.py"),
    *("checkup/callback.py", "checkup/page.py", "analysis/adapters.py"),
]


def test_the_core_names_no_other_package() -> None:
    root = Path(silentgrad.__file__).parent
    core = {path for path in root.rglob("*.py") if "lab" not in path.relative_to(root).parts}
    assert len(core) > 20
    importing = re.compile(r"^ *(?:from (\w+)[\w.]* import|import (\w+))", re.MULTILINE)  # wherever in a file
    text = "\n".join(path.read_text() for path in core - {root / extra for extra in OF_EXTRAS})
    found = {one or other for one, other in importing.findall(text)}
    assert found - set(sys.stdlib_module_names) == {"numpy", "silentgrad", "torch"}


def test_a_name_means_one_thing() -> None:
    """No two classes share a name, but a likelihood, the distribution that it gives and the latents of that law."""
    files = list(Path(silentgrad.__file__).parent.rglob("*.py"))
    names = Counter(path.name for path in files if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 2] == []
    places = defaultdict(set)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].add("laws" if {"likelihoods", "families"} & {*path.parts} else path.stem)
    shared = {name: found for name, found in places.items() if len(found - {"laws"}) > 1}
    assert shared == {"DiscretizedLogistic": {"distributions", "discretized"}}
    alone = {name for name, found in places.items() if "laws" in found and len(found) > 1}
    assert all(places[name] == {"laws", "distributions"} for name in alone)


@pytest.mark.parametrize("missing", ["docstring_parser", "rich.console"])
def test_the_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("main", "shared"):
        monkeypatch.delitem(sys.modules, f"silentgrad.lab.cli.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["silentgrad", "recipes"])
    refused(SystemExit, "1", lambda: command.main())
    assert capsys.readouterr().err == f"silentgrad: the command needs {missing}: pip install 'silentgrad[lab]'\n"


def test_help_and_version(cli: Cli) -> None:
    said = cli("--help")
    assert all(f"    {name}" in said for name in COMMANDS)
    assert cli("--version") == f"silentgrad {silentgrad.__version__}\n"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `silentgrad train` would train with."""
    calls: list[Settings] = []
    monkeypatch.setattr("silentgrad.lab.cli.training.train_and_report", lambda settings, *_: calls.append(settings))
    return calls


@pytest.mark.parametrize(
    "recipe",
    [
        *(["--recipe", RECIPE], [f"--recipe={RECIPE}"], ["--recipe", RECIPE_FILE], ["--config", RECIPE_FILE]),
        ["--recipe", MADE_BY_NAME],
    ],
)
def test_options_before_and_after_a_recipe_change_it(recipe: list[str], trained: list[Settings]) -> None:
    main(["train", *recipe])
    lists = ["--model.hidden", "8,8", "--train.keep=3", "--data.covariates", "age, batch: 1"]  # without brackets
    main(["train", "--data.name", "shapes/", *lists, *recipe, "--train.epochs=3"])
    plain, settings = trained
    assert plain == read_recipe(MADE_BY_NAME if MADE_BY_NAME in recipe else RECIPE)
    assert settings.data == replace(plain.data, name="shapes/", covariates=["age", "batch: 1"])
    assert settings.model == replace(plain.model, hidden=[8, 8])
    assert settings.train == replace(plain.train, epochs=3, keep=[3])


def test_recipes_are_chosen_by_words_and_named_whole(cli: Cli) -> None:
    def told(*words: str) -> list[str]:
        return [line for line in cli("recipes", *words).splitlines() if not line.startswith(" ")]

    assert told("mnist", "circuit") == [name for name in recipe_names() if "mnist" in name and "circuit" in name]
    assert told("--all", "true") == recipe_names()
    *names, rest = told()
    assert names == [name for name in recipe_names() if recipe_header(name)["time"] != NOT_MEASURED]
    assert rest == f"{len(recipe_names()) - len(names)} more were not measured: --all true lists them"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(function_of(name).__doc__).splitlines()[0] == summary(name)  # which the list of commands has
    refused(SystemExit, "0", lambda: main([name, "--help"]))
    said = capsys.readouterr().out
    assert name != "train" or "--recipe RECIPE" in said
    assert said.splitlines()[0].startswith(f"usage: silentgrad {name}")
    for notation in ("Literal", "Optional", "null", "type:", "Which data", "How to train"):
        assert notation not in said
