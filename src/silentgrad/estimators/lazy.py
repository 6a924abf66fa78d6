r"""Gradients that are made of the integrand's slope, where it passes by: within the backward pass.

Some estimators make the gradient in the latent's parameters of the slopes :math:`f'(z)` at samples, by a rule that is
not linear in them. Were the slopes taken beforehand, a step would pass back through the integrand twice: once for the
rule, and once for the integrand's own parameters. So the integrand stands between two nodes of the graph. Its draws
come out of `_Entry`, and the mean of its K values goes through `_Exit`. In the backward pass the exit sees the
cotangent c of each example, and then the entry sees :math:`c f'(z_k) / K`, whose quotient is the slope. The rule makes
of it the gradient that the entry passes on, times c. An example with c = 0 has no part in the loss, and no gradient.

What the entry sees is the slope as long as z reaches the loss through the integrand's values alone, each example's z
through its own value. A penalty on z, or on what is computed from it, would be taken for part of the slope; where
nothing but such a penalty is differentiated, it ends at the draws. Gradients are of first order: the rule itself is not
differentiated.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.estimators.base import Integrand, for_each_latent, per_example
from silentgrad.tracing import uncompiled

Rule = Callable[[Tensor, Tensor], Tensor]
"""From values `(draws, *examples)` and slopes of the draws' shape to the gradient, of the shape of one draw."""


class _Passage:
    """What entry and exit of one integrand know in common."""

    values: Tensor
    cotangent: Tensor | None = None  # from the exit to the entry of one backward pass

    def __init__(self, rule: Rule) -> None:
        self.rule = rule


class _Entry(torch.autograd.Function):
    """The draws, as if they were functions of the parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, draws: Tensor, passage: _Passage) -> Tensor:
        ctx.passage = passage
        return draws.clone()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, None, None]:
        passage: _Passage = ctx.passage
        cotangent, passage.cotangent = passage.cotangent, None  # which may hold the graph that holds the passage
        if cotangent is None:
            return None, None, None
        weight = for_each_latent(cotangent, arriving[0])
        with torch.no_grad():
            slopes = arriving / torch.where(weight == 0, 1, weight) * len(arriving)
            gradient = passage.rule(passage.values, slopes)
        return torch.where(weight == 0, 0, weight * gradient), None, None


class _Exit(torch.autograd.Function):
    """The mean of the values; the draws are an input so that the entry is reached where these do not depend on z."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, entered: Tensor, passage: _Passage) -> Tensor:
        ctx.passage, ctx.count = passage, len(values)
        passage.values = values.detach()
        return values.mean(0)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        ctx.passage.cotangent = cotangent
        return (cotangent / ctx.count).expand(ctx.count, *cotangent.shape), None, None


@uncompiled  # which would call the rule before there are values
def mean_with_gradient(
    integrand: Integrand, q: td.Distribution, draws: Tensor, parameter: Tensor, rule: Rule
) -> Tensor:
    """The mean of an integrand over draws, with its own gradient and, in a parameter of the latents, that of a rule.

    Args:
        integrand: The function of z.
        q: The latents.
        draws: Values of z, `(draws, *shape of z)`.
        parameter: The parameter, of the shape of z.
        rule: From the integrand's values and slopes at the draws to the mean's gradient in the parameter, every
            example's from its own numbers. It is called within each backward pass.
    """
    passage = _Passage(rule)
    entered = _Entry.apply(parameter, draws, passage)
    values = torch.stack([per_example(integrand(z), q) for z in entered])
    values = values.to(torch.promote_types(values.dtype, parameter.dtype))
    mean: Tensor = _Exit.apply(values, entered, passage)
    return mean
