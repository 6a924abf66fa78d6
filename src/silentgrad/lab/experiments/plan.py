"""The plan of a sweep: what is varied, and around which settings."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from silentgrad.lab.training import Settings

OF_THE_MACHINE = {"root", "accelerator", "devices"}  # settings in which the processes of one study may differ

Point = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A sweep to be done.

    Args:
        name: Name of the study.
        around: Settings that all trials have in common.
        space: Values of each setting that is varied.
        folder: Folder of the trials and of their records.
    """

    name: str
    around: Settings
    space: dict[str, list[Any]]
    folder: Path

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return math.prod(map(len, self.space.values()))

    def at(self, point: Point) -> Settings:
        """The settings of one point."""
        data, model, train = self.around
        for name, value in point.items():
            if name == "lr":
                train = dataclasses.replace(train, lr=value)
            else:
                model = dataclasses.replace(model, **{name: value})
        return Settings(data, model, train)

    def common(self) -> dict[str, dict[str, Any]]:
        """What all trials have in common, in groups, as JSON holds it."""
        groups: dict[str, dict[str, Any]] = yaml.safe_load(self.around.as_yaml())
        for group in groups.values():
            for name in OF_THE_MACHINE:
                group.pop(name, None)
        return groups
