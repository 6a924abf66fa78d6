r"""Checks of an estimator of one's own, against enumeration and quadrature.

The problems are small: three bits, two groups of three categories, one Gaussian latent, one Poisson count, each with
random networks for f and random parameters. Their expectations and gradients are sums over all values, or over nodes of
a quadrature, which no estimator has a part in; the truth of a bound of K samples is the sum over all K-tuples.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.errors import SilentgradError
from silentgrad.estimators import Estimator, TractableIntegrand
from silentgrad.exactness import Exactness
from silentgrad.latents import families
from silentgrad.latents.families import Family

PROBLEMS, HIDDEN = 3, 5
LIMIT = 5  # standard errors
TINY = 1e-8  # of rounding, in double precision
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Check:
    """What was checked, whether it holds, and what was measured."""

    latents: str
    what: str
    holds: bool
    measured: str


class Checks(list[Check]):
    """All checks of an estimator, which print as a table."""

    @property
    def passed(self) -> bool:
        """Whether all of them hold."""
        return all(check.holds for check in self)

    def __str__(self) -> str:
        rows = [(check.latents, check.what, "holds" if check.holds else "FAILS", check.measured) for check in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


class Kind(NamedTuple):
    """Latents of one kind."""

    name: str
    family: Family
    support: Callable[[td.Distribution], tuple[Tensor, Tensor]]  # values (n, ..., *z) and logarithms of probabilities
    sizes: tuple[int, int] = (1, 2)  # number of latents and of their values


def _configurations(values: list[tuple[object, ...]]) -> Callable[[td.Distribution], tuple[Tensor, Tensor]]:
    def support(q: td.Distribution) -> tuple[Tensor, Tensor]:
        z = torch.tensor(values, dtype=q.mean.dtype)
        z = z.reshape(len(values), *[1] * len(q.batch_shape), *q.event_shape)
        return z.expand(-1, *q.batch_shape, *q.event_shape), q.log_prob(z)

    return support


def _quadrature(q: td.Distribution) -> tuple[Tensor, Tensor]:
    nodes, masses = (torch.from_numpy(a).to(q.mean) for a in np.polynomial.hermite_e.hermegauss(14))
    shape = -1, *[1] * len(q.batch_shape)
    return q.mean + q.stddev * nodes.reshape(*shape, 1), (masses / masses.sum()).log().reshape(shape)


BITS: list[tuple[object, ...]] = list(product((0.0, 1.0), repeat=3))
ONE_HOTS: list[tuple[object, ...]] = list(product(torch.eye(3).tolist(), repeat=2))
COUNTS: list[tuple[object, ...]] = [(float(count),) for count in range(20)]
KINDS = [
    Kind("bits", families.Bernoulli(3), _configurations(BITS), (3, 2)),
    Kind("categories", families.Categorical(2, 3), _configurations(ONE_HOTS), (2, 3)),
    Kind("Gaussian", families.Gaussian(1), _quadrature),
    Kind("counts", families.Poisson(1), _configurations(COUNTS)),
]


class _Network(TractableIntegrand):
    """A random network of z for each example; its last layer is its own parameter, and its calls are counted."""

    def __init__(self, kind: Kind, first: Tensor, last: Tensor) -> None:
        self.kind, self.first, self.last, self.calls = kind, first, last, 0

    def __call__(self, z: Tensor) -> Tensor:
        self.calls += 1
        return self.at(z)

    def at(self, z: Tensor) -> Tensor:
        """The value, without a count."""
        flat = z.reshape(*z.shape[: z.dim() - len(self.kind.family.shape)], -1).to(self.first.dtype)
        return (torch.tanh((flat.unsqueeze(-2) @ self.first).squeeze(-2)) * self.last).sum(-1)

    def expectation(self, q: td.Distribution) -> Tensor:
        z, log_p = self.kind.support(q)
        return (log_p.exp() * self.at(z)).sum(0)

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT


class _Problem(NamedTuple):
    """Numbers of latents `(examples, numbers)`, and a network for each example."""

    parameters: Tensor
    network: _Network

    @classmethod
    def random(cls, kind: Kind, examples: int) -> "_Problem":
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(examples, *shape, generator=generator, dtype=torch.float64)

        first, last = normal(kind.family.shape.numel(), HIDDEN) / 2, normal(HIDDEN)
        return cls(normal(kind.family.numbers) / 2, _Network(kind, first, last))

    def repeated(self, times: int) -> "_Problem":
        """Every example so often."""
        parameters, first, last = (
            tensor.detach().repeat_interleave(times, 0)
            for tensor in (self.parameters, self.network.first, self.network.last)
        )
        return _Problem(parameters.requires_grad_(), _Network(self.network.kind, first, last.requires_grad_()))

    def to(self, dtype: torch.dtype) -> "_Problem":
        """In another precision."""
        own, parameters = self.network, self.parameters.detach().to(dtype).requires_grad_()
        return _Problem(parameters, _Network(own.kind, own.first.to(dtype), own.last.to(dtype)))

    @property
    def q(self) -> td.Distribution:
        """The latents."""
        return self.network.kind.family.latent(self.parameters)

    def truth(self, samples: int) -> list[Tensor]:
        """The value, and its gradient in the latents' and in the network's parameters; of a bound of some samples."""
        q, prior = self.q, self.network.kind.family.latent(torch.zeros_like(self.parameters))
        z, log_p = self.network.kind.support(q)
        if samples == 1:
            value = self.network.expectation(q)
        else:
            log_w = self.network.at(z) + prior.log_prob(z) - q.log_prob(z)
            total, mass = log_w, log_p
            for _ in range(samples - 1):
                total = torch.logaddexp(total.unsqueeze(1), log_w).flatten(0, 1)
                mass = (mass.unsqueeze(1) + log_p).flatten(0, 1)
            bound = (mass.exp() * (total - float(np.log(samples)))).sum(0)
            value = bound + td.kl_divergence(q, prior)
        return [value.detach(), *torch.autograd.grad(value.sum(), [self.parameters, self.network.last])]


def check_estimator(estimator: Estimator, draws: int = 4000) -> Checks:
    """Measure what an estimator claims and what every estimator owes, on latents of each kind that it takes.

    Args:
        estimator: The estimator, which is copied.
        draws: Number of draws behind each mean. A claim to be unbiased holds within five standard errors.

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
    checks = Checks()
    for kind in KINDS:
        if estimator.suits(type(kind.family)):
            for what, holds, measured in _checked(kind, estimator, draws):
                checks.append(Check(kind.name, what, holds, measured))
    if not checks:
        checks.append(Check("none", "latents of a known kind", False, "the estimator suits no family that is checked"))
    return checks


Found = Iterator[tuple[str, bool, str]]


def _checked(kind: Kind, estimator: Estimator, draws: int) -> Found:
    with torch.random.fork_rng([]):
        yield from _claims(kind, copy.deepcopy(estimator).double(), draws)
        for check in (_evaluations, _shapes, _examples, _dtypes, _state):
            torch.manual_seed(0)
            what = (check.__doc__ or "").rstrip(".")
            try:
                holds, measured = check(kind, copy.deepcopy(estimator))
            except Exception as error:  # whatever a stranger's estimator raises is a finding
                holds, measured = False, f"{type(error).__name__}: {error}"
            yield what, holds, measured


def _call(estimator: Estimator, problem: _Problem, seed: int = 0) -> list[Tensor]:
    """A value and its gradients, one row for each example."""
    torch.manual_seed(seed)
    leaves = [problem.parameters, problem.network.last]
    value = estimator(problem.q, problem.network)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = torch.autograd.grad(value.sum(), wanted, allow_unused=True, materialize_grads=True)
    return [value.detach(), *gradients]


def _claims(kind: Kind, estimator: Estimator, draws: int) -> Found:
    """Bias and variance of the value and of both gradients."""
    problem = _Problem.random(kind, PROBLEMS).repeated(1)
    samples = estimator.evaluations(*kind.sizes) if estimator.uses_prior else 1
    truths = problem.truth(samples)
    repeats = 2 if estimator.exact else draws
    try:
        found = _call(estimator, problem.repeated(repeats))
    except Exception as error:  # whatever a stranger's estimator raises is a finding
        yield "a call", False, f"{type(error).__name__}: {error}"
        return
    names = ("gradient of the latents", "value", "gradient of the integrand")
    for name, index in zip(names, (1, 0, 2), strict=True):
        rows = found[index].reshape(PROBLEMS, repeats, -1)
        truth = truths[index].reshape(PROBLEMS, -1)
        distance = (rows.mean(1) - truth).abs()
        relative = (distance.norm() / truth.norm()).item()
        if estimator.exact:
            same = bool((rows - rows[:, :1]).abs().max() < TINY)
            told = f"{relative:.0e} of it" if same else "it varies"
            yield f"exact: {name}", same and relative < TINY, told
        elif estimator.unbiased:
            errors = distance / (rows.std(1) / repeats**0.5)
            worst = torch.where(distance < TINY * truth.abs().max(), 0, errors).max().item()
            yield f"unbiased: {name}", worst < LIMIT, f"{worst:.1f} standard errors at most"
        else:
            yield f"biased: {name}", bool(rows.abs().max() > 0), f"off by {100 * relative:.0f} %"


def _evaluations(kind: Kind, estimator: Estimator) -> tuple[bool, str]:
    """evaluations as declared."""
    problem, declared = _Problem.random(kind, 4).repeated(1), estimator.evaluations(*kind.sizes)
    _call(estimator.double(), problem)
    calls = problem.network.calls
    return calls == declared, str(calls) if calls == declared else f"declares {declared}, takes {calls}"


def _shapes(kind: Kind, estimator: Estimator) -> tuple[bool, str]:
    """one number per example."""
    estimator.double()
    for examples in ((5,), (1,), (2, 3), ()):
        problem = _Problem.random(kind, torch.Size(examples).numel())
        own = problem.network
        first, last = own.first.reshape(*examples, *own.first.shape[1:]), own.last.reshape(*examples, HIDDEN)
        q = kind.family.latent(problem.parameters.reshape(*examples, -1))
        shape = estimator(q, _Network(kind, first, last)).shape
        if shape != examples:
            return False, f"for examples of shape {examples} the value has shape {tuple(shape)}"
    for count, wrong in ((5, (1, 5)), (1, (5,)), (5, (5, 2))):
        q = kind.family.latent(torch.zeros(count, kind.family.numbers, dtype=torch.float64))
        if not _refused(estimator, q, wrong):
            return False, f"an integrand of shape {wrong} is taken for {count} examples: use per_example"
    return True, "other shapes are refused"


def _refused(estimator: Estimator, q: td.Distribution, shape: tuple[int, ...]) -> bool:
    class OfShape(TractableIntegrand):
        """Zeros of a shape."""

        def __call__(self, z: Tensor) -> Tensor:
            return 0 * z.sum() + torch.zeros(shape, dtype=z.dtype)

        def expectation(self, q: td.Distribution) -> Tensor:
            return torch.zeros(shape)

        def exactness(self, q: td.Distribution) -> Exactness:
            return Exactness.EXACT

    try:
        estimator(q, OfShape())
    except (SilentgradError, RuntimeError):
        return True
    return False


def _examples(kind: Kind, estimator: Estimator) -> tuple[bool, str]:
    """examples do not mix."""
    problem = _Problem.random(kind, 4).repeated(1)
    value = estimator.double()(problem.q, problem.network)
    slopes = torch.autograd.grad(value[0], [problem.parameters, problem.network.last], allow_unused=True)
    mixed = any(bool(slope[1:].any()) for slope in slopes if slope is not None)
    return not mixed, "one's value has a gradient in another's parameters" if mixed else ""


def _dtypes(kind: Kind, estimator: Estimator) -> tuple[bool, str]:
    """double, single and bfloat16 numbers."""
    problem = _Problem.random(kind, 4)
    for dtype in DTYPES:
        found = _call(copy.deepcopy(estimator), problem.to(dtype))
        for tensor in found:
            if tensor.dtype != dtype and tensor.dtype is not torch.promote_types(dtype, torch.float32):
                return False, f"{tensor.dtype} for latents of {dtype}"
            if not tensor.isfinite().all():
                return False, f"not finite in {dtype}"
    return True, ""


def _state(kind: Kind, estimator: Estimator) -> tuple[bool, str]:
    """no memory but buffers, which rest in eval()."""
    problem, other = _Problem.random(kind, 4).repeated(1), _Problem.random(kind, 6).repeated(1)
    estimator.double()
    for training in (True, False):
        if training and estimator.state_dict():
            continue  # it may learn
        estimator.train(training)
        before = copy.deepcopy(estimator.state_dict())
        first = _call(estimator, problem)
        _call(estimator, other, seed=1)
        again = _call(estimator, problem)
        if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            return False, "the same call with the same random numbers gives another result after a call between"
        if any(not torch.equal(value, before[name]) for name, value in estimator.state_dict().items()):
            return False, "a buffer or parameter changes in eval()"
    return True, ""
