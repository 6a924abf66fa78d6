r"""A linear decoder whose precision is learned: both mean and precision of every output are functions of z.

With :math:`u = Wz + b` and :math:`g, v = Az + c`, the links are

==========  ================  ==============================  ===================================================
``linear``  variance 1 / v^2  the paper's                     exact but for the log term, see below
``exp``     variance e^-g     exact for every latent family   needs a cumulant generating function, see `tilt`
==========  ================  ==============================  ===================================================

**The logarithm** of the linear link, E[log v^2] from the mean e, variance V and higher cumulants of v, is

=============  =====================================================================================================
``auto``       Gaussian latents, exactly: v is Gaussian, :math:`G_0(e, V)` of :mod:`silentgrad.mathematics.special`;
               others: that form corrected for skewness and kurtosis (Edgeworth's expansion of v's density)
``taylor``     the paper's second-order expansion, :math:`\log E v^2 - \mathrm{Var}(v^2) / 2 (E v^2)^2`
=============  =====================================================================================================

**The square**: write D = x - E u, e = E v. Expanding the product of the residual and v in their joint cumulants,

.. math::
    E[(x-u)^2 v^2] = (D^2 + V_u)(e^2 + V_v) - 4 D e C + 2 C^2 + \kappa_{uuvv} - 2 D \kappa_{uvv} + 2 e \kappa_{uuv}.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.linear import LinearDecoder
from silentgrad.decoders.projection import Projection, project, tilt
from silentgrad.errors import DomainError, IntractableError
from silentgrad.exactness import Exactness
from silentgrad.latents.generating import moments_of
from silentgrad.latents.moments import AnyMoments, JointMoments
from silentgrad.mathematics.special import expected_log_square, log_square_derivatives
from silentgrad.ppca import PrincipalComponents, unexplained_variance

Link = Literal["linear", "exp"]
LogTerm = Literal["auto", "taylor"]
START_PRECISION = 9.0  # v = 3: from v = 0 the gradient of log v^2 explodes


class LinearPrecisionGaussian(LinearDecoder):
    """p(x|z) = N(W z + b, 1 / (A z + c)^2) or, with the exponential link, N(W z + b, exp(-A z - c)).

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        link: "linear" (the paper's) or "exp" (exact for every latent with a cumulant generating function).
        log_term: How the linear link evaluates E[log v^2]: "auto", exactly for Gaussian latents and by Edgeworth's
            expansion for others, or "taylor" (the paper's). The exponential link is always exact.
        noise: Standard deviation of independent noise around x that is integrated out: `expected_log_prob(x, q)` is
            then the expectation of log p(x + noise|z) over both. For the center of one of L levels of width 1/L it is
            1 / (L sqrt 12), and the result a lower bound of the level's log-probability times L.

    Example:
        >>> decoder = LinearPrecisionGaussian(2, (28, 28), link="exp")
        >>> q = td.Bernoulli(torch.full((5, 2), 0.5))
        >>> decoder.expected_log_prob(torch.zeros(5, 28, 28), q).shape
        torch.Size([5])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        link: Link = "linear",
        log_term: LogTerm = "auto",
        noise: float = 0.0,
    ) -> None:
        super().__init__(latent_dim, event_shape)
        for name, value, options in (("link", link, get_args(Link)), ("log_term", log_term, get_args(LogTerm))):
            if value not in options:
                raise DomainError(f"{name} has to be one of {', '.join(options)}; got {value!r}")
        if not 0 <= noise < math.inf:
            raise DomainError(f"noise has to be a standard deviation, got {noise}")
        self.noise = noise
        self.link: Link = link
        self.log_term: LogTerm = log_term
        self.precision_affine = nn.Linear(latent_dim, self.event_shape.numel())
        nn.init.zeros_(self.precision_affine.weight)
        self._start_precision(START_PRECISION)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return super().parameter_groups() | {"precision": list(self.precision_affine.parameters())}

    def forward(self, z: Tensor) -> td.Independent:
        z = self.flatten_latent(z)
        mean, precision = self.affine(z), self.precision_affine(z)
        if self.link == "linear":
            scale = precision.abs().clamp(min=torch.finfo(z.dtype).tiny).reciprocal()
        else:
            scale = torch.exp(-precision / 2)
        normal = td.Normal(mean.unflatten(-1, self.event_shape), scale.unflatten(-1, self.event_shape))
        return td.Independent(normal, len(self.event_shape))

    def exactness(self, q: td.Distribution) -> Exactness:
        """Exact, unless the linear link's log term is Taylor's, or Edgeworth's of latents that are not Gaussian.

        With noise it is no more than a bound: the expectation over the noise too is less than that at x.
        """
        if self.link == "linear" and (self.log_term == "taylor" or not moments_of(q).gaussian):
            return Exactness.APPROXIMATION
        if self.noise:
            return Exactness.LOWER_BOUND
        return Exactness.EXACT

    def extra_repr(self) -> str:
        if self.link == "exp":
            return "link='exp'"
        return f"link='linear', log_term={self.log_term!r}"

    def output_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        if self.link == "linear":
            squares, log_precision = self._linear_link(x, mean, moments)
        else:
            squares, log_precision = self._exp_link(x, mean, moments, q)
        return (log_precision - squares).sub_(math.log(2 * math.pi)).mul_(0.5)  # in place: as large as all leaves

    def _linear_link(self, x: Tensor, mean: Tensor, moments: AnyMoments) -> tuple[Tensor, Tensor]:
        """Return E[(x - u)^2 v^2] and E[log v^2], per output."""
        if isinstance(moments, JointMoments) and not moments.gaussian:
            raise IntractableError("the linear precision link takes independent or Gaussian latents; use link='exp'")
        p = project(moments, mean, self.affine, self.precision_affine)
        if self.noise:
            p = replace(p, var_u=p.var_u + self.noise**2)
        d, e = x - p.mean_u, p.mean_v
        # addcmul(z, x, y) = z + x y, in one pass
        squares = torch.addcmul(p.var_u, d, d) * torch.addcmul(p.var_v, e, e)
        squares = torch.addcmul(squares, p.cov, torch.addcmul(p.cov, d, e, value=-2), value=2)
        if p.k_uuvv is not None:
            squares = squares + p.k_uuvv
        if p.k_uuv is not None and p.k_uvv is not None:
            squares = squares + 2 * (e * p.k_uuv - d * p.k_uvv)
        return squares, _expected_log(e, p, moments.gaussian, self.log_term)

    def _exp_link(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> tuple[Tensor, Tensor]:
        """Return E[(x - u)^2 e^g] and E[g], per output."""
        tilted = tilt(q, moments, mean, self.affine, self.precision_affine)
        residual, variance = x - tilted.mean, tilted.variance
        if self.noise:
            variance = variance + self.noise**2
        squares = tilted.log_mass.exp() * torch.addcmul(variance, residual, residual)
        return squares, tilted.exponent

    def _start_precision(self, precision: float) -> None:
        bias = math.log(precision)
        if self.link == "linear":
            bias = math.sqrt(precision)
        nn.init.constant_(self.precision_affine.bias, bias)

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        super().start_outputs(means, variances, weights)
        with torch.no_grad():
            self.precision_affine.weight.zero_()
            if self.link == "linear":
                self.precision_affine.bias.copy_(variances.rsqrt())
            else:
                self.precision_affine.bias.copy_(-variances.log())

    def start_variance(self, components: PrincipalComponents) -> float:
        """Return what the components left out leave unexplained, on average; it also becomes the constant precision."""
        variance = unexplained_variance(components, self.latent_dim)
        nn.init.zeros_(self.precision_affine.weight)
        self._start_precision(1 / variance)
        return variance


def _expected_log(e: Tensor, p: Projection, gaussian: bool, log_term: LogTerm) -> Tensor:
    """Return E[log v^2], per output."""
    if gaussian and log_term == "auto":
        return expected_log_square(e, p.var_v)  # Edgeworth's corrections are zero
    k3, k4 = (torch.zeros_like(e) if k is None else k for k in (p.k_vvv, p.k_vvvv))
    expansion = taylor if log_term == "taylor" else edgeworth
    return expansion(e, p.var_v, k3, k4)


def edgeworth(e: Tensor, v: Tensor, k3: Tensor, k4: Tensor) -> Tensor:
    """Return G_0 + k3/6 G_3 + k4/24 G_4 + k3^2/72 G_6, or Jensen's bound log E[v^2] where the series breaks it.

    An objective without that bound could be driven to infinity by skewness alone. In units of sqrt(E v^2) every
    quantity is of order one; any constant would do as the unit, so it has no gradient.
    """
    v = _above_zero(v)
    square = e.square() + v
    unit_square = square.detach()
    unit = unit_square.sqrt()
    k3, k4 = k3 / (unit_square * unit), k4 / unit_square.square()
    g = log_square_derivatives(e / unit, v / unit_square, 0, 6)
    series = g[0] + k3 / 6 * g[3] + k4 / 24 * g[4] + k3.square() / 72 * g[6] + unit_square.log()
    bound = square.log()
    breaks = (series > bound) & (v > 1e-3 * square)  # below, both agree to rounding
    return torch.where(breaks, bound, series)


def taylor(e: Tensor, v: Tensor, k3: Tensor, k4: Tensor) -> Tensor:
    """Return the paper's form: log E[v^2] - Var[v^2] / (2 E[v^2]^2)."""
    v = _above_zero(v)
    square = e.square() + v
    variance_of_square = 4 * e.square() * v + 2 * v.square() + k4 + 4 * e * k3
    return square.log() - variance_of_square / (2 * square.square())


def _above_zero(v: Tensor) -> Tensor:
    """Add what no sum would notice, so that a precision of exactly zero has a finite logarithm and gradient."""
    return v + torch.finfo(v.dtype).tiny ** 0.4
