r"""Estimators: a latent and a function of z in, the function's expectation with a usable gradient out.

The function is the integrand; a model's is :math:`\log p(x|z)`. `estimator(q, integrand)` has the value (or an unbiased
estimate of it) of the expectation under :math:`q(z|x)`, one number per example, and when differentiated gives the
estimator's gradient in the parameters of q and of the decoder. Each estimator declares claims, which the tests measure:
`unbiased` (its expected gradient is the gradient), `exact` (it has no variance either), the `latents` that it takes,
and how many `evaluations` of the integrand a step costs. An evaluation is passed back once at most, but for those that
are `differentiated_twice`.

The shapes of all estimators follow one rule. A latent z has the shape `q.batch_shape + q.event_shape`, and what
`integrand(z)` returns has the shape of the examples. It has to be the beginning of q's batch shape, none of its event;
every dimension of z beyond it holds latents of one example, over which log q(z|x) is summed. The result has the shape
of the examples. Whatever has another shape is refused where an estimator is called: a class of one's own cannot have
its values broadcast. A single number is one for a single example, so for several it is refused too.

===========  ===============================  ===========  ==================
batch shape  event shape                      `integrand`  latents an example
===========  ===============================  ===========  ==================
(B, d)       ()                               (B,)         d
(B,)         (d,), as `Independent` makes it  (B,)         d
(B, 4, 4)    ()                               (B,)         16
(3, 3, d)    ()                               (3, 3)       d
(d,)         ()                               ()           d
===========  ===============================  ===========  ==================
"""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.latents.families import Family
from silentgrad.latents.independent import base_of, require_fixed_support, sum_over_latents
from silentgrad.registry import Registry

Integrand = Callable[[Tensor], Tensor]


class Estimator(nn.Module):
    """Base of all estimators; a module, so that what it remembers is saved with the model."""

    unbiased: bool = False
    exact: ClassVar[bool] = False
    latents: ClassVar[tuple[type[td.Distribution], ...]] = (td.Distribution,)  # those that it can be asked about
    uses_prior: bool = False  # whether it weighs samples by p(z) / q(z|x): a bound of several samples
    calls: int = 1  # of the integrand in a step, unless `evaluations` counts them otherwise
    differentiated_twice: int = 0  # of its evaluations, those whose slope is differentiated too, to learn

    @classmethod
    def suits(cls, family: type[Family]) -> bool:
        """Return whether the estimator takes latents of a family; an exact one's decoder has to be tractable too."""
        return issubclass(family.distribution, cls.latents)

    @classmethod
    def sized(cls, numbers: int) -> Self:
        """Build the estimator with its default arguments, for examples whose z has so many numbers."""
        return cls()

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        """Estimate E_q[integrand(z)], in the shape of the examples: that of `integrand(z)`."""
        raise NotImplementedError

    def __call__(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        """Call `forward`, and raise unless it returns one number per example."""
        examples: list[torch.Size] = []  # their shape, as often as it was seen
        value: Tensor = super().__call__(q, _watched(integrand, q, examples))
        if examples:
            require_examples(value, examples[0], self)
        elif not _can_be_examples(value.shape, q):
            require_examples(value, q.batch_shape if isinstance(q, td.Independent) else q.batch_shape[:1], self)
        return value

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        """Count the evaluations of the integrand in a step, each for a whole batch.

        Args:
            latents: Number of latents of an example.
            values: Number of values that each of them takes.
        """
        return self.calls

    def on_epoch(self, epoch: int) -> None:
        """Follow a schedule: an epoch, counted from 1, begins."""

    def auxiliary_loss(self) -> Tensor | None:
        """Hand over what the estimator's own parameters minimize, summed since it was last asked for; None if nothing.

        The model adds it to its loss. A graph that is kept here could not be copied or saved.
        """
        return None


ESTIMATORS: Registry[Estimator] = Registry("estimator", Estimator)
"""All estimators that can be named, by name."""


L = TypeVar("L", bound=td.Distribution)


def latents_of(q: td.Distribution, estimator: Estimator, kinds: tuple[type[L], ...]) -> L:
    """Return the latents inside q, or raise an error that names both they and what the estimator takes."""
    base = base_of(q)
    if isinstance(base, kinds) and isinstance(base, estimator.latents):
        return base
    names = " and ".join(kind.__name__ for kind in estimator.latents)
    raise IntractableError(f"{type(estimator).__name__} is for {names} latents, got {type(base).__name__}")


def bernoulli_of(q: td.Distribution, estimator: Estimator) -> td.Bernoulli:
    """Return the Bernoulli latent inside q, or raise an error that names both."""
    return latents_of(q, estimator, (td.Bernoulli,))


def discrete_of(q: td.Distribution, estimator: Estimator) -> td.Bernoulli | td.OneHotCategorical:
    """Return the bits or one-hot categories inside q, or raise an error that names both."""
    kinds: tuple[type[td.Bernoulli | td.OneHotCategorical], ...] = (td.Bernoulli, td.OneHotCategorical)
    return latents_of(q, estimator, kinds)


def require_estimator(estimator: object) -> None:
    """Raise unless an argument is an estimator: its class is not."""
    if not isinstance(estimator, Estimator):
        name = getattr(estimator, "__name__", repr(estimator))
        raise DomainError(f"{name} is no estimator: give an instance of one, such as RLOO()")


def at_least(fewest: int, samples: int, estimator: Estimator) -> int:
    """Return a number of samples, or raise an error that names the estimator."""
    if samples < fewest:
        noun = {1: "one sample", 2: "two samples"}[fewest]
        raise DomainError(f"{type(estimator).__name__} needs at least {noun}, got {samples}")
    return samples


def require_positive(temperature: float) -> None:
    """Raise unless a temperature is positive."""
    if not temperature > 0:
        raise DomainError(f"the temperature has to be positive, got {temperature}")


def mean_of_others(numbers: Tensor) -> Tensor:
    """Return the mean over all samples but one, for each; samples go along the first dimension."""
    return (numbers.sum(0) - numbers) / (len(numbers) - 1)


def per_example(values: Tensor, q: td.Distribution) -> Tensor:
    """Return the values, one per example, or raise unless their shape is the beginning of q's batch shape."""
    if not isinstance(values, Tensor):
        kind = type(values).__name__
        raise DomainError(f"the integrand returned {kind}: return a tensor with one number per example")
    if not _can_be_examples(values.shape, q):
        remedy = "one number per example has the shape that the batch shape begins with"
        if values.dim() == 0:
            alone = f"Independent(q, {len(q.batch_shape)})"
            remedy = f"return one number per example, no sum or mean over them; if all of it is one example, {alone}"
        raise ShapeError(
            f"the integrand has shape {tuple(values.shape)}, for a latent of batch shape {tuple(q.batch_shape)} "
            f"and event shape {tuple(q.event_shape)}: {remedy}"
        )
    return values


def _can_be_examples(shape: torch.Size, q: td.Distribution) -> bool:
    """Return whether q can have examples of a shape: the beginning of its batch shape.

    () is a single example, whose latents are q's event or its only dimension.
    """
    several = len(q.batch_shape) > (0 if isinstance(q, td.Independent) else 1)
    return shape == q.batch_shape[: len(shape)] and not (several and len(shape) == 0)


def _watched(integrand: Integrand, q: td.Distribution, examples: list[torch.Size]) -> Integrand:
    """Return a plain function that notes the shape of its values at latents like q; any other object is left alone."""
    if not isinstance(integrand, FunctionType | MethodType):
        return integrand  # an estimator may ask it for more than its values

    def watched(z: Tensor) -> Tensor:
        values = integrand(z)
        if z.shape == q.batch_shape + q.event_shape:
            examples.append(per_example(values, q).shape)
        return values

    return watched


def require_examples(value: Tensor, examples: torch.Size, estimator: Estimator) -> None:
    """Raise unless an estimator's value has the shape of the examples."""
    if value.shape != examples:
        raise ShapeError(
            f"{type(estimator).__name__} returned shape {tuple(value.shape)} for {examples.numel()} examples: return "
            f"one number per example, shape {tuple(examples)}"
        )


def joint_log_prob(q: td.Distribution, z: Tensor, examples: torch.Size) -> Tensor:
    """Compute log q(z|x), one number per example, whether q's latents are its event or part of its batch.

    Of a z without a gradient, its own is the score.

    Raises:
        IntractableError: It is, and the support of q moves with what it is differentiated in.
    """
    if not z.requires_grad:
        require_fixed_support(q)
    return sum_over_latents(base_of(q).log_prob(z), examples)


def value_with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """Give the number of the first, to the last bit, the gradient of the second."""
    return value.detach() + (surrogate - surrogate.detach())


straight_through = value_with_gradient_of  # of a sample and something soft


def value_with_slope(value: Tensor, slope: Tensor, parameter: Tensor) -> Tensor:
    """Give numbers, one per example, beside their own gradient a known one in a parameter of the latents."""
    along = sum_over_latents(slope.detach() * parameter, value.shape)
    return value_with_gradient_of(value, value + along)


def slope_of(values: Tensor, z: Tensor, create_graph: bool = False) -> Tensor:
    """Differentiate numbers, one per example, in z: zero where they do not depend on it. Their graph is kept."""
    if not values.requires_grad:
        return torch.zeros_like(z)
    (slope,) = torch.autograd.grad(
        values.sum(), z, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return slope


def for_each_latent(values: Tensor, latents: Tensor) -> Tensor:
    """Reshape numbers, one per example, to as many dimensions as the latents have, to broadcast along them."""
    return values.reshape(*values.shape, *[1] * (latents.dim() - values.dim()))


def uniform_like(x: Tensor) -> Tensor:
    """Draw uniform numbers in (0, 1], in at least single precision and far finer near 0 than those of `torch.rand`.

    Events as rare as saturated probabilities make them are decided here. `torch.rand` alone, in single precision a
    multiple of 2^-24, gives all that are rarer one frequency, that of its 0.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    limits = torch.finfo(wide)
    coarse, fine = torch.rand_like(x, dtype=wide), torch.rand_like(x, dtype=wide)
    return (coarse + fine * (limits.eps / 2)).clamp(min=limits.tiny)


def logistic_like(x: Tensor) -> Tensor:
    """Draw standard logistic noise, both of whose tails reach as far as a uniform number is fine near 0."""
    u = uniform_like(x)
    size = torch.log(2 - u) - torch.log(u)
    return torch.where(coin_like(x), size, -size).to(x.dtype)


def exponential_like(x: Tensor) -> Tensor:
    """Draw standard exponential noise, in at least single precision, as fine near 0 as a uniform number."""
    return -torch.log1p(-below_one(uniform_like(x)))


def gumbel_like(x: Tensor) -> Tensor:
    """Draw standard Gumbel noise, whose upper tail reaches as far as a uniform number is fine near 0."""
    return -torch.log(exponential_like(x)).to(x.dtype)


def below_one(u: Tensor) -> Tensor:
    """Keep uniform numbers from 1, where the logarithm of the rest is infinite."""
    return u.clamp(max=1 - torch.finfo(u.dtype).eps)


def coin_like(x: Tensor) -> Tensor:
    """Draw True or False with equal probability."""
    return torch.rand_like(x) < 0.5
