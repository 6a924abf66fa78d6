"""The folder of a run, and the names of the files in it, which no other module knows."""

from dataclasses import dataclass
from pathlib import Path

CONFIG, METRICS, SUMMARY = "config.yaml", "metrics.csv", "summary.json"
ENVIRONMENT, PICTURES, FACTORS = "environment.json", "pictures.safetensors", "factors.json"
CHECKPOINT = ".ckpt"  # how the names of checkpoints end


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Args:
        path: Where it is.

    Example:
        >>> run = RunFolder(Path("runs/digits-001"))
        >>> run.kept(20).as_posix()
        'runs/digits-001/epochs/20.safetensors'
    """

    path: Path

    @property
    def config(self) -> Path:
        """The settings, which make a folder a run."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """A row of figures for each epoch."""
        return self.path / METRICS

    @property
    def summary(self) -> Path:
        """The final figures, which a run leaves last."""
        return self.path / SUMMARY

    @property
    def environment(self) -> Path:
        """Versions and the machine, which a run leaves first."""
        return self.path / ENVIRONMENT

    @property
    def weights(self) -> Path:
        """The model at the best epoch."""
        return self.path / "model.safetensors"

    @property
    def pictures(self) -> Path:
        """Originals, reconstructions and samples, as numbers."""
        return self.path / PICTURES

    @property
    def factors(self) -> Path:
        """What the latents of a table come to, for its page."""
        return self.path / FACTORS

    @property
    def latents(self) -> Path:
        """The means of the latents of all rows, written on request."""
        return self.path / "latents.npy"

    @property
    def loadings(self) -> Path:
        """The weight of every latent for every column of a table."""
        return self.path / "loadings.csv"

    @property
    def failure(self) -> Path:
        """Why a run of an experiment ended without a summary."""
        return self.path / "failure.json"

    def checkpoint(self, which: str) -> Path:
        """All that training goes on from after an epoch, the `last` or the `best`."""
        return self.path / "checkpoints" / f"{which}{CHECKPOINT}"

    @property
    def epochs(self) -> Path:
        """The folder of what was kept of chosen epochs."""
        return self.path / "epochs"

    def kept(self, epoch: int) -> Path:
        """The model at a chosen epoch."""
        return self.epochs / f"{epoch}.safetensors"

    def kept_variance(self, epoch: int, scale: str) -> Path:
        """The gradient's variance at a chosen epoch, measured on one of an experiment's scales."""
        return self.epochs / f"{epoch}-variance-{scale}.json"

    @property
    def variance_log(self) -> Path:
        """The gradient's variance, measured while the run was trained."""
        return self.path / "gradient_variance.csv"

    @property
    def variance(self) -> Path:
        """The gradient's variance, measured after training."""
        return self.path / "variance.csv"

    @property
    def bias(self) -> Path:
        """How far gradients are from the true one."""
        return self.path / "bias.csv"

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.path / "report.html"

    def figure(self, name: str) -> Path:
        """A picture of the page."""
        return self.path / f"{name}.png"

    @property
    def export(self) -> Path:
        """The folder of an exported model."""
        return self.path / "export"


@dataclass(frozen=True)
class ExportFolder:
    """The folder of an exported model.

    Args:
        path: Where it is.
    """

    path: Path

    @property
    def weights(self) -> Path:
        """The weights, with the settings and figures of their run."""
        return self.path / "model.safetensors"

    @property
    def card(self) -> Path:
        """What a reader has to know of the model."""
        return self.path / "README.md"

    def network(self, name: str) -> Path:
        """The encoder or the decoder."""
        return self.path / f"{name}.onnx"


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep.

    Args:
        path: Where it is.
    """

    path: Path

    @property
    def trials(self) -> Path:
        """The records of all trials."""
        return self.path / "trials.json"

    @property
    def best(self) -> Path:
        """The recipe of the best trial."""
        return self.path / "best.yaml"

    @property
    def page(self) -> Path:
        """The page about the sweep."""
        return self.path / "sweep.html"

    @property
    def study(self) -> Path:
        """The database of a sweep that shares it with no other machine."""
        return self.path / "study.db"

    def trial(self, point: int) -> Path:
        """The run at a point of the grid, with which later trials of the point go on."""
        return self.path / f"trial-{point:04}"

    def has_trials(self) -> bool:
        """Whether any point was trained in here."""
        return any(self.path.glob("trial-*"))


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demonstration.

    Args:
        path: Where it is.
    """

    path: Path

    @property
    def page(self) -> Path:
        """The page that compares the runs."""
        return self.path / "compare.html"

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self.path / name
