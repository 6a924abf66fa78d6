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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.checkup.findings import Estimate
from silentgrad.checkup.subject import Subject
from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import Averaged, Reparameterized
from silentgrad.latents.families import family_of
from silentgrad.latents.independent import base_of
from silentgrad.objective import Term

MOVES = (0.0, 0.05, 0.1, 0.2)  # of the encoder's parameters, in units of their root mean square
EXAMPLES, BATCH, GROUPS, DRAWS = 8, 32, 10, 16
IDENTIFIED = 1e-3  # mean square of the KL divergence's slopes, below which they tell nothing: all latents collapsed
PLAIN = 0.1  # relative deviation within which a weight is taken for the number that it is near


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
        if abs(a - 1) < PLAIN and abs(b * self.latents - 1) < PLAIN:
            return f"the KL divergence is a mean over the {self.latents} latents"
        return f"beta in the loss, or another variance than p(x|z) has: it weighs {a:.3g} and {b:.3g} times"


def loss_units(subject: Subject, x: Tensor, loss: Callable[[Tensor], Any]) -> LossUnits:
    """Return the weights of a loss on examples x by the regression that the module describes."""
    (a, b), (twice_a, twice_b) = (_regression(subject, x[:EXAMPLES], loss, size) for size in (BATCH, 2 * BATCH))
    told = [abs(weight.value) > 3 * weight.error for weight in (a, b)]  # from zero
    if not told[0]:
        raise DomainError("the loss does not change with -log p(x|z): is it that of this model, as a function of x?")
    growth = twice_a.value / a.value, twice_b.value / b.value if told[1] else 1.0
    return LossUnits(a, b, *growth, x[0].numel(), subject.encoder(x[:1]).mean.numel())


def _regression(subject: Subject, x: Tensor, loss: Callable[[Tensor], Any], batch: int) -> list[Estimate]:
    """Return weights of reconstruction and KL divergence by least squares of the loss on them, with a constant."""
    rows = []
    for move in MOVES:
        with _moved(subject.encoder, move):
            for number, row in enumerate(x):
                same = row.repeat(batch, *[1] * row.dim())
                torch.manual_seed(number)  # a loss that draws as torch does then has the same z
                q = subject.encoder(same)
                nll, kld = -subject.decoder.log_prob(same, q.sample()).mean(), subject.prior.divergence(q).mean()
                torch.manual_seed(number)
                rows.append([float(nll), float(kld), float(value_of(loss(same)))])
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


def value_of(found: Any) -> Tensor:
    """Return the loss of a batch in whatever a training step returned."""
    if isinstance(found, tuple | list) and found:
        found = found[0]
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


def implied_kl_weight(subject: Subject, x: Tensor) -> Estimate:
    """Return the weight of the KL divergence at which the encoder would be at its optimum; see the module."""
    q = subject.encoder(x)
    base = base_of(q)
    if not isinstance(base, td.Normal):
        raise IntractableError("without the loss its weights are known for Gaussian latents: pass loss=...")
    moves = torch.zeros(2, *base.loc.shape).to(base.loc).requires_grad_()
    with torch.enable_grad():
        moved = family_of(q).rebuild(q, [base.loc * (1 + moves[0]), base.scale * moves[1].exp()])
        nll = Term(subject.decoder, Averaged(Reparameterized(), DRAWS)).loss(x, moved)
        parts = subject.prior.divergence(moved).sum(), nll.sum()
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
