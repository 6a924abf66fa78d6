"""One batch under measurement: its latent from a single run of the encoder, and its gradient over draws."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis.drawing import Cotangent, cotangents, require_batch
from silentgrad.analysis.latents import Parts
from silentgrad.analysis.model import Model, encoder_parameters, measured
from silentgrad.analysis.products import Gradient, Method, OverDraws, Pullback, added, over_draws
from silentgrad.errors import IntractableError
from silentgrad.estimators import Estimator, Exact, Integrand, per_example
from silentgrad.latents.families import require_one_latent


class MeasuredBatch:
    """A batch and its latent, the encoder's graph kept for as many products as are asked for.

    Args:
        model: The model, measured as it stands: in evaluation mode batch normalization uses its running statistics.
        x: Examples as the model sees them.
        integrand: log p(x|z) of the model's decoder, however it is evaluated.
        epoch: Epoch of the guided objective, in which part of the gradient is the linear decoder's and does not vary;
            None leaves the guide out.
    """

    def __init__(self, model: Model, x: Tensor, integrand: Integrand, epoch: int | None = None) -> None:
        self.x, self.integrand = x, integrand
        parameters = encoder_parameters(model)
        q = model.encoder(x)
        require_one_latent(q)
        self.term, self.objective = measured(model, q, self._values(q), epoch)
        self.parts = Parts.of(q, self.objective.family_of(q))
        self.pullback = Pullback(self.parts.tensors, list(parameters.values()))
        self.fixed = self._fixed_cotangent()

    def over_draws(self, estimator: Estimator, method: Method, draws: int) -> OverDraws:
        """The estimator's mean cotangent of the whole loss, and the variance of its gradient.

        An estimator that learns in training, as REINFORCE does its baseline, sees the batch once in training mode and
        is held while the draws are taken.
        """
        if not estimator.exact:
            self._learn(estimator)
        found = over_draws(self._cotangents(estimator, self.integrand, draws), method, draws)
        return found._replace(mean=added(found.mean, self.fixed))

    def exact_cotangent(self, estimator: Estimator, integrand: Integrand) -> Cotangent:
        """The cotangent of the whole loss under an exact estimator."""
        (chunk,) = self._cotangents(estimator, integrand, draws=1)
        return added([c[0] for c in chunk], self.fixed)

    def exact_gradient(self) -> Gradient:
        """The closed form's gradient, or an empty one where the decoder has no closed form."""
        try:
            return self.pullback(self.exact_cotangent(Exact(allow_approximation=True), self.integrand))
        except IntractableError:
            return []

    def latent(self) -> td.Distribution:
        """The batch's latent."""
        return self.parts.rebuild(self.parts.tensors)

    def _cotangents(self, estimator: Estimator, integrand: Integrand, draws: int) -> Iterator[Cotangent]:
        return cotangents(self.term._replace(estimator=estimator), integrand, self.parts, draws)

    @torch.no_grad()
    def _values(self, q: td.Distribution) -> Tensor:
        """log p(x|z) at the latent's mean, one number per example."""
        values = per_example(self.integrand(q.mean), q)
        require_batch(values.shape, self.x)
        return values

    @torch.no_grad()
    def _learn(self, estimator: Estimator) -> None:
        estimator.train()
        estimator(self.latent(), self.integrand)
        estimator.eval()

    def _fixed_cotangent(self) -> Cotangent:
        """The cotangent of what is the same for every draw: the KL divergence and the other decoders' terms."""
        leaves = [t.detach().requires_grad_() for t in self.parts.tensors]
        loss = self.objective(self.x, self.parts.rebuild(leaves)).total
        return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
