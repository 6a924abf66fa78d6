"""Typed records of a run, checked by pydantic when they are read, and the run itself, without any model code.

A run is a folder. `config.yaml` and `metrics.csv` make it one; a run that has not come so far has no `summary.json`,
`environment.json`, `pictures.safetensors` or `factors.json`. A JSON file holds a record's fields under their names,
without those that are None.
"""

import functools
import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, FiniteFloat, NonNegativeInt, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from silentgrad.exactness import Exactness
from silentgrad.lab.kinds import Unit
from silentgrad.lab.store import files
from silentgrad.lab.store.folders import RunFolder

TRAVERSED = 8  # images of a latent's traversal
NAMED = 10  # columns that rise most with a latent, and that fall most
Weighted = tuple[str, float]  # a column's name, and what a latent adds to its u per unit

_T = TypeVar("_T")
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)  # which takes milliseconds to make

UnitInPrint = Annotated[
    Unit,
    PlainValidator(lambda text: Unit.from_print(_adapter(str).validate_python(text))),
    PlainSerializer(lambda unit: unit.in_print),
]
KindOfBound = Annotated[str, Field(pattern=f"^({'|'.join(Exactness)}|sampled)$")]


@dataclass(frozen=True)
class Baseline:
    """A model without latents, and what it comes to."""

    figure: float  # on the test examples, in the unit of the run
    model: str  # in words, as in "every pixel an independent Gaussian"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Figures of a model on some examples, averages over them."""

    unit: UnitInPrint  # of the figure and of the sampled ELBO
    figure: FiniteFloat  # the bound: the lower, the better
    metrics: Mapping[str, float]  # beside the bound, by name
    kld: float  # from the prior, in nats
    active: NonNegativeInt  # latents that are used
    exactness: KindOfBound  # what the bound is to the ELBO: exact, lower bound, approximation or sampled
    sampled: float | None = None  # the ELBO by samples, where the bound is another number
    sampled_error: float | None = None  # its standard error, and that of the gap to it; None if it is not known


@dataclass(frozen=True, kw_only=True)
class Summary(Evaluated):
    """The final figures of a run, of the test; those that are not known are None."""

    training: float | None = None  # the ELBO of as many training examples
    limit: FiniteFloat | None = None  # the best that any model of this kind could have
    baseline: Baseline | None = None  # a model without latents of the same likelihood
    baselines: Mapping[str, float] = field(default_factory=dict)  # of all simple models without latents, by name
    closed_form: str | None = None  # what the closed form is that the model was trained with
    seconds: FiniteFloat  # that the run took
    epochs: NonNegativeInt
    best_epoch: NonNegativeInt  # whose weights were kept, by validation
    training_examples: NonNegativeInt
    test_examples: NonNegativeInt | None = None
    parameters: NonNegativeInt

    @property
    def elbo(self) -> float:
        """The ELBO by samples; the figure itself, where that is the ELBO."""
        return self.figure if self.sampled is None else self.sampled

    @property
    def chosen(self) -> str:
        """The epoch whose weights were kept, in print."""
        return f"epoch {self.best_epoch} of {self.epochs}" + ", still improving" * (self.best_epoch == self.epochs)

    @property
    def failed(self) -> bool:
        """True if the run is no better than a model without latents of the same likelihood."""
        return self.baseline is not None and self.elbo >= self.baseline.figure

    @property
    def importance_weighted(self) -> bool:
        """True if the figure is the importance-weighted bound, which is above the ELBO, and so better."""
        return self.exactness == "sampled" and self.sampled is not None

    @property
    def other_closed_form(self) -> str | None:
        """The kind of closed form in training, where the figure of the test is something else: a guide's, say."""
        return None if self.closed_form == self.exactness else self.closed_form


@dataclass(frozen=True)
class Loading:
    """One latent of a linear decoder."""

    latent: int  # its number, from 1 on
    spread: float  # how much it moves the rows: its standard deviation over them times the norm of its weights
    up: list[Weighted]  # the columns that rise most with it, the first most of all
    down: list[Weighted]  # those that fall most


def named_loadings(loadings: Tensor, deviations: Tensor, names: Sequence[str]) -> list[Loading]:
    """Return the loadings `(columns, latents)` of latents with these deviations, those that move rows most first."""
    spreads = deviations * loadings.norm(dim=0)
    named = []
    for latent in spreads.argsort(descending=True).tolist():
        weights = loadings[:, latent]
        named.append(Loading(latent + 1, spreads[latent].item(), _most(weights, names), _most(-weights, names, -1)))
    return named


def _most(weights: Tensor, names: Sequence[str], sign: int = 1) -> list[Weighted]:
    """Return the columns of the largest weights, with these or, by the sign, their opposites."""
    largest = (part.tolist() for part in weights.topk(min(NAMED, len(weights))))
    return [(names[place], sign * weight) for weight, place in zip(*largest, strict=True) if weight > 0]


@dataclass(frozen=True)
class Factors:
    """The latents of a table's rows.

    The points are the first two principal components of what the latents' means add to u, for some of the rows; of the
    means themselves if the decoder is nonlinear.
    """

    points: list[tuple[float, float]]
    shares: tuple[float, float]  # of the variance, that each of the two has
    labels: list[float] | None = None  # of these rows: numbers, or places of names; None if there are no labels
    label_names: list[str] = field(default_factory=list)  # what the labels stand for; empty if they are numbers
    loadings: list[Loading] = field(default_factory=list)  # that move the rows most first; none of nonlinear decoders

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.points):
            raise ValueError(f"it has {len(self.labels)} labels for {len(self.points)} points")


@dataclass(frozen=True)
class RunPictures:
    """Images `(n, channels, height, width)` that a trained model was given, and that it made."""

    originals: Tensor  # examples of the test
    means: Tensor  # of their reconstructions
    samples: Tensor  # decoded from draws of the prior
    stds: Tensor | None = None  # of the reconstructions; None where these show nothing
    traversals: Tensor | None = None  # decoded while one latent moves, `TRAVERSED` images for each of some latents


@dataclass(frozen=True)
class Run:
    """One training run as its folder tells it; summary, pictures and factors are None until it is finished."""

    folder: Path
    config: dict[str, Any]  # the resolved settings
    metrics: files.Metrics  # by column, an entry per epoch, None for an empty cell
    summary: Summary | None
    environment: dict[str, Any]  # versions, device
    pictures: RunPictures | None  # None if it is not of images
    factors: Factors | None = None  # None if it is not of a table

    @property
    def unit(self) -> Unit:
        """The unit of the run; without a summary, it does not say what it is counted per."""
        if self.summary is not None:
            return self.summary.unit
        return Unit("nll" if "valid_nll" in self.metrics else "bpd")

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run's folder, or raise RecordError if it is missing, is no run, or holds a damaged file."""
        if not folder.is_dir():
            raise files.RecordError(f"{folder} is no folder")
        run = RunFolder(folder)
        for path in (run.config, run.metrics):
            if not path.is_file():
                raise files.RecordError(f"{folder} is no run: it has no {path.name}")
        return cls(
            folder=folder,
            config=files.parsed(run.config, lambda path: files.named_values(files.read_yaml(path))),
            metrics=files.read_metrics(run.metrics),
            summary=read_summary(run.summary) if run.summary.exists() else None,
            environment=files.parsed(run.environment, files.parse_json) if run.environment.exists() else {},
            pictures=files.parsed(run.pictures, _pictures) if run.pictures.exists() else None,
            factors=_read_record(Factors, run.factors) if run.factors.exists() else None,
        )


def content_of(record: object) -> dict[str, Any]:
    """Return the fields of a record, a dataclass, as JSON has them; those that are None are left out."""
    content: dict[str, Any] = _adapter(type(record)).dump_python(record, mode="json", exclude_none=True)
    return content


def record_of(kind: type[_T], content: Mapping[str, Any]) -> _T:
    """Return the record that the content of a JSON file tells, or raise ValueError for a field that it cannot have."""
    try:
        record: _T = _adapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first, *_ = error.errors()
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ValueError(f"it has no {name}") from None
        if name:
            raise ValueError(f"{name} is {reprlib.repr(first['input'])}") from None
        raise ValueError(first["msg"].removeprefix("Value error, ")) from None
    return record


def _read_record(kind: type[_T], path: Path) -> _T:
    return files.parsed(path, lambda path: record_of(kind, files.parse_json(path)))


def write_record(path: Path, record: object) -> None:
    """Write a record, a dataclass, as JSON, whole or not at all."""
    files.write_json_atomically(path, content_of(record))


def read_summary(path: Path) -> Summary:
    """Return the final figures of a run, or raise RecordError if the file is missing or damaged."""
    return _read_record(Summary, path)


def write_pictures(path: Path, pictures: RunPictures) -> None:
    tensors = {name: images for name, images in vars(pictures).items() if images is not None}
    files.write_tensors_atomically(path, tensors)


def _pictures(path: Path) -> RunPictures:
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    for name, images in tensors.items():
        if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise ValueError(f"{name} has shape {tuple(images.shape)}, expected (n, 1 or 3, height, width)")
    for name in ("originals", "means", "samples"):
        if name not in tensors:
            raise ValueError(f"it has no {name}")
    return RunPictures(**tensors)
