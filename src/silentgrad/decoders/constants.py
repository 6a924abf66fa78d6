"""A leaf without z: the same probabilities of an output's values in every example."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.errors import DomainError, ShapeError
from silentgrad.exactness import Exactness
from silentgrad.shapes import shape_of


class ConstantCategorical(nn.Module):
    """p(x) of outputs that take the values 0, 1, ..., categories - 1, whatever z is.

    Its components differ in their probabilities; in a circuit the weights choose between them.

    Args:
        latent_dim: Number of latents, which it does not look at.
        event_shape: Shape of one example.
        categories: Number of values of an output.

    Example:
        >>> leaf = ConstantCategorical(2, 3, categories=4)
        >>> q = td.Normal(torch.zeros(5, 2), torch.ones(5, 2))
        >>> leaf.expected_log_probs(torch.zeros(5, 3), q).shape
        torch.Size([5, 3])
    """

    def __init__(self, latent_dim: int, event_shape: int | Sequence[int], categories: int) -> None:
        super().__init__()
        if categories < 1:
            raise DomainError(f"categories have to be positive, got {categories}")
        self.latent_dim, self.categories = latent_dim, categories
        self.event_shape = shape_of(event_shape)
        self.logits = nn.Parameter(torch.randn(*self.event_shape, categories))

    def forward(self, z: Tensor) -> td.Independent:
        shape = (*z.shape[:-1], *self.logits.shape)
        return td.Independent(Numbers(logits=self.logits.expand(shape)), len(self.event_shape))

    def expected_log_prob(self, x: Tensor, q: td.Distribution) -> Tensor:
        """log p(x), which does not depend on z, one number per example."""
        return self.expected_log_probs(x, q).sum(-1)

    def expected_log_probs(self, x: Tensor, q: td.Distribution) -> Tensor:
        """log p(x_o) of every output, `(*batch, outputs)`."""
        at = x.dim() - len(self.event_shape)
        if x.shape[at:] != self.event_shape:
            raise ShapeError(f"expected examples of shape {tuple(self.event_shape)}, got {tuple(x.shape)}")
        log_probs = self.logits.log_softmax(-1).expand(*x.shape, -1)
        return log_probs.gather(-1, self._categories_of(x).unsqueeze(-1)).squeeze(-1).flatten(at)

    def exactness(self, q: td.Distribution) -> Exactness:
        return Exactness.EXACT

    def start_outputs(self, means: Tensor, variances: Tensor, weights: Tensor) -> None:
        """Starts as normal distributions rounded to the values; the weights of z have no use here."""
        values = torch.arange(self.categories).to(means)
        variances = variances.clamp(min=1 / 12)  # of rounding
        fit = -(values - means.unsqueeze(-1)).square() / (2 * variances.unsqueeze(-1))
        with torch.no_grad():
            self.logits.copy_(fit.clamp(min=-10).reshape(self.logits.shape))

    def _categories_of(self, x: Tensor) -> Tensor:
        categories = x.long()
        valid = (categories == x) & (categories >= 0) & (categories < self.categories)
        if not torch.compiler.is_compiling() and not valid.all():
            raise DomainError(f"x has to be one of 0, 1, ..., {self.categories - 1}")
        return categories


class Numbers(td.Categorical):
    """Categories as numbers, which have a mean and a variance."""

    @property
    def mean(self) -> Tensor:
        return (self.probs * self._values()).sum(-1)

    @property
    def variance(self) -> Tensor:
        return (self.probs * (self._values() - self.mean.unsqueeze(-1)).square()).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return super().sample(torch.Size(sample_shape)).to(self.logits)

    def _values(self) -> Tensor:
        return torch.arange(self.logits.shape[-1]).to(self.logits)
