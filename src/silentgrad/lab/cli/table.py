"""The list of all commands, without the commands themselves: each is imported when it is called."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command: its module in this package and its function there."""

    place: str

    @property
    def help(self) -> str:
        """First line of its docstring, which is found in the text of the module."""
        module, _, name = self.place.partition(":")
        text = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        found = re.search(rf'^def {name}\(.*?"""(.*?)$', text, re.DOTALL | re.MULTILINE)
        assert found is not None
        return found[1]


@dataclass(frozen=True)
class CommandGroup:
    """Commands that share their first word, each by its second."""

    help: str
    commands: dict[str, Command]


DATA = {"list": Command("data:list_all"), "get": Command("data:get"), "check": Command("data:verify")}
COMMANDS: dict[str, Command | CommandGroup] = {
    "demo": Command("demo:demo"),
    "train": Command("train:train"),
    "evaluate": Command("finished:evaluate"),
    "reconstruct": Command("finished:reconstruct"),
    "sample": Command("finished:sample"),
    "latents": Command("finished:latents"),
    "factors": Command("factors:factors"),
    "variance": Command("measure:variance"),
    "bias": Command("measure:bias"),
    "reproduce": Command("reproduce:reproduce"),
    "benchmark": Command("benchmark:benchmark"),
    "sweep": Command("sweep:sweep"),
    "compare": Command("finished:compare"),
    "check": Command("check:check"),
    "export": Command("finished:export"),
    "recipes": Command("recipes:recipes"),
    "data": CommandGroup("Datasets: which there are, and whether their files are.", DATA),
}
