"""Command lines that are wrong: each is a message of a few lines, and nothing is written."""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from silentgrad.lab.cli.main import main
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, train_model
from silentgrad.lab.training.documents import read_settings
from silentgrad.lab.training.ranges import RANGES, ConfigError
from silentgrad.lab.training.recipes import recipe_names, recipe_path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*")
TINY = ModelConfig(latent_dim=2, hidden=[4])
ONCE = TrainConfig(epochs=1, accelerator="cpu")

WRONG = {
    "demo --seed -1": "--seed has to be at least 0, got -1",
    "demo --seed x": "--seed: Expected a value of type int. Got value: x",
    "demo --folder run": "--folder run is not empty: choose another",
    "demo --folder file": "--folder file: file is a file, not a folder",
    "demo --folder a::b": "taken for an address",
    "demo --train.epochs 3": "there is no option --train.epochs",
    "train --train.seed -1": "--train.seed has to be at least 0, got -1",
    "train --train.seed 99999999999999999999": "--train.seed has to be at most",
    "train --train.epochs -1": "--train.epochs has to be at least 1, got -1",
    "train --train.epochs 0": "--train.epochs has to be at least 1, got 0",
    "train --train.epochs x": "--train.epochs: Expected a value of type int. Got value: x",
    "train --train.clip -1": "--train.clip has to be at least 0, got -1.0",
    "train --train.clip .nan": "--train.clip has to be a finite number, got nan",
    "train --train.clip nan": "--train.clip",
    "train --train.lr -1": "--train.lr has to be above 0, got -1.0",
    "train --train.lr 0": "--train.lr has to be above 0, got 0.0",
    "train --train.lr .inf": "--train.lr has to be a finite number, got inf",
    "train --train.epochs null": "--train.epochs",
    "train --train.lr_mean -1": "--train.lr_mean has to be at least 0",
    "train --train.lr_precision -0.1": "--train.lr_precision has to be at least 0",
    "train --train.lr_network -0.1": "--train.lr_network has to be at least 0",
    "train --train.lr_mean x": "--train.lr_mean: Expected a value of type float. Got value: x",
    "train --train.devices 0": "--train.devices has to be at least 1",
    "train --train.devices -1": "--train.devices has to be at least 1",
    "train --train.devices 2 --data.batch_size 3": "--data.batch_size 3 has to be a multiple of --train.devices 2",
    "train --train.devices 3 --data.batch_size 3": "--data.batch_size 3 with --train.devices 3",
    "train --train.accelerator tpu": "--train.accelerator tpu",
    "train --train.accelerator nonsense": "--train.accelerator nonsense",
    "train --train.precision 16": "--train.precision: 16 is none of 32-true, bf16-mixed, 64-true",
    "train --train.keep [99]": "--train.keep 99 comes after the last of 60 epochs",
    "train --train.keep [0]": "--train.keep has to be at least 1, got 0",
    "train --train.keep [a]": "--train.keep",
    "train --train.variance_every -1": "--train.variance_every has to be at least 0",
    "train --train.iwae_samples 0": "--train.iwae_samples has to be at least 1",
    "train --train.tensorboard maybe": "--train.tensorboard",
    "train --model.latent_dim -4": "--model.latent_dim has to be at least 1, got -4",
    "train --model.latent_dim 1000000000000": "--model.latent_dim has to be at most",
    "train --model.latent_dim 2000000000": "no memory for a model of --model.latent_dim 2000000000",
    "train --model.latent_dim 2.5": "--model.latent_dim",
    "train --model.hidden [0]": "--model.hidden has to be at least 1, got 0",
    "train --model.hidden [4,-3]": "--model.hidden has to be at least 1, got -3",
    "train --model.network conv --model.channels 0": "--model.channels has to be at least 1",
    "train --model.network strided": "32 x 32",
    "train --model.network nonsense": "--model.network",
    "train --model.latent nonsense": "--model.latent",
    "train --model.latent bernoulli --model.estimator reparameterized": "is not for --model.latent bernoulli",
    "train --model.latent bernouli": "Did you mean bernoulli?",
    "train --model.prior learnd": "--model.prior: learnd is none of standard, learned, mixture. Did you mean learned?",
    "train --epochs 3": "there is no option --epochs: did you mean --train.epochs?",
    "train --train.epoch 3": "there is no option --train.epoch: did you mean --train.epochs?",
    "train --lr=3": "there is no option --lr: did you mean --train.lr?",
    "train --model.latent-dim 3": "did you mean --model.latent_dim?",
    "train --train.epochs 1:2": "--train.epochs: 1:2 is no number",
    "train --model.hidden 64,x": "--model.hidden: Expected a value of type int. Got value: x",
    "train --train.keep 3,99": "--train.keep 99 comes after the last of 60 epochs",
    "train --train.accelerator tpu --train.devices 2": "--train.accelerator tpu",
    "train --recipe mnist-circuit": "Did you mean mnist-circuit-cpu?",
    "trian": "there is no command 'trian'. Did you mean train?",
    "data gte digits": "there is no command 'gte'. Did you mean get?",
    "train --model.estimator exact": "no closed form: --model.estimator exact",
    "train --model.estimator disarm": "--model.estimator disarm is not for --model.latent gaussian",
    "train --model.estimator gumbel-softmax": "--model.estimator gumbel-softmax is not for",
    "train --model.estimator none --model.tractable none": "--model.estimator none",
    "train --model.estimator none --model.nonlinear false": "--model.estimator none",
    "train --model.tractable none --model.nonlinear false": "there is no decoder",
    "train --model.tractable linear --model.log_term exact --model.latent bernoulli --model.estimator rloo": "log_term",
    "train --model.temperature 0": "--model.temperature has to be above 0",
    "train --model.temperature_start 0.1": "--model.temperature_start has to be at least --model.temperature",
    "train --model.temperature_factor 2": "--model.temperature_factor has to be at most 1",
    "train --model.variance -1": "--model.variance has to be above 0",
    "train --model.variance_start 0.001": "--model.variance_start has to be at least --model.variance",
    "train --model.variance_factor 0": "--model.variance_factor has to be above 0",
    "train --model.guided 0": "--model.guided has to be above 0",
    "train --model.guide_estimator reparameterized --train.variance_every 1": "--train.variance_every measures one",
    "train --model.kl_warmup 2": "--model.kl_warmup has to be at most 1",
    "train --model.guide_draws 0": "--model.guide_draws has to be at least 1",
    "train --model.guide_draws 4": "--model.guide_draws is for a --model.guide_estimator that draws",
    "train --model.guide_estimator gumbel-softmax": "--model.guide_estimator gumbel-softmax is not for",
    "train --model.guide_estimator none": "--model.guide_estimator none is not for",
    "train --model.tractable none --model.guide_estimator reparameterized": "are for a tractable decoder beside",
    "train --model.cutoff 0": "--model.cutoff has to be at least 1",
    "train --model.kl_weight -1": "--model.kl_weight has to be at least 0",
    "train --model.kl_weight .inf": "--model.kl_weight has to be a finite number",
    "train --data.batch_size 0": "--data.batch_size has to be at least 1",
    "train --data.name ''": "--data.name is empty",
    "train --data.name mnits": "Did you mean mnist?",
    "train --data.name file": "is no dataset",
    "train --data.name missing.npy": "missing.npy",
    "train --folder run": "run exists",
    "train --folder file": "--folder file: file is a file, not a folder",
    "train --folder file/deeper": "file is a file, not a folder",
    "train --folder a::b": "taken for an address",
    "train --resume true": "--resume needs --folder",
    "train --resume true --folder nothing": "nothing holds no run",
    "train --resume true --folder run --train.epochs 5": "leave out --train.epochs 5",
    "train --config missing.yaml": "missing.yaml",
    "train --config deep.yaml": "nested too deeply",
    "train --config class.yaml": "trap.Trap is no setting",
    "train --config misspelt.yaml": "'train' does not accept option 'sed'",
    "train --config list.yaml": "config",
    "train --config bytes.yaml": "--config is no text",
    "train --recipe nonsense": "there is no recipe 'nonsense'",
    "train --recipe": "expected one argument",
    "train --recipe missing.yaml": "there is no recipe 'missing.yaml'",
    "evaluate run --recipe mnist-gaussian-none-sg-cpu": "there is no option --recipe",
    "train --model trap.Trap": "trap.Trap is no setting",
    'train --model \'{"class_path": "trap.Trap"}\'': "trap.Trap is no setting",
    "train --model.class_path trap.Trap": "there is no option --model.class_path",
    "train --train [1]": "--train",
    "train --nonsense 1": "there is no option --nonsense",
    "nonsense": "there is no command 'nonsense'",
    "evaluate": "required: run",
    "evaluate nothing": "nothing holds no run",
    "evaluate run --samples 0": "--samples has to be at least 1, got 0",
    "evaluate run --data nonsense": "is no dataset",
    "reconstruct nothing": "nothing holds no run",
    "reconstruct run --output nowhere/x.safetensors": "there is no folder nowhere",
    "reconstruct run --output x.png": "--output has to be a .safetensors file",
    "sample nothing": "nothing holds no run",
    "sample run --count 0": "--count has to be at least 1, got 0",
    "sample run --count 99999999": "--count has to be at most",
    "sample run --seed -1": "--seed has to be at least 0, got -1",
    "sample run --output x.nonsense": "--output has to be a .png file",
    "sample run --output folder.png": "folder.png is a folder",
    "variance nothing": "nothing holds no run",
    "variance run --batches 3": "--batches has to be at least 4, got 3",
    "variance run --draws 1": "--draws has to be at least 2, got 1",
    "variance run --seed 99999999999999999999": "--seed has to be at most",
    "variance run --estimators [none]": "none is no estimator",
    "variance run --estimators [exact]": "--estimators exact does not go with this run",
    "variance run --estimators [disarm]": "--estimators disarm does not go with this run",
    "variance run --estimators [nonsense]": "--estimators: nonsense is none of exact",
    "variance run --estimators reparameterized,rlo": "--estimators: rlo is none of exact",
    "variance run --estimators []": "--estimators is empty",
    "variance run --checkpoint 7": "run/epochs/7.safetensors",
    "variance run --checkpoint file": "file",
    "variance run --output nowhere/x.csv": "there is no folder nowhere",
    "bias --latents 0": "--latents has to be at least 1, got 0",
    "bias --latents 40": "--latents has to be at most 16, got 40",
    "bias --epochs 0": "--epochs has to be at least 1",
    "bias --images 0": "--images has to be at least 1",
    "bias --draws 1": "--draws has to be at least 2, got 1",
    "bias --seed -1": "--seed has to be at least 0",
    "bias --run run": "Bernoulli latents",
    "bias --run run --latents 4": "are for models that bias trains itself: leave them or --run out",
    "bias --data.kind binarized": "closed form for Gaussian latents only",
    "bias --data.batch_size 0": "--data.batch_size has to be at least 1",
    "bias --folder file": "file is a file, not a folder",
    "reproduce nonsense": "silentgrad: nonsense is none of variance, fixed",
    "reproduce fixd": "Did you mean fixed?",
    "reproduce bpd --datasets mnist,cifar1": "--datasets takes some of mnist",
    "reproduce circuits --datasets [cifar10]": "circuits are compared on mnist: leave --datasets out",
    "reproduce circuits --scale paper": "circuits are not in the paper: choose --scale cpu or smoke",
    "reproduce circuits --scale conv": "--scale conv is for the tables bpd, kld and mse: choose --scale cpu or smoke",
    "reproduce fixed --scale conv": "bpd, kld and mse: choose --scale cpu, paper or smoke",
    "reproduce variance --scale conv": "--scale conv is for the tables bpd, kld and mse",
    "reproduce figures --scale conv": "--scale conv is for the tables bpd, kld and mse",
    "reproduce all --scale conv": "--scale conv is for the tables bpd, kld and mse",
    "reproduce bpd --scale conv --datasets [cifar10]": "--scale conv has runs on mnist only: leave --datasets out",
    "reproduce fixed --scale smoke --seeds 0": "--seeds has to be at least 1",
    "reproduce fixed --scale smoke --jobs 0": "--jobs has to be at least 1",
    "reproduce fixed --scale smoke --accelerator nonsense": "--accelerator nonsense",
    "reproduce fixed --scale smoke --folder file": "file is a file, not a folder",
    "reproduce bpd --datasets [nonsense]": "--datasets takes some of mnist",
    "reproduce bpd --datasets []": "--datasets takes some of mnist",
    "sweep --over nonsense": "--over takes some of lr",
    "sweep --over lr,nonsense": "--over takes some of lr",
    "sweep --grid.lr []": "nothing to try",
    "sweep --grid.lr [0.1,-1]": "--grid.lr -1.0",
    "sweep --over cutoff --grid.cutoff [0]": "--grid.cutoff 0",
    "sweep --trials 0": "--trials has to be at least 1",
    "sweep --storage nonsense": "cannot open the database of --storage",
    "sweep --storage sqlite:////nowhere/at/all.db": "cannot open the database of --storage",
    "sweep --train.seed -1": "--train.seed has to be at least 0",
    "sweep --train.accelerator nonsense": "--train.accelerator nonsense",
    "sweep --train.devices 2": "one device",
    "sweep --model.latent_dim -1": "--model.latent_dim has to be at least 1",
    "sweep --model.estimator exact": "no closed form",
    "sweep --data.name nonsense": "is no dataset",
    "sweep --study ''": "--study has to be a plain name",
    "sweep --study ../x": "--study has to be a plain name",
    "sweep --folder file": "file is a file, not a folder",
    "compare": "required: runs",
    "compare run": "nothing to compare",
    "compare run run": "given twice",
    "compare run nothing": "nothing is no folder",
    "compare run file --output file/x.html": "file is a file, not a folder",
    "compare run run --output foo.txt": "--output has to be a .html file, got foo.txt",
    "compare run other --output folder.html": "folder.html is a folder",
    "export nothing": "nothing is no folder",
    "export run --folder file": "file is a file, not a folder",
    "recipes nonsense": "no recipe's name holds 'nonsense'",
    "recipes mnist-circuits": "Did you mean mnist-circuit-cpu?",
    "data nonsense": "there is no command 'nonsense'",
    "data get nonsense": "is no dataset",
    "data check mnist": "mnist was not found",
    "data check missing.npz": "missing.npz",
    "data list extra": "unrecognized arguments",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and with files that are wrong; no command may change anything in it."""
    folder = tmp_path_factory.mktemp("place")
    train_model(DataConfig(batch_size=512), TINY, ONCE, folder / "run", quiet=True)
    (folder / "folder.png").mkdir()
    (folder / "folder.html").mkdir()
    (folder / "file").write_text("no run")
    (folder / "deep.yaml").write_text("a: " + "[" * 3000 + "]" * 3000)
    (folder / "class.yaml").write_text("model: {class_path: trap.Trap}\n")
    (folder / "misspelt.yaml").write_text("train: {epochs: 1, sed: 3}\n")
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "trap.py").write_text("raise SystemExit('imported')\n")
    return folder


def content(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place as the current folder, whose modules could be imported."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("SILENTGRAD_DATA", str(place / "no-data"))
    yield place
    assert "trap" not in sys.modules


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words])
    assert stop.value.code in (1, 2)
    return capsys.readouterr().err


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_a_message_and_writes_nothing(
    line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(here)
    said = fails(capsys, *shlex.split(line))
    assert WRONG[line] in said
    assert said.startswith("silentgrad: ")
    assert len(said.splitlines()) <= 5
    assert content(here) == before


def test_every_number_among_the_settings_has_a_range() -> None:
    groups = {"data": DataConfig(), "model": ModelConfig(), "train": TrainConfig()}
    numbers = {f"{group}.{name}" for group, config in groups.items() for name, kind in _kinds(config) if kind}
    assert numbers == set(RANGES)


def _kinds(config: object) -> Iterator[tuple[str, bool]]:
    for name, kind in type(config).__annotations__.items():
        yield name, any(word in str(kind) for word in ("int", "float"))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid(name: str) -> None:
    assert isinstance(read_settings(recipe_path(name)), Settings)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("train: {epochs: -1}", "--train.epochs has to be at least 1, got -1"),
        ("train: {epochs: x}", "--train.epochs: Expected a value of type int. Got value: x"),
        ("train: {epochs: null}", "--train.epochs has to have a value"),
        ("train: {clip: .nan}", "--train.clip has to be a finite number"),
        ("train: {sed: 3}", "there is no setting train.sed"),
        ("extra: {}", "there is no setting extra"),
        ("model: {class_path: trap.Trap}", "there is no setting model.class_path"),
        ("model: 3", "expected settings model.NAME, found int"),
        ("- 1", "expected groups of settings"),
        ("", "expected groups of settings"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("a: [", "cannot read"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_damaged_configuration_is_named(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml") as caught:
        read_settings(path)
    assert reason in str(caught.value)


def test_settings_read_back_are_the_same(tmp_path: Path) -> None:
    train = TrainConfig(epochs=7, lr=1e-5, keep=[3], precision="64-true")
    settings = Settings(DataConfig("x.npy", Path("some"), 8), ModelConfig(cutoff=5, hidden=[3, 4]), train)
    path = tmp_path / "config.yaml"
    path.write_text(settings.as_yaml())
    assert read_settings(path) == settings


COMMANDS_WITH_WEIGHTS = ("evaluate run", "reconstruct run", "sample run", "variance run", "export run")


@pytest.mark.parametrize("line", COMMANDS_WITH_WEIGHTS)
def test_weights_that_are_no_numbers_are_named(
    line: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(place, tmp_path, lambda weight: torch.full_like(weight, torch.nan))
    monkeypatch.chdir(tmp_path)
    said = fails(capsys, *line.split())
    assert "run/model.safetensors: encoder.body.1.weight holds numbers that are not finite" in said


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.float64, torch.float16])
def test_weights_of_another_type_are_not_converted(
    dtype: torch.dtype, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(place, tmp_path, lambda weight: weight.to(dtype))
    said = fails(capsys, "evaluate", str(tmp_path / "run"))
    names = str(dtype).removeprefix("torch."), "float32"
    assert f"encoder.body.1.weight is {names[0]}, but the run's configuration says {names[1]}" in said


def test_a_run_in_double_precision_stays_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    train = TrainConfig(epochs=1, accelerator="cpu", precision="64-true", keep=[1])
    train_model(DataConfig(batch_size=512), TINY, train, folder, quiet=True)
    for path in (folder / "model.safetensors", folder / "epochs" / "1.safetensors"):
        assert {weight.dtype for weight in load_file(path).values()} == {torch.float64}
    for line in ("evaluate", "sample", "reconstruct"):
        main([line, str(folder)])
    for checkpoint in ("best", "1"):
        main(["variance", str(folder), "--checkpoint", checkpoint, "--batches", "4", "--draws", "2"])
    capsys.readouterr()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["train"]["precision"] = "32-true"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert "is float64, but the run's configuration says float32" in fails(capsys, "evaluate", str(folder))


def changed(place: Path, folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A copy of the run with one tensor changed."""
    shutil.copytree(place / "run", folder / "run")
    path = folder / "run" / "model.safetensors"
    weights = load_file(path)
    weights["encoder.body.1.weight"] = change(weights["encoder.body.1.weight"])
    save_file(weights, path)
