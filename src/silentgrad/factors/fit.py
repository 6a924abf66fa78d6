r"""A deterministic fit of a linear decoder, with a free Gaussian q(z|x) for every example and no encoder.

Nothing in the bound :math:`\sum_n E_{q_n}[\log p(x_n|z)] - D_\mathrm{KL}(q_n \,\|\, N(0, I))` is random, so it can be
climbed to the top. One iteration is

1. Newton's step for every example's q (:mod:`silentgrad.factors.latents`);
2. Newton's step for every output's weights (:mod:`silentgrad.factors.outputs`), and a secant step for the likelihood's
   own parameters;
3. an expansion that costs no likelihood: z can be replaced by any invertible affine map of it, if the weights follow,
   and the divergence from N(0, I) is least where the latents of all examples together have mean 0 and covariance I
   (parameter expansion, Liu, Rubin and Wu 1998).

Each alone is slow, since weights and latents hold on to each other; Anderson's acceleration of the iteration is not. A
bound that falls takes the iteration back: to the place without acceleration, or from there to the place before, with a
quarter of the radius of step 2.

References:
    Liu, Rubin and Wu (1998), Parameter expansion to accelerate EM: the PX-EM algorithm, Biometrika 85.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.beside import Beside
from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.factors.latents import Latents, first_latents, improved
from silentgrad.factors.pieces import Piece, Table, own_parameters, pieces_of
from silentgrad.factors.state import Climb, weights_of
from silentgrad.widening import NARROW

QUIET = 4  # iterations in a row that gain less than the tolerance


class Progress(NamedTuple):
    """Where a fit stands.

    Args:
        iteration: Number of iterations done.
        elbo: The best bound so far in nats, over all examples.
    """

    iteration: int
    elbo: float


@dataclass(frozen=True)
class Fit:
    """What a fit came to; the decoder has its weights.

    Args:
        latent: q(z|x) of every example.
        elbo: The bound in nats, over all examples.
        converged: Whether the last iterations gained less than the tolerance.
        history: The best bound up to each iteration.
    """

    latent: td.MultivariateNormal
    elbo: float
    converged: bool
    history: list[float]


class Inference(NamedTuple):
    """What examples come to under a decoder.

    Args:
        latent: q(z|x) of every example.
        elbo: The bound of each in nats, `(examples,)`.
    """

    latent: td.MultivariateNormal
    elbo: Tensor


@torch.no_grad()
def fit_factors(
    decoder: LinearLikelihood,
    x: Table,
    *,
    offset: Tensor | None = None,
    covariates: Tensor | None = None,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    tolerance: float = 1e-7,
    iterations: int = 500,
    report: Callable[[Progress], object] | None = None,
) -> Fit:
    """Fits a linear decoder and a Gaussian q(z|x) for every example to the whole of the data, without sampling.

    The latents come in the order of how much they move u, and their weights are orthogonal.

    The decoder starts where it is: call `decoder.init_from_data(x)` first. In its precision the fit is made: a bound
    in single precision is known to seven digits, so that a smaller tolerance than they allow needs `decoder.double()`.

    Args:
        decoder: A linear decoder with a likelihood, whose weights are changed.
        x: Examples `(examples, *event_shape)`: a tensor, or what gives a tensor for a slice of its rows.
        offset: Known part of u; see `LinearDecoder.expected_log_prob`, also for the next two.
        covariates: Known numbers of each example.
        mask: Which entries were observed.
        weights: How much each example counts, `(examples,)`; all the same if absent.
        tolerance: Nats per entry: iterations end when four in a row gain less each, or no more than rounding could.
        iterations: Number of iterations at the most.
        report: Called after every iteration.

    Example:
        >>> import silentgrad as sg
        >>> x = td.Poisson(torch.rand(200, 1) * torch.ones(200, 6) * 9).sample()
        >>> decoder = sg.LinearLikelihood(1, 6, sg.likelihoods.Poisson())
        >>> decoder.init_from_data(x)
        >>> fit = fit_factors(decoder, x)
        >>> fit.converged, fit.latent.mean.shape
        (True, torch.Size([200, 1]))
    """
    beside = Beside(offset, covariates, mask)
    _require(decoder, x, beside, weights)
    if not 0 <= tolerance < math.inf or iterations < 1:
        raise DomainError(f"tolerance and iterations have to be positive, got {tolerance} and {iterations}")
    with _restoring(decoder), torch.autocast(decoder.affine.weight.device.type, enabled=False):
        return _climbed(Climb(decoder, x, beside, weights), tolerance * _count(x, mask, weights), iterations, report)


def _climbed(climb: Climb, least: float, iterations: int, report: Callable[[Progress], object] | None) -> Fit:
    """The fit after iterations that gain at least so many nats; the last few of them gain less."""
    rounding = torch.finfo(climb.place.theta.dtype).eps
    history: list[float] = []
    quiet = 0
    while quiet < QUIET and not climb.stuck and len(history) < iterations:
        before = climb.best
        went_on = climb.advance()
        history.append(climb.best)
        if report is not None:
            report(Progress(len(history), climb.best))
        small = max(least, rounding * abs(climb.best))
        if climb.best - before > small:
            quiet = 0
        elif went_on:
            quiet += 1
    converged = quiet == QUIET or (climb.stuck and climb.fall <= small)
    latents, elbo = climb.finish()
    return Fit(latents.distribution(), elbo, converged, history)


@contextlib.contextmanager
def _restoring(decoder: LinearLikelihood) -> Iterator[None]:
    """Gives the likelihood its parameters back if a fit ends by an error, so that the decoder is as it was."""
    parameters = own_parameters(decoder)
    before = [parameter.clone() for parameter in parameters]
    try:
        yield
    except BaseException:
        for parameter, numbers in zip(parameters, before, strict=True):
            parameter.copy_(numbers)
        raise


@torch.no_grad()
def infer_factors(
    decoder: LinearLikelihood,
    x: Table,
    *,
    offset: Tensor | None = None,
    covariates: Tensor | None = None,
    mask: Tensor | None = None,
    tolerance: float = 1e-6,
    iterations: int = 100,
) -> Inference:
    """The best Gaussian q(z|x) of every example under a decoder that is held: for examples that were not fitted.

    Args:
        decoder: A linear decoder with a likelihood.
        x: Examples `(examples, *event_shape)`.
        offset: As in `fit_factors`, and so are the arguments that follow.
        covariates: Known numbers of each example.
        mask: Which entries were observed.
        tolerance: Nats per example: the steps end when none gains more.
        iterations: Number of steps at the most.
    """
    beside = Beside(offset, covariates, mask)
    _require(decoder, x, beside, None)
    if iterations < 1:
        raise DomainError(f"iterations have to be positive, got {iterations}")
    theta = weights_of(decoder)
    latents = first_latents(theta[:, : decoder.latent_dim], len(x))
    elbo = torch.zeros(len(x), dtype=torch.float64, device=theta.device)
    with torch.autocast(theta.device.type, enabled=False):
        for piece in pieces_of(decoder, x, beside, None):
            elbo[piece.rows] = piece.base()  # first, because it looks at x
            settled, bounds = _settled(piece, theta, latents[piece.rows], tolerance, iterations)
            latents.write(piece.rows, settled)
            elbo[piece.rows] += bounds
    return Inference(latents.distribution(), elbo)


def _settled(
    piece: Piece, theta: Tensor, latents: Latents, tolerance: float, iterations: int
) -> tuple[Latents, Tensor]:
    """The latents of a piece after as many steps as gain anything, and their bounds."""
    before = torch.full_like(latents.log_dets, -torch.inf)
    for _ in range(iterations):
        latents, found = improved(piece, theta, latents)
        after = found.value - latents.divergence()
        rounding = torch.finfo(after.dtype).eps * after.abs()
        if (after - before <= tolerance + rounding).all():
            break
        before = after
    return latents, after


def _require(decoder: LinearLikelihood, x: Table, beside: Beside, weights: Tensor | None) -> None:
    if not isinstance(decoder, LinearLikelihood):
        raise IntractableError(f"a fit is for LinearLikelihood, not for {type(decoder).__name__}")
    _require_tensor("x", x)
    if x.shape[1:] != decoder.event_shape or len(x) == 0:
        raise ShapeError(f"expected examples of shape {tuple(decoder.event_shape)}, got {tuple(x.shape)}")
    if decoder.affine.weight.dtype in NARROW:
        raise DomainError(f"the decoder is {decoder.affine.weight.dtype}, too narrow for a fit: call decoder.float()")
    for name, part in beside.parts().items():
        if part is None:
            continue
        _require_tensor(name, part)
        if len(part) != len(x):
            raise ShapeError(f"{name} has {len(part)} rows, and x {len(x)}")
    decoder.require_covariates(beside.covariates)
    if weights is None:
        return
    if weights.shape != x.shape[:1]:
        raise ShapeError(f"weights have shape {tuple(weights.shape)}, expected one per example, {len(x)}")
    if not (weights >= 0).all() or not 0 < float(weights.sum()) < math.inf:
        raise DomainError("weights have to be finite, none of them negative, and not all of them zero")


def _require_tensor(name: str, value: Table) -> None:
    """Refuses arrays of other libraries, whose shapes are none of torch's."""
    if not isinstance(getattr(value, "shape", None), torch.Size):
        raise DomainError(f"{name} has to be a tensor, got {type(value).__name__}: call torch.as_tensor({name})")


def _count(x: Table, mask: Tensor | None, weights: Tensor | None) -> float:
    """The number of observed entries, in examples as they count."""
    per_example = torch.full(x.shape[:1], float(x.shape[1:].numel()))
    if mask is not None:
        per_example = mask.flatten(1).sum(1).to(per_example)
    if weights is not None:
        per_example = per_example * weights.to(per_example)
    return float(per_example.double().sum())
