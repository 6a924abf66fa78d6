r"""Weights in a training loss: nats of reconstruction, nats of the KL divergence, and the batch.

**With the loss**, a regression. For an example repeated n times,

.. math:: L = a_n \, E[-\log p(x|z)] + b_n \, D(q(z|x) \,\|\, p) + c,

where c does not depend on the model: normalizing constants that the loss leaves out. To tell a from b even where the
posterior has collapsed, the encoder's parameters are moved a little at random, and put back to the same bits. For a
mean over the batch :math:`a_n` is the same for every n; for a sum it grows with n.

**Without it**, the optimum. An encoder that has been trained can change neither the scale of its deviations nor that of
its means to its gain, so that in these directions, for each latent k,

.. math:: \partial_k E[-\log p(x|z)] + \beta \, \partial_k D = 0,

and least squares over k gives the weight :math:`\beta` that the model was trained with. Where training has not ended,
or had another term in its loss, it is no more than an indication.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from silentgrad.analysis.batch import MeasurableModel, prior_of
from silentgrad.analysis.posterior import DRAWS, gaussian_parts
from silentgrad.analysis.variance import seeded
from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import Averaged, Reparameterized
from silentgrad.estimators.integrand import log_prob_of
from silentgrad.latents.families import family_of
from silentgrad.latents.priors import Prior
from silentgrad.objective import Term

MOVES = (0.0, 0.05, 0.1, 0.2)  # of the encoder's parameters, in units of their root mean square
EXAMPLES, BATCH, GROUPS = 8, 32, 10
IDENTIFIED = 1e-3  # mean square of the KL divergence's slopes, below which they tell nothing: all latents collapsed
PLAIN = 0.1  # relative deviation within which a weight is taken for the number that it is near


class Estimate(NamedTuple):
    """Number and its standard error, which is 0 where the number is exact for the examples that were looked at."""

    value: float
    error: float = 0.0

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Return the mean over examples and its standard error."""
        values = values.detach().double()
        return cls(float(values.mean()), float(values.std() / len(values) ** 0.5))

    def __str__(self) -> str:
        return f"{self.value:.4g}" + f" ± {float(f'{self.error:.1g}'):g}" * (self.error > 0)


class LossUnits(NamedTuple):
    """Weights of the parts of a loss.

    Args:
        reconstruction: Weight of -log p(x|z) in nats per example, for a batch of 32 examples.
        kl: That of the KL divergence.
        reconstruction_growth: Factor of its weight with twice the batch: 1 for a mean, 2 for a sum over examples.
        kl_growth: The same of the KL divergence's.
        outputs: Number of outputs of an example.
        latents: Number of its latents.
    """

    reconstruction: Estimate
    kl: Estimate
    reconstruction_growth: float
    kl_growth: float
    outputs: int
    latents: int

    @property
    def beta(self) -> Estimate:
        """The weight of the KL divergence beside that of the reconstruction; 1 is the ELBO's."""
        (a, of_a), (b, of_b) = self.reconstruction, self.kl
        return Estimate(b / a, ((b * of_a / a) ** 2 + of_b**2) ** 0.5 / abs(a))

    @property
    def mixed(self) -> bool:
        """True if one part is a sum over the batch and the other a mean."""
        return abs(self.reconstruction_growth - self.kl_growth) > 0.5

    @property
    def cause(self) -> str:
        """Likely cause of the weights."""
        size = BATCH if self.reconstruction_growth > 1.5 else 1
        a, b = self.reconstruction.value / size, self.kl.value / size
        if abs(b / a) < 1e-4:
            return "the loss has no KL divergence"
        if self.mixed:
            first, second = ("sum", "mean") if size > 1 else ("mean", "sum")
            return f"the reconstruction is a {first} over the batch, the KL divergence a {second}: beta changes with it"
        if abs(b - 1) < PLAIN and 0 < a * self.outputs < 5:
            return f"the reconstruction is a mean over the {self.outputs} outputs, the KL divergence is not"
        if abs(b / a - 1) < PLAIN:
            return "reconstruction and KL divergence have one unit"
        if abs(b * self.latents - 1) < PLAIN:
            if abs(a - 1) < PLAIN:
                return f"the KL divergence is a mean over the {self.latents} latents"
            if 0 < a * self.outputs < 5:
                means = f"the {self.outputs} outputs, the KL divergence one over the {self.latents} latents"
                return f"the reconstruction is a mean over {means}"
        return f"beta in the loss, or another variance than p(x|z) has: it weighs {a:.3g} and {b:.3g} times"


@torch.no_grad()
def loss_units(model: MeasurableModel, x: Tensor, loss: Callable[[Tensor], Any]) -> LossUnits:
    """Return the weights of a loss by the regression that the module describes.

    Args:
        model: The model, as `gradient_variance` takes it. Its encoder is moved, and put back.
        x: A few examples.
        loss: The training loss of a batch, or a tuple or dictionary with it.
    """
    prior = prior_of(model, model.encoder(x[:1]))
    try:
        with suppress(ValueError):  # of what has no signature
            inspect.signature(loss).bind(x)
    except TypeError as error:
        raise DomainError(f"loss takes a batch alone, loss=lambda x: your_loss(*model(x), x): {error}") from None
    with seeded(0, x.device):
        (a, b), (twice_a, twice_b) = (_regression(model, prior, x[:EXAMPLES], loss, n) for n in (BATCH, 2 * BATCH))
    told = [abs(weight.value) > 3 * weight.error for weight in (a, b)]  # from zero
    if not told[0]:
        raise DomainError("the loss does not change with -log p(x|z): is it that of this model, as a function of x?")
    growth = twice_a.value / a.value, twice_b.value / b.value if told[1] else 1.0
    return LossUnits(a, b, *growth, x[0].numel(), model.encoder(x[:1]).mean.numel())


def _regression(
    model: MeasurableModel, prior: Prior, x: Tensor, loss: Callable[[Tensor], Any], batch: int
) -> list[Estimate]:
    """Return weights of reconstruction and KL divergence by least squares of the loss on them, with a constant."""
    rows = []
    for move in MOVES:
        with _moved(model.encoder, move):
            for number, row in enumerate(x):
                same = row.repeat(batch, *[1] * row.dim())
                torch.manual_seed(number)  # a loss that draws as torch does then has the same z
                q = model.encoder(same)
                nll, kld = -log_prob_of(model.decoder, same, q.sample()).mean(), prior.divergence(q).mean()
                torch.manual_seed(number)
                rows.append([float(nll), float(kld), float(_value_of(loss(same)))])
    points = torch.tensor(rows, dtype=torch.float64)
    points = points[points.isfinite().all(1)]
    if len(points) < EXAMPLES:
        raise DomainError("the loss is not finite on most examples")
    centered = points - points.mean(0)
    design, target = centered[:, :2], centered[:, 2]
    inverse = torch.linalg.pinv(design.T @ design)
    weights = inverse @ design.T @ target
    residual = (target - design @ weights).square().sum() / (len(points) - 3)
    return list(map(Estimate, weights.tolist(), (inverse.diagonal() * residual).sqrt().tolist()))


def _value_of(found: Any) -> Tensor:
    """Return the loss of a batch in whatever a training step returned."""
    found = found[0] if isinstance(found, tuple | list) and found else found
    found = found.get("loss") if isinstance(found, dict) else getattr(found, "loss", found)
    if not isinstance(found, Tensor):
        raise DomainError(f"the loss is {type(found).__name__}: return a tensor, or have it first or under 'loss'")
    return found.mean()


@contextmanager
def _moved(module: nn.Module, move: float) -> Iterator[None]:
    """Move a module's parameters at random, in units of their root mean square, and put them back at the end."""
    kept = [(p, p.detach().clone()) for p in module.parameters() if p.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    try:
        for parameter, value in kept:
            noise = torch.randn(value.shape, generator=generator).to(value)
            parameter.data.add_(noise * value.square().mean().sqrt(), alpha=move)
        yield
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)


def implied_kl_weight(model: MeasurableModel, x: Tensor) -> Estimate:
    """Return the weight of the KL divergence at which the encoder would be at its optimum; see the module.

    Args:
        model: The model, as `gradient_variance` takes it.
        x: Examples, a hundred or more.

    Raises:
        IntractableError: The latents are not Gaussian, or have collapsed.
    """
    q = model.encoder(x)
    loc, scale = (part.detach() for part in gaussian_parts(q, "without loss=... the weight"))
    prior, moves = prior_of(model, q), torch.zeros(2, *loc.shape).to(loc).requires_grad_()
    with seeded(0, x.device), torch.enable_grad():
        moved = family_of(q).rebuild(q, [loc * (1 + moves[0]), scale * moves[1].exp()])
        nll = Term(model.decoder, Averaged(Reparameterized(), DRAWS)).loss(x, moved)
        parts = prior.divergence(moved).sum(), nll.sum()
    found = [torch.autograd.grad(part, moves, retain_graph=True)[0] for part in parts]
    slopes, losses = (gradient.transpose(0, 1).flatten(1).double() for gradient in found)
    if slopes.mean(0).square().mean() < IDENTIFIED:
        raise IntractableError("all latents have collapsed, so that nothing tells the weight: pass loss=...")

    def weight(kept: Tensor) -> float:
        slope = slopes[kept].mean(0)
        return float(-(losses[kept].mean(0) @ slope) / slope.square().sum())

    everyone = torch.arange(len(x))
    without = torch.tensor([weight(everyone % GROUPS != group) for group in range(GROUPS)])
    return Estimate(weight(everyone >= 0), float(((GROUPS - 1) * without.var(correction=0)).sqrt()))
