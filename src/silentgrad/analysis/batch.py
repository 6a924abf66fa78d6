"""One batch under measurement: its latent from a single run of the encoder, and its gradient over draws."""

import torch
from torch import Tensor

from silentgrad.analysis.drawing import Cotangent, cotangents, require_batch
from silentgrad.analysis.latents import Parts
from silentgrad.analysis.products import Gradient, Method, OverDraws, Pullback, added, over_draws
from silentgrad.errors import DomainError, IntractableError
from silentgrad.estimators import Estimator, Exact, LogProb, per_example
from silentgrad.guided import GuidedVAE


class MeasuredBatch:
    """A batch and its latent, the encoder's graph kept for as many products as are asked for.

    Args:
        model: Measured as it stands: in evaluation mode batch normalisation uses its running statistics.
        x: Images as the model sees them.
        log_prob: How the decoder is evaluated.
        epoch: Of the guided objective, in which part of the gradient is the linear decoder's and does not vary; None
            leaves the guide out.
    """

    def __init__(self, model: GuidedVAE, x: Tensor, log_prob: LogProb, epoch: int | None = None) -> None:
        self.model, self.x, self.log_prob = model, x, log_prob
        q = model.encoder(x)
        self.parts = Parts.of(q, model.family_of(q))
        self.pullback = Pullback(self.parts.tensors, list(encoder_parameters(model).values()))
        alone = model.linear is None or model.nonlinear is None
        self.w_lin = 0.0 if alone or epoch is None else model.w_lin(epoch)
        self.examples = self._count_examples()
        self.fixed = self._fixed_cotangent()

    def over_draws(self, estimator: Estimator, method: Method, draws: int) -> OverDraws:
        """The estimator's mean cotangent of the whole loss, and the variance of its gradient.

        An estimator that learns in training, as REINFORCE does its baseline, sees the batch once in training mode and
        is held while the draws are taken.
        """
        if not estimator.exact:
            self._learn(estimator)
        w_nl = 1 - self.w_lin
        chunks = cotangents(estimator, self.log_prob, self.parts, draws)
        found = over_draws(([w_nl * c for c in chunk] for chunk in chunks), method, draws)
        return found._replace(mean=added(found.mean, self.fixed))

    def exact_gradient(self) -> Gradient:
        """The closed form's gradient, or an empty one where the decoder has no closed form."""
        try:
            (chunk,) = cotangents(Exact(allow_approximation=True), self.log_prob, self.parts, draws=1)
        except IntractableError:
            return []
        return self.pullback(added([c[0] for c in chunk], self.fixed))

    @torch.no_grad()
    def _learn(self, estimator: Estimator) -> None:
        estimator.train()
        estimator(self.parts.rebuild(self.parts.tensors), self.log_prob)
        estimator.eval()

    @torch.no_grad()
    def _count_examples(self) -> int:
        q = self.parts.rebuild(self.parts.tensors)
        values = per_example(self.log_prob(q.mean), q)
        require_batch(values.shape, self.x)
        return values.numel()

    def _fixed_cotangent(self) -> Cotangent:
        """Of the KL divergence and the guide, which are the same for every draw."""
        leaves = [t.detach().requires_grad_() for t in self.parts.tensors]
        q = self.parts.rebuild(leaves)
        loss = self.model.kl_weight * self.model.prior_of(q).divergence(q).sum() / self.examples
        if self.w_lin > 0:
            assert self.model.linear is not None
            loss = loss - self.w_lin * self.model.linear.expected_log_prob(self.x, q).mean()
        return list(torch.autograd.grad(loss, leaves))


def encoder_parameters(model: GuidedVAE) -> dict[str, Tensor]:
    """The encoder's parameters that take a gradient, by name."""
    found: dict[str, Tensor] = {name: p for name, p in model.encoder.named_parameters() if p.requires_grad}
    if not found:
        raise DomainError("the encoder is frozen: none of its parameters takes a gradient")
    return found
