"""What the latents of a table come to, and how `factors.json` names it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Weighted = tuple[str, float]  # a column's name, and what a latent adds to its u per unit


@dataclass(frozen=True)
class Loading:
    """One latent of a linear decoder.

    Args:
        latent: Its number, from 1 on.
        spread: How much it moves the rows: its standard deviation over them times the norm of its weights.
        up: The columns that rise most with it, the first most of all.
        down: Those that fall most.
    """

    latent: int
    spread: float
    up: list[Weighted]
    down: list[Weighted]


@dataclass(frozen=True)
class Factors:
    """The latents of a table's rows.

    Args:
        points: The first two principal components of what the latents' means add to u, for some of the rows; of the
            means themselves if the decoder is nonlinear.
        shares: The share of the variance that each of the two has.
        labels: The label of each of these rows: a number, or the place of its name; None if there are no labels.
        label_names: What the labels stand for; empty if they are numbers.
        loadings: The latents of a linear decoder, those that move the rows most first; none if it is nonlinear.
    """

    points: list[tuple[float, float]]
    shares: tuple[float, float]
    labels: list[float] | None
    label_names: list[str]
    loadings: list[Loading]

    def as_json(self) -> dict[str, Any]:
        """The content of `factors.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Factors":
        """The factors that the content of a `factors.json` tells.

        Raises:
            ValueError: Something is missing, or is not what it has to be.
        """
        try:
            points = [(float(across), float(up)) for across, up in content["points"]]
            first, second = map(float, content["shares"])
            labels = content["labels"]
            if labels is not None:
                labels = list(map(float, labels))
            names = list(map(str, content["label_names"]))
            loadings = list(map(_loading, content["loadings"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it holds no factors ({error})") from error
        if labels is not None and len(labels) != len(points):
            raise ValueError(f"it has {len(labels)} labels for {len(points)} points")
        return cls(points, (first, second), labels, names, loadings)


def _loading(content: Mapping[str, Any]) -> Loading:
    return Loading(
        latent=int(content["latent"]),
        spread=float(content["spread"]),
        up=[(str(name), float(weight)) for name, weight in content["up"]],
        down=[(str(name), float(weight)) for name, weight in content["down"]],
    )
