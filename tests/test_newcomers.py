"""A prior that learns; and a family and an estimator that a newcomer adds, each in one file, by its name.

All else that one may add is in `docs/extending.md`, whose code runs;
decoders and likelihoods are in test_objective.py and members.py.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import distributions as td

import silentgrad as sg
from refusals import refused
from runs import SMALL, TINY, Cli, train
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import build_estimator
from silentgrad.lab.experiments.benchmark.protocol import BenchmarkPlan, settings_of
from silentgrad.lab.networks import Encoder, mlp_body
from silentgrad.lab.settings import ConfigError, resolve_model
from silentgrad.lab.training import ModelConfig
from silentgrad.latents import families
from silentgrad.registry import Registry

SHAPE = (1, 2, 2)
OWN = "my_estimator:MyEstimator"


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


EXPONENTIAL = '''
from torch import Tensor
from torch import distributions as td

from silentgrad.latents.families import Family, positive


class Exponential(Family):
    """Exponentially distributed latents, from the logarithms of their rates."""

    name, distribution, arguments = "exponential", td.Exponential, ("rate",)

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
    model = replace(TINY, latent="exponential", tractable="exp", estimator="reparameterized", prior="learned")
    assert train(tmp_path / "run", model=model).kld > 0
    images = torch.rand(4, 5, *SHAPE)
    vae = GuidedVAE(Encoder(mlp_body(SHAPE, family.numbers), family), sg.LinearGaussian(3, SHAPE))
    found = sg.gradient_variance(vae, images, 20, [sg.Exact(), sg.Reparameterized(), sg.RLOO()])
    assert found["Exact"].est == 0 < found["Reparameterized"].est
    assert sg.families.family_of(td.Exponential(torch.ones(5, 2))).name == "exponential"


def test_an_estimator_of_ones_own_is_named_by_options_trained_with_and_measured(tmp_path: Path, cli: Cli) -> None:
    config = ModelConfig(latent="bernoulli", latent_dim=4, tractable="none", estimator=OWN)
    estimator = build_estimator(resolve_model(config, "gaussian"))
    assert type(estimator).__name__ == "MyEstimator"
    told = f"--model.estimator {OWN} is not for --model.latent gaussian"
    refused(ConfigError, told, lambda: resolve_model(ModelConfig(estimator=OWN), "gaussian"))
    (setting,) = settings_of(["mnist"], ["bernoulli"], ["linear"])
    plan = BenchmarkPlan("smoke", [setting], ["rloo", OWN], Path("folder"), None, "cpu")
    assert plan.names(setting) == ["rloo", OWN]
    assert all(":" not in run.name for run in plan.runs(seeds=1))
    own = ["--model.latent", "bernoulli", "--model.tractable", "none", "--model.estimator", OWN]
    cli("train", *SMALL, *own, "--train.epochs", "1", "--folder", tmp_path / "run")
    said = cli("variance", tmp_path / "run", "--estimators", f"rloo,{OWN}", "--batches", "4", "--draws", "2")
    assert "MyEstimator" in said


def test_a_name_belongs_to_one_class() -> None:
    registry = Registry("estimator", Estimator)
    assert registry.register("a")(sg.RLOO) is sg.RLOO
    registry.register("a")(sg.RLOO)  # a cell that is run again
    another = r"a is the name of another estimator, silentgrad\.estimators\.score:RLOO"
    refused(sg.DomainError, another, lambda: registry.register("a")(sg.estimators.ARM))
    assert registry.resolve("a") is sg.RLOO


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RLOO", r"Did you mean rloo\?"),
        ("silentgrad:DisARm", r"no attribute 'DisARm', but .*RLOO.*\. Did you mean DisARM\?"),
        ("no_such_module:A", "cannot be imported, No module named 'no_such_module'.*PYTHONPATH"),
        ("silentgrad:NoSuch", "cannot be imported, module 'silentgrad' has no attribute 'NoSuch'"),
        (":A", "cannot be imported"),
        (".relative:A", "cannot be imported"),
        ("silentgrad:KSubset", "silentgrad:KSubset is no estimator: it has to be a subclass of Estimator"),
        ("silentgrad:gradient_bias", "it has to be a subclass of Estimator"),
    ],
)
def test_what_is_no_estimator_is_refused(name: str, message: str) -> None:
    refused(sg.DomainError, message, lambda: ESTIMATORS.resolve(name))
