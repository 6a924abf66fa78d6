"""What a finished run came to, and how `summary.json` names it.

The file is flat. The figure of the test stands there under the name of its unit, `bpd` or `nll`, its limit under
`limit_bpd` or `limit_nll`, that of the model without latents under `baseline_bpd` or `baseline_nll`, and each of
`silentgrad.lab.runs.metrics` under its own name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from silentgrad.lab.data import Unit

_T = TypeVar("_T")


@dataclass(frozen=True)
class Baseline:
    """A model without latents, and what it comes to.

    Args:
        figure: Its figure on the test examples, in the unit of the run.
        model: What it is, as in "every pixel an independent Gaussian".
    """

    figure: float
    model: str


@dataclass(frozen=True)
class Summary:
    """The final figures of a run; those of the test are averages over examples.

    Args:
        unit: Unit in which the figure, the limit and the sampled ELBO are told.
        figure: The bound of the test: the lower, the better.
        metrics: The mean of each metric beside the bound, by name.
        kld: KL divergence from the prior, in nats.
        active: Number of latents that are used.
        exactness: What the bound is to the expectation in the ELBO: exact, lower bound, approximation or sampled.
        sampled: The ELBO by samples, where the bound is another number; else None.
        limit: The figure that no encoder can beat; None where none is known.
        baseline: What a model without latents comes to; None where none is known, as in runs of earlier versions.
        closed_form: What the closed form is that the model was trained with; None if it has none.
        seconds: The time that the run took.
        epochs: Number of epochs.
        best_epoch: The epoch whose weights were kept, by validation.
        training_examples: Number of examples that the model was trained on.
        test_examples: Number of examples of the test; None in runs of earlier versions.
        parameters: Number of the model's parameters.
    """

    unit: Unit
    figure: float
    metrics: Mapping[str, float]
    kld: float
    active: int
    exactness: str
    sampled: float | None
    limit: float | None
    baseline: Baseline | None
    closed_form: str | None
    seconds: float
    epochs: int
    best_epoch: int
    training_examples: int
    test_examples: int | None
    parameters: int

    @property
    def elbo(self) -> float:
        """The ELBO by samples; the figure itself, where that is the ELBO."""
        if self.sampled is None:
            return self.figure
        return self.sampled

    def as_json(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        content: dict[str, Any] = {self.unit.metric: self.figure, **self.metrics}
        content |= {"kld": self.kld, "active": self.active, "exactness": self.exactness}
        if self.sampled is not None:
            content |= {"sampled": self.sampled, "gap": self.figure - self.sampled}
        if self.limit is not None:
            content[_limit(self.unit)] = self.limit
        if self.baseline is not None:
            content |= {_baseline(self.unit): self.baseline.figure, "baseline": self.baseline.model}
        if self.closed_form is not None:
            content["closed_form"] = self.closed_form
        if self.test_examples is not None:
            content["test_images"] = self.test_examples
        return content | {
            "unit": self.unit.in_print,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "train_images": self.training_examples,
            "parameters": self.parameters,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """The summary that the content of a `summary.json` tells.

        Raises:
            ValueError: Something is missing, or is not what it has to be.
        """
        left = dict(content)
        unit = Unit.from_print(_text(left, "unit"))
        left.pop("gap", None)
        return cls(
            unit=unit,
            figure=_number(left, unit.metric),
            kld=_number(left, "kld"),
            active=_whole(left, "active"),
            exactness=_text(left, "exactness"),
            sampled=_if_there(left, "sampled", _number),
            limit=_if_there(left, _limit(unit), _number),
            baseline=_taken_baseline(left, unit),
            closed_form=_if_there(left, "closed_form", _text),
            seconds=_number(left, "seconds"),
            epochs=_whole(left, "epochs"),
            best_epoch=_whole(left, "best_epoch"),
            training_examples=_whole(left, "train_images"),
            test_examples=_if_there(left, "test_images", _whole),
            parameters=_whole(left, "parameters"),
            metrics={name: _number(left, name) for name in list(left)},  # all that is left
        )


def _limit(unit: Unit) -> str:
    """The name of the limit."""
    return f"limit_{unit.metric}"


def _baseline(unit: Unit) -> str:
    """The name of the figure of the model without latents."""
    return f"baseline_{unit.metric}"


def _taken_baseline(content: dict[str, Any], unit: Unit) -> Baseline | None:
    model = _if_there(content, "baseline", _text)
    if model is None:
        return None
    return Baseline(_number(content, _baseline(unit)), model)


def _number(content: dict[str, Any], name: str) -> float:
    return float(_taken(content, name, int, float))


def _whole(content: dict[str, Any], name: str) -> int:
    return int(_taken(content, name, int))


def _text(content: dict[str, Any], name: str) -> str:
    return str(_taken(content, name, str))


def _taken(content: dict[str, Any], name: str, *kinds: type) -> Any:
    """A value of one of some kinds, which is taken out of the content."""
    if name not in content:
        raise ValueError(f"it has no {name}")
    value = content.pop(name)
    if type(value) not in kinds:
        raise ValueError(f"{name} is {value!r}")
    return value


def _if_there(content: dict[str, Any], name: str, take: Callable[[dict[str, Any], str], _T]) -> _T | None:
    if name not in content:
        return None
    return take(content, name)
