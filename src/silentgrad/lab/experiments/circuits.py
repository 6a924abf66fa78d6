"""Circuits, by the ELBO: every way to train one, what z is worth to it, and networks with the same encoder.

Not one of the paper's tables. A block has one dataset, kind of leaves and family of latents; its rows differ from a
recipe in nothing but what they name, and are compared with the same circuit without z, trained as long.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Request, seeded
from silentgrad.lab.experiments.recipes import read_recipe
from silentgrad.lab.experiments.tuned import CHOSEN, MODELS, Comparison
from silentgrad.lab.settings.documents import with_options
from silentgrad.lab.training import ModelConfig

Options = Mapping[str, Any]
Rows = Mapping[str, Options]  # method -> the options in which it differs
KINDS = {"levels": "whole levels", "context": "whole levels, a context", "densities": "Gaussian leaves"}
WITHOUT = "without-z"
ESTIMATORS = {
    "exact": "bound",
    "reparameterized": "one reparameterized sample",
    "silent-reparameterized": "silent control variate",
    "rloo": "RLOO",
    "silent-rloo": "RLOO, silent control variate",
    "gumbel-softmax": "Gumbel-Softmax",
    "reinmax": "ReinMax",
    "reinforce": "REINFORCE",
}
OF_NUMBERS, OF_BITS = list(ESTIMATORS)[:3], ["exact", *list(ESTIMATORS)[3:]]
OF_NETWORKS = ["gumbel-softmax", "reinforce", "rloo"]
METHODS = {
    **ESTIMATORS,
    "categorical": "bound, categorical leaves",
    "linear": "linear decoder",
    "linear-exp": "linear decoder, precision too",
    "mixture": "mixture",
    "network": "network",
    "network-mixture": "network, mixture",
    "network-circuit": "network, circuit",
    "network-circuit-sg": "network, circuit, guided by a silent one",
    **{f"network-circuit-{name}": f"network, circuit, {ESTIMATORS[name]}" for name in OF_NETWORKS},
    WITHOUT: "without z",
}


def _by(estimators: Sequence[str]) -> Rows:
    """Return a row for each estimator."""
    return {name: {"model.estimator": name} for name in estimators}


BLIND: Rows = {"exact": {}, WITHOUT: {"model.without_z": True}}
UNGATED = {"model.gates": ModelConfig().gates}
PLAIN = {**UNGATED, "model.components": None, "model.leaves": None}  # of what has no components
# A precision linear in z diverges at the rates of a circuit.
SLOWLY = {"train.lr": 5e-4, "train.lr_precision": 5e-3}
GUIDED = {"model.nonlinear": True, "model.estimator": "reparameterized"}
ALONE = {**GUIDED, **UNGATED, "model.tractable": "none"}
CIRCUIT = {"model.likelihood": "circuit"}
DECODERS: Rows = {
    "linear": {**UNGATED, "model.tractable": "mixture", "model.components": 1},
    "linear-exp": {**PLAIN, "model.tractable": "exp", "model.start": "ppca", **SLOWLY},
    "mixture": {**UNGATED, "model.tractable": "mixture"},
    "network": {**ALONE, **PLAIN},
    "network-mixture": {**ALONE, "model.likelihood": "mixture"},
    "network-circuit": {**ALONE, **CIRCUIT},
    "network-circuit-sg": {**GUIDED, **CIRCUIT, "model.guided": 0.75},
}
NETWORKS: Rows = {f"network-circuit-{name}": {**ALONE, **CIRCUIT, "model.estimator": name} for name in OF_NETWORKS}
CATEGORICAL = {"model.leaves": "categorical"}
FOUR = {"train.epochs": 4, "model.leaves": "constant"}
DIGITS = {"data.name": "digits", "data.batch_size": 64, "train.epochs": 20, "train.warmup": 40.0}
SMALL = {**DIGITS, "model.latent_dim": 16, "model.components": 4}


class Block(NamedTuple):
    """Runs that are compared."""

    kind: str  # of the leaves, among KINDS
    recipe: str  # that they start from
    rows: Rows = BLIND
    options: Options = MappingProxyType({})  # in which all rows differ from the recipe


BLOCKS: dict[str, list[Block]] = {  # by dataset
    "digits": [
        Block("levels", "mnist-circuit-cpu", {**_by(OF_NUMBERS), "categorical": CATEGORICAL, **BLIND}, SMALL),
        Block("densities", "mnist-circuit-cpu", {**_by(OF_NUMBERS), **BLIND}, {**SMALL, "model.leaves": "constant"}),
        Block("context", "mnist-circuit-context-cpu", BLIND, SMALL),
        Block("densities", "mnist-circuit-bernoulli-cpu", {**_by(OF_BITS), **BLIND}, {**SMALL, "model.latent_dim": 32}),
    ],
    "mnist": [
        Block("levels", "mnist-circuit-cpu"),
        Block("context", "mnist-circuit-context-cpu"),
        Block("densities", "mnist-circuit-cpu", {**_by(OF_NUMBERS), **DECODERS, **BLIND}, FOUR),
        Block("densities", "mnist-circuit-bernoulli-cpu", {**_by(OF_BITS), **NETWORKS, **BLIND}, FOUR),
    ],
    "cifar10": [Block("context", "cifar10-circuit-cpu")],
    "fashion-mnist": [Block("context", "fashion-mnist-circuit-cpu")],
    "imagenet32": [Block("context", "imagenet32-circuit-cpu")],
}


def circuit_cells(request: Request) -> list[Cell]:
    """Return the runs of the table, by seeds, so that every row soon has one."""
    cells = []
    for dataset, seed in product(request.datasets, range(request.seeds)):
        for kind, recipe, rows, options in BLOCKS[dataset]:
            for method, own in rows.items():
                settings = seeded(with_options(read_recipe(recipe), {**options, **own}), request.scale, seed)
                cells.append(Cell(dataset, settings.model.latent, method, seed, kind, settings))
    return cells


EXPERIMENT = Comparison(
    name="circuits",
    title="Circuits: how they are trained, and what z is worth",
    heads=["data", "leaves", "latents", *CHOSEN],
    cells=circuit_cells,
    refused=dict.fromkeys(("paper", "conv"), "circuits are not in the paper"),
    datasets=tuple(BLOCKS),
    labels=lambda cell: [cell.data, KINDS[cell.variant], paper.BLOCKS[cell.latent].lower()],
    methods=METHODS,
    reference=WITHOUT,
    metric="elbo",
    models=MODELS | {"independent": "no latents: one Gaussian a pixel"},
    told=[
        "What a run has to beat, without latents, is the histogram for whole levels, else one Gaussian a pixel.",
        "BPD is the closed form's bound where there is one, and the sampled ELBO of a network. All are compared by the "
        "sampled ELBO: training by samples does not make the bound tight.",
        "The epoch is chosen by the validation figure of what was descended, the bound or the sampled ELBO.",
    ],
)
