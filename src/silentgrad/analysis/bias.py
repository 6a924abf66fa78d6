r"""Distance of an estimator's mean gradient from the true one.

The truth is the gradient of :math:`\sum_z q(z|x) \log p(x|z)` over all configurations of bits or one-hot categories,
which have to be few enough to enumerate. For other latents it is the closed form of a decoder that is exact for them.
An estimator's deviation is :math:`|J^T (\bar c - c)|`, the Euclidean norm over the encoder's parameters of the
difference between its mean gradient over many draws and the truth. A closed form has no draws, and its deviation is
that of its approximations: for the linear precision link the log term, for the exponential link none. An unbiased
estimator's deviation is what its draws leave, :math:`\sqrt{\mathrm{Var} / S}` in the mean square.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from silentgrad.analysis.batch import MeasurableModel, MeasuredBatch
from silentgrad.analysis.drawing import Cotangent, quick_integrand_of
from silentgrad.analysis.products import Gradient, Sketch, difference, squared_norms
from silentgrad.analysis.variance import named, seeded
from silentgrad.errors import IntractableError
from silentgrad.estimators import Enumerate, Estimator, Exact
from silentgrad.latents.independent import base_of

PRODUCTS = 8


@dataclass(frozen=True)
class Bias:
    """An estimator's distance from the true gradient.

    Args:
        deviation: Norm of the mean gradient's difference from the truth.
        noise: The part of it that the number of draws explains, as a root mean square.
        relative: The deviation as a fraction of the true gradient's norm.
    """

    deviation: float
    noise: float
    relative: float


def gradient_bias(
    model: MeasurableModel,
    x: Tensor,
    estimators: Mapping[str, Estimator] | Iterable[Estimator],
    draws: int = 100_000,
    seed: int = 0,
) -> dict[str, Bias]:
    """Measure the deviation of estimators from the true gradient, on one batch.

    Args:
        model: Any model with an `encoder`, a `decoder` and perhaps a `prior`, as `gradient_variance` takes it, measured
            as it stands. It has at most 16 Bernoulli latents, or categories with as few configurations; latents of
            other families need a tractable decoder whose closed form is exact. Double precision resolves closed forms.
        x: Examples as the model sees them.
        estimators: Estimators of the expectation under `model.decoder`, by name or as a list, treated as by
            `gradient_variance`.
        draws: Number of draws behind the mean gradient of an estimator that samples, taken in chunks.
        seed: Seed of the draws. The global random state is left as it was.

    Raises:
        IntractableError: The true gradient is not known: neither by enumeration nor in closed form.
        UnregisteredLatentError: The encoder returned a hierarchy of latents, or a latent of no family.

    Example:
        >>> import silentgrad as sg
        >>> from silentgrad.lab.networks import Encoder, mlp_body
        >>> decoder = sg.LinearPrecisionGaussian(3, (1, 2, 2), link="exp")
        >>> model = sg.GuidedVAE(Encoder(mlp_body((1, 2, 2), 3), sg.families.Bernoulli(3)), decoder).double()
        >>> found = gradient_bias(model, torch.rand(5, 1, 2, 2).double(), [sg.Exact(), sg.GumbelSoftmax()], draws=100)
        >>> found["Exact"].deviation < 1e-12 < found["GumbelSoftmax"].deviation
        True
    """
    batch = MeasuredBatch.of_model(model, x, quick_integrand_of(model.decoder, x))
    truth = true_cotangent(batch)
    norm = length(batch.pullback(truth))
    chosen = named(estimators)
    return {name: _bias(batch, truth, norm, copy.deepcopy(own), draws, seed) for name, own in chosen.items()}


def true_cotangent(batch: MeasuredBatch) -> Cotangent:
    """Return the true cotangent of the whole loss: by enumeration, or where latents are not discrete in closed form."""

    def without_graph(z: Tensor) -> Tensor:
        return batch.integrand(z).detach()  # 2^d of them: their graphs would fill the memory

    q = batch.latent()
    if isinstance(base_of(q), Enumerate.latents):
        return batch.exact_cotangent(Enumerate(), without_graph)
    if batch.knows_truth:
        return batch.exact_cotangent(Exact(), batch.integrand)
    raise IntractableError(
        f"the true gradient is not known: {type(base_of(q)).__name__} latents cannot be enumerated, and the decoder "
        "has no closed form that is exact for them"
    )


def _bias(batch: MeasuredBatch, truth: Cotangent, norm: float, estimator: Estimator, draws: int, seed: int) -> Bias:
    draws = 2 if estimator.exact else draws
    with seeded(seed, batch.device):
        batch.learn(estimator)
        sketch = Sketch(batch.pullback, PRODUCTS, torch.Generator().manual_seed(seed))
        found = batch.over_draws(estimator, sketch, draws)
    deviation = length(batch.pullback(difference(found.mean, truth)))
    return Bias(deviation, (found.variance.sum() / draws).sqrt().item(), deviation / norm)


def length(gradient: Gradient) -> float:
    """Compute the Euclidean norm."""
    return squared_norms(gradient).sum().sqrt().item()
