"""The bias of gradients: the distance of their means from the gradient that enumeration tells."""

from collections.abc import Sequence
from pathlib import Path

from silentgrad.analysis import Bias, gradient_bias, log_term_bias
from silentgrad.estimators import Enumerate
from silentgrad.guided import GuidedVAE
from silentgrad.lab.experiments import paper
from silentgrad.lab.experiments.cells import Cell, seeded
from silentgrad.lab.experiments.experiment import Experiment, Request, meaning
from silentgrad.lab.experiments.results import Results
from silentgrad.lab.runs.findings import Findings
from silentgrad.lab.settings import EstimatorName, family_named
from silentgrad.lab.tables import Column, Content, Table
from silentgrad.lab.training import DataConfig, ModelConfig, RunError, Settings, TrainConfig, load_run, read_config
from silentgrad.lab.training.loading import observations_of
from silentgrad.lab.training.measuring import estimators_of, training_batches

IMAGES = 16


def biases(
    run: Path, names: Sequence[EstimatorName], count: int, draws: int, seed: int, root: Path | None = None
) -> dict[str, Bias]:
    """Return how far gradients of a run are from the true one, by the estimator or closed form."""
    config = read_config(run)
    images = observations_of(config, root=root)
    found = load_run(run, images)
    if found.tractable is None or not Enumerate.suits(family_named(config.model.latent)):
        raise RunError(f"the model in {run} has to have Bernoulli latents or categories, and a linear decoder")
    vae = GuidedVAE(found.encoder, found.tractable, kl_weight=found.kl_weight, prior=found.prior).double()
    x = next(training_batches(images, count, 1, seed)).double()
    measured = {f"silent, {term}": value for term, value in log_term_bias(vae, x).items()}
    sampled = dict(zip(names, estimators_of(config.model, names, epoch=1), strict=True))
    return measured | gradient_bias(vae, x, sampled, draws, seed)


COLUMNS = [
    Column("gradient"),
    Column("deviation"),
    Column("of which draws"),
    Column("% of the true gradient"),
    Column("deviation (paper)", 1, judges=True),
]


class BiasStudy(Experiment):
    """The distance of mean gradients from the enumerated one: the paper gives its figures, but not its setting."""

    def build(self, results: Results, request: Request) -> Findings:
        """Return the table of a run's gradients, the nearest to the truth first."""
        (cell, *_) = results.cells
        draws = 1_000 if request.scale == "smoke" else 100_000
        found = biases(
            results.run(cell).path, ["reinforce", "gumbel-softmax"], IMAGES, draws, seed=0, root=request.root
        )
        rows: list[list[Content]] = []
        for name, own in sorted(found.items(), key=lambda item: item[1].deviation):
            rows.append([name, own.deviation, own.noise, 100 * own.relative, paper.BIAS.get(name)])
        title = "Bias of gradients with learned variance"
        table = Table(title, COLUMNS, rows, name="bias")
        if not request.comparable:
            table = table.only(lambda column, _: not column.judges)
        notes = [
            f"{cell.data}, 10 Bernoulli latents after {cell.settings.train.epochs} epochs, "
            f"{IMAGES} images, {draws:,} draws; Euclidean distance over the encoder's parameters. The paper does not "
            "say its images, latents, networks or epoch, so that only the order can be compared.",
            *meaning(request),
        ]
        return Findings("bias", title, [table], notes=notes)


def _cells(request: Request) -> list[Cell]:
    model = ModelConfig("bernoulli", 10, tractable="linear", nonlinear=False, estimator="exact", log_term="taylor")
    settings = Settings(DataConfig("mnist", batch_size=64), model, TrainConfig(epochs=3))
    return [Cell("mnist", "bernoulli", "silent", 0, "bias", seeded(settings, request.scale, 0))]


EXPERIMENT = BiasStudy(
    cells=_cells, of_folders=True, refused=dict.fromkeys(("conv", "paper"), "the paper does not tell this setting")
)
