r"""What the checks look at: measured when it is first asked for, and then kept.

A subset of the data is encoded once, draws of z are decoded once. Estimates carry standard errors over examples.

**Mutual information.** With the aggregate posterior :math:`q(z) = E_x q(z|x)` of moments m and C, and the prior
:math:`p = N(0, I)`,

.. math:: E_x D(q(z|x) \,\|\, p) = I(x; z) + D(q(z) \,\|\, p), \qquad
    D(q(z) \,\|\, p) = D(N(m, C) \,\|\, p) + \left( H[N(m, C)] - H[q(z)] \right).

The bracket is not negative, so the Gaussian's divergence is a lower bound of the mismatch, and what it leaves of the KL
divergence an upper bound of I; both are exact where q(z) is Gaussian. The mixture of the N encoded examples in place of
q(z) gives a lower bound of I, of at most log N.
"""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.checkup.comparison import Comparison, compared
from silentgrad.checkup.findings import Estimate, estimate
from silentgrad.checkup.noise import estimators_for, gradients
from silentgrad.checkup.subject import Subject, log_prob_of
from silentgrad.decoders import LinearDecoder, LinearGaussian, LinearLikelihood, StandardizedGaussian
from silentgrad.errors import IntractableError, SilentgradError
from silentgrad.latents.families import Family, family_of
from silentgrad.latents.independent import base_of
from silentgrad.likelihoods import Bernoulli
from silentgrad.ppca import leading_components, principal_components

DRAWS = 16  # of z for every example
ACTIVE = 0.01  # nats: a latent whose KL divergence is below that on average is not used, as in the laboratory
FITTED = 1000  # training examples that the linear decoder is fitted to
FEW = 1e-6  # variance below which an output is taken to be constant
REFINED, RATE = 80, 0.05  # steps and learning rate of the refinement of q for every example


class Measurements:
    """Figures of a subject.

    Args:
        subject: The model.
        x: Examples that it is judged on.
        train: Examples that it was trained on; baselines are fitted to them.
        split: "test", or "training" if the model was trained on x too.
        levels: Number of levels of dequantized data, if it was told.
        steps: Number of training steps, if it was told.
    """

    def __init__(
        self, subject: Subject, x: Tensor, train: Tensor, split: str, levels: int | None, steps: int | None
    ) -> None:
        self.subject, self.x, self.train, self.split = subject, x, train, split
        self.levels, self.steps, self.outputs = levels, steps, x[0].numel()

    def __str__(self) -> str:
        sizes = f"{len(self.x)} {self.split} examples of {self.outputs} outputs"
        return f"{sizes}, {self.q.mean[0].numel()} latents" + f" ({self.subject.note})" * bool(self.subject.note)

    @cached_property
    def q(self) -> td.Distribution:
        """q(z|x) of the examples."""
        return self.subject.encoder(self.x)

    @cached_property
    def family(self) -> Family:
        """The family of the latents."""
        return family_of(self.q)

    @cached_property
    def z(self) -> Tensor:
        """Draws `(DRAWS, examples, ...)` of every posterior."""
        return self.q.sample(torch.Size([DRAWS]))

    @cached_property
    def kld_per_latent(self) -> Tensor:
        """KL divergences from the prior, `(examples, latents)`; by the draws where there is no closed form."""
        try:
            return self.subject.prior.divergence_per_latent(self.q)
        except IntractableError:
            ratio = base_of(self.q).log_prob(self.z) - base_of(self.subject.prior()).log_prob(self.z)
            return ratio.mean(0).flatten(1)

    @cached_property
    def kld(self) -> Tensor:
        """KL divergence of each example."""
        try:
            return self.subject.prior.divergence(self.q)
        except IntractableError:
            return self.kld_per_latent.sum(1)

    @cached_property
    def information(self) -> tuple[float, float]:
        """Bounds of the mutual information of x and z in nats, from below and above; see the module."""
        q, p = base_of(self.q), base_of(self.subject.prior())
        if not isinstance(q, td.Normal) or type(p) is not td.Normal or (p.mean != 0).any() or (p.stddev != 1).any():
            raise IntractableError("bounds are known for Gaussian latents under a standard normal prior")
        loc, scale = q.loc.flatten(1).double(), q.scale.flatten(1).double()
        z, precision = loc + scale * torch.randn_like(loc), scale.square().reciprocal()
        # log N(z_i; loc_j, scale_j) of all pairs, by expanded squares: pairs times latents would not fit
        squares = z.square() @ precision.T - 2 * z @ (loc * precision).T + (loc.square() * precision).sum(1)
        pairs = -0.5 * squares - scale.log().sum(1)
        least = (pairs.diagonal() - torch.logsumexp(pairs, 1)).mean() + math.log(len(z))
        mean, covariance = loc.mean(0), torch.atleast_2d(loc.T.cov()) + scale.square().mean(0).diag()
        mismatch = (covariance.trace() + mean.square().sum() - len(mean) - torch.logdet(covariance)) / 2
        return float(least), float(self.kld.double().mean() - mismatch)

    @cached_property
    def p(self) -> td.Distribution:
        """p(x|z) at the first draw of every posterior."""
        return self.subject.decoder.at(self.z[0], self.x)

    @cached_property
    def mean(self) -> Tensor | None:
        """E[x|z] at the first draw, in the shape of x; None if p does not tell."""
        return self._moment("mean")

    @cached_property
    def variance(self) -> Tensor | None:
        """Var[x|z] likewise."""
        return self._moment("variance")

    def _moment(self, name: str) -> Tensor | None:
        try:
            found: Tensor = getattr(self.p, name)
        except (NotImplementedError, AttributeError):
            return None
        return found.reshape(self.x.shape) if found.numel() == self.x.numel() else None

    @property
    def gaussian(self) -> bool:
        """Whether p(x|z) is a Gaussian of independent outputs."""
        return isinstance(base_of(self.p), td.Normal) and self.mean is not None

    @property
    def bits(self) -> bool:
        """Whether p(x|z) is a cross-entropy."""
        return isinstance(base_of(self.p), td.Bernoulli)

    @cached_property
    def fixed_variance(self) -> float | None:
        """The variance of a Gaussian p(x|z), if every output of every example has the same."""
        if not self.gaussian or self.variance is None or self.variance.max() > 1.0001 * self.variance.min():
            return None
        return float(self.variance.flatten()[0])

    @cached_property
    def log_px(self) -> Tensor:
        """log p(x|z) at every draw, `(DRAWS, examples)`."""
        return torch.stack([self.subject.decoder.log_prob(self.x, z) for z in self.z])

    @cached_property
    def elbo(self) -> Tensor:
        """The ELBO of each example, in nats."""
        return self.log_px.mean(0) - self.kld

    @cached_property
    def spacing(self) -> float | None:
        """The distance between neighboring levels of the data, if their values repeat and lie on at most 4096."""
        values = self.x.flatten()[:200_000].unique().double()
        if not 1 < len(values) <= min(4096, self.x.numel() / 4):
            return None
        places = (values - values[0]) / values.diff().min()
        if places[-1] > 4096 or ((places - places.round()).abs() > 0.01).any():
            return None
        return float(values.diff().min())

    @cached_property
    def explained(self) -> float | None:
        """How far the decoder's mean goes from that of the training data, 0, to x, 1: in nats, at its own variance."""
        constant, perfect = self.with_mean(self.train.mean(0).expand_as(self.x)), self.with_mean(self.x)
        if constant is None or perfect is None:
            return None
        return float((self.log_px[0] - constant).mean() / (perfect - constant).mean().clamp(min=FEW))

    def with_mean(self, mean: Tensor) -> Tensor | None:
        """log p of each example under the decoder's distribution with another mean; None for other likelihoods."""
        if self.bits:
            return log_prob_of(td.Bernoulli(mean.clamp(1e-3, 1 - 1e-3)), self.x)
        if self.gaussian and self.variance is not None:
            return log_prob_of(td.Normal(mean, self.variance.sqrt()), self.x)
        return None

    @cached_property
    def of_use(self) -> int | None:
        """Number of principal components whose variance is above the decoder's own: so many a linear VAE would use.

        Outputs are measured in units of the decoder's deviations; a weight of the KL divergence would multiply the
        variance (Lucas et al. 2019, Don't blame the ELBO). None where p has no variance.
        """
        if self.variance is None:
            return None
        scale, most = self.variance.mean(0).clamp(min=FEW).sqrt(), self.kld_per_latent.shape[1]
        return int((leading_components(self.train / scale, most).variances[:most] > 1).sum())

    @cached_property
    def floor(self) -> float:
        """The least variance that densities of the data are given: that within a level, or that of rounding."""
        return self.spacing**2 / 12 if self.spacing else FEW * max(float(self.train.double().var()), FEW)

    @cached_property
    def ppca(self) -> Tensor:
        """log p of each example by probabilistic PCA with as many latents, fitted to the training examples.

        Its variance is the decoder's, if that is fixed, so that the two compare; else the most likely one.
        """
        components, size = principal_components(self.train), min(self.kld_per_latent.shape[1], self.outputs - 1)
        noise = self.fixed_variance or max(float(components.variances[size:].mean()), self.floor)
        spectrum = torch.full_like(components.variances, noise)
        spectrum[:size] = components.variances[:size].clamp(min=noise)
        scores = (self.x.flatten(1).double() - components.mean) @ components.directions
        return -((2 * math.pi * spectrum).log() + scores.square() / spectrum).sum(1) / 2

    @cached_property
    def linear(self) -> Tensor:
        """The ELBO of each example by a linear decoder of the same likelihood, fitted to the encoder as it is.

        The fit descends the closed form of the expectation on the training examples: its gradient is exact.
        """
        x = self.train[:FITTED].double()
        decoder, q = self._linear_decoder().to(x), self._wide(self.subject.encoder(self.train[:FITTED]))
        decoder.init_from_data(x)
        optimizer = torch.optim.LBFGS(decoder.parameters(), max_iter=40, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -decoder.expected_log_prob(x, q).mean()
            loss.backward()
            return loss.detach()

        with torch.enable_grad():
            optimizer.step(closure)
        return decoder.expected_log_prob(self.x.double(), self._wide(self.q)) - self.kld

    def _linear_decoder(self) -> LinearDecoder:
        shape, size = self.x.shape[1:], self.family.shape.numel()
        if self.bits:
            return LinearLikelihood(size, shape, Bernoulli())
        if not self.gaussian:
            raise IntractableError(f"a {type(base_of(self.p)).__name__} likelihood has no linear counterpart here")
        if self.fixed_variance:
            return LinearGaussian(size, shape, self.fixed_variance)
        return StandardizedGaussian(size, shape)

    def _wide(self, q: td.Distribution) -> td.Distribution:
        return self.family.rebuild(q, [part.double() for part in self.family.parameters(q)])

    @cached_property
    def linear_gain(self) -> tuple[Estimate, str]:
        """Nats per example by which the ELBO is above the better linear model, and its name."""
        found = {"probabilistic PCA": self.ppca} if self.gaussian else {}
        try:
            found["a linear decoder on this encoder"] = self.linear
        except SilentgradError:
            if not found:
                raise
        name, best = max(found.items(), key=lambda entry: float(entry[1].mean()))
        return estimate(self.elbo.double() - best), name

    @cached_property
    def amortization(self) -> Estimate:
        """Nats per example that the ELBO gains if each q(z|x) is refined by itself: the gap is at least that."""
        q = base_of(self.q)
        if not isinstance(q, td.Normal):
            raise IntractableError("q is refined where the latents are independent Gaussians")
        refined = [part.clone().requires_grad_() for part in (q.loc, q.scale.log())]
        optimizer = torch.optim.Adam(refined, lr=RATE)
        for step in range(REFINED):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / REFINED)
            with torch.enable_grad():
                loc, scale = refined[0], refined[1].exp()
                z, fixed = loc + scale * torch.randn_like(loc), td.Normal(loc.detach(), scale.detach())
                loss = fixed.log_prob(z).sum() - self.subject.prior.log_prob(z).sum()  # no noise at the optimum, as STL
                loss = loss - self.subject.decoder.log_prob(self.x, z).sum()
                refined[0].grad, refined[1].grad = torch.autograd.grad(loss, refined)
            optimizer.step()
        gains = []
        loc, log_scale = refined
        for noise in torch.randn(DRAWS, *q.loc.shape, dtype=q.loc.dtype).to(q.loc):  # the same before and after
            gains.append(self._elbo(loc, log_scale, noise) - self._elbo(q.loc, q.scale.log(), noise))
        return estimate(torch.stack(gains).mean(0))

    def _elbo(self, loc: Tensor, log_scale: Tensor, noise: Tensor) -> Tensor:
        q = self.family.rebuild(self.q, [loc, log_scale.exp()])
        found: Tensor = self.subject.decoder.log_prob(self.x, loc + log_scale.exp() * noise)
        return found - self.subject.prior.divergence(q)

    @cached_property
    def calibration(self) -> Estimate:
        """The mean square of (x - mean) / deviation."""
        errors: Any = self.x - self.mean  # type: ignore[operator]
        return estimate((errors.square() / self.variance).flatten(1).mean(1))

    @cached_property
    def comparison(self) -> Comparison:
        """The bound beside models without latents."""
        return compared(self)

    @cached_property
    def gradients(self) -> dict[str, Any]:
        """The variance of the encoder's gradient by its own estimator, first, and by others that suit its latents."""
        return gradients(self.subject, self.train, estimators_for(self.q, self.subject.estimator))
