"""The three runs that `silentgrad demo` shows side by side, all on the embedded digits and for as many epochs.

The network has the defaults of `silentgrad train`, without and with the guide. The circuit has the settings of MNIST's
recipe, and so the same encoder, at other learning rates. How long a guide guides was chosen by validation figures,
those of the digits among them; nothing else was tuned on the digits.
"""

from dataclasses import replace
from typing import NamedTuple

from silentgrad.lab.training.config import DataConfig, ModelConfig, Settings, TrainConfig
from silentgrad.lab.training.recipes import read_recipe

EPOCHS = 60
CIRCUIT_RECIPE = "mnist-circuit-cpu"


class DemoRun(NamedTuple):
    """One of the runs.

    Args:
        name: Name of its folder.
        what: What it is, in words.
        settings: All that it is told.
    """

    name: str
    what: str
    settings: Settings


def demo_runs(seed: int) -> list[DemoRun]:
    """The network without a guide, the same with the guide, and the silent circuit.

    Args:
        seed: Seed of all three.
    """
    digits = DataConfig()
    train = TrainConfig(epochs=EPOCHS, seed=seed)
    recipe = read_recipe(CIRCUIT_RECIPE)
    circuit_train = replace(recipe.train, epochs=EPOCHS, seed=seed)
    return [
        DemoRun("network", "network without a guide", Settings(digits, ModelConfig(tractable="none"), train)),
        DemoRun("guided", "the same with the guide", Settings(digits, ModelConfig(), train)),
        DemoRun("circuit", "silent circuit, no samples", Settings(digits, recipe.model, circuit_train)),
    ]
