"""Figures that the checks look at: measured when it is first asked for, and then kept.

A subset of the data is encoded once, draws of z are decoded once. Estimates carry standard errors over examples.
"""

import contextlib
import math
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis import Adapted, Decomposition, Estimate, gradient_variance
from silentgrad.baselines import baselines, bits_per_dim, dequantization_floor
from silentgrad.checkup.findings import Finding
from silentgrad.errors import DomainError, IntractableError, UnregisteredLatentError
from silentgrad.estimators import RLOO, STL, Averaged, DisARM, Estimator, GumbelSoftmax, ReinMax, Reparameterized
from silentgrad.estimators.integrand import log_prob_of
from silentgrad.guide import SilentGuide
from silentgrad.latents.families import family_of
from silentgrad.latents.independent import base_of
from silentgrad.likelihoods import Bernoulli
from silentgrad.ppca import fitted_ppca, leading_components
from silentgrad.schedules import constant

DRAWS = 16  # of z for every example
FITTED = 1000  # training examples that the linear decoder is fitted to
FEW = 1e-6  # variance below which an output is taken to be constant
NEAR = 0.05  # bits above the floor of dequantization
BATCHES, BATCH, NOISE_DRAWS = 8, 32, 12  # of the gradient's noise
NONE: Mapping[str, float] = MappingProxyType({})


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
    """Figures of a model on examples x, "test" ones or "training" ones; baselines are fitted to `train`.

    Numbers of levels and of training steps are those that were told, if any, and so are figures of other models.
    """

    def __init__(
        self,
        model: Adapted,
        x: Tensor,
        train: Tensor,
        split: str,
        levels: int | None,
        steps: int | None,
        beside: Mapping[str, float] = NONE,
    ) -> None:
        self.beside = dict(beside)
        self.model, self.x, self.train, self.split = model, x, train, split
        self.levels, self.steps, self.outputs = levels, steps, x[0].numel()
        self.q = model.encoder(x)
        self.found: dict[str, Finding] = {}

    def off(self, name: str) -> bool:
        """Return whether a check has found something."""
        return name in self.found and self.found[name].verdict != "fine"

    def __str__(self) -> str:
        sizes = f"{len(self.x)} {self.split} examples of {self.outputs} outputs"
        return f"{sizes}, {self.q.mean[0].numel()} latents" + f" ({self.model.note})" * bool(self.model.note)

    @cached_property
    def z(self) -> Tensor:
        """Draws `(DRAWS, examples, ...)` of every posterior."""
        return self.q.sample(torch.Size([DRAWS]))

    @cached_property
    def kld_per_latent(self) -> Tensor:
        """KL divergences from the prior, `(examples, latents)`."""
        return self.model.prior.divergence_per_latent(self.q)

    @cached_property
    def kld(self) -> Tensor:
        """KL divergence of each example."""
        return self.model.prior.divergence(self.q)

    @cached_property
    def p(self) -> td.Distribution:
        """Distribution of x given the first draw of every posterior."""
        return self.model.at(self.z[0], self.x)

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
        return torch.stack([self.log_prob(z) for z in self.z])

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log p(x|z) of each example."""
        return log_prob_of(self.model.decoder, self.x, z)

    @cached_property
    def elbo(self) -> Tensor:
        """The ELBO of each example, in nats."""
        return self.log_px.mean(0) - self.kld

    @cached_property
    def spacing(self) -> float | None:
        """The least distance between two values of the data, if values repeat as levels do."""
        values = self.x.flatten()[:200_000].unique().double()
        return float(values.diff().min()) if 1 < len(values) <= min(4096, self.x.numel() / 4) else None

    def with_mean(self, mean: Tensor) -> Tensor | None:
        """Return log p of each example under the decoder's distribution with another mean; None of other laws."""
        if not self.bits and not self.gaussian:
            return None
        p = td.Bernoulli(mean.clamp(1e-3, 1 - 1e-3)) if self.bits else td.Normal(mean, self.variance.sqrt())
        return p.log_prob(self.x).flatten(1).sum(1)

    def way(self, log_px: Tensor) -> float | None:
        """Return the way of log p(x|z) from the mean of the training data, 0, to x, 1, at the variance of p."""
        constant, perfect = self.with_mean(self.train.mean(0).expand_as(self.x)), self.with_mean(self.x)
        if constant is None or perfect is None:
            return None
        return float((log_px - constant).mean() / (perfect - constant).mean().clamp(min=FEW))

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

    @property
    def guide_options(self) -> dict[str, Any]:
        """What a guide has to be told to have the likelihood of p(x|z); of a learned variance nothing."""
        if not self.bits and not self.gaussian:
            raise IntractableError(f"a {type(base_of(self.p)).__name__} likelihood has no linear counterpart here")
        return {"likelihood": Bernoulli()} if self.bits else {"variance": self.fixed_variance}

    @cached_property
    def linear_models(self) -> dict[str, Tensor]:
        """Bounds of log p of each example by what is linear, fitted to the training examples, by name.

        Probabilistic PCA with as many latents has the decoder's variance, if that is fixed, else the most likely one.
        A linear decoder of the same likelihood is fitted to the encoder as it is, by the exact gradient.
        """
        found, size, train = dict[str, Tensor](), self.z[0, 0].numel(), self.train[:FITTED].double()
        guide = SilentGuide(size, train.shape[1:], constant(1.0), **self.guide_options).to(train)
        if self.gaussian:
            p = fitted_ppca(self.train, min(size, self.outputs - 1), self.fixed_variance)
            found["probabilistic PCA"] = p.log_prob(self.x.flatten(1).double())
        with contextlib.suppress(UnregisteredLatentError):
            guide.decoder.fit(train, self._wide(self.model.encoder(self.train[:FITTED])))
            expected = guide.decoder.expected_log_prob(self.x.double(), self._wide(self.q))
            found["a linear decoder on this encoder"] = expected - self.kld
        return found

    def _wide(self, q: td.Distribution) -> td.Distribution:
        family = family_of(q)
        return family.rebuild(q, [part.double() for part in family.parameters(q)])

    @cached_property
    def comparison(self) -> Compared:
        """The bound beside models without latents, fitted to the training examples.

        In bits per dimension where p(x|z) is a probability of levels or a density of dequantized ones, else in nats.
        """
        bound, levels = Estimate.of(self.elbo), self.levels
        whole = bool((self.x == self.x.round()).all() and self.x.min() >= 0)
        try:
            discrete = self.p.support is not None and self.p.support.is_discrete
        except NotImplementedError:  # one that does not say what it is of is of what the data are
            discrete = whole
        if levels is None and discrete and whole:
            levels = max(2, int(max(self.train.max(), self.x.max())) + 1)
        if levels is None or levels > 256:
            train = self.train.double()
            least = self.spacing**2 / 12 if self.spacing else FEW * max(float(train.var()), FEW)
            independent = td.Normal(train.mean(0).expand_as(self.x), train.var(0).clamp(min=least).sqrt())
            found = {} if discrete else {"gaussian": -float(independent.log_prob(self.x.double()).sum()) / len(self.x)}
            return Compared(Estimate(-bound.value, bound.error), "nats an example", found | self.beside)
        scale = levels if not discrete and self.x.max() <= 1 else 1
        bits = float(bits_per_dim(bound.value, self.outputs, None if discrete else scale))
        train, test = ((part * scale).floor().clamp(0, levels - 1).long() for part in (self.train, self.x))
        at_floor = not discrete and bits < dequantization_floor() + NEAR
        figure = Estimate(bits, bound.error / self.outputs / math.log(2))
        return Compared(figure, "bits per dimension", baselines(train, test, levels) | self.beside, at_floor)

    @property
    def batches(self) -> list[Tensor]:
        """Batches of training examples over which gradients are compared."""
        size = min(BATCH, len(self.train) // BATCHES)
        if size < 2:
            raise IntractableError(f"gradients are compared over {BATCHES} batches of at least two examples")
        return list(self.train[: BATCHES * size].split(size))

    @cached_property
    def gradients(self) -> dict[str, Decomposition]:
        """The variance of the encoder's gradient by its own estimator, first, and by others that suit its latents.

        Relaxations are measured at a temperature of 0.5 too.
        """
        base, own = base_of(self.q), self.model.estimator
        usual: list[Estimator] = [Reparameterized(), STL()] if self.q.has_rsample else [RLOO()]
        if isinstance(base, td.Bernoulli | td.OneHotCategorical):
            usual = [GumbelSoftmax(0.5, getattr(own, "hard", False)), RLOO(), ReinMax()]
            usual += [DisARM()] if isinstance(base, td.Bernoulli) else []
        own = own or usual[0]
        estimators = {name_of(one): one for one in (own, *usual, own)}  # of two of a name the last, in the first place
        if not own.exact:
            estimators[f"4 samples of {name_of(own)}"] = Averaged(own, 4)
        try:
            with torch.enable_grad():
                return gradient_variance(self.model, self.batches, NOISE_DRAWS, estimators)
        except (DomainError, RuntimeError) as error:  # torch's, where a parameter of q does not come from the encoder
            raise IntractableError(str(error)) from error


def name_of(estimator: Estimator) -> str:
    """Return the class of an estimator, and its temperature if it has one."""
    temperature = getattr(estimator, "temperature", None)
    return type(estimator).__name__ + ("" if temperature is None else f"({temperature:g})")
