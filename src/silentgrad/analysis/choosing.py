"""Which estimator to take on a problem of one's own: a handful are timed and measured there."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.analysis.batch import MeasurableModel, MeasuredBatch
from silentgrad.analysis.drawing import require_gradient
from silentgrad.analysis.tally import FEWEST_BATCHES, Decomposition, table
from silentgrad.analysis.variance import gradient_variance, named, seeded
from silentgrad.errors import DomainError, SilentgradError
from silentgrad.estimators import ESTIMATORS, RLOO, Estimator, Integrand, SilentControlVariate, integrand_of
from silentgrad.latents.independent import base_of, device_of

HANDFUL = (
    *("exact", "reparameterized", "disarm", "arms", "carms", "disarm-tree", "double-cv"),
    *("rloo", "reinmax", "gumbel-softmax", "gumbel-rao", "eat"),
)
ROUNDS, FEWEST_DRAWS, MOST_DRAWS = 5, 8, 2_000


@dataclass(frozen=True)
class Recommendation:
    """Measurements of several estimators; prints as a table, the best first.

    Args:
        name: Name of the estimator with the least mean squared error for the time.
        estimator: That estimator, to be trained with.
        found: Bias and variance of each, the best first; `sg.ranked(it.found)` has the other figures.
        seconds: Seconds of a draw of each, forward and backward, without the encoder's part.
        errors: The error for the time: the mean squared error of the mean of as many draws as fit into the time of one
            draw of the slowest on the list, so that another list has other errors.
    """

    name: str
    estimator: Estimator
    found: Mapping[str, Decomposition]
    seconds: Mapping[str, float]
    errors: Mapping[str, float]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("estimator", "error for the time", "bias²", "variance", "ms a draw")]
        for name, own in self.found.items():
            error, variance, time = (f"{it:.3g}" for it in (self.errors[name], own.est, 1e3 * self.seconds[name]))
            rows.append((f"{name} *" if own.unbiased else name, error, own.bias, variance, time))
        return table(rows, self.found.values())


def recommend(
    q: td.Distribution | MeasurableModel,
    f: Integrand | Tensor,
    budget: float = 5.0,
    estimators: Mapping[str, Estimator] | Iterable[Estimator] | None = None,
    seed: int = 0,
) -> Recommendation:
    """Measure a handful of estimators on a problem, and say which has the least mean squared error for the time.

    Args:
        q: The latents, or a model with an encoder and a decoder.
        f: A function of z, one number per example: `integrand_of(decoder, x)`, or one of your own; for a model, x.
        budget: Seconds to measure for, about.
        estimators: The estimators, by name or as a list; if absent, those of a handful that take the latents: `HANDFUL`
            and `RLOO` with a silent control variate.
        seed: Seed of the draws. The global random state is left as it was.

    Example:
        >>> import silentgrad as sg
        >>> q = torch.distributions.Bernoulli(logits=torch.zeros(8, 20))
        >>> found = recommend(q, lambda z: (z - 0.4).square().sum(-1), budget=0.2)
        >>> found.name in found.errors, found.errors[found.name] == min(found.errors.values())
        (True, True)
    """
    if not budget > 0:
        raise DomainError(f"the budget is a number of seconds above 0, got {budget}")
    latent, function = _problem(q, f)
    chosen = named(estimators) if estimators is not None else _handful(latent)
    seconds: dict[str, float] = {}
    refusals: list[SilentgradError] = []
    with seeded(seed, device_of(latent)):
        for name, estimator in chosen.items():
            try:
                seconds[name] = _seconds(estimator, latent, function)
            except SilentgradError as refusal:
                refusals.append(refusal)
    if len(refusals) == len(chosen) or (refusals and estimators is not None):
        raise refusals[0]
    total = FEWEST_BATCHES * sum(seconds.values())
    draws = min(max(int(budget / total), FEWEST_DRAWS), MOST_DRAWS)
    taken = {name: chosen[name] for name in seconds}
    batches = f.chunk(FEWEST_BATCHES) if isinstance(f, Tensor) else f
    found = gradient_variance(q, batches, draws, taken, seed=seed)
    slowest, errors = max(seconds.values()), {}
    for name, own in found.items():
        error = own.error(slowest / seconds[name])
        errors[name] = float("inf") if error is None else error
    order = sorted(found, key=lambda name: (errors[name], seconds[name]))
    return Recommendation(order[0], taken[order[0]], {name: found[name] for name in order}, seconds, errors)


def _problem(q: td.Distribution | MeasurableModel, f: Integrand | Tensor) -> tuple[td.Distribution, Integrand]:
    """Return the latents and the function of z."""
    if isinstance(q, td.Distribution):
        if isinstance(f, Tensor):
            raise DomainError("latents by themselves need a function of z: integrand_of(decoder, x), or your own")
        return q, f
    if not hasattr(q, "encoder"):
        kind = type(q).__name__
        raise DomainError(f"q is a distribution, such as Bernoulli(logits=...), or a model with an encoder, got {kind}")
    if not isinstance(f, Tensor) or len(f) < FEWEST_BATCHES:
        raise DomainError(f"a model needs examples x, at least {FEWEST_BATCHES} of them, in place of a function")
    return q.encoder(f), integrand_of(q.decoder, f)


def _handful(q: td.Distribution) -> dict[str, Estimator]:
    """Return those that may take the latents; whether they do is found by asking them."""
    taken = {name: ESTIMATORS[name] for name in HANDFUL if isinstance(base_of(q), ESTIMATORS[name].latents)}
    found = {name: own.sized((q.batch_shape + q.event_shape)[1:].numel()) for name, own in taken.items()}
    return found | {"silent-rloo": SilentControlVariate(RLOO())}


def _seconds(estimator: Estimator, q: td.Distribution, f: Integrand) -> float:
    """Time several calls and return the least seconds, forward and backward as far as the latents."""
    batch, taken = MeasuredBatch.of_function(q, f), []
    clock = time.process_time if batch.device.type == "cpu" else time.perf_counter  # other work is none of ours
    for _ in range(ROUNDS):
        start = clock()
        value = estimator.eval()(batch.latent(), f)
        require_gradient(value, estimator)
        torch.autograd.grad(value.sum(), batch.parts.tensors, allow_unused=True)
        if batch.device.type == "cuda":
            torch.cuda.synchronize(batch.device)
        taken.append(clock() - start)
    estimator.train()
    return min(taken)
