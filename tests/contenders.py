"""Every estimator as the tests build it. Registering one tests it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from silentgrad import estimators
from silentgrad.estimators import ESTIMATORS, Estimator
from silentgrad.testing import KINDS, Kind


@dataclass(frozen=True)
class Member:
    """An estimator."""

    name: str
    build: Callable[[], Estimator]

    @property
    def samples(self) -> int:
        """Those of its bound; one, if it is no bound of several."""
        estimator = self.build()
        return estimator.evaluations() if estimator.uses_prior else 1

    @property
    def kinds(self) -> list[Kind]:
        """The latents that it takes."""
        return [kind for kind in KINDS if kind.taken_by(self.build())]

    @property
    def families(self) -> list[str]:
        """Those of `latent_of` among them, which have one number for each latent."""
        return [family for family, kind in (("gaussian", KINDS[3]), ("bernoulli", KINDS[0])) if kind in self.kinds]


def registered(estimator: type[Estimator]) -> Callable[[], Estimator]:
    """With few samples of a bound, or a small network."""
    return lambda: estimator(2) if estimator in (estimators.VIMCO, estimators.DReG) else estimator.sized(16)


SIZED = [
    *((sg.RLOO, 5), (estimators.DReG, 1), (estimators.DoubleCV, 2)),
    *((estimators.ARMS, 2), (estimators.ARMS, 3), (estimators.CARMS, 2), (estimators.CARMS, 3)),
]
ALL_ESTIMATORS = [
    *(Member(estimator.__name__, registered(estimator)) for estimator in ESTIMATORS.values()),
    Member("GumbelSoftmax hard", lambda: sg.GumbelSoftmax(hard=True)),
    *(Member(f"{sized.__name__} {samples}", partial(sized, samples)) for sized, samples in SIZED),
    Member("Averaged Reparameterized", lambda: sg.Averaged(sg.Reparameterized(), 3)),
    Member("Averaged GumbelSoftmax", lambda: sg.Averaged(sg.GumbelSoftmax(), 3)),
    Member("Averaged Reinforce", lambda: sg.Averaged(sg.Reinforce(), 2)),
    Member("Averaged REBAR", lambda: sg.Averaged(estimators.REBAR(), 2)),
]
PLAIN_ESTIMATORS = [member for member in ALL_ESTIMATORS if member.name != "Exact"]  # which takes no plain function
SILENT = [  # which take functions of statistics
    Member(f"SilentControlVariate {base.__name__}", lambda base=base: sg.SilentControlVariate(base()))
    for base in (sg.RLOO, sg.Reinforce, sg.Reparameterized)
]
BITS, CATEGORIES = KINDS[:2]
PAIRS = [(member, kind) for member in PLAIN_ESTIMATORS for kind in member.kinds]


def each(members: Sequence[Member]) -> pytest.MarkDecorator:
    """Give a test one estimator after another."""
    return pytest.mark.parametrize("member", members, ids=[member.name for member in members])


def each_pair(pairs: Sequence[tuple[Member, Kind]]) -> pytest.MarkDecorator:
    """Give a test one estimator after another with each kind of latents that it takes."""
    return pytest.mark.parametrize(("member", "kind"), pairs, ids=[f"{m.name}, {k.name}" for m, k in pairs])


def latent_of(family: str, numbers: Tensor) -> td.Distribution:
    """Independent latents, one for each number, whose parameters all depend on it."""
    return td.Bernoulli(logits=numbers) if family == "bernoulli" else td.Normal(numbers, 0.5 + numbers.sigmoid())


def squares(z: Tensor) -> Tensor:
    """Not additive over the latents, so that a sample says something of the others."""
    return (z.sum(-1) - 0.7).square()
