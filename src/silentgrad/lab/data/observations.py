"""Kinds of observations: each knows how a stored batch becomes x, and in which unit a result is told.

======================  ===========================  ============================  ===========  ===================
kind                    stored                       as the model sees it          likelihood   unit
======================  ===========================  ============================  ===========  ===================
:class:`Levels`         integers in 0..L-1           dequantized, (x + U) / L      Gaussian     bits per dimension
                                                     or whole, 0..L-1              logistic
:class:`Binarized`      integers in 0..L-1           0 or 1, drawn                 Bernoulli    nats per example
:class:`Reals`          real numbers                 standardized, (x - m) / s     Gaussian     nats per entry
:class:`Counts`         integers from 0 on, sparse   as they are                   of counts    nats per entry
======================  ===========================  ============================  ===========  ===================

What was not observed, by a mask, is 0 as the model sees it: the mean of its column, for real numbers.

A kind of one's own inherits from :class:`Observations` and adds `unit`, `likelihoods`, `as_seen` and `figure`.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from silentgrad.lab import kinds
from silentgrad.lab.data.batches import Part, Rows, Splits, Stored, uniform
from silentgrad.lab.data.files import DataError, in_print
from silentgrad.lab.kinds import LikelihoodName, Unit
from silentgrad.side_info import SideInfo

SplitName = Literal["train", "valid", "test"]
TABLE_LEVELS = 256


@dataclass(frozen=True)
class Observations:
    """Three disjoint splits of one data set, whose examples `(rows, *event_shape)` become dense in batches."""

    train: Stored
    valid: Stored
    test: Stored
    name: str  # or its path
    _: KW_ONLY
    labels: Splits[Tensor] | None = None  # of each row: numbers, or codes of what `label_names` names
    covariates: Splits[Tensor] | None = None  # `(rows, covariates)`
    mask: Splits[Tensor] | None = None  # which entries were observed, in the shape of x; all if it is absent
    offset: Splits[Tensor] | None = None  # the logarithm of each row's size factor
    label_names: tuple[str, ...] = ()
    covariate_names: tuple[str, ...] = ()
    row_names: Splits[tuple[str, ...]] | None = None
    numbers: Splits[Tensor] | None = None  # of each row in its file, from 0 on; absent if that has the splits in order

    unit: ClassVar[Unit]
    likelihoods: ClassVar[tuple[LikelihoodName, ...]] = ()  # that suit x, the default first

    def __post_init__(self) -> None:
        for what in ("labels", "covariates", "mask", "offset", "row_names", "numbers"):
            columns = getattr(self, what)
            for split in Splits._fields if columns is not None else ():
                rows, found = len(getattr(self, split)), len(getattr(columns, split))
                if rows != found:
                    raise DataError(f"{self.name}: the {split} split has {rows} rows, but {found} {what}")

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one example."""
        return self.train.shape[1:]

    @property
    def resolution(self) -> int:
        """The number of steps of x within one unit, which a learned precision need not exceed."""
        return TABLE_LEVELS

    @property
    def pictured(self) -> bool:
        """True if an example can be shown, being an image `(channels, height, width)` of one or three channels."""
        return len(self.event_shape) == 3 and self.event_shape[0] in (1, 3)

    @property
    def seen_as(self) -> str:
        """Description of x as the model sees it, for whoever has to make one."""
        return "as its observations give it"

    @property
    def brightness(self) -> float:
        """The factor that takes x as the model sees it to the range from 0 to 1 of a picture."""
        return 1.0

    def rows(self, split: SplitName) -> Rows:
        """Return a split with its labels and side information."""

        def of(parts: Splits[Tensor] | None) -> Tensor | None:
            return None if parts is None else getattr(parts, split)

        side_info = SideInfo(of(self.offset), of(self.covariates), of(self.mask))
        return Rows(getattr(self, split), of(self.labels), side_info)

    @property
    def noise_deviation(self) -> float:
        """The standard deviation of noise around `centre` that a Gaussian likelihood can integrate out; 0 for none."""
        return 0.0

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        """Return the batch x that a model sees, in floating point; its noise, if there is any, is the generator's."""
        raise NotImplementedError

    def centre(self, rows: Rows) -> Tensor:
        """Return the mean of x over the noise that has `noise_deviation`."""
        raise NotImplementedError

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        """Return a bound in nats per example in the unit of these observations: the lower, the better.

        `observed` is the share of examples in which each entry was observed, all of them if it is absent.
        """
        raise NotImplementedError

    def entries(self, observed: Tensor | None = None) -> float:
        """Return the number of entries of an example that were observed, on average."""
        return self.event_shape.numel() if observed is None else float(observed.sum())


@dataclass(frozen=True)
class Levels(Observations):
    """Images, or anything else, in L levels: integers in 0..levels-1, which are dequantized for a density."""

    levels: int = 256
    whole: bool = False  # a model sees the levels themselves, of which its likelihood gives probabilities

    unit = kinds.BITS_PER_DIMENSION
    likelihoods = ("gaussian", "constant", "logistic", "mixture", "circuit")

    @property
    def resolution(self) -> int:
        return self.levels

    @property
    def seen_as(self) -> str:
        if self.whole:
            return f"whole levels from 0 to {self.levels - 1}"
        return f"(level + 0.5) / {self.levels}, for levels from 0 to {self.levels - 1}"

    @property
    def brightness(self) -> float:
        return 1 / self.levels if self.whole else 1.0

    @property
    def noise_deviation(self) -> float:
        return 0.0 if self.whole else 1 / (self.levels * math.sqrt(12))

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        if self.whole:
            return rows.stored.float()
        return dequantize(rows.stored, self.levels, generator, part)

    def centre(self, rows: Rows) -> Tensor:
        return (rows.stored + 0.5) / self.levels

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        of_levels = 0.0 if self.whole else math.log2(self.levels)
        return -elbo / (self.event_shape.numel() * math.log(2)) + of_levels


@dataclass(frozen=True)
class Binarized(Observations):
    """Images in L levels as bits: a pixel is white by its level as a probability, drawn anew each time."""

    levels: int = 256

    unit = kinds.NATS_PER_EXAMPLE
    likelihoods = ("bernoulli",)
    seen_as = "bits, 0 or 1"

    def share(self, rows: Rows) -> Tensor:
        """Return the probability that a pixel is white, over what is drawn."""
        return rows.stored / (self.levels - 1)

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        return (uniform(rows.stored, generator, part) < self.share(rows)).float()

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        return -elbo


@dataclass(frozen=True)
class Reals(Observations):
    """Real vectors or a table, standardized by the mean and the standard deviation of each column in training.

    Both are taken over the entries that were observed. The standardization is taken back in the unit: figures are those
    of the numbers as they are stored.

    Example:
        >>> table = torch.tensor([[0.0, 10.0], [2.0, 30.0]])
        >>> Reals(table, table, table, "table").as_seen(Rows(table))
        tensor([[-1., -1.],
                [ 1.,  1.]], dtype=torch.float64)
    """

    columns: tuple[str, ...] = ()  # their names; numbers from 1 on if absent
    mean: Tensor = field(init=False)
    deviation: Tensor = field(init=False)

    unit = kinds.NATS_PER_ENTRY
    likelihoods = ("gaussian", "constant", "mixture", "circuit")
    seen_as = "standardized, by each column's mean and standard deviation in the training rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        deviation, mean = self._moments()
        for place in (deviation == 0).flatten().nonzero().flatten()[:1].tolist():
            raise DataError(
                f"{self.name}: {in_print(self.columns, place)} has one and the same value in all "
                f"{len(self.train)} training rows, so that it has no density: leave it out"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "deviation", deviation)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return the standard deviation and mean of each column in training."""
        train = self.rows("train").stored.double()
        if self.mask is None:
            return torch.std_mean(train, dim=0, correction=0)
        observed = self.mask.train
        number = observed.sum(0)
        for place in (number == 0).flatten().nonzero().flatten()[:1].tolist():
            column = in_print(self.columns, place)
            raise DataError(f"{self.name}: {column} is missing in all training rows: leave it out")
        mean = train.where(observed, 0).sum(0) / number
        variance = (train - mean).square().where(observed, 0).sum(0) / number
        return variance.sqrt(), mean

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        mean, deviation = self.mean.to(rows.device), self.deviation.to(rows.device)
        return rows.side_info.observed((rows.stored.double() - mean) / deviation, 0.0)

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        log_deviations = self.deviation.log() if observed is None else observed * self.deviation.log()
        return (float(log_deviations.sum()) - elbo) / self.entries(observed)


@dataclass(frozen=True)
class Counts(Observations):
    """Integers from 0 on, dense or sparse; those that were not observed are stored as 0."""

    columns: tuple[str, ...] = ()  # their names; numbers from 1 on if absent

    unit = kinds.NATS_PER_ENTRY
    likelihoods = kinds.OF_COUNTS
    seen_as = "counts as they are"

    def as_seen(self, rows: Rows, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
        return rows.side_info.observed(rows.stored.float(), 0.0)

    def figure(self, elbo: float, observed: Tensor | None = None) -> float:
        return -elbo / self.entries(observed)


def dequantize(
    images: Tensor, levels: int, generator: torch.Generator | None = None, part: Part | None = None
) -> Tensor:
    r"""Return :math:`y = (x + u) / L` with :math:`u \sim U[0, 1)` of integers in 0..L-1, in float32.

    It turns a density of y into a bound on the probability of x,
    :math:`\log P(x) \ge E_u \log p(y) - k \log L`, which is what makes bits per dimension comparable between models.

    Example:
        >>> dequantize(torch.tensor([0, 16], dtype=torch.uint8), levels=17).mul(17).floor()
        tensor([ 0., 16.])
    """
    return uniform(images, generator, part).add_(images).div_(levels)
