r"""Joint cumulants of the two linear maps u = W z + b and v = A z + c, per output.

For independent latents a joint cumulant is one matrix product, :math:`\kappa(u^i, v^j) = (W^i A^j) \kappa_{i+j}(z)`
with elementwise powers: cumulants of sums add. For Gaussian latents with a covariance only the second order is
needed, :math:`\mathrm{Cov}(u, v) = W \Sigma A^T`, of which the decoders want the diagonal.

**Tilting** gives E[(x - u)^2 e^g] for g = A z + c, the exponential precision link, exact for every latent family.
Weighting q by :math:`e^{a \cdot z}` and normalizing gives another distribution, the tilted one, in which

.. math::
    E[(x - u)^2 e^g] = e^{c + \log E[e^{a \cdot z}]} \left( (x - \tilde E u)^2 + \widetilde{\mathrm{Var}}\, u \right).

Independent latents stay independent, with mean :math:`k_i'(a_i)` and variance :math:`k_i''(a_i)` (see
:mod:`silentgrad.latents.generating`); Gaussian ones keep their covariance and move by :math:`\Sigma a`; a one-hot
category keeps its form, with :math:`\tilde p_c \propto p_c e^{a_c}`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn.functional import linear

from silentgrad.latents.generating import finite_exp, generating_function
from silentgrad.latents.independent import base_of, sum_over_latents
from silentgrad.latents.moments import AnyMoments, JointMoments
from silentgrad.tracing import transformed

CHUNK = 2**20  # numbers at a time: a few arrays of so many fit a processor's cache


@dataclass(frozen=True)
class Projection:
    """Joint cumulants of (u, v), the third and fourth order where they do not vanish; `(*batch, outputs)` each."""

    mean_u: Tensor
    mean_v: Tensor
    var_u: Tensor
    var_v: Tensor
    cov: Tensor
    k_uvv: Tensor | None = None
    k_uuv: Tensor | None = None
    k_vvv: Tensor | None = None
    k_uuvv: Tensor | None = None
    k_vvvv: Tensor | None = None


def project(moments: AnyMoments, mean: Tensor, u: nn.Linear, v: nn.Linear) -> Projection:
    """Return cumulants of u(z) and v(z) for latents with these moments.

    Args:
        moments: Moments of the latents, in their own shape.
        mean: Mean of the latents, as `(*batch, latents)`.
        u: The first map.
        v: The second map.
    """
    if isinstance(moments, JointMoments):
        var_u, cov, var_v = _in_blocks(moments.covariance, mean.shape, u.weight, v.weight)
        return Projection(u(mean), v(mean), var_u, var_v, cov)
    w, a, s2 = u.weight, v.weight, moments.s2.reshape(mean.shape)
    aa, wa = a * a, w * a
    gaussian = Projection(u(mean), v(mean), linear(s2, w * w), linear(s2, aa), linear(s2, wa))
    if moments.gaussian:
        return gaussian
    k4 = moments.k4().reshape(mean.shape)
    even = replace(gaussian, k_uuvv=linear(k4, wa.square()), k_vvvv=linear(k4, aa.square()))
    if moments.symmetric:
        return even
    s3 = moments.s3().reshape(mean.shape)
    return replace(even, k_uvv=linear(s3, wa * a), k_uuv=linear(s3, w * wa), k_vvv=linear(s3, aa * a))


def variance_of(u: nn.Linear, moments: AnyMoments, mean: Tensor) -> Tensor:
    """Var u(z), `(*batch, outputs)`, for latents with these moments."""
    if isinstance(moments, JointMoments):
        return _in_blocks(moments.covariance, mean.shape, u.weight)[0]
    return linear(moments.s2.reshape(mean.shape), u.weight.square())


def _in_blocks(covariance: Tensor, shape: torch.Size, *weights: Tensor) -> tuple[Tensor, ...]:
    """Covariance of every two of some maps, each with itself too, of latents that depend on each other within blocks.

    w^T C a of a symmetric C is a sum over pairs of latents i <= j, with C_ii counted half, of C_ij (w_i a_j + w_j a_i):
    one matrix product for a whole batch of C.
    """
    size, batch = covariance.shape[-1], shape[:-1]
    first, second = torch.triu_indices(size, size, device=covariance.device)
    halved = covariance - torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1)) / 2
    blocks = shape[-1] // size
    pairs = halved[..., first, second].reshape(batch.numel(), blocks * len(first))

    def forms(*tensors: Tensor) -> tuple[Tensor, ...]:
        *weights, pairs = tensors
        results = []
        for w, a in combinations_with_replacement(weights, 2):
            w, a = w.unflatten(-1, (-1, size)), a.unflatten(-1, (-1, size))
            products = w[..., first] * a[..., second] + w[..., second] * a[..., first]
            results.append(linear(products.flatten(1), pairs).reshape(len(w), *batch))
        return tuple(results)

    return map_outputs(forms, weights, (pairs,), pairs.shape[-1])


def map_outputs(
    function: Callable[..., tuple[Tensor, ...]],
    weights: tuple[Tensor, ...],
    parameters: tuple[Tensor, ...],
    numbers: int,
) -> tuple[Tensor, ...]:
    """Apply a function of some outputs' weights to all outputs, in chunks: no (outputs, batch, latents) is held whole.

    Args:
        function: A function of slices `(chunk, latents)` of the weights, then of the parameters. It returns tensors
            `(chunk, *batch)` and depends on no other tensor that has a gradient.
        weights: Tensors of shape `(outputs, latents)`.
        parameters: Tensors that every output needs whole.
        numbers: How many numbers the function holds at a time for one output.

    Returns:
        The function's results, `(*batch, outputs)` each.
    """
    rows = max(1, CHUNK // max(1, numbers))
    if rows >= len(weights[0]) or transformed():
        results = function(*weights, *parameters)
    else:
        results = _Chunked.apply(function, rows, len(weights), *weights, *parameters)
    return tuple(result.movedim(0, -1) for result in results)


class _Chunked(torch.autograd.Function):
    """Keeps nothing of a chunk for the backward pass, which computes each chunk again.

    Results are written into one block each: small ones kept between large temporaries would fragment the memory.
    """

    @staticmethod
    def forward(
        function: Callable[..., tuple[Tensor, ...]], rows: int, sliced: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        results: list[Tensor] = []
        for chunk in _chunks(tensors, rows):
            parts = function(*_at(chunk, tensors, sliced))
            if not results:
                results = [part.new_empty(len(tensors[0]), *part.shape[1:]) for part in parts]
            for result, part in zip(results, parts, strict=True):
                result[chunk] = part
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, ctx.rows, ctx.sliced, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a second derivative is wanted: let autograd see the whole computation
            return None, None, None, *torch.func.vjp(ctx.function, *ctx.saved_tensors)[1](grads)
        totals = [torch.zeros_like(t) for t in ctx.saved_tensors]
        for chunk in _chunks(ctx.saved_tensors, ctx.rows):
            pull = torch.func.vjp(ctx.function, *_at(chunk, ctx.saved_tensors, ctx.sliced))[1]
            parts = pull(_at(chunk, grads, len(grads)))
            for total, part in zip(_at(chunk, totals, ctx.sliced), parts, strict=True):
                total += part
        return None, None, None, *totals


def _chunks(tensors: Sequence[Tensor], rows: int) -> list[slice]:
    return [slice(start, start + rows) for start in range(0, len(tensors[0]), rows)]


def _at(chunk: slice, tensors: Sequence[Tensor], sliced: int) -> tuple[Tensor, ...]:
    """Return a chunk of the first tensors, as many as are sliced, and the others whole."""
    return *(tensor[chunk] for tensor in tensors[:sliced]), *tensors[sliced:]


class Tilted(NamedTuple):
    """E g and log E[e^g], then the mean and variance of u under q tilted by e^g; `(*batch, outputs)` each."""

    exponent: Tensor
    log_mass: Tensor
    mean: Tensor
    variance: Tensor


def tilt(q: td.Distribution, moments: AnyMoments, mean: Tensor, u: nn.Linear, g: nn.Linear) -> Tilted:
    """Return the moments of u(z) under q tilted by e^g(z); the arguments beyond q are those of `project`."""
    if moments.gaussian:
        p = project(moments, mean, u, g)
        return Tilted(p.mean_v, torch.add(p.mean_v, p.var_v, alpha=0.5), p.mean_u + p.cov, p.var_u)
    base = base_of(q)
    form = _categories(base) if isinstance(base, td.OneHotCategorical) else _independent(base)
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


def _independent(q: td.Distribution) -> _Form:
    """Return one term per latent, from its cumulant generating function."""
    k = generating_function(q)

    def terms(w: Tensor, a: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, mean, variance = k.formula(a, *parameters)
        return value, w * mean, w.square() * variance

    return _Form(terms, k.parameters)


def _categories(q: td.OneHotCategorical) -> _Form:
    """Return one term per group of categories."""

    def terms(w: Tensor, a: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The largest term's exponent: all are divided by it. A mere unit, it has no slope.
        top = (a + probs.log()).amax(-1, keepdim=True).detach()
        mass = probs * finite_exp(a - top)
        total = mass.sum(-1, keepdim=True)
        mean = (w * mass / total).sum(-1, keepdim=True)
        variance = ((w - mean).square() * mass / total).sum(-1)
        return (total.log() + top).squeeze(-1), mean.squeeze(-1), variance

    return _Form(terms, (q.probs,))
