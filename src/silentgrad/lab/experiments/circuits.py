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
from typing import NamedTuple

from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, Scale, seeded
from silentgrad.lab.experiments.claims import as_claimed, comparable
from silentgrad.lab.experiments.notes import made
from silentgrad.lab.experiments.results import Results, mean_of, reached, spread
from silentgrad.lab.runs.records import read_metrics
from silentgrad.lab.runs.tables import Column, Content, Spread, Table
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig

COMPONENTS = 8
LATENTS = {"gaussian": 32, "bernoulli": 64}
TRAIN = TrainConfig(epochs=4, lr=1e-2, lr_network=1e-3, decay="cosine", warmup=200, clip=100.0)
SLOWLY = replace(TRAIN, lr=5e-4, lr_precision=5e-3)  # a precision linear in z diverges at the rates of a circuit


class Method(NamedTuple):
    """A row of the table.

    Args:
        latent: Name of the latents' family.
        decoder: The decoder in print.
        estimator: The estimator in print.
        options: What differs from the common model.
        train: How it is trained.
    """

    latent: str
    decoder: str
    estimator: str
    options: dict[str, object]
    train: TrainConfig = TRAIN


SILENT = {"nonlinear": False, "estimator": "exact"}
CIRCUIT = {"tractable": "circuit", "components": COMPONENTS, "gates": "all"}
NETWORK = {"tractable": "none", "likelihood": "circuit", "components": COMPONENTS}
GUIDANCE = {"guided": 0.75}
SAMPLING = {"gumbel-softmax": "Gumbel-Softmax", "reinforce": "REINFORCE", "rloo": "RLOO"}

METHODS = {
    "linear": Method("gaussian", "linear", "silent", {**SILENT, "tractable": "mixture", "components": 1}),
    "linear-exp": Method(
        "gaussian", "linear, precision too", "silent", {**SILENT, "tractable": "exp", "start": "ppca"}, SLOWLY
    ),
    "mixture": Method("gaussian", "mixture", "silent", {**SILENT, "tractable": "mixture", "components": COMPONENTS}),
    "circuit": Method("gaussian", "circuit", "silent", SILENT | CIRCUIT),
    "circuit-reparameterized": Method(
        "gaussian", "circuit", "reparameterized", {**CIRCUIT, "nonlinear": False, "estimator": "reparameterized"}
    ),
    "network": Method("gaussian", "network, Gaussian", "reparameterized", {"tractable": "none"}),
    "network-mixture": Method("gaussian", "network, mixture", "reparameterized", {**NETWORK, "likelihood": "mixture"}),
    "network-circuit": Method("gaussian", "network, circuit", "reparameterized", NETWORK),
    "network-circuit-sg": Method(
        "gaussian", "network, circuit, guided by a silent one", "reparameterized", NETWORK | CIRCUIT | GUIDANCE
    ),
    "circuit-bits": Method("bernoulli", "circuit", "silent", SILENT | CIRCUIT),
}
REFERENCES = {"gaussian": "circuit", "bernoulli": "circuit-bits"}


def _add_sampled(prefix: str, decoder: str, options: dict[str, object]) -> None:
    """Adds a decoder of bits by each of the estimators that sample."""
    for name, in_print in SAMPLING.items():
        METHODS[f"{prefix}-{name}"] = Method("bernoulli", decoder, in_print, {**options, "estimator": name})


_add_sampled("circuit", "circuit", {**CIRCUIT, "nonlinear": False})
_add_sampled("network-circuit", "network, circuit", {**NETWORK})


def circuit_cells(scale: Scale, seeds: int) -> list[Cell]:
    """The runs of the table."""
    cells = []
    for (name, method), seed in product(METHODS.items(), range(seeds)):
        model = ModelConfig(latent=method.latent, latent_dim=LATENTS[method.latent], **method.options)  # type: ignore[arg-type]
        settings = Settings(DataConfig("mnist", batch_size=128), model, method.train)
        title = f"{paper.BLOCKS[method.latent].lower()}, {method.decoder}, {method.estimator}"
        cells.append(Cell("mnist", method.latent, name, seed, None, seeded(settings, scale, seed), title))
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


def circuit_table(results: Results, scale: Scale) -> Table:
    """Every decoder and estimator, the best of each family of latents marked."""
    rows: list[list[Content]] = []
    best: list[int] = []
    verdicts: list[str] = []
    for latent, block in paper.BLOCKS.items():
        names = [name for name, method in METHODS.items() if method.latent == latent]
        at = mean_of(results.over_seeds("seconds", method=REFERENCES[latent]))
        sampled = [_sampled(results, name) for name in names]
        winner = min(range(len(names)), key=lambda row: mean_of(sampled[row]))
        best.append(len(rows) + winner)
        verdicts.append(_verdict(block, METHODS[names[winner]], sampled))
        for name, elbo in zip(names, sampled, strict=True):
            rows.append(_row(results, block, name, elbo, at))
    table = Table(
        name="circuits",
        title=f"Decoders and estimators with the same encoder, {results.data()}",
        columns=COLUMNS,
        rows=rows,
        best=best,
        verdicts=verdicts,
        notes=_notes(results, scale),
        curves=results.first_seeds(),
    )
    return as_claimed(table, scale)


def _notes(results: Results, scale: Scale) -> list[str]:
    """How the runs were made, and how to read the columns."""
    sentences = made(results, scale) + NOTES
    if comparable(scale):
        sentences.append(RANKING)
    return sentences


def _verdict(block: str, winner: Method, sampled: Sequence[Content]) -> str:
    """Which row of a block is the best, and whether that is more than the word of single seeds."""
    sentence = f"{block}: the best ELBO has {winner.decoder}, {winner.estimator}"
    seeds = [figure.seeds for figure in sampled if isinstance(figure, Spread)]
    if min(seeds, default=0) > 1:
        return f"{sentence}."
    return f"{sentence}; some rows have one seed, which is no verdict."


def _sampled(results: Results, name: str) -> Content:
    """The sampled ELBO of a method over its seeds; where the bound is the ELBO itself, that."""
    figures = []
    for cell in results.finished(method=name):
        figures.append(results.summary(cell).elbo)
    return spread(figures)


def _row(results: Results, block: str, name: str, elbo: Content, at: float) -> list[Content]:
    method = METHODS[name]
    then = []
    for cell in results.finished(method=name):
        figure = reached(read_metrics(results.run(cell).metrics), at)
        if figure is not None:
            then.append(figure)
    bound = results.over_seeds("bpd", method=name)
    others = [results.over_seeds(metric, method=name) for metric in ("kld", "mse", "seconds")]
    return [block, method.decoder, method.estimator, bound, elbo, spread(then), *others]
