r"""A linear decoder with any likelihood of one linear parameter per output, u = W z + b + C c + o.

Covariates c have weights C of their own, an offset o has none. For Gaussian latents u is Gaussian, with mean
:math:`W m + b + C c + o` and variance :math:`W^2 s_2`, and
:func:`silentgrad.likelihoods.expected_log_prob` integrates over it. A likelihood that declares to need less than all of
u's distribution takes other latents too: the mean and variance of u, or :math:`E u` and :math:`\log E[e^u]`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.linear import ClosedForm, LinearDecoder
from silentgrad.decoders.projection import tilt, variance_of
from silentgrad.decoders.starts import start_linear_likelihood, u_at_mean_of
from silentgrad.errors import IntractableError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.generating import moments_of
from silentgrad.latents.independent import base_of
from silentgrad.latents.moments import AnyMoments
from silentgrad.likelihoods import LocationScale, Needs, exactness_of, expected_log_prob, needs_of
from silentgrad.likelihoods.base import Likelihood, from_generating_function, sign_of, with_tensors
from silentgrad.ppca import PrincipalComponents, unexplained_variance
from silentgrad.side_info import NOTHING, SideInfo
from silentgrad.tracing import widened

IMPOSSIBLE = -1e30  # u of a category that was not observed: no sum of exponentials notices it


class LinearLikelihood(LinearDecoder):
    """p(x|z) = likelihood(W z + b), and with covariates c and an offset, likelihood(W z + b + C c + offset).

    Args:
        latent_dim: Number of latents.
        event_shape: Shape of one example.
        likelihood: From u to the distribution of x, elementwise: of `silentgrad.likelihoods`, or any callable.
        nodes: Number of nodes of the quadrature, for a likelihood without a rule of its own.
        covariates: Number of covariates of each example, to be given with x.

    Example:
        >>> from silentgrad.likelihoods import NegativeBinomial
        >>> decoder = LinearLikelihood(2, 50, NegativeBinomial(50))
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> log_size = torch.zeros(5)
        >>> decoder.expected_log_prob(torch.ones(5, 50), q, offset=log_size).shape
        torch.Size([5])
    """

    def __init__(
        self,
        latent_dim: int,
        event_shape: int | Sequence[int],
        likelihood: Likelihood,
        nodes: int = 32,
        covariates: int = 0,
    ) -> None:
        super().__init__(latent_dim, event_shape)
        _require_shapes(likelihood, self.event_shape)
        self.likelihood = likelihood
        self.nodes = nodes
        self.covariate_affine: nn.Linear | None = None
        if covariates:
            self.covariate_affine = nn.Linear(covariates, self.event_shape.numel(), bias=False)
            nn.init.zeros_(self.covariate_affine.weight)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups() | {"precision": own_parameters(self.likelihood)}
        if self.covariate_affine is not None:
            groups["mean"] += self.covariate_affine.parameters()
        return groups

    @property
    def neutral(self) -> float:  # type: ignore[override]
        """A number that x can be, which stands where an entry was not observed."""
        neutral: float = getattr(self.likelihood, "neutral", 0.0)
        return neutral

    def forward(self, z: Tensor) -> td.Independent:
        return self.decode(z, NOTHING)

    def _decoded(self, z: Tensor, known: SideInfo) -> td.Independent:
        u = self._possible(self.affine(z) + self._shift(known), known.mask, IMPOSSIBLE)
        decoded = self._likelihood_given(known.scale)(u.unflatten(-1, self.event_shape))
        return td.Independent(decoded, len(self.event_shape) - len(decoded.event_shape))

    def given_form(self, output_form: ClosedForm, side_info: SideInfo) -> ClosedForm:
        def form(x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
            known = self.known(side_info, mean.shape[:-1])
            x = known.observed(x, self.neutral)
            return self._total(self._outputs(x, mean, moments, q, known), known)

        return form

    def output_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        return self._flat(self._outputs(x, mean, moments, q, NOTHING))

    def _outputs(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution, side_info: SideInfo) -> Tensor:
        """Return E_q[log p(x_o|z)] in the likelihood's shape, given side information, flattened."""
        shift = self._shift(side_info)
        likelihood = self._likelihood_given(side_info.scale)
        if not moments.gaussian and _needs_beyond_gaussian(self.likelihood, q) is Needs.GENERATING_FUNCTION:
            sign = sign_of(self.likelihood)
            exponent = self.affine
            if sign < 0:
                exponent = with_tensors(exponent, weight=-exponent.weight, bias=-exponent.bias)
            tilted = tilt(q, moments, mean, exponent, exponent)
            of_u, log_mass = sign * tilted.exponent + shift, tilted.log_mass + sign * shift
            log_mass = self._possible(log_mass, side_info.mask, IMPOSSIBLE)
            return from_generating_function(likelihood, *self._unflattened(x, of_u, log_mass))
        of_u = self._possible(self.affine(mean) + shift, side_info.mask, IMPOSSIBLE)
        variance = self._possible(variance_of(self.affine, moments, mean), side_info.mask, 0.0)
        return expected_log_prob(likelihood, *self._unflattened(x, of_u, variance), self.nodes)

    def _possible(self, numbers: Tensor, mask: Tensor | None, otherwise: float) -> Tensor:
        """Return the numbers, with another one for categories that were not observed, if a row is one event of many."""
        if mask is None or not self.joint:
            return numbers
        return torch.where(mask, numbers, otherwise)

    def _shift(self, side_info: SideInfo) -> Tensor | float:
        """Return what is added to W z + b."""
        side_info.require_none(type(self).__name__, "context")
        shift: Tensor | float = 0.0
        if side_info.offset is not None:
            shift = side_info.offset
        self.require_covariates(side_info.covariates)
        if side_info.covariates is not None and self.covariate_affine is not None:
            shift = shift + self.covariate_affine(side_info.covariates)
        return shift

    def require_covariates(self, covariates: Tensor | None) -> None:
        """Refuse covariates that the decoder has no weights for, and their absence where it has."""
        expected = 0
        if self.covariate_affine is not None:
            expected = self.covariate_affine.in_features
        given = 0
        if covariates is not None:
            given = covariates.shape[-1]
        if given and not expected:
            raise ShapeError("the decoder has no weights for covariates: build it with covariates=...")
        if expected and covariates is None:
            raise ShapeError(f"the decoder was built for {expected} covariates, and none were given")
        if given != expected:
            raise ShapeError(f"the decoder was built for {expected} covariates, and {given} were given")

    def _likelihood_given(self, scale: Tensor | None) -> Likelihood:
        """Return the likelihood, with known standard deviations of the entries' measurements."""
        if scale is None:
            return self.likelihood
        with_scale = getattr(self.likelihood, "with_scale", None)
        if with_scale is None:
            raise IntractableError(
                f"{type(self.likelihood).__name__} takes no known scale of entries: sg.likelihoods.Normal does"
            )
        likelihood: Likelihood = with_scale(scale.unflatten(-1, self.event_shape))
        return likelihood

    @property
    def joint(self) -> int:  # type: ignore[override]
        """Return the number of an example's last dimensions that have one probability together."""
        dimensions: int = getattr(self.likelihood, "event_dim", 0)
        return dimensions

    def _unflattened(self, x: Tensor, of_u: Tensor, more_of_u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return all in the shape of an example, that of the parameters a likelihood may have for each output."""
        shape = self.event_shape
        return x.unflatten(-1, shape), of_u.unflatten(-1, shape), more_of_u.unflatten(-1, shape)

    def exactness(self, q: td.Distribution) -> Exactness:
        """Return what the likelihood declares; plain quadrature is an approximation."""
        return exactness_of(self.likelihood)

    def statistics(self, x: Tensor, z: Tensor) -> list[Tensor]:
        """Return u itself, `(*batch, outputs)`."""
        return [self.affine(self.flatten_latent(z, self.examples_of(x)))]

    def expected_statistics(self, x: Tensor, q: td.Distribution) -> list[Tensor]:
        """E u, which is linear in the mean of every latent."""
        return self.statistics(x, widened(moments_of(q).mean))

    def log_prob_from(self, x: Tensor, statistics: Sequence[Tensor]) -> Tensor:
        """Return log p(x|u), one number per example."""
        (u,) = statistics
        return self._total(self.likelihood(u.unflatten(-1, self.event_shape)).log_prob(x), NOTHING)

    def init_from_data(
        self,
        data: Tensor,
        method: str = "ppca",
        prior: td.Distribution | None = None,
        *,
        offset: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Start from data like every linear decoder; where u is not the mean of x, to first order in z.

        A likelihood that has a rough u for every entry starts with the principal components of these.

        Args:
            data: Examples `(examples, *event_shape)`.
            method: "mean" or "ppca", as in `LinearDecoder.init_from_data`.
            prior: p(z); N(0, 1) if absent.
            offset: Known part of u, as in `expected_log_prob`.
            mask: Which entries were observed; the others start at the mean of their output.
        """
        if data.shape[1:] != self.event_shape:
            raise ShapeError(f"expected examples of shape {tuple(self.event_shape)}, got {tuple(data.shape[1:])}")
        start_linear_likelihood(self, data, method, prior, SideInfo(offset=offset, mask=mask))

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        u, slope = u_at_mean_of(self.likelihood)(means.unflatten(0, self.event_shape))
        slope = slope.flatten()
        super().start_outputs(u.flatten(), variances, weights * slope.unsqueeze(-1))
        if isinstance(self.likelihood, LocationScale):
            log_scale = self.likelihood.log_scale
            wanted = (variances * slope.square() / self.likelihood.unit_variance).log() / 2
            with torch.no_grad():
                if log_scale.dim() == 0:
                    wanted = wanted.mean()
                log_scale.copy_(wanted.reshape(log_scale.shape))

    def start_variance(self, components: PrincipalComponents) -> float:
        variance = unexplained_variance(components, self.latent_dim)
        if isinstance(self.likelihood, LocationScale):
            self.likelihood.start(variance)
        return variance


def _require_shapes(likelihood: Likelihood, event_shape: torch.Size) -> None:
    """Refuse a likelihood whose parameters are made for examples of another shape."""
    if not isinstance(likelihood, nn.Module):
        return
    for name, parameter in likelihood.named_parameters():
        shape = parameter.shape[: len(event_shape)]
        if parameter.dim() > 0 and shape != event_shape:
            raise ShapeError(
                f"{type(likelihood).__name__}'s {name} is for examples of shape {tuple(shape)}, the decoder's are "
                f"{tuple(event_shape)}"
            )


def _needs_beyond_gaussian(likelihood: Likelihood, q: td.Distribution) -> Needs:
    """Return what a likelihood needs of a u that is not Gaussian; raise if it has to be."""
    needs = needs_of(likelihood)
    if needs is Needs.GAUSSIAN:
        raise IntractableError(
            f"u = Wz + b is not Gaussian for {type(base_of(q)).__name__} latents, so this likelihood's expectation is "
            "not an integral over one number: use Gaussian latents, a likelihood whose `needs` are less, as those of "
            "Normal and Poisson, or LinearGaussian"
        )
    return needs


def own_parameters(likelihood: object) -> list[nn.Parameter]:
    """Return the parameters of a likelihood, such as its dispersions."""
    if isinstance(likelihood, nn.Module):
        return list(likelihood.parameters())
    return []
