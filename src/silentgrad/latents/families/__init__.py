"""Families: latents of one kind, built from an encoder's numbers and taken apart again.

The families are here. A further module in this folder is found without being named anywhere.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch import distributions as td
from torch.nn.functional import hardtanh

from silentgrad.errors import DomainError, ShapeError, UnregisteredLatentError
from silentgrad.latents.independent import base_of, independent, shape_of, shape_of_one
from silentgrad.latents.priors import Prior, StandardPrior
from silentgrad.registry import Registry

# Beyond e^12 a deviation and its square leave what single precision can sum; no trained latent comes near.
LARGEST_LOG = 12.0


class Family:
    """Latents q(z|x) of one kind.

    A family of your own sets the first four attributes below and, unless its arguments are numbers or exponentials of
    numbers, writes `from_numbers`. Having a `name` is what enters it in `FAMILIES`. Numbers that are all zero have to
    give the standard prior.

    Args:
        latents: How many latents an example has, or their shape.

    Attributes:
        name: What the command line calls the family.
        distribution: The class of its latents, inside any `Independent`.
        arguments: The arguments of that class that a latent is taken apart into: its gradients flow through them.
        numbers_per_latent: How many numbers an encoder gives for a latent.
        logarithms: Those of the arguments whose numbers are their logarithms.
        options: Names of further arguments that the family is built with.
        gaussian: Whether every linear function of z is Gaussian.
        exported: What an exported encoder calls the arguments, if not by their own names.
        latents: The shape of one example's latents.
        shape: The shape of one example's z.
        numbers: How many numbers an encoder gives for an example.
    """

    name: ClassVar[str]
    distribution: ClassVar[type[td.Distribution]]
    arguments: ClassVar[tuple[str, ...]]
    numbers_per_latent: ClassVar[int] = 1
    logarithms: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    gaussian: ClassVar[bool] = False
    exported: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            FAMILIES.register(cls.name)(cls)

    def __init__(self, latents: int | Sequence[int]) -> None:
        self.latents = shape_of(latents)
        if min(self.latents, default=1) < 1:
            raise DomainError(f"a family has at least one latent, got {latents}")
        self.shape = self.latents
        self.numbers = self.numbers_per_latent * self.latents.numel()

    @classmethod
    def like(cls, q: td.Distribution) -> Self:
        """Return the family, for latents of the shape that q has."""
        return cls(shape_of_one(q))

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Return the distribution's `arguments`, in the shape of the latents, from numbers `(*batch, numbers)`."""
        named = zip(self.arguments, self.split(numbers), strict=True)
        return tuple(positive(part) if name in self.logarithms else part for name, part in named)

    def latent(self, numbers: Tensor, validate_args: bool | None = None) -> td.Distribution:
        """q(z|x) from an encoder's numbers `(*batch, numbers)`; one example's z is its event."""
        if numbers.shape[-1:] != (self.numbers,):
            raise ShapeError(
                f"{self.name} latents of shape {tuple(self.latents)} take {self.numbers} numbers an example, got "
                f"numbers of shape {tuple(numbers.shape)}"
            )
        return self.build(self.from_numbers(numbers), validate_args)

    def build(self, arguments: Sequence[Tensor], validate_args: bool | None = None) -> td.Distribution:
        """Return the distribution of z with these arguments; one example's z is its event."""
        return independent(self._base(arguments, validate_args), len(self.shape))

    def parameters(self, q: td.Distribution) -> tuple[Tensor, ...]:
        """Return the tensors that a latent is made of, inside any number of `Independent`."""
        base = base_of(q)
        return tuple(getattr(base, name) for name in self.arguments)

    def rebuild(self, q: td.Distribution, parameters: Sequence[Tensor]) -> td.Distribution:
        """Return the same latent made of other tensors; what belongs together in q still does."""
        return independent(self._base(parameters, validate_args=False), len(q.event_shape))

    def prior(self) -> Prior:
        """Return the prior that stands against these latents unless another is chosen."""
        return StandardPrior(self)

    def marginals(self, q: td.Distribution) -> td.Distribution:
        """Return the latents one by one, as a distribution without dependence between them."""
        return base_of(q)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        """Return what an exported encoder gives, by name."""
        return dict(zip(self.exported or self.arguments, self.parameters(q), strict=True))

    def split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Return the numbers in `numbers_per_latent` parts, each in the shape of the latents."""
        parts = numbers.chunk(self.numbers_per_latent, dim=-1)
        if len(self.latents) == 1:
            return parts
        return tuple(part.reshape(numbers.shape[:-1] + self.latents) for part in parts)

    def _base(self, arguments: Sequence[Tensor], validate_args: bool | None) -> td.Distribution:
        named: dict[str, Any] = dict(zip(self.arguments, arguments, strict=True))
        return self.distribution(**named, validate_args=validate_args)


FAMILIES: Registry[Family] = Registry("family of latents", Family)
"""All families that can be named, by name."""


def positive(log_value: Tensor) -> Tensor:
    """Return e^t, kept within what single precision can square and sum."""
    return hardtanh(log_value, -LARGEST_LOG, LARGEST_LOG).exp()  # as `clamp`, whose backward pass has four operations


def family_of(q: td.Distribution) -> Family:
    """Return the family of a latent, whichever encoder made it.

    Raises:
        UnregisteredLatentError: There is none for its distribution, or q is not one distribution.

    Example:
        >>> import torch
        >>> family_of(td.Normal(torch.zeros(5, 2), torch.ones(5, 2))).name
        'gaussian'
    """
    require_one_latent(q)
    by_class = {family.distribution: family for family in FAMILIES.values()}
    for kind in type(base_of(q)).__mro__:
        if kind in by_class:
            return by_class[kind].like(q)
    known = ", ".join(kind.__name__ for kind in by_class)
    raise UnregisteredLatentError(
        f"{type(base_of(q)).__name__} latents belong to no family: there are those of {known}. Add one by subclassing "
        "silentgrad.latents.families.Family"
    )


def standard_prior(q: td.Distribution, family: Family) -> Prior:
    """Return the prior that a family names for its latents, on the device and in the precision of q."""
    return family.prior().to(family.parameters(q)[0])


def require_one_latent(q: object) -> None:
    """Refuse whatever else an encoder may return: a hierarchy of several latents, or bare parameters.

    Raises:
        UnregisteredLatentError: q is not one distribution.
    """
    if not isinstance(q, td.Distribution):
        raise UnregisteredLatentError(
            f"an encoder has to return one torch.distributions.Distribution, got {type(q).__name__}: a hierarchy of "
            "several latents belongs to no family, nor do the bare parameters of a latent. Of (mu, logvar) make "
            "torch.distributions.Normal(mu, (logvar / 2).exp())"
        )


class Bernoulli(Family):
    """Bits, from their logits."""

    name = "bernoulli"
    distribution = td.Bernoulli
    arguments = ("logits",)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        (logits,) = self.parameters(q)
        return {"probs": torch.sigmoid(logits)}


class Categorical(Family):
    """One-hot categories, from their logits; z is `(*latents, categories)`.

    Args:
        latents: How many groups an example has, or their shape.
        categories: The categories of a group.
    """

    name = "categorical"
    distribution = td.OneHotCategorical
    arguments = ("logits",)
    options = ("categories",)

    def __init__(self, latents: int | Sequence[int], categories: int = 10) -> None:
        super().__init__(latents)
        if categories < 2:
            raise DomainError(f"a group has at least two categories, got {categories}")
        self.shape = torch.Size([*self.latents, categories])
        self.numbers = self.shape.numel()

    @classmethod
    def like(cls, q: td.Distribution) -> Self:
        *groups, categories = shape_of_one(q)
        return cls(groups, categories)

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return (numbers.unflatten(-1, self.shape),)

    def outputs(self, q: td.Distribution) -> dict[str, Tensor]:
        (logits,) = self.parameters(q)
        return {"probs": torch.softmax(logits, -1)}


class FullGaussian(Family):
    """N(mean, L L^T), from the mean and the lower triangle of L, row by row, its diagonal in logarithms."""

    name = "full-gaussian"
    distribution = td.MultivariateNormal
    arguments = ("loc", "scale_tril")
    exported = ("mean", "scale_tril")
    gaussian = True

    def __init__(self, latents: int | Sequence[int]) -> None:
        super().__init__(latents)
        if len(self.latents) != 1:
            raise ShapeError(f"a covariance is that of one row of latents, got latents of shape {tuple(self.latents)}")
        (self.size,) = self.latents
        self.numbers = self.size + self.size * (self.size + 1) // 2

    def from_numbers(self, numbers: Tensor) -> tuple[Tensor, ...]:
        mean, triangle = numbers.split([self.size, self.numbers - self.size], dim=-1)
        rows, columns = torch.tril_indices(self.size, self.size, device=numbers.device)
        lower = numbers.new_zeros(*numbers.shape[:-1], self.size, self.size)
        lower[..., rows, columns] = triangle
        diagonal = positive(lower.diagonal(dim1=-2, dim2=-1))
        return mean, lower.tril(-1) + torch.diag_embed(diagonal)

    def marginals(self, q: td.Distribution) -> td.Distribution:
        base = base_of(q)
        return td.Normal(base.mean, base.stddev, validate_args=False)


class Gaussian(Family):
    """N(mean, diag(std^2)), from means and logarithms of deviations."""

    name = "gaussian"
    distribution = td.Normal
    arguments = ("loc", "scale")
    exported = ("mean", "std")
    numbers_per_latent = 2
    logarithms = ("scale",)
    gaussian = True


class Laplace(Family):
    """Laplace(mean, scale), from means and logarithms of scales."""

    name = "laplace"
    distribution = td.Laplace
    arguments = ("loc", "scale")
    numbers_per_latent = 2
    logarithms = ("scale",)


class Poisson(Family):
    """Counts, from the logarithms of their rates."""

    name = "poisson"
    distribution = td.Poisson
    arguments = ("rate",)
    logarithms = ("rate",)


def discover() -> None:
    """Import every module of this folder, which enters its family in `FAMILIES`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


discover()
