"""Command lines that are wrong: each is a message of a few lines, and nothing is written."""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from runs import ONCE, Cli, content, train
from silentgrad.lab.build import build_model, plan_for
from silentgrad.lab.cli import main as command_line
from silentgrad.lab.cli.main import COMMANDS, function_of, options_of
from silentgrad.lab.experiments.recipes import FOLDER, read_recipe, recipe_names
from silentgrad.lab.settings import GROUPS, Range, resolve
from silentgrad.lab.settings.documents import read_settings

WRONG = {
    "demo --folder run": "--folder run is not empty: choose another",
    "demo --folder file": "--folder file: file is a file, not a folder",
    "demo --folder a::b": "taken for an address",
    "train --train.epochs x": "--train.epochs has to be a whole number, got x",
    "train --train.epochs null": "--train.epochs has to be a whole number, got null",
    "train --train.devices 2 --data.batch_size 3": "--data.batch_size 3 has to be a multiple of --train.devices 2",
    "train --train.devices 3 --data.batch_size 3": "would leave 1 rows to 3 processes",
    "train --train.accelerator tpu": "--train.accelerator tpu",
    "train --model.latent_dim 2000000000": "no memory for a model of --model.latent_dim 2000000000",
    "train --model.network strided": "32 x 32",
    "train --model.latent bernoulli --model.estimator reparameterized": "is not for --model.latent bernoulli",
    "train --model.latent bernouli": "bernouli is no family of latents: choose among",
    "train --model.prior learnd": "--model.prior: learnd is none of standard, learned, mixture. Did you mean learned?",
    "train --train.epoch 3": "there is no option --train.epoch: did you mean --train.epochs?",
    "train --lr=3": "there is no option --lr: did you mean --train.lr?",
    "train --model.latent-dim 3": "did you mean --model.latent_dim?",
    "train --model.hidden 64,x": "--model.hidden has to be a whole number, got x",
    "train --train.keep 3,99": "--train.keep 99 comes after the last of 60 epochs",
    "train --recipe mnist-circuit": "Did you mean mnist-circuit-cpu?",
    "trian": "there is no command 'trian'. Did you mean train?",
    "train --model.estimator exact": "no closed form: --model.estimator exact",
    "train --model.estimator none --model.tractable none": "--model.estimator none",
    "train --model.tractable none --model.nonlinear false": "there is no decoder",
    "train --model.latent bernoulli --model.temperature_start 0.1": "start has to be at least --model.temperature",
    "train --model.tractable fixed --model.variance_start 0.001": "start has to be at least --model.variance",
    "train --model.guide_estimator gumbel-softmax": "--model.guide_estimator gumbel-softmax is not for",
    "train --model.guide_estimator none": "--model.guide_estimator none is not for",
    "train --model.tractable none --model.guide_estimator reparameterized": "is for a tractable decoder beside",
    "train --model.temperature 0.3": "is for an estimator that has one, such as --model.estimator gumbel-softmax",
    "train --model.start moments --model.tractable exp": "moments is for --model.tractable constant",
    "train --model.nonlinear false --model.likelihood constant": "constant is for a nonlinear decoder",
    "train --model.temperature_start 0.7": "--model.temperature_start is for --model.estimator gumbel-softmax",
    "train --model.hard true": "--model.hard is for --model.estimator gumbel-softmax",
    "train --model.latent bernoulli --model.temperature_factor 0.5": "factor is for --model.temperature_start",
    "train --model.variance 0.1": "--model.variance is for --model.tractable fixed",
    "train --model.variance_start 0.1": "--model.variance_start is for --model.tractable fixed",
    "train --model.tractable fixed --model.variance_factor 0.1": "factor is for --model.variance_start",
    "train --model.log_term taylor": "--model.log_term is for --model.tractable linear",
    "train --data.kind binarized --model.log_term taylor": "--model.log_term is for --model.tractable linear of Gauss",
    "train --model.latent categorical --model.tractable linear": "linear with --model.log_term auto is not for",
    "train --model.latent poisson --model.estimator disarm": "choose among exact, eat, nvil, reinforce, rloo",
    "train --model.prior_components 5": "--model.prior_components is for --model.prior mixture",
    "train --model.categories 3": "--model.categories is not for --model.latent gaussian: it has no categories",
    "train --model.network conv --model.hidden 8": "--model.hidden is for --model.network mlp or leaky, not for conv",
    "train --model.channels 8": "--model.channels is for --model.network conv or strided, not for mlp",
    "train --model.tractable none --model.guided 0.5": "--model.guided needs a guide that gives way",
    "train --model.estimator none --model.weighting encoder": "--model.weighting needs a guide that gives way",
    "train --model.tractable none --model.start mean": "--model.start mean is for a tractable decoder",
    "train --model.nonlinear false --model.estimator exact --model.likelihood mixture": "is for a nonlinear decoder",
    "train --model.tractable none --train.lr_mean 1e-3": "--train.lr_mean is for --model.tractable other than none",
    "train --model.tractable fixed --train.lr_precision 1e-3": "is for --model.tractable other than none and fixed",
    "train --model.likelihood bernoulli": "--model.likelihood bernoulli is not for levels",
    "train --data.kind binarized --model.likelihood gaussian": "--model.likelihood gaussian is not for binarized",
    "train --data.kind binarized --model.tractable constant": "bits have none",
    "train --data.kind binarized --model.latent bernoulli --model.tractable linear": "Gaussian latents only",
    "train --data.name table.csv --model.network conv": "--model.network conv is for images",
    "train --model.components 3": "--model.components is for",
    "train --model.leaves exp": "--model.leaves is for",
    "train --model.gates all": "--model.gates is for",
    "train --model.tractable circuit --model.start mean": "--model.start mean is for linear decoders",
    "train --model.tractable constant --model.likelihood logistic": "is a density",
    "train --model.tractable circuit --model.leaves logistic --model.likelihood gaussian": "are of whole levels, and",
    "train --model.tractable circuit --model.leaves constant --model.likelihood logistic": "choose --model.leaves logi",
    "train --model.tractable circuit --model.nonlinear false --model.context 1 --model.leaves exp": "nothing to shift",
    "train --model.tractable circuit --model.context 1": "decoder of constant or logistic leaves alone",
    "train --model.tractable circuit --model.context_hidden 8": "is for --model.context",
    "train --model.estimator silent-rloo": "needs statistics",
    **{f"train --data.{name} ''": f"--data.{name} is empty" for name in ("name", "label", "layer", "offset")},
    "train --data.name cells.h5ad --model.tractable constant": "is a Gaussian decoder's variance, and counts have none",
    "train --data.name cells.h5ad --model.tractable circuit": "--model.tractable circuit is not for counts",
    "train --data.name cells.h5ad --model.likelihood gaussian": "--model.likelihood gaussian is not for counts",
    "train --data.name cells.h5ad --model.latent laplace": "with a linear decoder is not for --model.latent laplace",
    "train --data.name cells.h5ad --data.label missing": "expected a column 'missing'",
    "train --data.covariates a,a": "--data.covariates has to name each column once",
    "train --data.covariates ''": "--data.covariates has to name each column once",
    "train --data.name file": "is no dataset",
    "train --folder run": "run exists",
    "train --folder file/deeper": "file is a file, not a folder",
    "train --resume true": "--resume needs --folder",
    "train --resume true --folder nothing": "nothing holds no run",
    "train --resume true --folder run --train.epochs 5": "leave out --train.epochs 5",
    "train --recipe nonsense": "there is no recipe 'nonsense'",
    "train --recipe": "expected one argument",
    "train --recipe one --train.epochs 3 --recipe=two": "one and two: settings come from one recipe",
    "train --config 0.yaml --recipe two": "0.yaml and two: settings come from one recipe",
    "evaluate run --recipe mnist-gaussian-none-sg-cpu": "there is no option --recipe",
    "train --model trap.Trap": "there is no option --model",
    "train --data.covariates '[a'": "--data.covariates has to be a list, got [a",
    "evaluate": "required: RUN",
    "evaluate run --data nonsense": "is no dataset",
    "reconstruct run --output nowhere/x.safetensors": "there is no folder nowhere",
    "variance run --estimators [none]": "none is no estimator",
    "variance run --estimators [exact]": "--estimators exact does not go with this run",
    "variance run --estimators [nonsense]": "--estimators nonsense is no estimator: choose among arm",
    "variance run --estimators []": "--estimators is empty",
    "variance run --checkpoint 7": "run/epochs/7.safetensors",
    "variance run --checkpoint best": "--checkpoint has to be a whole number, got best",
    "bias --run run": "Bernoulli latents",
    "bias --run run --latents 4": "are for models that bias trains itself: leave them or --run out",
    "bias --data.kind binarized": "closed form for Gaussian latents only",
    "reproduce nonsense": "silentgrad: WHAT: nonsense is none of variance, fixed",
    "reproduce bpd --datasets mnist,cifar1": "--datasets takes some of mnist",
    "reproduce circuits --scale paper": "circuits are not in the paper: choose --scale cpu or smoke",
    "reproduce fixed --scale conv": "bpd, kld and mse: choose --scale cpu, paper or smoke",
    "reproduce all --scale conv": "--scale conv is for the tables bpd, kld and mse",
    "reproduce bpd --scale conv --datasets [cifar10]": "--scale conv has runs on mnist only: leave --datasets out",
    "reproduce fixed --scale smoke --accelerator nonsense": "--accelerator nonsense",
    "reproduce bpd --datasets []": "--datasets takes some of mnist",
    "benchmark --scale smoke --likelihoods bernoulli --networks circuit": "circuit needs --likelihoods gaussian",
    "benchmark --scale smoke --estimators exact --likelihoods bernoulli": "none of --estimators",
    "benchmark --scale smoke --estimators rloo,stl": "--estimators stl is not for bits",
    "benchmark --scale smoke --estimators rlo": "--estimators rlo is no estimator",
    "benchmark --scale smoke --estimators rloo,silentgrad:Mine": "--estimators silentgrad:Mine cannot be imported",
    "benchmark --scale smoke --accelerator tpu": "--accelerator tpu",
    "benchmark --scale smoke --datasets cifar10": "cifar10",
    "sweep --over train.lrr=1,2": "there is no option --train.lrr: did you mean --train.lr?",
    "sweep --over train=1,2": "there is no option --train",
    "sweep --over ''": "there is no option",
    "sweep --over train.epochs": "--train.epochs has to have a value",
    "sweep --over train.lr=": "--train.lr has to have a value",
    "sweep --over train.epochs=1..x": "--train.epochs has to be a whole number, got x",
    "sweep --over model.leaves=exp,expo": "expo is none of exp, constant",
    "sweep --over train.lr=1e-2..1e-4": "from a lower number to a higher one",
    "sweep --over model.latent=a..b": "only numbers have a range",
    "sweep --over data.name=digits,mnist": "only trials on the same data",
    "sweep --over train.lr,train.lr": "names train.lr twice",
    "sweep --over train.lr=1e-3..inf": "--train.lr has to be a finite number",
    "sweep --over model.guided --model.tractable none": "--model.guided needs a guide",
    "sweep --over model.latent=gaussian,bernoulli --model.estimator reparameterized": "in the trial model.latent=bern",
    "sweep --recipe mnist-gaussian-reparameterized-cpu --over train.lr,model.guided": "--model.guided needs a guide",
    "sweep --over train.lr=0.1,-1": "above 0, got -1.0; null leaves it out (in the trial train.lr=-1)",
    "sweep --over train.lr=1..2 --sampler grid": "--over train.lr=1..2 is a range",
    "sweep --storage nonsense": "cannot open the database of --storage",
    "sweep --storage sqlite:////nowhere/at/all.db": "cannot open the database of --storage",
    "sweep --train.accelerator nonsense": "--train.accelerator nonsense",
    "sweep --train.devices 2": "one device",
    "sweep --study ''": "--study has to be a plain name",
    "sweep --study ../x": "--study has to be a plain name",
    "compare": "nothing to compare",
    "compare run run": "given twice",
    "compare run nothing": "nothing is no folder",
    "compare run file --output file/x.html": "file is a file, not a folder",
    "recipes nonsense": "no recipe's name holds 'nonsense'",
    "recipes mnist-circuits": "Did you mean mnist-circuit-cpu?",
    "data digits missing.npz": "missing.npz",
}

# What each command needs before its options, and takes without complaint.
NEEDS = {
    **{name: f"{name} run" for name in ("evaluate", "reconstruct", "sample", "latents", "variance", "export", "check")},
    "reproduce": "reproduce fixed",
    "compare": "compare run other",
    "factors": "factors run",
}
OUTPUTS = {"reconstruct": ".safetensors", "sample": ".png", "variance": ".csv", "latents": ".npy", "compare": ".html"}
FILES = (
    "train --config", "train --recipe", "train --data.name", "sweep --data.name", "sweep --recipe", "bias --run",
    "evaluate run --data", "reconstruct run --data", "variance run --data",
    "bias --data.name", "data", "demo --config", "sample run --config",
)  # fmt: skip
CONTRADICTIONS = (
    "train --data.layer raw", "train --data.offset size", "train --data.covariates a,b",
    "reproduce linear --scale paper", "reproduce bpd --datasets fashion-mnist",
    "latents run --output run/model.safetensors", "variance run --estimators gumbel-softmax",
)  # fmt: skip
CONFIGS = {  # files of settings
    "model: {class_path: trap.Trap}": "0.yaml: there is no setting model.class_path",
    "train: {epochs: -1}": "--train.epochs has to be at least 1, got -1",
    "train: {epochs: null}": "--train.epochs has to have a value",
    "train: {clip: .nan}": "--train.clip has to be a finite number",
    "train: {epochs: 1, sed: 3}": "there is no setting train.sed. Did you mean train.seed?",
    "extra: {}": "there is no setting extra",
    "model: 3": "there is no setting model",
    "- 1": "expected settings by name, found list",
    "": "expected settings by name, found NoneType",
    "a: " + "[" * 3000: "nested too deeply",
    "a: [": "cannot read",
    "\xff\xfe\x00": "cannot read",
}
OPTIONS = {name: options_of(function_of(name)) for name in COMMANDS}


def is_typed(hint: Any) -> bool:
    """Whether some words are no value of a type."""
    return get_origin(hint) is Literal or hint in (int, float, bool) or any(map(is_typed, get_args(hint)))


def range_of(hint: Any) -> Range | None:
    """The range that stands beside a type, wherever in it."""
    found = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Range)]
    return next(filter(None, [*found, *map(range_of, get_args(hint))]), None)


def outside(line: str, allowed: Range, hint: Any) -> Iterator[tuple[str, str]]:
    """Numbers just outside of a range, and none that is finite."""
    least = allowed.least if allowed.above else allowed.least - 1
    yield f"{line} {least}", f"has to be {'above' if allowed.above else 'at least'} {allowed.least}, got {least}"
    if allowed.most is not None:
        yield f"{line} {2 * allowed.most + 1}", f"has to be at most {allowed.most}"
    if "float" in str(hint):
        yield f"{line} nan", "has to be a finite number, got nan"


def of_settings() -> Iterator[tuple[str, str]]:
    for group, settings in GROUPS.items():
        for setting in fields(settings):
            if allowed := setting.metadata.get("range"):
                yield from outside(f"train --{group}.{setting.name}", allowed, setting.type)


def of_commands() -> Iterator[tuple[str, str]]:
    """For every command: its name and an option misspelt, values of another type, words too many, and wrong places."""
    for name in COMMANDS:
        known = {f"--{word}": option.hint for word, option in OPTIONS[name].items() if not option.by_place}
        base = NEEDS.get(name, name)
        yield f"{name}{name[-1]}", "there is no command"
        for option, hint in known.items():
            wrong = "exactly" if get_origin(hint) is Literal else "1x"
            if is_typed(hint) and (name == "train" or "." not in option):  # settings are read alike everywhere
                yield f"{base} {option} {wrong}", option
            if allowed := range_of(hint):
                yield from outside(f"{base} {option}", allowed, hint)
        for option in [*known][:1]:
            yield f"{base} {option}{option[-1]} 1", f"there is no option {option}{option[-1]}"
        if name not in ("recipes", "data"):
            yield f"{base} extra more", ""
            yield f"{base} --- more", ""
        for folder in ("file", "file/deeper", "a::b", "run/config.yaml") if "--folder" in known else ():
            yield f"{base} --folder {folder}", ""
        for run in ("nothing", "file", "run/config.yaml", "missing/deeper", "''") if base.endswith("run") else ():
            yield f"{name} {run}", ""


def of_files() -> Iterator[str]:
    """Files that are not there, and outputs that cannot be written or are no file of their kind."""
    suffixes = cycle((".yaml", ".csv", ".npy", ".npz", ".h5ad", ".parquet", ".ckpt", ".safetensors"))
    yield from (f"{line} nowhere/missing{suffix}" for line, suffix in zip(FILES, suffixes, strict=False))
    for name, suffix in OUTPUTS.items():
        for output in ("x.txt", "x", f"x{suffix}x", f"file/x{suffix}", f"folder{suffix}", "''"):
            yield f"{NEEDS[name]} --output {output}"


ALL_WRONG = {**dict.fromkeys([*CONTRADICTIONS, *of_files()], ""), **dict([*of_settings(), *of_commands()]), **WRONG}
ALL_WRONG |= {f"train --config {number}.yaml": reason for number, reason in enumerate(CONFIGS.values())}


@pytest.fixture(scope="module", autouse=True)
def options_once() -> Iterator[None]:
    """Of each command: to read its help out of its source takes a hundredth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "options_of", cache(options_of))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, digits_run: Path, h5ad: Path) -> Path:
    """A folder with a finished run and with files that are wrong; no command may change anything in it."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("run", "other"):
        shutil.copytree(digits_run, folder / name)
    shutil.copy(h5ad, folder)
    for number, text in enumerate(CONFIGS):
        (folder / f"{number}.yaml").write_text(text, "latin-1")
    for suffix in OUTPUTS.values():
        (folder / f"folder{suffix}").mkdir()
    (folder / "file").write_text("no run")
    (folder / "table.csv").write_text("a,b\n" + "".join(f"{row},{row % 3}\n" for row in range(20)))
    (folder / "trap.py").write_text("raise SystemExit('imported')\n")
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place as the current folder, whose modules could be imported."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("SILENTGRAD_DATA", str(place / "no-data"))
    yield place
    assert "trap" not in sys.modules


@pytest.mark.parametrize("line", ALL_WRONG)
def test_a_wrong_command_line_is_a_message_and_writes_nothing(line: str, here: Path, cli: Cli) -> None:
    before = content(here)
    said = cli.fails(*shlex.split(line))
    assert ALL_WRONG[line] in said
    assert said.startswith("silentgrad: ")
    assert len(said.splitlines()) <= 5
    assert "Traceback" not in said
    assert content(here) == before


def test_every_number_among_the_settings_has_a_range() -> None:
    for group in GROUPS.values():
        for part in fields(group):
            is_number = any(word in str(part.type) for word in ("int", "float"))
            assert is_number == bool(part.metadata.get("range")), part.name


def test_every_recipe_is_valid_and_those_of_files_make_models() -> None:
    for name in recipe_names():
        plan = plan_for(read_recipe(name))
        assert None not in (plan.model.likelihood, plan.model.start, *plan.model.decoders, plan.train.lr)
        assert resolve(plan, [plan.model.likelihood]) == plan
    for path in FOLDER.glob("*.yaml"):
        likelihood = "poisson" if "counts" in path.stem else "gaussian"
        assert build_model(read_settings(path).model, torch.Size((3, 4, 4)), 16, likelihood).decoder is not None


WEIGHT = "encoder.body.1.weight"
NOT_FINITE = f"run/model.safetensors: {WEIGHT} holds numbers that are not finite"


@pytest.mark.parametrize(
    ("command", "change", "told"),
    [
        *((name, torch.Tensor.log, NOT_FINITE) for name in ("evaluate", "reconstruct", "sample", "variance", "export")),
        ("evaluate", torch.Tensor.char, f"{WEIGHT} is int8, but the run's configuration says float32"),
        ("evaluate", torch.Tensor.cfloat, f"{WEIGHT} is complex64, but the run's configuration says float32"),
    ],
)
def test_weights_that_are_not_those_of_a_run_are_named(
    command: str, change: Callable[[torch.Tensor], torch.Tensor], told: str, digits_run: Path, tmp_path: Path, cli: Cli
) -> None:
    run = shutil.copytree(digits_run, tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    save_file(weights | {WEIGHT: change(weights[WEIGHT])}, run / "model.safetensors")
    assert told in cli.fails(command, run)


def test_a_run_in_double_precision_stays_in_it(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    train(folder, train=replace(ONCE, precision="64-true", keep=[1]))
    for path in (folder / "model.safetensors", folder / "epochs" / "1.safetensors"):
        assert {weight.dtype for weight in load_file(path).values()} == {torch.float64}
    for line in ("evaluate", "sample", "reconstruct"):
        cli(line, folder)
    for checkpoint in ([], ["--checkpoint", "1"]):
        cli("variance", folder, *checkpoint, "--batches", "4", "--draws", "2")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["train"]["precision"] = "32-true"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert "is float64, but the run's configuration says float32" in cli.fails("evaluate", folder)
