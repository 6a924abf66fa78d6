r"""Checks of an estimator of one's own, against enumeration and quadrature.

The problems are small: three bits, two groups of three categories, pairs out of four, one Gaussian latent, one Poisson
count, each with random networks for f and random parameters. Their expectations and gradients are sums over all values,
or over nodes of a quadrature, which no estimator has a part in; the truth of a bound of K samples is the sum over all
multisets of K.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import SilentgradError
from silentgrad.estimators import Estimator, TractableIntegrand
from silentgrad.estimators.base import require_estimator, require_examples
from silentgrad.exactness import Exactness
from silentgrad.latents import families
from silentgrad.latents.families import Family
from silentgrad.latents.subsets import KSubset

HIDDEN, SHIFT = 5, 0.8  # where tanh is curved, and a slope at one end misleads
TINY = 1e-8  # of rounding, in double precision
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it holds, and what was measured."""

    latents: str
    what: str
    holds: bool
    measured: str

    @property
    def verdict(self) -> str:
        """Say whether it holds; of a bias that is declared nothing is asserted, so it is measured."""
        if not self.holds:
            return "FAILS"
        return "measured" if self.what.startswith("biased: ") else "holds"


class Checks(list[Check]):
    """All checks of an estimator, which print as a table."""

    @property
    def passed(self) -> bool:
        """Return whether all of them hold."""
        return all(check.holds for check in self)

    def __str__(self) -> str:
        rows = [(check.latents, check.what, check.verdict, check.measured) for check in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class _Pairs(Family):
    """Subsets of two, a family without a name: no encoder of ours has them."""

    distribution = KSubset
    arguments = ("logits",)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return (numbers,)

    def _base(self, arguments: Sequence[Tensor], validate_args: bool | None) -> td.Distribution:
        return KSubset(arguments[0], 2, validate_args)


class Kind(NamedTuple):
    """Latents of one kind."""

    name: str
    family: Family
    support: Callable[[td.Distribution], tuple[Tensor, Tensor]]  # values (n, ..., *z) and logarithms of probabilities
    sizes: tuple[int, int] = (1, 2)  # number of latents and of their values
    slope: float = 0.5  # of the networks; where they are too steep, a quadrature is not the truth

    def taken_by(self, estimator: Estimator) -> bool:
        """Return whether an estimator is to be checked on them: a bound needs the prior of a family with a name."""
        inner = getattr(estimator, "estimator", estimator)  # one made of another
        known = type(self.family) in families.FAMILIES.values()
        return inner.suits(type(self.family)) and (known or not estimator.uses_prior)


def _configurations(values: Sequence[object]) -> Callable[[td.Distribution], tuple[Tensor, Tensor]]:
    def support(q: td.Distribution) -> tuple[Tensor, Tensor]:
        z = torch.tensor(values, dtype=q.mean.dtype)
        z = z.reshape(len(values), *[1] * len(q.batch_shape), *q.event_shape)
        return z.expand(-1, *q.batch_shape, *q.event_shape), q.log_prob(z)

    return support


def _quadrature(q: td.Distribution) -> tuple[Tensor, Tensor]:
    nodes, masses = (torch.from_numpy(a).to(q.mean) for a in np.polynomial.hermite_e.hermegauss(32))
    shape = -1, *[1] * len(q.batch_shape)
    return q.mean + q.stddev * nodes.reshape(*shape, 1), (masses / masses.sum()).log().reshape(shape)


BITS = list(product((0.0, 1.0), repeat=3))
ONE_HOTS = list(product(torch.eye(3).tolist(), repeat=2))
PAIRS = [bits for bits in product((0.0, 1.0), repeat=4) if sum(bits) == 2]
COUNTS = [(float(count),) for count in range(20)]
KINDS = [
    Kind("bits", families.Bernoulli(3), _configurations(BITS), (3, 2)),
    Kind("categories", families.Categorical(2, 3), _configurations(ONE_HOTS), (2, 3)),
    Kind("subsets", _Pairs(4), _configurations(PAIRS), (4, 2)),
    Kind("Gaussian", families.Gaussian(1), _quadrature, slope=0.2),
    Kind("counts", families.Poisson(1), _configurations(COUNTS), slope=1.0),
]


class SmallNetwork(TractableIntegrand):
    """A random network of z for each example, whose calls are counted; its statistics are what the first layer gives.

    Args:
        kind: The latents.
        first: Weights of the first layer, `(*examples, inputs, HIDDEN)`.
        last: Weights of the last, `(*examples, HIDDEN)`, its own parameter.
    """

    def __init__(self, kind: Kind, first: Tensor, last: Tensor) -> None:
        self.kind, self.first, self.last, self.calls = kind, first, last, 0

    def __call__(self, z: Tensor) -> Tensor:
        return self.from_statistics(self.statistics(z))

    def statistics(self, z: Tensor) -> list[Tensor]:
        """Apply the first layer."""
        flat = z.reshape(*z.shape[: z.dim() - len(self.kind.family.shape)], -1).to(self.first.dtype)
        return [(flat.unsqueeze(-2) @ self.first).squeeze(-2)]

    def expected_statistics(self, q: td.Distribution) -> list[Tensor]:
        """Apply the first layer to the mean: it is linear."""
        return self.statistics(q.mean)

    def from_statistics(self, statistics: Sequence[Tensor]) -> Tensor:
        """Apply the rest."""
        self.calls += 1
        return (torch.tanh(statistics[0] + SHIFT) * self.last).sum(-1)

    def at(self, z: Tensor) -> Tensor:
        """Evaluate without a count."""
        return SmallNetwork(self.kind, self.first, self.last)(z)

    def expectation(self, q: td.Distribution) -> Tensor:
        z, log_p = self.kind.support(q)
        return (log_p.exp() * self.at(z)).sum(0)

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT


class Problem(NamedTuple):
    """Numbers of latents `(examples, numbers)`, and a network for each example."""

    parameters: Tensor
    network: SmallNetwork

    @classmethod
    def random(cls, kind: Kind, examples: int) -> "Problem":
        """Draw problems."""
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(examples, *shape, generator=generator, dtype=torch.float64)

        first, last = kind.slope * normal(kind.family.shape.numel(), HIDDEN), normal(HIDDEN)
        return cls(normal(kind.family.numbers) / 2, SmallNetwork(kind, first, last)).repeated(1)

    def repeated(self, times: int) -> "Problem":
        """Repeat every example so often."""
        return self._changed(lambda tensor: tensor.repeat_interleave(times, 0))

    def reshaped(self, *examples: int, dtype: torch.dtype = torch.float64) -> "Problem":
        """Give the examples another shape, or precision."""
        return self._changed(lambda tensor: tensor.reshape(*examples, *tensor.shape[1:]).to(dtype))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        leaves = self.parameters, self.network.first, self.network.last
        parameters, first, last = (change(leaf.detach()) for leaf in leaves)
        return Problem(parameters.requires_grad_(), SmallNetwork(self.network.kind, first, last.requires_grad_()))

    @property
    def q(self) -> td.Distribution:
        """The latents."""
        return self.network.kind.family.latent(self.parameters)

    def truth(self, samples: int = 1) -> list[Tensor]:
        """Sum up the value and its gradients in the latents' and the network's parameters; of a bound of samples."""
        q, value = self.q, self.network.expectation(self.q)
        if samples > 1:
            z, log_p = self.network.kind.support(q)
            prior = self.network.kind.family.latent(torch.zeros_like(self.parameters))
            log_w = self.network.at(z) + prior.log_prob(z) - q.log_prob(z)
            sets = torch.combinations(torch.arange(len(log_w)), samples, with_replacement=True)
            counts = (sets.unsqueeze(-1) == torch.arange(len(log_w))).sum(1).to(log_w)
            log_ways = torch.lgamma(counts.sum(1) + 1) - torch.lgamma(counts + 1).sum(1)
            mass = (log_p.expand_as(log_w)[sets].sum(1) + log_ways.unsqueeze(-1)).exp()
            bound = (mass * (log_w[sets].logsumexp(1) - float(np.log(samples)))).sum(0)
            value = bound + td.kl_divergence(q, prior)
        return [value.detach(), *torch.autograd.grad(value.sum(), [self.parameters, self.network.last])]


class OfShape(SmallNetwork):
    """The same numbers of a shape, whatever z."""

    def from_statistics(self, statistics: Sequence[Tensor]) -> Tensor:
        return 0 * statistics[0].sum() + self.last

    def expectation(self, q: td.Distribution) -> Tensor:
        return self.last


def check_estimator(estimator: Estimator, draws: int = 4000, problems: int = 3, limit: float = 5.0) -> Checks:
    """Measure what an estimator claims and what every estimator owes, on latents of each kind that it takes.

    Args:
        estimator: The estimator, which is copied.
        draws: Number of draws behind each mean.
        problems: Number of random problems for each kind of latents.
        limit: Standard errors within which a mean is that of an unbiased estimator.

    Returns:
        The checks. `print` shows them as a table; `passed` says whether all hold.

    Example:
        >>> import silentgrad as sg
        >>> found = sg.testing.check_estimator(sg.DisARM(), draws=1000)
        >>> print(found)  # doctest: +ELLIPSIS
        bits  unbiased: gradient of the latents     holds  ... standard errors at most
        bits  unbiased: value                       holds  ... standard errors at most
        bits  unbiased: gradient of the integrand   holds  ... standard errors at most
        bits  evaluations as declared               holds  2
        bits  one number per example                holds  other shapes are refused
        bits  examples do not mix                   holds
        bits  double, single and bfloat16 numbers   holds
        bits  no memory but buffers, which rest in eval()  holds
    """
    require_estimator(estimator)
    checks = Checks()
    for kind in KINDS:
        if kind.taken_by(estimator):
            with torch.random.fork_rng([]):
                checks += _claims(kind, copy.deepcopy(estimator).double(), draws, problems, limit)
                for what, check in OWED.items():
                    checks.append(Check(kind.name, what, *_tried(check, kind, copy.deepcopy(estimator))))
    if not checks:
        checks.append(Check("none", "latents of a known kind", False, "the estimator suits no family that is checked"))
    return checks


Found = tuple[bool, str]


def _tried(check: Callable[[Kind, Estimator], Found], kind: Kind, estimator: Estimator) -> Found:
    torch.manual_seed(0)
    try:
        return check(kind, estimator)
    except Exception as error:  # whatever a stranger's estimator raises is a finding
        return False, f"{type(error).__name__}: {error}"


def call(estimator: Estimator, problem: Problem, seed: int = 0, weights: float | Tensor = 1.0) -> list[Tensor]:
    """Return a value and the gradients of its weighted sum, one row for each example."""
    torch.manual_seed(seed)
    value, leaves = estimator(problem.q, problem.network), [problem.parameters, problem.network.last]
    require_examples(value, problem.parameters.shape[:-1], estimator)
    gradients = torch.autograd.grad((weights * value).sum(), leaves, allow_unused=True, materialize_grads=True)
    return [value.detach(), *gradients]


def _claims(kind: Kind, estimator: Estimator, draws: int, problems: int, limit: float) -> list[Check]:
    """Compare the means of the value and of both gradients with the truth."""
    problem = Problem.random(kind, problems)
    truths = problem.truth(estimator.evaluations(*kind.sizes) if estimator.uses_prior else 1)
    repeats = 2 if estimator.exact else draws
    try:
        found = call(estimator, problem.repeated(repeats))
    except Exception as error:  # whatever a stranger's estimator raises is a finding
        return [Check(kind.name, "a call", False, f"{type(error).__name__}: {error}")]
    checks, farthest = [], 0.0
    for name, index in (("gradient of the latents", 1), ("value", 0), ("gradient of the integrand", 2)):
        rows, truth = found[index].reshape(problems, repeats, -1), truths[index].reshape(problems, -1)
        distance = (rows.mean(1) - truth).abs()
        relative = (distance.norm() / truth.norm()).item()
        errors = distance / (rows.std(1) / repeats**0.5)
        worst = torch.where(distance < TINY * truth.abs().max(), 0, errors).max().item()
        farthest = max(farthest, worst)
        if estimator.exact:
            same = bool((rows - rows[:, :1]).abs().max() < TINY)
            claim, holds, told = "exact", same and relative < TINY, f"{relative:.0e} of it" if same else "it varies"
        elif estimator.unbiased:
            claim, holds, told = "unbiased", worst < limit, f"{worst:.1f} standard errors at most"
        else:
            told = f"off by {100 * relative:.0f} %, {worst:.1f} standard errors at most"
            claim, holds = "biased", bool(rows.abs().max() > 0)
        checks.append(Check(kind.name, f"{claim}: {name}", holds, told))
    if not (estimator.unbiased or estimator.exact) and farthest < limit:
        checks[0] = replace(checks[0], measured="no bias found: claim unbiased = True?")
    return checks


def _evaluations(kind: Kind, estimator: Estimator) -> Found:
    problem, declared = Problem.random(kind, 4), estimator.evaluations(*kind.sizes)
    call(estimator.double(), problem)
    calls = problem.network.calls
    return calls == declared, str(calls) if calls == declared else f"declares {declared}, takes {calls}"


def _shapes(kind: Kind, estimator: Estimator) -> Found:
    estimator.double()
    for examples in ((5,), (1,), (2, 3), ()):
        problem = Problem.random(kind, torch.Size(examples).numel()).reshaped(*examples)
        shape = estimator(problem.q, problem.network).shape
        if shape != examples:
            return False, f"for examples of shape {examples} the value has shape {tuple(shape)}"
    latents = tuple(kind.family.shape)
    wrongs: list[tuple[int, ...]] = [(4,), (1, 5), (5, 2), latents, (5, *latents), (5, *latents, 1)]
    for count, wrong in ((1, (5,)), *((5, shape) for shape in wrongs)):
        try:
            problem = Problem.random(kind, count)
            estimator(problem.q, OfShape(kind, problem.network.first, torch.zeros(wrong, dtype=torch.float64)))
        except (SilentgradError, RuntimeError):
            continue
        return False, f"an integrand of shape {wrong} is taken for {count} examples: use per_example"
    return True, "other shapes are refused"


def _examples(kind: Kind, estimator: Estimator) -> Found:
    problem, weights = Problem.random(kind, 4), torch.tensor([-0.2, 3.0, 0.0, 1e-6], dtype=torch.float64)
    (_, *plain), (_, *weighted) = (call(copy.deepcopy(estimator).double(), problem, 0, w) for w in (1.0, weights))
    alone = all(torch.allclose(w, weights.unsqueeze(-1) * p) for w, p in zip(weighted, plain, strict=True))
    return alone, "" if alone else "a weighted sum's gradient is not weighted: one's value depends on another"


def _dtypes(kind: Kind, estimator: Estimator) -> Found:
    for dtype in DTYPES:
        for tensor in call(copy.deepcopy(estimator), Problem.random(kind, 4).reshaped(4, dtype=dtype)):
            if tensor.dtype != dtype and tensor.dtype is not torch.promote_types(dtype, torch.float32):
                return False, f"{tensor.dtype} for latents of {dtype}"
            if not tensor.isfinite().all():
                return False, f"not finite in {dtype}"
    return True, ""


def _state(kind: Kind, estimator: Estimator) -> Found:
    problem, other = Problem.random(kind, 4), Problem.random(kind, 6)
    estimator.double()
    for training in (True, False):
        if training and estimator.state_dict():
            continue  # it may learn
        estimator.train(training)
        before = copy.deepcopy(estimator.state_dict())
        first = call(estimator, problem)
        call(estimator, other, seed=1)
        again = call(estimator, problem)
        if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            return False, "the same call with the same random numbers gives another result after a call between"
        if any(not torch.equal(value, before[name]) for name, value in estimator.state_dict().items()):
            return False, "a buffer or parameter changes in eval()"
    return True, ""


OWED: dict[str, Callable[[Kind, Estimator], Found]] = {
    "evaluations as declared": _evaluations,
    "one number per example": _shapes,
    "examples do not mix": _examples,
    "double, single and bfloat16 numbers": _dtypes,
    "no memory but buffers, which rest in eval()": _state,
}
