"""Every family and prior trains; and what a newcomer adds, each in one file, by its name.

A family, prior, network, metric, schedule, kind of observations and section of the report; decoders and likelihoods of
one's own are in test_tractable.py.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import build_estimator
from silentgrad.lab.cli.main import main
from silentgrad.lab.data import Observations, Part, Rows, Unit, load
from silentgrad.lab.experiments.benchmark.protocol import BenchmarkPlan, estimator_named, settings_of
from silentgrad.lab.networks import NETWORKS, Encoder, Network, NonlinearGaussian, Sizes, mlp_body, mlp_network
from silentgrad.lab.reports import write_report
from silentgrad.lab.reports.page import Section
from silentgrad.lab.runs.evaluation import METRICS, evaluate_model
from silentgrad.lab.settings import ConfigError, resolve_model
from silentgrad.lab.store.files import read_json
from silentgrad.lab.store.records import Run
from silentgrad.lab.training import DataConfig, ModelConfig, TrainConfig, load_run, read_config, train_model
from silentgrad.latents import families
from silentgrad.registry import Registry

SMALL = {"latent_dim": 3, "hidden": [8]}
TRAIN = TrainConfig(epochs=2, lr=5e-3, accelerator="cpu")
WORDS = ["--train.lr=5e-3", "--train.accelerator=cpu", "--data.batch_size=256", "--quiet=true"]
SHAPE = (1, 2, 2)
SKELETONS = Path(__file__).parents[1] / "examples"
OWN = "my_estimator:MyEstimator"
SETTINGS = settings_of(["mnist"], ["bernoulli"], ["linear"])
DATA = DataConfig(batch_size=256)
TRAINED = {  # one way to train each family, all ways between them
    "gaussian": {"tractable": "exp", "estimator": "reparameterized", "prior": "mixture", "prior_components": 3},
    "full-gaussian": {"tractable": "linear", "nonlinear": False, "estimator": "exact", "prior": "learned"},
    "laplace": {"tractable": "fixed", "nonlinear": False, "estimator": "rloo", "start": "ppca", "prior": "mixture"},
    "bernoulli": {"tractable": "exp", "estimator": "disarm", "prior": "learned"},
    "categorical": {"tractable": "exp", "estimator": "gumbel-softmax", "categories": 4, "start": "ppca"},
    "poisson": {"tractable": "exp", "estimator": "none", "prior": "learned"},
}


@pytest.mark.parametrize("latent", TRAINED)
def test_every_family_trains(latent: str, tmp_path: Path) -> None:
    model = ModelConfig(**SMALL | {"latent": latent} | TRAINED[latent])
    summary = train_model(DATA, model, TRAIN, tmp_path / "run", quiet=True)
    assert summary.figure < 7
    assert 0.001 < summary.kld < 30
    assert summary.active <= 3


@pytest.mark.parametrize("prior", [sg.LearnedPrior, sg.MixturePrior])
def test_a_prior_that_learns_fits_the_latents(prior: type[sg.latents.Prior]) -> None:
    """Latents in two heaps: the learned prior has their mean and width, the bound of the mixture their heaps too."""
    torch.manual_seed(0)
    family = sg.families.Gaussian(2)
    q = td.Independent(td.Normal(torch.cat([torch.full((50, 2), 3.0), torch.full((50, 2), -1.0)]), 0.1), 1)
    learned = prior(family)
    optimizer = torch.optim.Adam(learned.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        learned.divergence(q).mean().backward()
        optimizer.step()
    one_gaussian = 2 * (0.5 * math.log(4.01) - math.log(0.1))  # KL divergence to N(1, 4 + 0.01), averaged over q
    expected = one_gaussian if prior is sg.LearnedPrior else math.log(2)
    assert learned.divergence(q).mean().item() == pytest.approx(expected, abs=0.02)
    assert learned.divergence(q).mean() < family.prior().divergence(q).mean()


def encoder(family: sg.families.Family) -> Encoder:
    torch.manual_seed(0)
    return Encoder(mlp_body(SHAPE, family.numbers), family)


EXPONENTIAL = '''
"""Waiting times."""

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families import Family, positive


class Exponential(Family):
    """Exponentially distributed latents, from the logarithms of their rates."""

    name = "exponential"
    distribution = td.Exponential
    arguments = ("rate",)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        (log_rate,) = self.split(numbers)
        return (positive(log_rate),)
'''


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package of families, with one more file in its folder."""
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "exponential.py").write_text(EXPONENTIAL)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    families.discover()
    yield families
    del families.FAMILIES["exponential"]
    del sys.modules["silentgrad.latents.families.exponential"]


def test_a_family_is_one_file(newcomer: ModuleType, tmp_path: Path) -> None:
    family = newcomer.FAMILIES["exponential"](3)
    model = ModelConfig(**SMALL, latent="exponential", tractable="exp", estimator="reparameterized", prior="learned")
    summary = train_model(DATA, model, TRAIN, tmp_path / "run", quiet=True)
    assert summary.kld > 0
    images = torch.rand(4, 5, *SHAPE)
    vae = GuidedVAE(encoder(family), sg.LinearGaussian(3, SHAPE))
    found = sg.gradient_variance(vae, images, 20, [sg.Exact(), sg.Reparameterized(), sg.RLOO()])
    assert found["Exact"].est == 0 < found["Reparameterized"].est
    assert sg.families.family_of(td.Exponential(torch.ones(5, 2))).name == "exponential"


class Wide(sg.latents.Prior):
    """N(0, scale^2), with a scale of one's own."""

    def __init__(self, family: sg.families.Family, scale: float) -> None:
        super().__init__(family)
        self.register_buffer("scale", torch.full(family.shape, scale))

    def forward(self) -> td.Distribution:
        return td.Independent(td.Normal(torch.zeros_like(self.scale), self.scale), 1)


def test_a_prior_of_ones_own() -> None:
    family, x = sg.families.Gaussian(2), torch.rand(5, *SHAPE)
    wide = GuidedVAE(encoder(family), sg.LinearGaussian(2, SHAPE), prior=Wide(family, 3.0))
    q = wide.encoder(x).base_dist
    expected = (3 / q.scale).log() + (q.scale.square() + q.loc.square()) / 18 - 0.5
    torch.testing.assert_close(wide(x, epoch=1).kld, expected.sum(1).mean())
    assert wide.generate(1000).mean.shape == (1000, *SHAPE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    model = ModelConfig(**SMALL, prior="mixture", prior_components=2)
    train_model(DATA, model, TRAIN, folder, quiet=True)
    return folder


def test_a_trained_prior_is_saved_and_read(run: Path) -> None:
    assert read_config(run).model.prior_components == 2
    prior = load_run(run, load("digits")).prior
    assert isinstance(prior, sg.MixturePrior)
    weights: Tensor = prior.logits
    assert weights.shape == (2,)
    assert (weights != 0).all()


# --- decoders, likelihoods and estimators of one's own


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of an estimator's skeleton, from which it can be imported."""
    monkeypatch.syspath_prepend(str(SKELETONS))
    monkeypatch.delitem(sys.modules, "my_estimator", raising=False)


@pytest.mark.usefixtures("own")
def test_an_estimator_of_ones_own_is_named_by_options() -> None:
    config = ModelConfig(latent="bernoulli", latent_dim=4, tractable="none", estimator=OWN)
    estimator = build_estimator(resolve_model(config, "gaussian"))
    assert type(estimator).__name__ == "MyEstimator"
    with pytest.raises(ConfigError, match=f"--model.estimator {OWN} is not for --model.latent gaussian"):
        resolve_model(ModelConfig(estimator=OWN), "gaussian")
    plan = BenchmarkPlan("smoke", SETTINGS[:1], ["rloo", OWN], 1, Path("folder"), None, "cpu")
    assert plan.names(SETTINGS[0]) == plan.trained(SETTINGS[0]) == ["rloo", OWN]
    assert all(":" not in run.name for run in plan.first_runs())
    assert type(estimator_named(OWN, 4)).__name__ == "MyEstimator"


@pytest.mark.usefixtures("own")
def test_an_estimator_of_ones_own_trains_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    small = "--model.latent bernoulli --model.latent_dim 4 --model.hidden 8 --model.tractable none --train.epochs 1"
    words = ["train", *small.split(), "--model.estimator", OWN, "--folder", run, "--train.accelerator", "cpu"]
    for command in (words, ["variance", run, "--estimators", f"rloo,{OWN}", "--batches", "4", "--draws", "2"]):
        monkeypatch.setattr(sys, "argv", ["silentgrad", *command])
        main()
    assert "MyEstimator" in capsys.readouterr().out


# --- observations, networks, metrics, schedules and sections of one's own


@dataclass(frozen=True)
class Angles(Observations):
    """Directions in degrees, which a model sees as numbers in (-1, 1]."""

    unit = Unit("nll", " nats per angle")
    likelihoods = ("gaussian",)

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        return rows.stored / 180

    def figure(self, elbo: float) -> float:
        return math.log(180) - elbo / self.event_shape.numel()


def test_observations_of_ones_own(tmp_path: Path) -> None:
    """Angles that are normal around 20 degrees: their entropy per angle is what no model can beat."""
    angles = 20 + 30 * torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    observations = Angles(angles[:400], angles[400:500], angles[500:], "angles")
    model = ModelConfig(latent_dim=1, hidden=[8], nonlinear=False, estimator="exact", start="ppca")
    train = TrainConfig(epochs=30, lr=1e-2, accelerator="cpu")
    folder = tmp_path / "run"
    summary = train_model(DATA, model, train, folder, quiet=True, observations=observations)
    entropy = 0.5 * math.log(2 * math.pi * math.e * 30**2)
    assert summary.unit.in_print == "NLL nats per angle"
    assert summary.figure == pytest.approx(entropy, abs=0.15)
    assert evaluate_model(load_run(folder, observations), observations).figure == summary.figure


def test_a_network_and_a_metric_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(event_shape: torch.Size, outputs: int, sizes: Sizes) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(event_shape.numel(), outputs))

    def decoder(latents: int, event_shape: torch.Size, sizes: Sizes, numbers: int) -> nn.Module:
        channels, *size = event_shape
        outputs = nn.Linear(latents, numbers * event_shape.numel())
        return nn.Sequential(outputs, nn.Unflatten(1, (numbers * channels, *size)))

    def worst(x: Tensor, likelihood: td.Distribution) -> Tensor:
        return (likelihood.mean - x).abs().flatten(1).amax(1)

    monkeypatch.setitem(NETWORKS, "shallow", Network(body, decoder))
    monkeypatch.setitem(METRICS, "worst", worst)
    folder = tmp_path / "run"
    main(["train", "--model.network=shallow", "--model.latent_dim=2", "--train.epochs=3", *WORDS, f"--folder={folder}"])
    main(["evaluate", str(folder)])
    summary = read_json(folder / "summary.json")
    assert summary["figure"] < 7
    assert 0.3 < summary["metrics"]["worst"] < 2
    assert "valid_worst" in (folder / "metrics.csv").read_text()
    assert capsys.readouterr().out.count(f"WORST {summary['metrics']['worst']:.3f}") == 2


def test_a_schedule_of_ones_own() -> None:
    """Any function of the epoch or the step: here half the way down after ten, and a second guided phase."""

    def waves(epoch: int) -> float:
        return 0.5 + 0.5 * math.cos(math.pi * epoch / 10)

    nonlinear = NonlinearGaussian(mlp_network(2, SHAPE, (8,)), SHAPE)
    models = encoder(sg.families.Gaussian(2)), sg.LinearGaussian(2, SHAPE), nonlinear
    vae = GuidedVAE(*models, estimator=sg.Reparameterized(), schedule=waves)
    x = torch.rand(5, *SHAPE)
    for epoch in (5, 10, 15):
        losses = vae(x, epoch)
        parts = [losses.kld]
        if losses.tractable is not None:
            parts.append(waves(epoch) * losses.tractable)
        if losses.nonlinear is not None:
            parts.append((1 - waves(epoch)) * losses.nonlinear)
        torch.testing.assert_close(losses.total, torch.stack(parts).sum())
    guide = sg.SilentGuide(2, SHAPE, waves)
    assert guide.weight(step=10) == waves(10) == 0.0


def test_a_section_of_ones_own(run: Path) -> None:
    def slowest(page: Run) -> Section:
        return Section("Time", [f"{len(page.metrics['seconds'])} epochs & {page.folder.name}"])

    assert "2 epochs &amp; run" in write_report(run, [slowest]).read_text()
    assert "2 epochs &amp; run" not in write_report(run).read_text()


def test_a_name_belongs_to_one_class() -> None:
    registry = Registry("estimator", Estimator)
    assert registry.register("a")(sg.RLOO) is sg.RLOO
    registry.register("a")(sg.RLOO)  # a cell that is run again
    with pytest.raises(sg.DomainError, match=r"a is the name of another estimator, silentgrad\.estimators\.score:RLOO"):
        registry.register("a")(sg.ARM)
    assert registry.resolve("a") is sg.RLOO
    assert registry.resolve("silentgrad:ARM") is sg.ARM


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("disram", r"disram is no estimator: choose among arm, .*, or name a class .*Did you mean disarm\?"),
        ("no_such_module:A", "cannot be imported, No module named 'no_such_module'.*PYTHONPATH"),
        ("silentgrad:NoSuch", "cannot be imported, module 'silentgrad' has no attribute 'NoSuch'"),
        (":A", "cannot be imported"),
        (".relative:A", "cannot be imported"),
        ("silentgrad:Gaussian", "cannot be imported"),
        ("silentgrad:KSubset", "silentgrad:KSubset is no estimator: it has to be a subclass of Estimator"),
        ("silentgrad:gradient_bias", "it has to be a subclass of Estimator"),
    ],
)
def test_what_is_no_estimator_is_refused(name: str, message: str) -> None:
    with pytest.raises(sg.DomainError, match=message):
        ESTIMATORS.resolve(name)
