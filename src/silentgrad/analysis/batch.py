"""One batch under measurement: its latent from a single run of the encoder, and its gradient over draws."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis.drawing import Cotangent, Parts, cotangents, require_batch
from silentgrad.analysis.model import MeasurableModel, encoder_parameters, measured
from silentgrad.analysis.products import Gradient, OverDraws, Pullback, SquaresMethod, added, over_draws
from silentgrad.errors import IntractableError
from silentgrad.estimators import (
    Estimator,
    Exact,
    Integrand,
    Reparameterized,
    StatisticalIntegrand,
    TractableIntegrand,
    per_example,
)
from silentgrad.exactness import Exactness
from silentgrad.latents.families import require_one_latent
from silentgrad.latents.priors import Prior
from silentgrad.objective import Objective, Term


@dataclass(frozen=True)
class MeasuredBatch:
    """An integrand and a latent, its encoder's graph kept for as many products as are asked for.

    Args:
        integrand: The function of z under measurement, log p(x|z) of a model's decoder.
        term: The term of the objective that it belongs to; its estimator is replaced.
        parts: The latent.
        pullback: From cotangents of the latent's parameters to the gradient that is measured.
        names: Names of the parameters that this gradient is taken in.
        fixed: The cotangent of what is the same for every draw.
        prior: The prior of the latents, for an estimator that weighs samples by it.
    """

    integrand: Integrand
    term: Term
    parts: Parts
    pullback: Pullback
    names: Sequence[str]
    fixed: Cotangent
    prior: Prior | None = None

    @classmethod
    def of_model(cls, model: MeasurableModel, x: Tensor, integrand: Integrand, epoch: int | None = None) -> Self:
        """Encode a batch.

        Args:
            model: The model, measured as it stands: in evaluation mode batch normalization uses its running statistics.
            x: Examples as the model sees them.
            integrand: log p(x|z) of the model's decoder, however it is evaluated.
            epoch: Epoch of the guided objective, in which part of the gradient is the linear decoder's and does not
                vary; None leaves the guide out.
        """
        parameters = encoder_parameters(model)
        q = model.encoder(x)
        require_one_latent(q)
        with torch.no_grad():
            values = per_example(integrand(q.mean), q)
        require_batch(values.shape, x)
        term, objective = measured(model, q, values, epoch)
        parts = Parts.of(q, objective.family_of(q))
        pullback = Pullback(parts.tensors, list(parameters.values()))
        fixed = _fixed_cotangent(objective, x, parts)
        return cls(integrand, term, parts, pullback, list(parameters), fixed, objective.prior)

    @classmethod
    def of_function(cls, q: td.Distribution, integrand: Integrand) -> Self:
        """Take a plain function of z under a latent, in whose own parameters the gradient is taken."""
        parts = Parts.of_any(q)
        leaves = [tensor.detach().clone().requires_grad_() for tensor in parts.tensors]
        fixed = [torch.zeros_like(leaf) for leaf in leaves]
        parts = parts._replace(tensors=tuple(leaves))
        term = Term(_no_decoder, Reparameterized())
        return cls(integrand, term, parts, Pullback(leaves, leaves), parts.names, fixed)

    def learn(self, estimator: Estimator) -> int:
        """Show the batch to an estimator once in training mode, hold it from then on, and count its evaluations."""
        if isinstance(estimator, Exact):
            return 0
        statistical = isinstance(self.integrand, StatisticalIntegrand)
        counted = _CountedStatistics(self.integrand) if statistical else _Counted(self.integrand)
        estimator.train()
        with torch.no_grad():
            self.term._replace(estimator=estimator).loss_of(counted, self.latent(), self.prior)
        estimator.eval()
        return counted.calls

    def over_draws(self, estimator: Estimator, method: SquaresMethod, draws: int) -> OverDraws:
        """Return the estimator's mean cotangent of the whole loss, and the variance of its gradient."""
        found = over_draws(self._cotangents(estimator, self.integrand, draws), method, draws)
        return found._replace(mean=added(found.mean, self.fixed))

    def exact_cotangent(self, estimator: Estimator, integrand: Integrand) -> Cotangent:
        """Return the cotangent of the whole loss under an exact estimator."""
        (chunk,) = self._cotangents(estimator, integrand, draws=1)
        return added([c[0] for c in chunk], self.fixed)

    def exact_gradient(self) -> Gradient:
        """Return the closed form's gradient, or an empty one where the integrand has no closed form."""
        try:
            return self.pullback(self.exact_cotangent(Exact(allow_approximation=True), self.integrand))
        except IntractableError:
            return []

    @property
    def knows_truth(self) -> bool:
        """Return whether the closed form is the true gradient."""
        integrand = self.integrand
        return isinstance(integrand, TractableIntegrand) and integrand.exactness(self.latent()) is Exactness.EXACT

    def latent(self) -> td.Distribution:
        """Rebuild the batch's latent."""
        return self.parts.rebuild(self.parts.tensors)

    @property
    def device(self) -> torch.device:
        """Where the latent lies."""
        return self.parts.tensors[0].device

    def _cotangents(self, estimator: Estimator, integrand: Integrand, draws: int) -> Iterator[Cotangent]:
        return cotangents(self.term._replace(estimator=estimator), integrand, self.parts, draws, self.prior)


class _Counted:
    """An integrand whose evaluations are counted."""

    def __init__(self, integrand: Any) -> None:
        self.integrand, self.calls = integrand, 0

    def __call__(self, z: Tensor) -> Tensor:
        self.calls += 1
        value: Tensor = self.integrand(z)
        return value


class _CountedStatistics(_Counted):
    """The same of one with statistics, for a control variate of them."""

    def statistics(self, z: Tensor) -> list[Tensor]:
        found: list[Tensor] = self.integrand.statistics(z)
        return found

    def expected_statistics(self, q: td.Distribution) -> list[Tensor]:
        found: list[Tensor] = self.integrand.expected_statistics(q)
        return found

    def from_statistics(self, statistics: Sequence[Tensor]) -> Tensor:
        self.calls += 1
        value: Tensor = self.integrand.from_statistics(statistics)
        return value


def _fixed_cotangent(objective: Objective, x: Tensor, parts: Parts) -> Cotangent:
    """Return the cotangent of what is the same for every draw: the KL divergence and the other decoders' terms."""
    leaves = [t.detach().requires_grad_() for t in parts.tensors]
    loss = objective(x, parts.rebuild(leaves)).total
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def _no_decoder(z: Tensor) -> td.Distribution:
    raise IntractableError("a plain function of z has no decoder")
