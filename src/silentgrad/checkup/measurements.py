r"""Figures that the checks look at: measured when it is first asked for, and then kept.

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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Decomposition
from silentgrad.analysis.variance import seeded
from silentgrad.baselines import baselines, bits_per_dim, dequantization_floor
from silentgrad.checkup.findings import Estimate, Finding, estimate
from silentgrad.checkup.noise import encoder_noise
from silentgrad.checkup.subject import Subject, log_prob_of
from silentgrad.errors import IntractableError, SilentgradError
from silentgrad.estimators import STL, Averaged, Reparameterized
from silentgrad.guide import SilentGuide
from silentgrad.latents.families import family_of
from silentgrad.latents.independent import base_of
from silentgrad.likelihoods import Bernoulli
from silentgrad.objective import Term
from silentgrad.ppca import leading_components, ppca_weights, principal_components
from silentgrad.schedules import constant

DRAWS = 16  # of z for every example
ACTIVE = 0.01  # nats: a latent whose KL divergence is below that on average is not used, as in the laboratory
FITTED = 1000  # training examples that the linear decoder is fitted to
FEW = 1e-6  # variance below which an output is taken to be constant
REFINED, RATE = 80, 0.05  # steps and learning rate of the refinement of q for every example
NEAR = 0.05  # bits above the floor of dequantization


class Compared(NamedTuple):
    """Figure of which less is better, and those of models without latents in the same unit."""

    figure: Estimate
    unit: str
    baselines: dict[str, float]
    at_floor: bool = False

    @property
    def independent(self) -> float:
        """The figure of the best model of independent outputs; infinity if there is none."""
        return min(self.baselines.get(name, math.inf) for name in ("histogram", "gaussian"))


class Measurements:
    """Figures of a subject on examples x, "test" ones or "training" ones; baselines are fitted to `train`.

    Numbers of levels and of training steps are those that were told, if any.
    """

    def __init__(
        self, subject: Subject, x: Tensor, train: Tensor, split: str, levels: int | None, steps: int | None
    ) -> None:
        self.subject, self.x, self.train, self.split = subject, x, train, split
        self.levels, self.steps, self.outputs = levels, steps, x[0].numel()
        self.q = subject.encoder(x)
        self.found: dict[str, Finding] = {}

    def off(self, name: str) -> bool:
        """Return whether a check has found something."""
        return name in self.found and self.found[name].verdict != "fine"

    def __str__(self) -> str:
        sizes = f"{len(self.x)} {self.split} examples of {self.outputs} outputs"
        return f"{sizes}, {self.q.mean[0].numel()} latents" + f" ({self.subject.note})" * bool(self.subject.note)

    @cached_property
    def z(self) -> Tensor:
        """Draws `(DRAWS, examples, ...)` of every posterior."""
        return self.q.sample(torch.Size([DRAWS]))

    @cached_property
    def kld_per_latent(self) -> Tensor:
        """KL divergences from the prior, `(examples, latents)`."""
        return self.subject.prior.divergence_per_latent(self.q)

    @cached_property
    def kld(self) -> Tensor:
        """KL divergence of each example."""
        return self.subject.prior.divergence(self.q)

    @cached_property
    def information(self) -> tuple[float, float]:
        """Bounds of the mutual information of x and z in nats, from below and above; see the module."""
        q, p = base_of(self.q), base_of(self.subject.prior())
        if not isinstance(q, td.Normal) or not isinstance(p, td.Normal) or (p.mean != 0).any() or (p.stddev != 1).any():
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
        """Distribution of x given the first draw of every posterior."""
        return self.subject.decoder.at(self.z[0], self.x)

    @property
    def mean(self) -> Tensor:
        """Mean of p, in the shape of x."""
        return self.p.mean.reshape(self.x.shape)

    @property
    def variance(self) -> Tensor:
        """Variance likewise."""
        return self.p.variance.reshape(self.x.shape)

    @property
    def gaussian(self) -> bool:
        """True if p(x|z) is a Gaussian of independent outputs."""
        return isinstance(base_of(self.p), td.Normal)

    @property
    def bits(self) -> bool:
        """True if p(x|z) is a cross-entropy."""
        return isinstance(base_of(self.p), td.Bernoulli)

    @cached_property
    def fixed_variance(self) -> float | None:
        """The variance of a Gaussian p(x|z), if every output of every example has the same."""
        same = self.gaussian and self.variance.max() <= 1.0001 * self.variance.min()
        return float(self.variance.flatten()[0]) if same else None

    @cached_property
    def log_px(self) -> Tensor:
        """Values of log p(x|z) at every draw, `(DRAWS, examples)`."""
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
        on_levels = places[-1] <= 4096 and ((places - places.round()).abs() <= 0.01).all()
        return float(values.diff().min()) if on_levels else None

    @cached_property
    def floor(self) -> float:
        """The least variance that densities of the data are given: that within a level, or that of rounding."""
        return self.spacing**2 / 12 if self.spacing else FEW * max(float(self.train.double().var()), FEW)

    def with_mean(self, mean: Tensor) -> Tensor | None:
        """Return log p of each example under the decoder's distribution with another mean; None of other laws."""
        if self.bits:
            return log_prob_of(td.Bernoulli(mean.clamp(1e-3, 1 - 1e-3)), self.x)
        return log_prob_of(td.Normal(mean, self.variance.sqrt()), self.x) if self.gaussian else None

    @cached_property
    def explained(self) -> float | None:
        """Way of the decoder's mean from that of the training data, 0, to x, 1: in nats, at its own variance."""
        constant, perfect = self.with_mean(self.train.mean(0).expand_as(self.x)), self.with_mean(self.x)
        if constant is None or perfect is None:
            return None
        return float((self.log_px[0] - constant).mean() / (perfect - constant).mean().clamp(min=FEW))

    @cached_property
    def of_use(self) -> int | None:
        """Number of principal components above the decoder's own variance: so many a linear VAE would use.

        Outputs are in units of the decoder's deviations (Lucas et al. 2019, Don't blame the ELBO).
        """
        try:
            scale, most = self.variance.mean(0).clamp(min=FEW).sqrt(), self.kld_per_latent.shape[1]
        except NotImplementedError:
            return None
        return int((leading_components(self.train / scale, most).variances[:most] > 1).sum())

    @cached_property
    def ppca(self) -> Tensor:
        """Values of log p of each example by probabilistic PCA with as many latents, fitted to the training examples.

        Its variance is the decoder's, if that is fixed, so that the two compare; else the most likely one.
        """
        components, size = principal_components(self.train), min(self.kld_per_latent.shape[1], self.outputs - 1)
        noise = self.fixed_variance or max(float(components.variances[size:].mean()), self.floor)
        weights = ppca_weights(components, size, noise)
        p = td.LowRankMultivariateNormal(components.mean, weights, torch.full_like(components.mean, noise))
        return p.log_prob(self.x.flatten(1).double())

    @cached_property
    def linear(self) -> Tensor:
        """The ELBO of each example by a linear decoder of the same likelihood, fitted to the encoder as it is.

        The fit descends the closed form of the expectation on the training examples: its gradient is exact.
        """
        if not self.bits and not self.gaussian:
            raise IntractableError(f"a {type(base_of(self.p)).__name__} likelihood has no linear counterpart here")
        options: dict[str, Any] = {"likelihood": Bernoulli()} if self.bits else {"variance": self.fixed_variance}
        x = self.train[:FITTED].double()
        guide = SilentGuide(self.z[0, 0].numel(), x.shape[1:], constant(1.0), check=False, **options).to(x)
        guide.init_from_data(x)
        decoder, q = guide.decoder, self._wide(self.subject.encoder(self.train[:FITTED]))
        optimizer = torch.optim.LBFGS(decoder.parameters(), max_iter=40, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -decoder.expected_log_prob(x, q).mean()
            loss.backward()
            return loss.detach()

        with torch.enable_grad():
            optimizer.step(closure)
        return decoder.expected_log_prob(self.x.double(), self._wide(self.q)) - self.kld

    def _wide(self, q: td.Distribution) -> td.Distribution:
        family = family_of(q)
        return family.rebuild(q, [part.double() for part in family.parameters(q)])

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
        q, prior = base_of(self.q), self.subject.prior
        if not isinstance(q, td.Normal):
            raise IntractableError("q is refined where the latents are independent Gaussians")
        loc, log_scale = refined = [part.clone().requires_grad_() for part in (q.loc, q.scale.log())]
        term = Term(self.subject.decoder, STL())  # whose gradient has no noise at the optimum
        optimizer = torch.optim.Adam(refined, lr=RATE)
        for step in range(REFINED):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / REFINED)
            with torch.enable_grad():
                own = family_of(q).rebuild(self.q, [loc, log_scale.exp()])
                loss = (term.loss(self.x, own, prior) + prior.divergence(own)).sum()
            loc.grad, log_scale.grad = torch.autograd.grad(loss, refined)
            optimizer.step()
        return estimate(self._elbo(family_of(q).rebuild(self.q, [loc, log_scale.exp()])) - self._elbo(self.q))

    def _elbo(self, q: td.Distribution) -> Tensor:
        """Return the ELBO of each example by draws that are the same for every q."""
        with seeded(0, self.x.device):
            loss = Term(self.subject.decoder, Averaged(Reparameterized(), DRAWS)).loss(self.x, q)
        return -loss - self.subject.prior.divergence(q)

    @cached_property
    def calibration(self) -> Estimate:
        """The mean square of (x - mean) / deviation."""
        return estimate(((self.x - self.mean).square() / self.variance).flatten(1).mean(1))

    @cached_property
    def comparison(self) -> Compared:
        """The bound beside models without latents, fitted to the training examples.

        In bits per dimension where p(x|z) is a probability of levels or a density of dequantized ones, else in nats.
        """
        bound, levels = estimate(self.elbo), self.levels
        whole = bool((self.x == self.x.round()).all() and self.x.min() >= 0)
        try:
            discrete = self.p.support is not None and self.p.support.is_discrete
        except NotImplementedError:  # one that does not say what it is of is of what the data are
            discrete = whole
        if levels is None and discrete and whole:
            levels = max(2, int(max(self.train.max(), self.x.max())) + 1)
        if levels is None or levels > 256:
            mean, spread = self.train.double().mean(0), self.train.double().var(0).clamp(min=self.floor).sqrt()
            independent = td.Normal(mean.expand_as(self.x), spread)
            found = {} if discrete else {"gaussian": -float(log_prob_of(independent, self.x.double()).mean())}
            return Compared(Estimate(-bound.value, bound.error), "nats an example", found)
        scale = levels if not discrete and self.x.max() <= 1 else 1
        bits = float(bits_per_dim(bound.value, self.outputs, None if discrete else scale))
        train, test = ((part * scale).floor().clamp(0, levels - 1).long() for part in (self.train, self.x))
        at_floor = not discrete and bits < dequantization_floor() + NEAR
        figure = Estimate(bits, bound.error / self.outputs / math.log(2))
        return Compared(figure, "bits per dimension", baselines(train, test, levels), at_floor)

    @cached_property
    def gradients(self) -> dict[str, Decomposition]:
        """The variance of the encoder's gradient by its own estimator, first, and by others that suit its latents."""
        return encoder_noise(self.subject, self.train)
