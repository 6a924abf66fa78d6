"""What silence gives and what the circuit gives: one table of decoders and estimators, each with the same encoder.

Not one of the paper's tables. All runs see MNIST for the same number of epochs, with the same encoder and the same
rate for it. Gaussian latents: linear decoders, mixture and circuit by their closed forms, the circuit also by samples;
a nonlinear decoder with a Gaussian, a mixture and a circuit as its likelihood, by samples; the last also guided by a
silent circuit. Bernoulli latents: the circuit by its closed form and by three estimators that sample, and the nonlinear
decoder with the same likelihood by the same three. A column has the validation figure that each had reached in the
seconds that the silent circuit took.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, seeded
from silentgrad.lab.experiments.experiment import (
    NO_CONVOLUTIONS,
    Declared,
    Filled,
    Request,
    RunGroup,
    best_of_blocks,
    made,
)
from silentgrad.lab.experiments.results import Results, mean_of, spread
from silentgrad.lab.tables import Column, Content, Spread
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig

COMPONENTS = 8
LATENTS = {"gaussian": 32, "bernoulli": 64}
TRAIN = TrainConfig(epochs=4, lr=1e-2, lr_network=1e-3, decay="cosine", warmup=200, clip=100.0)
SLOWLY = replace(TRAIN, lr=5e-4, lr_precision=5e-3)  # a precision linear in z diverges at the rates of a circuit


class Method(NamedTuple):
    """A row of the table."""

    latent: str  # name of the latents' family
    decoder: str  # the decoder in print
    estimator: str  # the estimator in print
    options: dict[str, Any]  # what differs from the common model
    train: TrainConfig = TRAIN  # how it is trained


SILENT = {"nonlinear": False, "estimator": "exact"}
MIXED = {"components": COMPONENTS, "leaves": "constant"}  # densities of dequantized levels, like all rows
CIRCUIT = {**MIXED, "tractable": "circuit", "gates": "all"}
NETWORK = {**MIXED, "tractable": "none", "likelihood": "circuit"}
GUIDANCE = {"guided": 0.75}
SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "circuit": ("circuit", {**CIRCUIT, "nonlinear": False}),
    "network-circuit": ("network, circuit", {**NETWORK}),
}
SAMPLING = {"gumbel-softmax": "Gumbel-Softmax", "reinforce": "REINFORCE", "rloo": "RLOO"}
CONTROLLED = "silent control variate"

METHODS = {
    "linear": Method("gaussian", "linear", "silent", {**SILENT, "tractable": "mixture", **MIXED, "components": 1}),
    "linear-exp": Method(
        "gaussian", "linear, precision too", "silent", {**SILENT, "tractable": "exp", "start": "ppca"}, SLOWLY
    ),
    "mixture": Method("gaussian", "mixture", "silent", {**SILENT, "tractable": "mixture", **MIXED}),
    "circuit": Method("gaussian", "circuit", "silent", SILENT | CIRCUIT),
    "circuit-reparameterized": Method(
        "gaussian", "circuit", "reparameterized", {**CIRCUIT, "nonlinear": False, "estimator": "reparameterized"}
    ),
    "circuit-silent-reparameterized": Method(
        "gaussian",
        "circuit",
        f"reparameterized, {CONTROLLED}",
        {**CIRCUIT, "nonlinear": False, "estimator": "silent-reparameterized"},
    ),
    "network": Method("gaussian", "network, Gaussian", "reparameterized", {"tractable": "none"}),
    "network-mixture": Method("gaussian", "network, mixture", "reparameterized", {**NETWORK, "likelihood": "mixture"}),
    "network-circuit": Method("gaussian", "network, circuit", "reparameterized", NETWORK),
    "network-circuit-sg": Method(
        "gaussian", "network, circuit, guided by a silent one", "reparameterized", NETWORK | CIRCUIT | GUIDANCE
    ),
    "circuit-bits": Method("bernoulli", "circuit", "silent", SILENT | CIRCUIT),
    "circuit-silent-rloo": Method(
        "bernoulli", "circuit", f"RLOO, {CONTROLLED}", {**CIRCUIT, "nonlinear": False, "estimator": "silent-rloo"}
    ),
}
for (_prefix, (_decoder, _options)), (_name, _in_print) in product(SAMPLED.items(), SAMPLING.items()):
    METHODS[f"{_prefix}-{_name}"] = Method("bernoulli", _decoder, _in_print, {**_options, "estimator": _name})
REFERENCES = {"gaussian": "circuit", "bernoulli": "circuit-bits"}


def circuit_cells(scale: Scale, seeds: int) -> list[Cell]:
    """Return the runs of the table."""
    cells = []
    for (name, method), seed in product(METHODS.items(), range(seeds)):
        model = ModelConfig(latent=method.latent, latent_dim=LATENTS[method.latent], **method.options)
        settings = Settings(DataConfig("mnist", batch_size=128), model, method.train)
        title = f"{paper.BLOCKS[method.latent].lower()}, {method.decoder}, {method.estimator}"
        cells.append(Cell("mnist", method.latent, name, seed, "", seeded(settings, scale, seed), title))
    return cells


RANKING = "The best are marked by the sampled ELBO of all: training by samples does not make the bound tight."
NOTES = [
    "BPD is the closed form's bound where there is one, and the sampled ELBO of a network. The column beside it has "
    "the sampled ELBO of all.",
    "The epoch is chosen by the validation figure of what was descended, the bound or the sampled ELBO.",
    "Equal seconds are those of the silent circuit; what was done earlier has its best figure.",
]
COLUMNS = [
    Column(""),
    Column("decoder"),
    Column("estimator"),
    Column("BPD", 4),
    Column("by the sampled ELBO", 4),
    Column("validation BPD at equal seconds", 4),
    Column("KLD", 1),
    Column("MSE", 2),
    Column("seconds", 0),
]
ELBO = 1  # its place among the figures


def _rows(results: Results, request: Request) -> list[RunGroup]:
    rows = []
    for latent, block in paper.BLOCKS.items():
        for name, method in METHODS.items():
            if method.latent == latent:
                rows.append(RunGroup([block, method.decoder, method.estimator], {"latent": latent, "method": name}))
    return rows


def _figures(results: Results, group: RunGroup, request: Request) -> list[Content]:
    reference = REFERENCES[str(group.runs["latent"])]
    seconds = mean_of(results.over_seeds("seconds", method=reference))
    rows = results.rows(**group.runs)
    then = spread(row.best_by(seconds) for row in rows)
    bpd, *others = [results.over_seeds(metric, **group.runs) for metric in ("test", "kld", "mse", "seconds")]
    return [bpd, spread(row.elbo for row in rows), then, *others]


def _verdict(best: Filled, block: Sequence[Filled]) -> str:
    """Return which row of a block is the best, and whether that is more than the word of single seeds."""
    title, decoder, estimator = best.group.labels
    elbos = [row.figures[ELBO] for row in block]
    seeds = [elbo.seeds for elbo in elbos if isinstance(elbo, Spread)]
    doubt = "" if min(seeds, default=0) > 1 else "; some rows have one seed, which is no verdict"
    return f"{title}: the best ELBO has {decoder}, {estimator}{doubt}."


EXPERIMENT = Declared(
    name="circuits",
    title="Decoders and estimators with the same encoder, {data}",
    columns=lambda scale: COLUMNS,
    rows=_rows,
    figures=_figures,
    judge=lambda filled: best_of_blocks(filled, ELBO, _verdict),
    notes=lambda results, request: made(results, request) + NOTES + [RANKING] * request.comparable,
    cells=lambda request: circuit_cells(request.scale, request.seeds),
    refused={**NO_CONVOLUTIONS, "paper": "circuits are not in the paper"},
    only_mnist="circuits are compared on mnist",
)
