"""Shapes, checks and starts of all linear decoders."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.checks import event_of, flattened_latent, require_dtype, require_number, require_wide
from silentgrad.decoders.protocol import Given
from silentgrad.errors import DomainError, IntractableError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.latents.generating import moments_of
from silentgrad.latents.moments import AnyMoments, variance_in
from silentgrad.ppca import PrincipalComponents, leading_components, ppca_weights
from silentgrad.side_info import NOTHING, SideInfo
from silentgrad.tracing import widened, widened_latent

ClosedForm = Callable[[Tensor, Tensor, AnyMoments, td.Distribution], Tensor]


class LinearDecoder(nn.Module):
    """p(x|z) whose mean is u = W z + b, one per output. `decoder(z)` is the distribution of x.

    A decoder of your own adds `forward`, `exactness`, one of `output_form` and `closed_form` and, to start from pPCA,
    `start_variance`.
    """

    neutral: float = 0.0  # a number that x can be, which stands where an entry was not observed
    joint: int = 0  # number of an example's last dimensions that have one probability together

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int]) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.event_shape = event_of(event_shape)
        if latent_dim < 1:
            raise ShapeError(f"latent_dim has to be positive, got {latent_dim}")
        self.affine = nn.Linear(latent_dim, self.event_shape.numel())

    def forward(self, z: Tensor) -> td.Independent:
        """p(x|z) for latents of shape `(*batch, latent_dim)`."""
        raise NotImplementedError

    def expected_log_prob(
        self,
        x: Tensor,
        q: td.Distribution,
        *,
        offset: Tensor | None = None,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Return E_q[log p(x|z)] in closed form, one number per example.

        Args:
            x: Examples `(*batch, *event_shape)`.
            q: Their latents, `latent_dim` numbers each, of any registered family.
            offset: Known part of u, which is the mean of x unless the decoder says otherwise: one number per example,
                `(*batch,)`, or one per entry, in the shape of x.
            covariates: Known numbers of each example, `(*batch, covariates)`, for a decoder that has weights for them.
            mask: Which entries were observed, in the shape of x; the others take no part and may be anything.
            scale: Known standard deviation of each entry's measurement, in the shape of x, for a likelihood that
                takes it.

        Inputs in half precision, as autocast makes them, are widened to single; nothing is computed in half.

        Raises:
            IntractableError: There is no closed form for this latent.
            ShapeError, DomainError: `x` and `q` do not fit each other or the decoder, or hold NaN.
        """
        return self.expected_log_prob_given(x, q, SideInfo(offset, covariates, mask, scale))

    def expected_log_prob_given(self, x: Tensor, q: td.Distribution, side_info: SideInfo) -> Tensor:
        """Return E_q[log p(x|z)] as `expected_log_prob` has it, with side information as one object."""
        if not side_info:
            return self.evaluate(self.closed_form, x, q)
        return self.evaluate(self.given_form(self.output_form, side_info), x, q)

    def given(self, side_info: SideInfo) -> "Given | Self":
        """p(x|z) given side information: a decoder of this batch, like any other."""
        return Given(self, side_info)

    def given_form(self, output_form: ClosedForm, side_info: SideInfo) -> ClosedForm:
        """Return the closed form of one number per example given side information, from that of the outputs."""
        side_info.require_none(type(self).__name__, "covariates", "scale", "context")

        def form(x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
            known = self.known(side_info, mean.shape[:-1])
            x = known.observed(x, self.neutral)
            if known.offset is not None:
                x = x - known.offset  # u is the location of x
            return known.total(output_form(x, mean, moments, q))

        return form

    def known(self, side_info: SideInfo, examples: torch.Size) -> SideInfo:
        """Return side information checked, flattened, and in the decoder's precision."""
        return side_info.flattened(examples, self.event_shape).to(self.affine.weight)

    def decode(self, z: Tensor, side_info: SideInfo) -> td.Independent:
        """p(x|z) given side information; which entries were observed makes no difference to it."""
        z, side_info = self.flatten_latent(z), replace(side_info, mask=None)
        return self._decoded(z, side_info.under(z.shape[:-1], self.event_shape).to(self.affine.weight))

    def _decoded(self, z: Tensor, known: SideInfo) -> td.Independent:
        """p(x|z) for latents `(*batch, latent_dim)` given side information, flattened."""
        known.require_none(type(self).__name__, "covariates", "scale", "context")
        decoded = self(z)
        if known.offset is None:
            return decoded
        normal = decoded.base_dist
        mean = (normal.loc.flatten(-len(self.event_shape)) + known.offset).unflatten(-1, self.event_shape)
        return td.Independent(td.Normal(mean, normal.scale, validate_args=False), len(self.event_shape))

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        """Return E_q[log p(x_o|z)] of every output, `(*batch, outputs)`; otherwise as `expected_log_prob`.

        That the results are numbers is for the caller to check, who may have fewer of them to look at.
        """
        return self.evaluate(self.output_form, x, q, checked=False)

    def exactness(self, q: td.Distribution) -> Exactness:
        """Return what `expected_log_prob` is for latents of this kind: exact, a lower bound or an approximation."""
        raise NotImplementedError

    def evaluate(self, closed_form: ClosedForm, x: Tensor, q: td.Distribution, checked: bool = True) -> Tensor:
        """Evaluate a closed form on inputs brought to their precision and shape, and check them."""
        with torch.autocast(x.device.type, enabled=False):
            return self._evaluate(closed_form, widened(x), widened_latent(q), checked)

    def _evaluate(self, closed_form: ClosedForm, x: Tensor, q: td.Distribution, checked: bool) -> Tensor:
        require_wide(self.affine.weight.dtype)
        moments = moments_of(q)
        mean = self.flatten_latent(moments.mean, self.examples_of(x))
        self.require_dtype("the latent's variance", variance_in(moments))
        flat = self._flatten_event(x, mean)
        result = closed_form(flat, mean, moments, q)
        if checked:
            inputs = {"x": x, "the latent": mean, **dict(self.named_parameters(prefix="decoder"))}
            require_number(result, inputs)
        return result

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x|z), one number per example, for latents laid out in whatever way q has them."""
        return self.log_prob_given(x, z, NOTHING)

    def log_prob_given(self, x: Tensor, z: Tensor, side_info: SideInfo) -> Tensor:
        """Return log p(x|z) over the observed entries given side information, one number per example."""
        z = self.flatten_latent(z, self.examples_of(x))
        self.require_dtype("x", x)
        if not side_info:
            return self._total(self(z).base_dist.log_prob(x), NOTHING)
        known = self.known(side_info, self.examples_of(x))
        x = known.observed(x.flatten(-len(self.event_shape)), self.neutral).unflatten(-1, self.event_shape)
        return self._total(self._decoded(z, known).base_dist.log_prob(x), known)

    def _flat(self, outputs: Tensor) -> Tensor:
        """Return log-probabilities of outputs, or of those that have one together, in one dimension."""
        dimensions = len(self.event_shape) - self.joint
        if dimensions == 0:
            return outputs.unsqueeze(-1)
        return outputs.flatten(-dimensions)

    def _total(self, outputs: Tensor, known: SideInfo) -> Tensor:
        """Return the sum of log-probabilities over observed outputs; `Independent` cannot sum over no examples."""
        if self.joint:
            return self._flat(outputs).sum(-1)  # what was not observed has no part in them
        return known.total(self._flat(outputs))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that may have learning rates of their own: of the mean, of the precision."""
        return {"mean": list(self.affine.parameters())}

    def init_from_data(self, data: Tensor, method: str = "ppca", prior: td.Distribution | None = None) -> None:
        """Start the mean from data `(examples, *event_shape)`.

        Args:
            data: Examples as the model sees them.
            method: "mean" sets the bias to the mean example; "ppca" also the weights to those of probabilistic PCA.
            prior: p(z), or that of one latent, so that x has pPCA's mean and, if latents are independent, covariance
                under it; N(0, 1) if absent.
        """
        if method not in ("mean", "ppca"):
            raise DomainError(f'method has to be "mean" or "ppca", got {method!r}')
        if data.shape[1:] != self.event_shape:
            own, given = tuple(self.event_shape), tuple(data.shape[1:])
            alike = f": pass data.reshape(-1, *{own}), or event_shape={given}"
            raise ShapeError(
                f"expected examples of shape {own}, got {given}{alike * (math.prod(given) == math.prod(own))}"
            )
        components = leading_components(data, self.latent_dim)
        with torch.no_grad():
            if method == "ppca":
                variance = self.start_variance(components)
                weights = ppca_weights(components, self.latent_dim, variance)
                if prior is not None:
                    weights = weights / prior.stddev.flatten().to(weights)
                self.affine.weight.copy_(weights)
            self.affine.bias.copy_(components.mean - self.shift(prior))

    def fit(self, data: Tensor, q: td.Distribution, steps: int = 40) -> None:
        """Fit the decoder to latents as they are: start from data, then maximize E_q[log p(x|z)], by L-BFGS.

        Args:
            data: Examples as the model sees them.
            q: Their latents, which are left as they are.
            steps: Iterations, at most.
        """
        self.init_from_data(data)
        optimizer = torch.optim.LBFGS(self.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -self.expected_log_prob(data, q).mean()
            loss.backward()
            return loss.detach()

        with torch.enable_grad():
            optimizer.step(closure)
        optimizer.zero_grad()

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Start every output by itself, as a leaf of a circuit does.

        Args:
            means: The mean of each output at z = 0, `(outputs,)`.
            variances: The variance of each output around its mean.
            weights: The mean's derivative in z, `(outputs, latent_dim)`.
        """
        with torch.no_grad():
            self.affine.bias.copy_(means)
            self.affine.weight.copy_(weights)

    def shift(self, prior: td.Distribution | None) -> Tensor:
        """Return the mean of W z under a prior; zero under N(0, 1), which None stands for."""
        if prior is None:
            return torch.zeros_like(self.affine.bias)
        weight = self.affine.weight
        return weight @ prior.mean.flatten().to(weight).expand(self.latent_dim)

    def closed_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        """Return E_q[log p(x|z)], `(*batch,)`, once shapes were checked.

        Args:
            x: Examples `(*batch, outputs)`.
            mean: Mean of the latents, `(*batch, latent_dim)`.
            moments: Moments of the latents, in q's own shape.
            q: The latents, for forms that need more than moments.
        """
        return self.output_form(x, mean, moments, q).sum(-1)

    def output_form(self, x: Tensor, mean: Tensor, moments: AnyMoments, q: td.Distribution) -> Tensor:
        """Return E_q[log p(x_o|z)] of every output, `(*batch, outputs)`, from the same as `closed_form`."""
        raise IntractableError(f"{type(self).__name__} knows no expectation of a single output's log-probability")

    def start_variance(self, components: PrincipalComponents) -> float:
        """Return the variance with which `init_from_data` computes pPCA's weights; sets the decoder's own to it."""
        raise NotImplementedError

    def flatten_latent(self, z: Tensor, examples: torch.Size | None = None) -> Tensor:
        """Merge the dimensions of z that hold one example's latents: `(*batch, groups, categories)` will do.

        Those are all beyond the shape of the examples, where it is known and z has it; otherwise as many trailing ones
        as hold `latent_dim` numbers.
        """
        self.require_dtype("the latent", z)
        return flattened_latent(z, self.latent_dim, examples)

    def examples_of(self, x: Tensor) -> torch.Size:
        """Return the shape of the examples in x, `(*batch,)`."""
        return x.shape[: max(0, x.dim() - len(self.event_shape))]

    def _flatten_event(self, x: Tensor, mean: Tensor) -> Tensor:
        expected = mean.shape[:-1] + self.event_shape
        if x.shape != expected:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}; with latents of shape {tuple(mean.shape)} and "
                f"event_shape {tuple(self.event_shape)} it has to be {tuple(expected)}"
            )
        if not x.is_floating_point():
            raise DomainError(f"x has to be floating point, got {x.dtype}: dequantize or scale it first")
        self.require_dtype("x", x)
        return x.flatten(mean.dim() - 1)

    def require_dtype(self, name: str, value: Tensor) -> None:
        """Raise if a value has another precision than the decoder's, unless autocast is to mix them."""
        require_dtype(name, value, self.affine.weight.dtype)
