"""The gain from silence and from the circuit: a table of decoders and estimators, each with the same encoder.

Not one of the paper's tables. All runs see MNIST for the same number of epochs, with the same encoder and the same
rate for it. Gaussian latents: linear decoders, mixture and circuit by their closed forms, the circuit also by samples;
a nonlinear decoder with a Gaussian, a mixture and a circuit as its likelihood, by samples; the last also guided by a
silent circuit. Bernoulli latents: the circuit by its closed form and by three estimators that sample, and the nonlinear
decoder with the same likelihood by the same three. A column has the validation figure that each had reached in the
seconds that the silent circuit took.
"""

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, seeded
from silentgrad.lab.experiments.experiment import (
    MODELS,
    NO_CONVOLUTIONS,
    FigureColumn,
    FilledRow,
    Judgement,
    Request,
    RowOfRuns,
    TableOfRuns,
    best_of_blocks,
    made,
    over_seeds,
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
ELBO = "by the sampled ELBO"


class Circuits(TableOfRuns):
    """Decoders and estimators, by the sampled ELBO of each."""

    def rows(self, results: Results, request: Request) -> list[RowOfRuns]:
        rows = []
        for (latent, block), (name, method) in product(paper.BLOCKS.items(), METHODS.items()):
            if method.latent == latent:
                rows.append(RowOfRuns([block, method.decoder, method.estimator], {"latent": latent, "method": name}))
        gaussian = RowOfRuns(["", "no latents: one Gaussian a pixel", ""], {}, "independent")
        return [*rows, gaussian, RowOfRuns(["", MODELS["histogram"], ""], {}, "histogram")]

    def figures(self, request: Request) -> list[FigureColumn]:
        then = Column("validation BPD at equal seconds", 4)
        return [
            FigureColumn(Column("BPD", 4), lambda results, row: results.judged("test", **row.runs)),
            over_seeds(ELBO, "elbo", 4),
            FigureColumn(then, self._at_equal_seconds),
            over_seeds("KLD", "kld", 1),
            over_seeds("MSE", "mse", 2),
            over_seeds("seconds", "seconds", 0),
        ]

    def _at_equal_seconds(self, results: Results, row: RowOfRuns) -> Content:
        seconds = mean_of(results.over_seeds("seconds", method=REFERENCES[row.runs["latent"]]))
        return spread(own.best_by(seconds) for own in results.rows(**row.runs) if not own.failure)

    def judge(self, filled: list[FilledRow]) -> Judgement:
        return best_of_blocks(filled, ELBO, self._verdict)

    def _verdict(self, best: FilledRow, block: list[FilledRow]) -> str:
        title, decoder, estimator = best.row.labels
        seeds = [elbo.seeds for row in block if isinstance(elbo := row.figures[ELBO], Spread)]
        doubt = "" if min(seeds, default=0) > 1 else "; some rows have one seed, which is no verdict"
        return f"{title}: the best ELBO has {decoder}, {estimator}{doubt}."

    def notes(self, results: Results, request: Request) -> list[str]:
        return made(results, request) + NOTES + [RANKING] * request.comparable


EXPERIMENT = Circuits(
    name="circuits",
    title="Decoders and estimators with the same encoder, {data}",
    heads=["", "decoder", "estimator"],
    cells=lambda request: circuit_cells(request.scale, request.seeds),
    refused={**NO_CONVOLUTIONS, "paper": "circuits are not in the paper"},
    only_mnist="circuits are compared on mnist",
)
