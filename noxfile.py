"""The tests on every Python that is supported, each with the lowest and the newest torch.

    nox --list                                                   # all sessions
    nox                                                          # those for which this machine has what they need
    nox -s "tests-3.12(torch='2.6')" -- tests/test_decoders.py   # one of them, and one file

The Pythons are those of the classifiers in pyproject.toml. The lowest torch is that of its dependencies; the newest is
that of constraints.txt, where the exact versions of all other packages stand too.

Of torch the CPU build is taken, `torch==2.6+cpu`; on a Mac, where the plain build is one, `torch==2.6`. pip has to be
told where such builds are, by PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS. A session is skipped, with a message, if its
Python is not installed or pip finds no such build for it.

What was skipped was not tested. Release 0.2.0 was tested with Python 3.11 and torch 2.13.0, for which alone there was a
build at hand; with torch 2.6, and with Python 3.12 and 3.13, it was not.
"""

import re
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
EVERYTHING = f".[{','.join(PROJECT['project']['optional-dependencies'])}]"
PINS = (ROOT / "constraints.txt").read_text()
PIN_OF_TORCH = re.compile(r"^torch==(.+)\n", re.MULTILINE)
LOWEST = re.findall(r"torch>=([\d.]+)", " ".join(PROJECT["project"]["dependencies"]))
NEWEST = PIN_OF_TORCH.findall(PINS)

nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
@nox.parametrize("torch", [*LOWEST, *NEWEST])
def tests(session: nox.Session, torch: str) -> None:
    """Runs the tests, or those that are named after --."""
    build = _cpu_build(torch)
    _require(session, build)
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text(PIN_OF_TORCH.sub("", PINS))
    session.install("--constraint", str(constraints), build, "--editable", EVERYTHING)
    session.run("pytest", *session.posargs)


def _cpu_build(torch: str) -> str:
    """The requirement of a version of torch that brings nothing for graphics cards."""
    if sys.platform == "darwin":
        return f"torch=={torch}"
    return f"torch=={torch}+cpu"


def _require(session: nox.Session, build: str) -> None:
    """Skips a session for which pip finds no build of torch."""
    try:
        session.run("python", "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", build, silent=True)
    except nox.command.CommandFailed:
        session.skip(f"pip finds no {build} for Python {session.python} on this machine")
