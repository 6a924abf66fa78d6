"""300 wrong command lines, over all commands: each is a short message, and nothing is written or begun."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from silentgrad.lab.cli import parsing
from silentgrad.lab.cli.main import main
from silentgrad.lab.cli.table import COMMANDS, Command, Group
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, train_model
from silentgrad.lab.training.ranges import RANGES

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")

Words = list[str]
LINES = 300
MOST_LINES_SAID = 5
MOST_SECONDS = 3.0  # of the processor: a wrong command that begins to work takes longer
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# What each command needs before its options, and takes without complaint.
NEEDS: dict[str, Words] = {
    "evaluate": ["run"],
    "reconstruct": ["run"],
    "sample": ["run"],
    "latents": ["run"],
    "variance": ["run"],
    "export": ["run"],
    "reproduce": ["fixed"],
    "compare": ["run", "other"],
    "data get": ["digits"],
    "data check": ["digits"],
}
TAKE_A_RUN = ("evaluate", "reconstruct", "sample", "latents", "variance", "export", "compare run")
# The numbers that are no settings of a run: option, and values outside of its range.
NUMBERS = {
    "demo": {"--seed": [-1, 2**64]},
    "evaluate": {"--samples": [0, -3]},
    "sample": {"--count": [0, -3, 10**9], "--seed": [-1, 2**64]},
    "variance": {"--batches": [0, 3, -1], "--draws": [0, 1, -5], "--seed": [-1]},
    "bias": {"--latents": [0, -1, 30], "--epochs": [0, -1], "--images": [0], "--draws": [0, 1], "--seed": [-1]},
    "reproduce": {"--seeds": [0, -2], "--jobs": [0, -1]},
    "sweep": {"--trials": [0, -1]},
}
OUTPUTS = {"reconstruct": ".safetensors", "sample": ".png", "variance": ".csv", "latents": ".npy", "compare": ".html"}
FILES = (
    "train --config {}", "train --recipe {}", "train --data.name {}", "sweep --data.name {}", "sweep --recipe {}",
    "evaluate run --data {}", "reconstruct run --data {}", "variance run --data {}", "variance run --checkpoint {}",
    "bias --data.name {}", "bias --run {}", "data get {}", "data check {}", "demo --config {}",
    "sample run --config {}",
)  # fmt: skip
CONTRADICTIONS = (
    "train --resume true",
    "train --folder run",
    "train --folder run --resume true --train.epochs {2-9}",
    "train --model.tractable none --model.nonlinear false",
    "train --model.tractable none --model.estimator none",
    "train --model.latent_dim {1-9} --model.categories 4",
    "train --model.latent {discrete} --model.estimator reparameterized",
    "train --model.latent gaussian --model.estimator {of-discrete}",
    "train --model.prior standard --model.prior_components {1-9}",
    "train --model.components {1-9} --model.tractable fixed",
    "train --model.gates all --model.tractable {without-parts}",
    "train --model.leaves exp --model.tractable {without-parts}",
    "train --model.tractable circuit --model.start mean",
    "train --model.guide_draws {2-9}",
    "train --model.temperature 0.5 --model.temperature_start 0.{1-4}",
    "train --train.epochs {1-9} --train.keep 5{1-9}",
    "train --train.devices 2 --data.batch_size 3{odd}",
    "train --data.kind counts --model.likelihood gaussian",
    "train --data.kind binarized --model.likelihood {of-counts}",
    "train --data.layer raw",
    "train --data.covariates {a-z},{a-z}",
    "train --data.offset size",
    "bias --run run",
    "bias --run run --latents {1-9}",
    "bias --run run --epochs {1-9}",
    "bias --data.kind binarized",
    "reproduce circuits --scale {big}",
    "reproduce causes --scale {big}",
    "reproduce fixed --scale conv",
    "reproduce circuits --datasets cifar10",
    "reproduce bpd --datasets fashion-mnist",
    "reproduce bpd --scale conv --datasets cifar10",
    "sweep --over guided --model.tractable none",
    "sweep --over cutoff --grid.cutoff 9{1-9} --train.epochs {1-9}",
    "sweep --over lr,lr",
    "sweep --over lr --train.devices 2",
    "sweep --over {a-z}",
    "compare run",
    "compare run run",
    "variance run --estimators {of-discrete}",
    "variance run --estimators exact",
    "latents run --output run/model.safetensors",
)
HOLES: dict[str, Sequence[str]] = {
    "{1-9}": "123456789",
    "{2-9}": "23456789",
    "{1-4}": "1234",
    "{odd}": "13579",
    "{a-z}": LETTERS,
    "{discrete}": ("bernoulli", "categorical", "poisson"),
    "{of-discrete}": ("disarm", "arm", "gumbel-softmax", "straight-through", "rebar"),
    "{of-counts}": ("poisson", "negative-binomial", "zero-inflated-poisson"),
    "{without-parts}": ("fixed", "constant", "linear", "exp"),
    "{big}": ("paper", "conv"),
}


def commands() -> dict[str, Command]:
    """All commands by their words."""
    found = {}
    for name, entry in COMMANDS.items():
        if isinstance(entry, Group):
            for second, command in entry.commands.items():
                found[f"{name} {second}"] = command
        else:
            found[name] = entry
    return found


def options(owner: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """The options of a command and their types."""
    for name, hint in get_type_hints(owner).items():
        if is_dataclass(hint):
            yield from options(hint, f"{prefix}{name}.")
        elif name not in ("return", "run", "what", "runs", "words"):
            yield f"{prefix}{name}", hint


def misspelt(chance: random.Random, word: str) -> str:
    """The word with a letter lost, doubled, replaced, or exchanged with the next."""
    start = max(0, word.rfind(".") + 1, word.rfind("--") + 2 if word.startswith("--") else 0)
    place = chance.randrange(start, len(word))
    letter = word[place]
    changed = chance.choice(["", letter * 2, chance.choice(LETTERS)])
    if place + 1 < len(word) and chance.random() < 0.25:
        return word[:place] + word[place + 1] + letter + word[place + 2 :]
    return word[:place] + changed + word[place + 1 :]


class Generator:
    """Makes wrong command lines, each wrong in one known way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.commands = commands()
        self.options: dict[str, dict[str, Any]] = {}
        for name, command in self.commands.items():
            self.options[name] = dict(options(parsing._function(command)))

    def lines(self, count: int) -> list[tuple[str, ...]]:
        """Different command lines, as many of each way to be wrong."""
        ways: list[Callable[[], Words]] = [
            self.command, self.option, self.option, self.value, self.value, self.setting, self.number, self.missing_run,
            self.missing_file, self.output, self.folder, self.contradiction, self.stray, self.unknown_name,
        ]  # fmt: skip
        made: dict[tuple[str, ...], None] = {}
        while len(made) < count:
            for way in ways:
                made[tuple(way())] = None
        return list(made)[:count]

    def base(self, name: str) -> Words:
        return [*name.split(), *NEEDS.get(name, [])]

    def command(self) -> Words:
        """A command that does not exist."""
        known = [*COMMANDS, *(f"data {name}" for name in ("list", "get", "check"))]
        name = misspelt(self.chance, self.chance.choice(known))
        while name in known:
            name = misspelt(self.chance, self.chance.choice(known))
        return [*name.split(), *self.chance.choice([[], ["run"], ["--seed", "1"]])]

    def option(self) -> Words:
        """An option that does not exist."""
        name = self.chance.choice([name for name, known in self.options.items() if known])
        known = self.options[name]
        option = misspelt(self.chance, self.chance.choice(list(known)))
        while option in known or option.rstrip("+") in known:
            option = misspelt(self.chance, self.chance.choice(list(known)))
        return [*self.base(name), *self.chance.choice([[option, "1"], [f"{option}=1"], [option]])]

    def value(self) -> Words:
        """A value of a wrong type."""
        typed = []
        for name, known in self.options.items():
            typed += [(name, option, hint) for option, hint in known.items() if self._typed(hint)]
        name, option, hint = self.chance.choice(typed)
        kinds = (hint, *get_args(hint))
        wrong = ["x", "one", "1x", "maybe", "{}", "[[]]", "1:2"]
        if int in kinds or int in get_args(kinds[0]):
            wrong += ["1.5", "1e-3"]
        if get_origin(hint) is Literal or any(get_origin(kind) is Literal for kind in kinds):
            wrong = ["nonsense", "standardd", "7", "AUTO", "exactly"]
        return [*self.base(name), option, self.chance.choice(wrong)]

    def _typed(self, hint: Any) -> bool:
        """Whether some words are no value of a type."""
        kinds = {hint, *get_args(hint)}
        for kind in [*kinds]:
            kinds |= set(get_args(kind))
        return bool(kinds & {int, float, bool}) or any(get_origin(kind) is Literal for kind in kinds)

    def setting(self) -> Words:
        """A number of a run's settings outside of its range."""
        name = self.chance.choice(["train", "sweep", "bias"])
        inside = [option for option in RANGES if name != "bias" or option.startswith("data.")]
        option = self.chance.choice(inside)
        allowed = RANGES[option]
        wrong: list[object] = [allowed.least - 1, allowed.least - 7]
        if allowed.above:
            wrong.append(allowed.least)
        if allowed.most is not None:
            wrong.append(2 * allowed.most + 1)
        return [*self.base(name), f"--{option}", str(self.chance.choice(wrong))]

    def number(self) -> Words:
        """Another number outside of its range."""
        name = self.chance.choice(list(NUMBERS))
        option, wrong = self.chance.choice(list(NUMBERS[name].items()))
        return [*self.base(name), option, str(self.chance.choice(wrong))]

    def missing_run(self) -> Words:
        """A run that is not there, or is none."""
        command = self.chance.choice(TAKE_A_RUN).split()
        return [
            *command,
            self.chance.choice(["nothing", "file", "folder.png", "run/config.yaml", "missing/deeper", ""]),
        ]

    def missing_file(self) -> Words:
        """A file or name that does not exist."""
        stem = self.chance.choice(["missing", "nowhere/missing", "mnits", "run"])
        suffix = self.chance.choice([".yaml", ".csv", ".npy", ".npz", ".h5ad", ".parquet", ".ckpt", ".safetensors"])
        line = self.chance.choice(FILES)
        return [word.replace("{}", stem + suffix) for word in line.split()]

    def output(self) -> Words:
        """An output that cannot be written, or is no file of its kind."""
        name, suffix = self.chance.choice(list(OUTPUTS.items()))
        wrong = ["x.txt", "x", f"x{suffix}x", f"file/x{suffix}", f"folder{suffix}", ""]
        if name != "compare":  # which makes the folder of its page
            wrong.append(f"nowhere/x{suffix}")
        return [*self.base(name), "--output", self.chance.choice(wrong)]

    def folder(self) -> Words:
        """A folder that cannot be made."""
        name = self.chance.choice(["demo", "train", "bias", "reproduce", "sweep", "export"])
        return [*self.base(name), "--folder", self.chance.choice(["file", "file/deeper", "a::b", "run/config.yaml"])]

    def contradiction(self) -> Words:
        """Options that do not go together."""
        line = self.chance.choice(CONTRADICTIONS)
        for hole, fillings in HOLES.items():
            while hole in line:
                line = line.replace(hole, self.chance.choice(fillings), 1)
        return line.split()

    def stray(self) -> Words:
        """A word too many, or one too few."""
        name = self.chance.choice([name for name in self.commands if name not in ("compare", "recipes")])
        if NEEDS.get(name) and self.chance.random() < 0.3:
            return name.split()
        return [*self.base(name), self.chance.choice(["extra", "7", "run", "-x", "--", "---"]), "more"]

    def unknown_name(self) -> Words:
        """A name that is none of those to choose from."""
        line = self.chance.choice([
            "train --model.latent {}", "train --model.network {}", "train --data.name {}", "train --recipe {}",
            "train --train.accelerator {}", "sweep --over {}", "sweep --over lr,{}", "reproduce {}",
            "reproduce bpd --datasets {}", "reproduce bpd --datasets mnist,{}", "variance run --estimators {}",
            "variance run --estimators reparameterized,{}", "recipes {}", "data get {}", "sweep --storage {}",
            "reproduce fixed --accelerator {}",
        ])  # fmt: skip
        name = "".join(self.chance.choices(LETTERS, k=6))
        return line.replace("{}", name).split()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs, and with a file and folders that stand in the way."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("run", "other"):
        tiny = ModelConfig(latent_dim=2, hidden=[4])
        once = TrainConfig(epochs=1, accelerator="cpu")
        train_model(DataConfig(batch_size=512), tiny, once, folder / name, quiet=True)
    (folder / "file").write_text("no run")
    for suffix in OUTPUTS.values():
        (folder / f"folder{suffix}").mkdir()
    return folder


def content(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("words", Generator(0).lines(LINES), ids=" ".join)
def test_a_wrong_line_is_a_short_message(
    words: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SILENTGRAD_DATA", str(place / "no-data"))
    before = content(place)
    start = time.process_time()
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert time.process_time() - start < MOST_SECONDS
    said = capsys.readouterr()
    assert stop.value.code in (1, 2)
    assert said.err.startswith("silentgrad: ")
    assert len(said.err.splitlines()) <= MOST_LINES_SAID
    assert "Traceback" not in said.err
    assert content(place) == before
