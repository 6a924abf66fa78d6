r"""Priors p(z), which stand against latents q(z|x): standard, learned, and mixtures.

A mixture has no KL divergence in closed form. Splitting the integral by components, with any shares, and choosing the
best ones gives

.. math:: D(q \,\|\, \sum_k w_k p_k) \le -\log \sum_k w_k e^{-D(q \,\|\, p_k)}

(Hershey and Olsen 2007), with equality for one component. An ELBO with the right-hand side is smaller than the ELBO
itself, a lower bound still, and nothing is sampled.
"""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import log_softmax

from silentgrad.errors import DomainError, IntractableError
from silentgrad.exactness import Exactness
from silentgrad.latents.independent import base_of, independent, sum_over_latents

if TYPE_CHECKING:
    from silentgrad.latents.families import Family

SPREAD = 0.1  # of a mixture's components at the start: equal ones would have equal gradients for ever


class Prior(nn.Module):
    """p(z) for latents of one family. A prior of your own writes `forward`, and `divergence` where torch knows none.

    Args:
        family: The latents that it stands against.

    Attributes:
        exactness: What an ELBO with this prior's divergence is: exact, or a lower bound of it.
    """

    exactness: ClassVar[Exactness] = Exactness.EXACT
    numbers: Tensor

    def __init__(self, family: "Family") -> None:
        super().__init__()
        self.family = family

    def forward(self) -> td.Distribution:
        """p(z), whose event is one example's z; that of the prior's `numbers`, unless it is written anew."""
        return self.family.latent(self.numbers, validate_args=False)

    def divergence(self, q: td.Distribution) -> Tensor:
        """Return KL(q(z|x) || p(z)) in nats, one number per example."""
        return sum_over_latents(kl(base_of(q), base_of(self())), self._examples(q))

    def divergence_per_latent(self, q: td.Distribution) -> Tensor:
        """Return KL divergences of the latents one by one, `(*batch, latents)`."""
        each = kl(self.family.marginals(q), self.family.marginals(self()))
        return each.flatten(len(self._examples(q)))

    def log_prob(self, z: Tensor) -> Tensor:
        """Return log p(z), one number per example."""
        return self().log_prob(z)

    def sample(self, count: int) -> Tensor:
        """Draw z, `(count, *shape)`."""
        return self().sample(torch.Size([count]))

    def _examples(self, q: td.Distribution) -> torch.Size:
        """Return the shape of the examples in q."""
        whole = q.batch_shape + q.event_shape
        return whole[: len(whole) - len(self.family.shape)]


class StandardPrior(Prior):
    """The prior without parameters: N(0, 1), fair bits, equally likely categories, counts of rate 1."""

    def __init__(self, family: "Family") -> None:
        super().__init__(family)
        self.register_buffer("numbers", torch.zeros(family.numbers), persistent=False)
        self._made: tuple[Tensor | None, td.Distribution | None] = None, None

    def forward(self) -> td.Distribution:
        """p(z), made once on each device: training asks for it at every step."""
        if torch.compiler.is_compiling():
            return super().forward()
        numbers, made = self._made
        if made is None or numbers is not self.numbers:
            with torch.inference_mode(False):
                made = super().forward()
            self._made = self.numbers, made
        return made


class LearnedPrior(Prior):
    """A prior of the family whose parameters are learned; it starts as the standard one."""

    def __init__(self, family: "Family") -> None:
        super().__init__(family)
        self.numbers = nn.Parameter(torch.zeros(family.numbers))


class GivenPrior(Prior):
    """A distribution of one's own as the prior, with nothing to learn.

    Args:
        family: The latents that it stands against.
        p: The distribution of one example's z, or of each latent.

    Example:
        >>> import silentgrad as sg
        >>> prior = GivenPrior(sg.families.Gaussian(2), td.Normal(1.0, 2.0))
        >>> prior.divergence(td.Normal(torch.ones(3, 2), 2.0))
        tensor([0., 0., 0.])
    """

    def __init__(self, family: "Family", p: td.Distribution) -> None:
        super().__init__(family)
        shape = family.shape
        self.p = independent(p.expand(shape[: len(shape) - len(p.event_shape)]), len(shape))

    def forward(self) -> td.Distribution:
        return self.p


class MixturePrior(Prior):
    """A learned mixture of distributions of the family; it starts near the standard prior.

    Args:
        family: The latents that it stands against.
        components: How many distributions are mixed.
    """

    exactness = Exactness.LOWER_BOUND

    def __init__(self, family: "Family", components: int = 10) -> None:
        super().__init__(family)
        if components < 1:
            raise DomainError(f"a mixture has at least one component, got {components}")
        self.numbers = nn.Parameter(SPREAD * torch.randn(components, family.numbers))
        self.logits = nn.Parameter(torch.zeros(components))

    def forward(self) -> td.Distribution:
        weights = td.Categorical(logits=self.logits, validate_args=False)
        components = self.family.latent(self.numbers, validate_args=False)
        return td.MixtureSameFamily(weights, components, validate_args=False)

    def divergence(self, q: td.Distribution) -> Tensor:
        """Return the bound on KL(q(z|x) || p(z)), one number per example."""
        examples = self._examples(q)
        each = kl(base_of(q), base_of(self._components(examples)))
        return self._bound(sum_over_latents(each, self.logits.shape + examples))

    def divergence_per_latent(self, q: td.Distribution) -> Tensor:
        """Return the bound for every latent's own mixture, `(*batch, latents)`."""
        examples = self._examples(q)
        each = kl(self.family.marginals(q), self.family.marginals(self._components(examples)))
        return self._bound(each.flatten(1 + len(examples)))

    def _components(self, examples: torch.Size) -> td.Distribution:
        """Return the components, before the dimensions of the examples."""
        numbers = self.numbers.reshape(len(self.numbers), *[1] * len(examples), -1)
        return self.family.latent(numbers, validate_args=False)

    def _bound(self, divergences: Tensor) -> Tensor:
        """Return -log sum_k w_k exp(-divergence_k), over the first dimension."""
        log_weights = log_softmax(self.logits, 0).reshape(-1, *[1] * (divergences.dim() - 1))
        return -torch.logsumexp(log_weights - divergences, 0)


def kl(q: td.Distribution, p: td.Distribution) -> Tensor:
    """Return KL(q || p) of distributions whose batches broadcast.

    Raises:
        IntractableError: torch knows no formula for the pair.
    """
    shape = np.broadcast_shapes(q.batch_shape, p.batch_shape)  # torch's takes as long as the divergence
    try:  # with one batch shape: some of torch's formulas index by the other's values
        return td.kl_divergence(*(one if one.batch_shape == shape else one.expand(shape) for one in (q, p)))
    except NotImplementedError:
        raise IntractableError(
            f"no KL divergence of {type(q).__name__} latents from a prior of {type(p).__name__} is known: register it "
            "by torch.distributions.register_kl, or pass a prior whose `divergence` knows it"
        ) from None
