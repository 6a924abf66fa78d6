"""The settings that a sweep varies, the values that it tries of each, and the settings of every trial."""

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from silentgrad.errors import SilentgradError
from silentgrad.lab.build import plan_for
from silentgrad.lab.settings import ConfigError, Plan, Settings
from silentgrad.lab.settings.documents import with_options

DECADE = 10  # from the ratio of its ends on, a range of positive numbers is drawn from by the logarithm
OF_THE_MACHINE = ("data.root", "train.accelerator", "train.devices")  # in which the processes of one study may differ
OF_THE_DATA = ("data.name", "data.kind", "data.layer", "data.missing", "data.index", "data.drop")
# The paper's grid. Its annealing rates, 0.05 to 0.005 an epoch, are parts of 0.1 to 1 of its 200 epochs; its smallest,
# 0.001, never reaches 0.
PAPER = {
    "train.lr": "1e-4,5e-4,1e-5,5e-5",
    "model.guided": "0.5,0.1,5.0,1.0",
    "model.cutoff": "50,80,100,150,200",
}

Point = dict[str, Any]  # option -> what Optuna drew: a number of a range, or a value as it was written


class SweepError(SilentgradError):
    """A sweep cannot be done as asked."""


class Varied(NamedTuple):
    """The values of an option that are tried."""

    written: str  # what the command line says of it
    distribution: BaseDistribution  # what Optuna draws from: a range, or the values as they were written
    values: dict[str, Any]  # the value that each of those means; empty for a range

    @property
    def ends(self) -> list[Any]:
        """All values, or the two ends of a range."""
        if isinstance(self.distribution, IntDistribution | FloatDistribution):
            return [self.distribution.low, self.distribution.high]
        return list(self.values)


Space = dict[str, Varied]


def search_space(over: Sequence[str], convert: Callable[[str, str], Any]) -> Space:
    """Return what the words after --over ask for.

    Args:
        over: Each `OPTION=a,b,c`, `OPTION=a..b`, or some of the options of the paper's grid, separated by commas.
        convert: Function of an option and of what was written, which returns the value as the command line does.

    Raises:
        SweepError: An option cannot be varied, or not like that.
    """
    space: Space = {}
    for word in over:
        first, equals, written = word.partition("=")
        for option in map(str.strip, [first] if equals else word.split(",")):
            if option in space:
                raise SweepError(f"--over names {option} twice: give all of its values at once")
            if option in (*OF_THE_MACHINE, *OF_THE_DATA):
                raise SweepError(f"--over {option}: only trials on the same data and devices can be compared")
            space[option] = _varied(option, written.strip() if equals else PAPER.get(option, ""), convert)
    if not space:
        raise SweepError("--over names no option: give one, as in --over train.lr=1e-4..1e-2")
    return space


def _varied(option: str, written: str, convert: Callable[[str, str], Any]) -> Varied:
    parts = re.split(r",(?![^\[]*\])", written)  # not at the commas within a list's brackets
    if ".." in written and len(parts) == 1:
        low, _, high = written.partition("..")
        return Varied(written, _range(option, written, convert(option, low), convert(option, high)), {})
    values: dict[str, Any] = {}
    for part in map(str.strip, parts):
        value = convert(option, part)
        if value not in values.values():
            values[part] = value
    return Varied(written, CategoricalDistribution(list(values)), values)


def _range(option: str, written: str, low: Any, high: Any) -> BaseDistribution:
    numbers = {type(low), type(high)}
    if not numbers <= {int, float}:
        raise SweepError(f"--over {option}={written}: only numbers have a range; give values, separated by commas")
    if not low < high:
        raise SweepError(f"--over {option}={written}: a range goes from a lower number to a higher one")
    if numbers == {int}:
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=low > 0 and high >= DECADE * low)


@dataclass(frozen=True)
class Sweep:
    """A sweep to be done.

    Raises:
        SweepError: The values cannot be tried like that, or would change nothing.
        ConfigError: No run can be made with some of them.
    """

    name: str  # name of the study
    around: Settings  # settings that all trials have in common
    space: Space  # what is varied
    folder: Path  # folder of the trials and of their records
    grid: bool = True  # whether every combination of the values is trained, instead of those that Optuna's TPE suggests
    trials: int | None = None  # number of trials at most; a grid has all of its points if absent

    def __post_init__(self) -> None:
        if self.around.train.devices > 1:
            raise SweepError("a trial takes one device: leave --train.devices at 1 and start the command once a device")
        for option, varied in self.space.items():
            if self.grid and not varied.values:
                raise SweepError(f"--over {option}={varied.written} is a range: --sampler grid takes values, a,b,c")
        for point in self.corners():
            try:
                self.at(point)
            except ConfigError as error:
                told = " ".join(f"{option}={drawn}" for option, drawn in point.items())
                raise ConfigError(f"{error} (in the trial {told})") from None

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return {option: varied.distribution for option, varied in self.space.items()}

    @property
    def size(self) -> int:
        """Number of trials that the sweep comes to."""
        return len(self.points()) if self.grid else self.trials or 0

    def points(self) -> list[Point]:
        """Return the points of the grid that are to be trained, in an order in which the first ones lie far apart."""
        points = list(self.corners())
        random.Random(0).shuffle(points)
        return points[: self.trials]

    def corners(self) -> Iterator[Point]:
        """All combinations of the values and of the ranges' ends."""
        for drawn in itertools.product(*[varied.ends for varied in self.space.values()]):
            yield dict(zip(self.space, drawn, strict=True))

    def at(self, point: Point) -> Plan:
        """Return the plan of one point.

        Raises:
            ConfigError: No run can be made with its settings.
        """
        values = {option: self.space[option].values.get(drawn, drawn) for option, drawn in point.items()}
        return plan_for(with_options(self.around, values))

    def common(self) -> dict[str, Any]:
        """Return what the processes of one study agree on, by option, as JSON holds it."""
        common: dict[str, Any] = {"--sampler": "grid" if self.grid else "tpe"}
        common |= {f"--{name}": value for name, value in self.around.options().items()}
        for option in (*OF_THE_MACHINE, *self.space):
            common.pop(f"--{option}")
        for option, varied in self.space.items():
            common[f"--over {option}"] = varied.written
        return common
