r"""Subsets of k out of n, by the logits of their members: the latent of SIMPLE and I-MLE.

.. math:: q(z) = e^{\theta \cdot z} / e_k, \qquad z \in \{0, 1\}^n,\ {\textstyle \sum_i} z_i = k,

where :math:`e_k` is the elementary symmetric polynomial of degree k in :math:`e^{\theta_i}`. It has a recursion over
the members (Chen and Liu 1997; Ahmed et al. 2023): with :math:`a_{ij}` the polynomial of degree j of the first i,

.. math:: a_{ij} = a_{i-1,j} + e^{\theta_i} a_{i-1,j-1}.

The same from the other end gives :math:`b_{ij}` of all but the first i, and both together the marginals

.. math:: \mu_i = e^{\theta_i} \sum_j a_{i-1,j}\, b_{i,k-1-j} / e_k,

differentiable and exact, at n k steps. A subset is drawn member by member from the last: of j that are still to be
chosen among the first i, the i-th is one with probability :math:`e^{\theta_i} a_{i-1,j-1} / a_{ij}`.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from silentgrad.errors import DomainError
from silentgrad.tracing import widened

NONE = -1e30  # the logarithm of no subsets at all: finite, so that its gradient is 0 and not undefined


class KSubset(td.Distribution):
    """Subsets of k members, as vectors of zeros and k ones; k = 1 is a one-hot category.

    Args:
        logits: Logits of the members, `(..., n)`; they need not be normalized.
        k: Number of members of a subset.
        validate_args: As in `torch.distributions`.

    Example:
        >>> q = KSubset(torch.zeros(5, 4), k=2)
        >>> q.mean[0]
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        >>> q.sample().sum(-1)
        tensor([2., 2., 2., 2., 2.])
    """

    arg_constraints: ClassVar = {"logits": constraints.real_vector}
    support = constraints.independent(constraints.boolean, 1)

    def __init__(self, logits: Tensor, k: int = 1, validate_args: bool | None = None) -> None:
        if logits.dim() < 1 or not 1 <= k <= logits.shape[-1]:
            raise DomainError(f"a subset has between 1 and all of its members, got k = {k} of {tuple(logits.shape)}")
        self.logits, self.k = logits, k
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "KSubset":
        shape = torch.Size(batch_shape) + self.event_shape
        return KSubset(self.logits.expand(shape), self.k, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The probability that each member is in the subset."""
        return self._marginals().to(self.logits.dtype)

    def _marginals(self) -> Tensor:
        """Return the probability that each member is in the subset, in single precision at least."""
        first = _log_polynomials(self.logits, self.k)
        last = _log_polynomials(self.logits.flip(-1), self.k).flip(-2)
        before, after = first[..., :-1, : self.k], last[..., 1:, : self.k].flip(-1)
        others = torch.logsumexp(before + after, -1)
        return torch.exp(self.logits + others - first[..., -1, -1:])

    @property
    def variance(self) -> Tensor:
        mean = self._marginals()
        return (mean * (1 - mean)).to(self.logits.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        log_prob = (widened(self.logits) * value).sum(-1) - _log_polynomials(self.logits, self.k)[..., -1, -1]
        return torch.where(value.sum(-1) == self.k, log_prob, -torch.inf)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        polynomials = _log_polynomials(self.logits, self.k).expand(*shape[:-1], -1, -1)
        left = torch.full(shape[:-1], self.k, device=self.logits.device).unsqueeze(-1)
        members = []
        for i in reversed(range(shape[-1])):
            fewer = polynomials[..., i, :].gather(-1, (left - 1).clamp(min=0))
            whole = polynomials[..., i + 1, :].gather(-1, left)
            chance = torch.exp(self.logits[..., i : i + 1] + fewer - whole)
            chosen = (torch.rand_like(chance) < chance) & (left > 0)
            left = left - chosen.long()
            members.append(chosen)
        return torch.cat(members[::-1], -1).to(self.logits.dtype)


def _log_polynomials(logits: Tensor, k: int) -> Tensor:
    """Return the logarithms of the polynomials of degrees 0 to k of the first 0 to n members, `(..., n + 1, k + 1)`.

    They grow with n, and the marginals are differences of them: half precision would leave nothing of these.
    """
    logits = widened(logits)
    rows = [torch.full((*logits.shape[:-1], k + 1), NONE, dtype=logits.dtype, device=logits.device)]
    rows[0][..., 0] = 0
    for logit in logits.unbind(-1):
        previous = rows[-1]
        with_member = torch.logaddexp(previous[..., 1:], previous[..., :-1] + logit.unsqueeze(-1))
        rows.append(torch.cat((previous[..., :1], with_member), -1))
    return torch.stack(rows, -2)


def divergence(q: KSubset, p: KSubset) -> Tensor:
    r""":math:`\mu_q \cdot (\theta_q - \theta_p) - \log e_k(\theta_q) + \log e_k(\theta_p)`, for subsets of one size."""
    if q.k != p.k:
        raise DomainError(f"subsets of {q.k} and of {p.k} have no subset in common: their KL divergence is infinite")
    log_q, log_p = _log_polynomials(q.logits, q.k)[..., -1, -1], _log_polynomials(p.logits, p.k)[..., -1, -1]
    return (q._marginals() * (widened(q.logits) - widened(p.logits))).sum(-1) - log_q + log_p


td.register_kl(KSubset, KSubset)(divergence)
