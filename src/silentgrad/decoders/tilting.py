r"""E[(x - u)^2 e^g] for u = W z + b, g = A z + c: the exponential precision link, exact for every latent family.

Weighting q by :math:`e^{a \cdot z}` and normalizing gives another distribution, the tilted one, in which

.. math::
    E[(x - u)^2 e^g] = e^{c + \log E[e^{a \cdot z}]} \left( (x - \tilde E u)^2 + \widetilde{\mathrm{Var}}\, u \right).

Independent latents stay independent, with mean :math:`k_i'(a_i)` and variance :math:`k_i''(a_i)` (see
:mod:`silentgrad.latents.generating`); Gaussian ones keep their covariance and move by :math:`\Sigma a`; a one-hot
category keeps its form, with :math:`\tilde p_c \propto p_c e^{a_c}`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders.chunks import map_outputs
from silentgrad.decoders.projection import project
from silentgrad.latents.generating import finite_exp, generating_function
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.moments import JointMoments, Moments


class Tilted(NamedTuple):
    """E g and log E[e^g], then the mean and variance of u under q tilted by e^g; `(*batch, outputs)` each."""

    exponent: Tensor
    log_mass: Tensor
    mean: Tensor
    variance: Tensor


def tilt(
    q: td.Distribution,
    moments: Moments | JointMoments,
    mean: Tensor,
    u: nn.Linear,
    g: nn.Linear,
    outputs_first: bool = False,
) -> Tilted:
    """The moments of u(z) under q tilted by e^g(z); the arguments beyond q are those of `project`."""
    if moments.gaussian:
        p = project(moments, mean, u, g, outputs_first)
        return Tilted(p.mean_v, torch.add(p.mean_v, p.var_v, alpha=0.5), p.mean_u + p.cov, p.var_u)
    form = _form(base_of(q))
    batch, latents = mean.shape[:-1], moments.mean.shape[mean.dim() - 1 :]

    def per_output(w: Tensor, a: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        shape = (len(w), *[1] * len(batch), *latents)
        examples = (len(w), *batch)
        terms = form.terms(w.reshape(shape), a.reshape(shape), *parameters)
        return tuple(sum_over_latents(term, examples) for term in terms)

    log_mass, shift, variance = map_outputs(per_output, (u.weight, g.weight), form.parameters, mean.numel())
    return Tilted(g(mean), g.bias + log_mass, u.bias + shift, variance)


class _Form(NamedTuple):
    """A function of w, a and the latent's parameters whose three results, summed over latents, are those of Tilted."""

    terms: Callable[..., tuple[Tensor, Tensor, Tensor]]
    parameters: tuple[Tensor, ...]


def _form(q: td.Distribution) -> _Form:
    if isinstance(q, td.OneHotCategorical):
        return _categories(q)
    return _independent(q)


def _independent(q: td.Distribution) -> _Form:
    """One term per latent, from its cumulant generating function."""
    k = generating_function(q)

    def terms(w: Tensor, a: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, mean, variance = k.formula(a, *parameters)
        return value, w * mean, w.square() * variance

    return _Form(terms, k.parameters)


def _categories(q: td.OneHotCategorical) -> _Form:
    """One term per group of categories."""

    def terms(w: Tensor, a: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The largest term's exponent: all are divided by it. A mere unit, it has no slope.
        top = (a + probs.log()).amax(-1, keepdim=True).detach()
        mass = probs * finite_exp(a - top)
        total = mass.sum(-1, keepdim=True)
        mean = (w * mass / total).sum(-1, keepdim=True)
        variance = ((w - mean).square() * mass / total).sum(-1)
        return (total.log() + top).squeeze(-1), mean.squeeze(-1), variance

    return _Form(terms, (q.probs,))
