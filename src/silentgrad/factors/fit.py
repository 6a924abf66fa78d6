r"""A deterministic fit of a linear decoder, with a free Gaussian q(z|x) for every example and no encoder.

Nothing in the bound :math:`\sum_n E_{q_n}[\log p(x_n|z)] - D_\mathrm{KL}(q_n \,\|\, N(0, I))` is random, so it can be
climbed to the top. One iteration is

1. Newton's step for every example's q (:mod:`silentgrad.factors.latents`);
2. Newton's step for every output's weights (:mod:`silentgrad.factors.outputs`), and for the likelihood's own
   parameters;
3. an expansion that costs no likelihood (:mod:`silentgrad.factors.expansion`): an affine map of z, with the weights
   that go with it.

With a ridge, a Gaussian prior on the weights W of z, all this climbs the penalized bound, which is the bound less
:math:`\tfrac\lambda2 |W|^2`.

Each alone is slow, since weights and latents hold on to each other; Anderson's acceleration of the iteration is not. A
bound that falls takes the iteration back: to the place without acceleration, or from there to the place before, with a
quarter of the radius of step 2.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.decoders.likelihood import LinearLikelihood
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.factors.latents import Latents, Posterior, first_latents, improved, started
from silentgrad.factors.outputs import CovariateScales, weights_of
from silentgrad.factors.pieces import Piece, RowSource, own_numbers, pieces_of, write_own
from silentgrad.factors.rows import FactorRows, RowSet
from silentgrad.factors.state import Climb
from silentgrad.side_info import SideInfo
from silentgrad.tracing import NARROW

QUIET = 4  # iterations in a row that gain less than the tolerance
Report = Callable[[list[float]], object]  # of a fit's progress: the best bound up to each iteration


@dataclass(frozen=True)
class FactorFit:
    """The end of a fit; the decoder has its weights.

    Args:
        latents: Means, covariances and their determinants of every example's q(z|x), as they are stored.
        elbo: The bound in nats, over all examples.
        converged: Whether the last iterations gained less than the tolerance.
        history: The best bound up to each iteration; with a ridge, the penalized one.
        covariate_errors: Standard errors of the covariates' weights, `(outputs, covariates)`, with the latents held at
            their posteriors: from the curvature of the bound in the weights of each output.
    """

    latents: Latents
    elbo: float
    converged: bool
    history: list[float]
    covariate_errors: Tensor

    @property
    def latent(self) -> td.MultivariateNormal | td.Independent:
        """q(z|x) of every example."""
        return self.latents.distribution()


class Inference(NamedTuple):
    """Latents and bounds of examples under a decoder that is held.

    Args:
        latent: q(z|x) of every example.
        elbo: The bound of each in nats, `(examples,)`, in double precision.
        converged: Whether the steps of each example ended by the tolerance, `(examples,)`.
    """

    latent: td.MultivariateNormal | td.Independent
    elbo: Tensor
    converged: Tensor


def fit_factors(
    decoder: LinearLikelihood,
    x: RowSource,
    *,
    offset: Tensor | None = None,
    covariates: Tensor | None = None,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    tolerance: float = 1e-7,
    iterations: int = 500,
    posterior: Posterior = "full",
    ridge: float = 0.0,
    report: Report | None = None,
) -> FactorFit:
    """Fit a linear decoder and a Gaussian q(z|x) for every example to the whole of the data, without sampling.

    The latents come in the order of how much they move u. Their weights are orthogonal if covariances are full.

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
        posterior: Covariances of the latents: "full", or "diagonal", which takes memory in proportion to their number.
        ridge: Shrinks the latents' weights W: the fit maximizes the bound less `ridge / 2 * |W|^2`, in nats.
        report: Called after every iteration with the best bound up to each; with a ridge, the penalized one.

    Example:
        >>> import silentgrad as sg
        >>> x = td.Poisson(torch.rand(200, 1) * torch.ones(200, 6) * 9).sample()
        >>> decoder = sg.LinearLikelihood(1, 6, sg.likelihoods.Poisson())
        >>> decoder.init_from_data(x)
        >>> fit = fit_factors(decoder, x)
        >>> fit.converged, fit.latent.mean.shape
        (True, torch.Size([200, 1]))
    """
    side_info = SideInfo(offset, covariates, mask)
    return fit_rows(decoder, x, side_info, weights, tolerance, iterations, posterior, ridge, report)


@torch.inference_mode(False)
@torch.no_grad()
def fit_rows(
    decoder: LinearLikelihood,
    x: RowSource,
    side_info: SideInfo,
    weights: Tensor | None,
    tolerance: float,
    iterations: int,
    posterior: Posterior = "full",
    ridge: float = 0.0,
    report: Report | None = None,
    rows_of: Callable[..., RowSet] = FactorRows,
) -> FactorFit:
    """Do what `fit_factors` does, with the rows and their latents where `rows_of` puts them."""
    _require(decoder, x, side_info, weights, posterior)
    if not 0 <= tolerance < math.inf or iterations < 1:
        raise DomainError(f"tolerance and iterations have to be positive, got {tolerance} and {iterations}")
    if not 0 <= ridge < math.inf:
        raise DomainError(f"ridge has to be a finite number from 0 on, got {ridge}")
    with _restoring(decoder), torch.autocast(decoder.affine.weight.device.type, enabled=False):
        scales = CovariateScales.of(side_info.covariates, decoder.affine.weight.double())
        start = decoder.affine.weight.detach(), posterior == "diagonal"
        rows = rows_of(decoder, x, scales.standardized(side_info), weights, *start)
        climb = Climb(decoder, rows, scales, ridge)
        history, converged = climbed(climb, tolerance * _count(x, side_info.mask, weights), iterations, report)
        latents, totals = climb.finish()
        hessian = totals.sums.hessian(decoder.latent_dim) + climb.penalty.diag()
        errors = scales.errors(hessian, decoder.latent_dim)
        return FactorFit(latents, totals.elbo, converged, history, errors)


def climbed(climb: Climb, least: float, iterations: int, report: Report | None) -> tuple[list[float], bool]:
    """Climb until a few iterations in a row gain less than so many nats; return all bounds, and if they did."""
    rounding = torch.finfo(climb.decoder.affine.weight.dtype).eps
    history: list[float] = []
    quiet = 0
    while quiet < QUIET and not climb.stuck and len(history) < iterations:
        before = climb.best
        went_on = climb.advance()
        history.append(climb.best)
        if report is not None:
            report(history)
        small = max(least, rounding * abs(climb.best))
        if climb.best - before > small:
            quiet = 0
        elif went_on:
            quiet += 1
    return history, quiet == QUIET or (climb.stuck and climb.fall <= small)


@contextlib.contextmanager
def _restoring(decoder: LinearLikelihood) -> Iterator[None]:
    """Give the likelihood its parameters back if a fit ends by an error, so that the decoder is as it was."""
    before = own_numbers(decoder)
    try:
        yield
    except BaseException:
        write_own(decoder, before)
        raise


@torch.inference_mode(False)
@torch.no_grad()
def infer_factors(
    decoder: LinearLikelihood,
    x: RowSource,
    *,
    offset: Tensor | None = None,
    covariates: Tensor | None = None,
    mask: Tensor | None = None,
    tolerance: float = 1e-6,
    iterations: int = 100,
    posterior: Posterior = "full",
) -> Inference:
    """Infer the best Gaussian q(z|x) of every example under a decoder that is held: for examples that were not fitted.

    All is found in double precision, whatever the decoder's: the bound of a large count is a small difference of large
    numbers, and a search for its maximum prefers those that rounding has made too large.

    Args:
        decoder: A linear decoder with a likelihood.
        x: Examples `(examples, *event_shape)`.
        offset: As in `fit_factors`, and so are the arguments that follow.
        covariates: Known numbers of each example.
        mask: Which entries were observed.
        tolerance: Nats per example: its steps end when the next one promises less.
        iterations: Number of steps at the most.
        posterior: As in `fit_factors`.
    """
    side_info = SideInfo(offset, covariates, mask)
    _require(decoder, x, side_info, None, posterior)
    if iterations < 1:
        raise DomainError(f"iterations have to be positive, got {iterations}")
    double = copy.deepcopy(decoder).double()
    theta = weights_of(double)
    latents = first_latents(theta[:, : decoder.latent_dim], len(x), posterior == "diagonal")
    elbo = torch.zeros_like(latents.log_dets)
    converged = torch.zeros_like(elbo, dtype=torch.bool)
    with torch.autocast(theta.device.type, enabled=False):
        for piece in pieces_of(double, x, side_info, None):
            base = piece.base()  # first, because it looks at x
            settled = _settled(piece, theta, latents[piece.rows], tolerance, iterations)
            latents.write(piece.rows, settled.latents)
            elbo[piece.rows] = base + settled.bounds
            converged[piece.rows] = settled.converged
    return Inference(latents.distribution(decoder.affine.weight.dtype), elbo, converged)


class _Settled(NamedTuple):
    """The latents of a piece at the end of their steps."""

    latents: Latents
    bounds: Tensor
    converged: Tensor


def _settled(piece: Piece, theta: Tensor, first: Latents, tolerance: float, iterations: int) -> _Settled:
    """Return the latents of a piece after steps from the better of two starts.

    A likelihood's rule that is itself a lower bound may have several maxima. Then both starts are followed.
    """
    other = started(piece, theta, first.dimensions, first.diagonal)
    if other is None:
        return _climbed_from(first, piece, theta, tolerance, iterations)
    if piece.decoder.exactness(first.distribution()) is Exactness.LOWER_BOUND:
        ends = [_climbed_from(start, piece, theta, tolerance, iterations) for start in (first, other)]
        better = ends[1].bounds > ends[0].bounds
        return _Settled(
            ends[1].latents.where(better, ends[0].latents),
            torch.where(better, ends[1].bounds, ends[0].bounds),
            torch.where(better, ends[1].converged, ends[0].converged),
        )
    of_first, of_other = (piece.at(theta, start).value - start.divergence() for start in (first, other))
    return _climbed_from(other.where(of_other > of_first, first), piece, theta, tolerance, iterations)


def _climbed_from(start: Latents, piece: Piece, theta: Tensor, tolerance: float, iterations: int) -> _Settled:
    """Return the latents of a piece after steps from a start, each example's until the next promises too little."""
    latents, bounds = start.copy(), torch.full_like(start.log_dets, -torch.inf)
    climbing = torch.arange(len(bounds), device=bounds.device)
    for _ in range(iterations):
        step = improved(piece.subset(climbing), theta, latents[climbing])
        latents.write(climbing, step.latents)
        bounds[climbing] = step.bounds()
        climbing = climbing[~(step.promised <= tolerance)]
        if len(climbing) == 0:
            break
    converged = torch.ones_like(bounds, dtype=torch.bool)
    converged[climbing] = False
    return _Settled(latents, bounds, converged)


def _require(
    decoder: LinearLikelihood, x: RowSource, side_info: SideInfo, weights: Tensor | None, posterior: Posterior
) -> None:
    if not isinstance(decoder, LinearLikelihood):
        raise IntractableError(f"a fit is for LinearLikelihood, not for {type(decoder).__name__}")
    if posterior not in get_args(Posterior):
        raise DomainError(f"posterior has to be one of {', '.join(get_args(Posterior))}; got {posterior!r}")
    _require_tensor("x", x)
    if x.shape[1:] != decoder.event_shape or len(x) == 0:
        raise ShapeError(f"expected examples of shape {tuple(decoder.event_shape)}, got {tuple(x.shape)}")
    if decoder.affine.weight.dtype in NARROW:
        raise DomainError(f"the decoder is {decoder.affine.weight.dtype}, too narrow for a fit: call decoder.float()")
    for name, part in side_info.parts().items():
        if part is None:
            continue
        _require_tensor(name, part)
        if len(part) != len(x):
            raise ShapeError(f"{name} has {len(part)} rows, and x {len(x)}")
    decoder.require_covariates(side_info.covariates)
    if weights is None:
        return
    if weights.shape != x.shape[:1]:
        raise ShapeError(f"weights have shape {tuple(weights.shape)}, expected one per example, {len(x)}")
    if not (weights >= 0).all() or not 0 < float(weights.sum()) < math.inf:
        raise DomainError("weights have to be finite, none of them negative, and not all of them zero")


def _require_tensor(name: str, value: RowSource) -> None:
    """Refuse arrays of other libraries, whose shapes are none of torch's."""
    if not isinstance(getattr(value, "shape", None), torch.Size):
        raise DomainError(f"{name} has to be a tensor, got {type(value).__name__}: call torch.as_tensor({name})")


def _count(x: RowSource, mask: Tensor | None, weights: Tensor | None) -> float:
    """Return the number of observed entries, in examples as they count."""
    per_example = torch.full(x.shape[:1], float(x.shape[1:].numel()))
    if mask is not None:
        per_example = mask.flatten(1).sum(1).to(per_example)
    if weights is not None:
        per_example = per_example * weights.to(per_example)
    return float(per_example.double().sum())
