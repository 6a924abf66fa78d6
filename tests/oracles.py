"""Expectations by brute force: enumeration and quadrature, differentiable in the latent's parameters.

Nothing here knows a closed form. A rule turns a latent into nodes `(nodes, *batch, latents)` and weights of the same
shape for every single latent; the tensor grid over all latents integrates any function of them.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch import distributions as td

ORDER = 16  # nodes of a panel
Rule = Callable[[td.Distribution], tuple[Tensor, Tensor]]
Function = Callable[[Tensor], Tensor]
Parameter = Callable[[td.Distribution], Tensor]
Transform = Callable[[td.Distribution, Tensor], Tensor]
Expectation = Callable[[Function], Tensor]


def on_grid(rule: Rule) -> Callable[[td.Distribution], Expectation]:
    """Independent latents: the tensor product of a rule for each."""

    def expectation(q: td.Distribution) -> Expectation:
        nodes, weights = rule(q)
        z = torch.stack(on_axes(nodes), -1).flatten(0, nodes.shape[-1] - 1)
        w = math.prod(on_axes(weights)).flatten(0, nodes.shape[-1] - 1)
        return lambda f: weighted(w, f(z))

    return expectation


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """The sum over the nodes of values `(nodes, *batch)`, or `(nodes, *batch, outputs)`."""
    further = (1,) * (values.dim() - weights.dim())
    return (weights.reshape(*weights.shape, *further) * values).sum(0)


def on_axes(values: Tensor) -> list[Tensor]:
    """A tensor `(*grid, *batch)` for each latent, along whose own axis of the grid its `(nodes, *batch)` values go.

    Repeated by expansion: the gradient is a sum over the grid, where that of indexing would add its entries one by one.
    """
    nodes, latents = len(values), values.shape[-1]
    results = []
    for latent, own in enumerate(values.unbind(-1)):
        axes = [nodes if axis == latent else 1 for axis in range(latents)]
        results.append(own.reshape(*axes, *own.shape[1:]).expand(*[nodes] * latents, *own.shape[1:]))
    return results


def legendre(panels: Tensor, order: int | None = None) -> tuple[Tensor, Tensor]:
    """Composite Gauss-Legendre on the panels between the given edges `(edges, ...)`."""
    order = order or ORDER
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(order))
    middle, half = (panels[1:] + panels[:-1]) / 2, (panels[1:] - panels[:-1]) / 2
    shape = (1, order) + (1,) * (panels.dim() - 1)
    nodes = middle.unsqueeze(1) + half.unsqueeze(1) * x.reshape(shape)
    return nodes.flatten(0, 1), (half.unsqueeze(1) * w.reshape(shape)).flatten(0, 1)


def by_density(edges: Parameter) -> Rule:
    """Fixed nodes weighted by the density, which carries the gradient."""

    def rule(q: td.Distribution) -> tuple[Tensor, Tensor]:
        nodes, weights = legendre(edges(q).detach())
        return nodes, weights * q.log_prob(nodes).exp()

    return rule


def counts(largest: int, probability: Transform) -> Rule:
    """The support {0, ..., largest}, weighted without logarithms so that parameters at their ends work."""

    def rule(q: td.Distribution) -> tuple[Tensor, Tensor]:
        nodes = torch.arange(largest + 1.0, dtype=torch.float64).reshape(-1, 1, 1).expand(-1, *q.batch_shape)
        return nodes, probability(q, nodes)

    return rule


def powers(x: Tensor, n: Tensor) -> Tensor:
    """x^0, x^1, ... by repeated products, whose derivatives at x = 0 are right to any order."""
    results = [torch.ones_like(x)]
    for _ in n[1:]:
        results.append(results[-1] * x)
    return torch.stack(results)


def poisson(q: td.Poisson, n: Tensor) -> Tensor:
    """rate^n exp(-rate) / n!"""
    return powers(q.rate, n) * torch.exp(-q.rate - torch.lgamma(n + 1))


def binomial(q: td.Binomial, n: Tensor) -> Tensor:
    """Choose(total, n) p^n (1 - p)^(total - n)"""
    rest = q.total_count - n
    ways = torch.exp(torch.lgamma(q.total_count + 1) - torch.lgamma(n + 1) - torch.lgamma(rest + 1))
    return ways * powers(q.probs, n) * powers(1 - q.probs, n).flip(0)


def geometric(q: td.Geometric, n: Tensor) -> Tensor:
    """p (1 - p)^n"""
    return q.probs * powers(1 - q.probs, n)


def negative_binomial(q: td.NegativeBinomial, n: Tensor) -> Tensor:
    """Gamma(n + r) / (n! Gamma(r)) p^n (1 - p)^r"""
    r = q.total_count
    ways = torch.exp(torch.lgamma(n + r) - torch.lgamma(n + 1) - torch.lgamma(r))
    return ways * powers(q.probs, n) * (1 - q.probs) ** r


def bits(q: td.Bernoulli) -> tuple[Tensor, Tensor]:
    """Both values of a bit, weighted without a logarithm so that probabilities 0 and 1 work."""
    return torch.stack([torch.zeros_like(q.probs), torch.ones_like(q.probs)]), torch.stack([1 - q.probs, q.probs])


def hermite(order: int) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes and weights of the standard normal distribution."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return torch.from_numpy(x), torch.from_numpy(w / w.sum())


def standard_normal(transform: Transform, order: int = 48) -> Rule:
    """A latent that is a function of a standard normal variable."""

    def rule(q: td.Distribution) -> tuple[Tensor, Tensor]:
        x, w = (a.reshape(-1, 1, 1).expand(-1, *q.batch_shape) for a in hermite(order))
        return transform(q, x), w

    return rule


def moved(edges: Sequence[float], density: Function, transform: Transform, bend: Parameter | None = None) -> Rule:
    """A latent that is a smooth function of a variable with a fixed density: the nodes carry the gradient.

    Where what is integrated has a bend, its gradient has a jump, and there has to be an edge.
    """

    def rule(q: td.Distribution) -> tuple[Tensor, Tensor]:
        panels = torch.tensor(edges, dtype=torch.float64).reshape(-1, 1, 1).expand(-1, *q.batch_shape)
        if bend is not None:
            panels = torch.cat([panels, bend(q).detach().unsqueeze(0)]).sort(0).values
        nodes, weights = legendre(panels)
        return transform(q, nodes), weights * density(nodes)

    return rule


def correlated_normal(q: td.Distribution) -> Expectation:
    """A Gaussian with a covariance: a grid in the coordinates in which it is standard."""
    x, w = hermite(32)
    size = q.event_shape[0]
    grid = torch.cartesian_prod(*[x] * size)
    weights = torch.cartesian_prod(*[w] * size).prod(-1)
    z = q.mean + torch.einsum("bij,nj->nbi", torch.linalg.cholesky(q.covariance_matrix), grid)
    return lambda f: weighted(weights.unsqueeze(-1), f(z))


def categories(q: td.Independent) -> Expectation:
    """All combinations of one category per group."""
    probs = q.base_dist.probs
    batch, groups, size = probs.shape
    picks = torch.tensor(list(itertools.product(range(size), repeat=groups)))
    z = torch.nn.functional.one_hot(picks, size).to(probs.dtype).unsqueeze(1).expand(-1, batch, -1, -1)
    weights = (z * probs).sum(-1).prod(-1)
    return lambda f: weighted(weights, f(z))


def over_gaussian(f: Callable[..., np.ndarray], mean: float, deviation: float, bend: float = 0.0) -> list[float]:
    """E f, dE/dm = E[f e] / s and dE/dV = E[f (e^2 - 1)] / 2V for u = m + s e, on panels that are finest at the bend.

    The value at the mean is taken off first: it has no part in the derivatives, and would cancel in them.
    """
    reaches = 0.4 * np.concatenate([[0.0], np.geomspace(0.1, 1000, 60)])
    near = (bend + np.concatenate([-reaches, reaches]) - mean) / deviation
    edges = np.unique(np.clip(np.concatenate([np.linspace(-12, 12, 49), near]), -12, 12))
    e, w = (t.numpy() for t in legendre(torch.from_numpy(edges), order=20))
    centre = f(np.float64(mean))
    terms = w * stats.norm.pdf(e) * (f(mean + deviation * e) - centre)
    weights = np.ones_like(e), e / deviation, (e**2 - 1) / (2 * deviation**2)
    value, in_mean, in_variance = (float((terms * weight).sum()) for weight in weights)
    return [value + float(centre), in_mean, in_variance]


def derivatives(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The value, its gradient, and its second derivative along a fixed direction."""
    weights = torch.linspace(1.0, -0.4, len(value), dtype=value.dtype)
    first = torch.autograd.grad(value @ weights, leaves, create_graph=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(5)
    along = sum((g * torch.randn(g.shape, generator=generator, dtype=g.dtype)).sum() for g in first)
    second = torch.autograd.grad(along, leaves, retain_graph=True, materialize_grads=True)
    return [value, *first, *second]


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for position, (a, b) in enumerate(zip(actual, expected, strict=True)):
        scale = float(b.detach().abs().max()) + 1e-2  # where it vanishes, the quadrature leaves 1e-10
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale, msg=lambda m, n=position: f"{n}: {m}")


def every(values: int, *shape: int) -> Tensor:
    """All arrays of a shape whose entries are 0, 1, ..., values - 1."""
    rows = list(itertools.product(range(values), repeat=math.prod(shape)))
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, *shape)


def require_distribution(p: td.Distribution, values: Tensor, moments: bool = True) -> None:
    """The probabilities of all values of an example add up, the moments and frequencies of draws are theirs."""
    values, dims = values.reshape(len(values), *[1] * len(p.batch_shape), *p.event_shape), len(p.event_shape)
    probabilities = p.log_prob(values).exp().detach()
    torch.testing.assert_close(probabilities.sum(0), torch.ones_like(probabilities[0]), rtol=1e-10, atol=1e-10)
    if moments:
        weights = probabilities.reshape(*probabilities.shape, *[1] * dims)
        mean = (values * weights).sum(0)
        torch.testing.assert_close(p.mean, mean)
        torch.testing.assert_close(p.variance, ((values - mean).square() * weights).sum(0), rtol=1e-6, atol=1e-12)
    torch.manual_seed(0)
    draws = 20_000
    found = (p.sample(torch.Size([draws])) == values.unsqueeze(1)).flatten(2 + len(p.batch_shape) - (dims == 0))
    if dims:
        found = found.all(-1)
    frequencies = found.double().mean(1)
    assert ((frequencies - probabilities).abs() <= 4 * (probabilities / draws).sqrt() + 1 / draws).all()


@torch.no_grad()
def deviation(sample: Tensor, truth: Tensor) -> float:
    """Return the largest distance of a mean from the truth, in standard errors; rounding counts as none."""
    distance = (sample.mean(0) - truth.squeeze(0)).abs()
    error = sample.std(0) / len(sample) ** 0.5
    rounding = 1e-10 * truth.abs().max().clamp(min=1)
    return float(torch.where(distance < rounding, 0.0, distance / error).max())


def flat_gradient(loss: Tensor, module: torch.nn.Module, **options: bool) -> Tensor:
    """The gradient in all parameters of a module, by autograd."""
    gradients = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True, **options)
    return torch.cat([gradient.flatten() for gradient in gradients])


def textbook(g: Tensor) -> dict[str, float]:
    """What measurements of gradients are by definition, over gradients `(batches, draws, parameters)`."""
    batches, draws, _ = g.shape
    est = g.var(1).mean(0).sum()
    spread = g.mean(1).var(0).sum()
    batch = spread - est / draws
    signal = g.mean((0, 1)).square().sum() - spread / batches
    figures = {"est": est, "batch": batch, "est_percent": 100 * est / (est + batch), "snr": signal / (est + batch)}
    return {name: value.item() for name, value in figures.items()}
