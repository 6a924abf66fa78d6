"""What a run of the benchmark leaves in its folder."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from silentgrad.lab.runs.records import RecordError, read_json, write_json_atomically

RESULT, CHECKPOINT = "result.json", "checkpoint.pt"


@dataclass(frozen=True)
class Curve:
    """The ELBO of fixed training examples, in nats per example, over the steps."""

    steps: list[int] = field(default_factory=list)
    elbos: list[float] = field(default_factory=list)

    def first_reach(self, elbo: float) -> int | None:
        """The first recorded step at which the ELBO was no less; None if it never was.

        Example:
            >>> Curve([0, 100, 200], [-300.0, -200.0, -150.0]).first_reach(-200.0)
            100
        """
        for step, value in zip(self.steps, self.elbos, strict=True):
            if value >= elbo:
                return step
        return None


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Args:
        protocol: All that decides what it comes to, in words.
        curve: The ELBO of training examples over the steps.
        test: The importance-weighted bound of test examples; None if the run diverged.
        kld: KL divergence of the training examples from the prior at the end; None if the run diverged.
        diverged: The step at which the objective was no number; None if it never was.
        seconds: Seconds of training, beside whatever else the machine did.
    """

    protocol: str
    curve: Curve
    test: float | None
    kld: float | None
    diverged: int | None
    seconds: float


def write_result(folder: Path, result: Result) -> None:
    """Writes a run's record."""
    write_json_atomically(folder / RESULT, asdict(result))


def read_result(folder: Path) -> Result:
    """Reads a run's record.

    Raises:
        RecordError: The file is missing or damaged.
    """
    content = read_json(folder / RESULT)
    try:
        return Result(curve=Curve(**content.pop("curve")), **content)
    except (KeyError, TypeError) as error:
        raise RecordError(f"cannot read {folder / RESULT}: remove it, and the run is made again ({error})") from error


def weights_file(folder: Path, step: int) -> Path:
    """The file of the weights that a run had after a step."""
    return folder / f"step-{step}.safetensors"
