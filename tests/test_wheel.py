"""What a newcomer gets: the wheel, in an environment where it is all there is of silentgrad.

Packages that silentgrad needs are lent by the environment of the tests, so that torch is not installed again.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import silentgrad
from silentgrad.lab.store.files import read_json

for tool in ("build", "hatchling", "pip", "twine"):
    pytest.importorskip(tool)

ROOT = Path(__file__).parents[1]
README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
LENDERS = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
SMALL = ["--model.latent_dim=2", "--model.hidden=[8]", "--train.epochs=1", "--data.batch_size=256", "--quiet=true"]
SMALL += ["--compare=without-z"]

RUN_BLOCKS = """
import json, sys
import silentgrad
for code in json.load(sys.stdin):
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
print(silentgrad.__file__)
"""

COMMANDS = """
import json, sys
from silentgrad.command import main
for words in json.load(sys.stdin):
    sys.argv[1:] = words
    main()
"""


def said(*command: object, expect: int = 0, **options: Any) -> str:
    """Return what a command says on standard output or, if it is expected to fail, as errors."""
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert process.returncode == expect, process.stdout + process.stderr
    return process.stderr if expect else process.stdout


class Environment:
    """A virtual environment with the wheel, which finds other packages in some folders, and in which commands run."""

    def __init__(self, folder: Path, wheel: Path, lenders: list[Path]) -> None:
        self.folder = folder.resolve()
        venv.create(self.folder / "venv", symlinks=True)
        self.pip("install", "--no-deps", str(wheel))
        (packages,) = self.folder.glob("venv/lib/*/site-packages")
        # Of a folder that a .pth file names, no .pth file is read: the tests' own silentgrad, of a clone, stays unseen.
        (packages / "lenders.pth").write_text("".join(f"{path}\n" for path in lenders))

    def run(self, command: str, *words: str, given: str = "", expect: int = 0) -> str:
        surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        surroundings |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        program = self.folder / "venv" / "bin" / command
        return said(program, *words, expect=expect, cwd=self.folder, env=surroundings, input=given)

    def pip(self, *words: str) -> str:
        """Return what the pip of the tests says when it works on this environment, without any index."""
        python = self.folder / "venv" / "bin" / "python"
        return said(sys.executable, "-m", "pip", "--python", python, *words, "--no-index")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution, beside it."""
    folder = tmp_path_factory.mktemp("dist")
    said(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_an_index_would_take_both_and_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    files = sorted(wheel.parent.iterdir())
    assert len(files) == 2
    said(sys.executable, "-m", "twine", "check", "--strict", *files)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    about = f"silentgrad-{silentgrad.__version__}.dist-info"
    files = [path for path in (ROOT / "src" / "silentgrad").rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}
    assert {name for name in names if not name.startswith(about)} == expected
    assert {"silentgrad/py.typed", "silentgrad/lab/recipes/mnist-circuit-cpu.yaml"} <= expected
    assert f"{about}/licenses/LICENSE" in names


def requirements(*names: str) -> Iterator[importlib.metadata.Distribution]:
    """Some distributions and all that they need, extras apart."""
    waiting, seen = list(names), set()
    while waiting:
        distribution = importlib.metadata.distribution(waiting.pop())
        if distribution.name in seen:
            continue
        seen.add(distribution.name)
        yield distribution
        needed = map(Requirement, distribution.requires or [])
        waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_the_library_needs_torch_and_numpy_only(wheel: Path, tmp_path: Path) -> None:
    """All that is there is what these two install; the command says what it lacks."""
    lent = tmp_path / "lent"
    lent.mkdir()
    for distribution in requirements("torch", "numpy"):
        for part in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (lent / part).exists():
                (lent / part).symlink_to(Path(str(distribution.locate_file(part))))
    environment = Environment(tmp_path, wheel, [lent])
    of_library = [code for code in README if "CountFactors" not in code]
    assert len(of_library) >= 3
    place = environment.run("python", "-c", RUN_BLOCKS, given=json.dumps(of_library)).splitlines()[-1]
    assert Path(place).is_relative_to(environment.folder / "venv")
    told = environment.run("silentgrad", "train", expect=1)
    assert re.fullmatch(r"silentgrad: the command needs \w+: pip install 'silentgrad\[lab\]'\n", told)


def test_from_the_wheel_to_a_model_that_others_can_use(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path, wheel, LENDERS)
    environment.run("silentgrad", "train", *SMALL)
    runs = ["runs/digits-001", "runs/digits-001-without-z"]
    words = [["--version"], ["evaluate", runs[0]], ["compare", *runs], ["export", runs[0]]]
    told = environment.run("python", "-c", COMMANDS, given=json.dumps(words))
    assert told.startswith(f"silentgrad {silentgrad.__version__}\n")
    first, second = (read_json(tmp_path / run / "summary.json")["figure"] for run in runs)
    assert f"test BPD {first:.4f} " in told
    assert f"digits-001            {first:.3f} " in told
    assert f"digits-001-without-z  {second:.3f} " in told
    exported = {path.name for path in (tmp_path / runs[0] / "export").iterdir()}
    assert exported == {"model.safetensors", "encoder.onnx", "decoder.onnx", "README.md"}


def test_an_extra_is_added_to_the_silentgrad_that_is_there(wheel: Path, tmp_path: Path) -> None:
    """As messages advise: pip takes the installed one, wherever it came from, and looks for what it lacks only."""
    environment = Environment(tmp_path, wheel, LENDERS)
    told = environment.pip("install", "--dry-run", "silentgrad[lab,counts,cluster,onnx,tensorboard]")
    assert re.search(r"Requirement already satisfied: silentgrad\[.*\] in \S*venv", told)
    assert "Would install" not in told
