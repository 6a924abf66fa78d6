r"""The decomposition of the encoder's gradient variance into what batches and what latent draws contribute.

With :math:`g_{ns}` the gradient of the training loss for batch n and draw s, N batches and S draws each,

.. math::
    \mathrm{Est} = \mathrm{mean}_n \mathrm{var}_s\, g_{ns},\qquad
    \mathrm{Batch} = \mathrm{var}_n(\mathrm{mean}_s\, g_{ns}) - \mathrm{Est} / S,\qquad
    \mathrm{SNR} = \frac{|E g|^2}{\mathrm{Est} + \mathrm{Batch}},

variances with S - 1 and N - 1 and summed over the encoder's parameters. :math:`|E g|^2` is estimated by
:math:`|\bar g|^2 - \mathrm{var}_n(\mathrm{mean}_s\, g_{ns}) / N`, so every figure but the quotients is unbiased; Batch
and SNR can come out negative where noise hides them.

Standard errors are jackknifed over consecutive pairs of batches. A pair has its own unbiased estimates of all three,
:math:`\tfrac12 |\bar g_1 - \bar g_2|^2` of the batches' variance and :math:`\bar g_1 \cdot \bar g_2` of
:math:`|E g|^2`, so one earlier gradient is all that has to be kept. They cover batches, draws and signs together, and
are too large rather than too small: the figures compare all batches with each other, not only those in a pair.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.analysis.batch import MeasurableModel, MeasuredBatch
from silentgrad.analysis.drawing import quick_integrand_of
from silentgrad.analysis.products import Every, Gradient, Pullback, Sketch, SquaresMethod, added, over_draws
from silentgrad.analysis.tally import FEWEST_BATCHES, Decomposition, Mean, Tally
from silentgrad.errors import DomainError
from silentgrad.estimators import Estimator, Integrand, integrand_of
from silentgrad.estimators.base import require_estimator
from silentgrad.estimators.integrand import log_prob_of
from silentgrad.latents.independent import device_of

MethodName = Literal["sketch", "every"]


def gradient_variance(
    model: MeasurableModel | td.Distribution,
    batches: Iterable[Tensor] | Integrand,
    draws: int,
    estimators: Mapping[str, Estimator] | Iterable[Estimator],
    method: MethodName = "sketch",
    products: int = 8,
    epoch: int | None = None,
    seed: int = 0,
) -> dict[str, Decomposition]:
    """Measure how much of the encoder's gradient noise is the batches', and how much the estimator's.

    Args:
        model: Any model with an `encoder`, which returns one latent of a registered family, and a `decoder`, to which
            the estimators are applied; its `prior`, if it has one, is a `Prior`. It is measured as it stands: call
            `model.eval()` first for batch normalization with its running statistics. Or a latent by itself, of any
            distribution, in whose own parameters the gradient is then taken.
        batches: Examples as the model sees them, at least four batches of one size; each is encoded once. Wrap them in
            `rich.progress.track` to see progress. For a latent by itself, a plain function of z, one number per
            example; its mean over the examples is differentiated, without a KL divergence, in four rounds of draws.
        draws: Latent draws per batch. Memory does not grow with them. An exact estimator draws nothing: it is evaluated
            twice, so that its variance is measured and not assumed.
        estimators: Estimators by name, or a list of them to be named after their classes. They are copied. One that
            learns in training (REINFORCE's baseline) takes one training step on each batch and is then held for the
            draws.
        method: "every" computes every draw's gradient by the definition; "sketch" a few random combinations of them,
            and takes the draws of a linear decoder several at a time.
        products: Vector-Jacobian products per batch of the sketch.
        epoch: The epoch whose `GuidedVAE` objective is measured, w times the linear decoder's closed form and 1 - w
            times the estimator's; if absent, the estimator's alone is measured.
        seed: Seed of the draws and of the signs. The global random state is left as it was.

    Returns:
        A decomposition for each estimator, in their order; `silentgrad.ranked` orders them, and prints as a table.

    Raises:
        UnregisteredLatentError: The encoder returned a hierarchy of latents, or a latent of no family.

    Example:
        >>> import silentgrad as sg
        >>> from silentgrad.lab.networks import Encoder, mlp_body
        >>> family = sg.families.Gaussian(3)
        >>> model = sg.GuidedVAE(Encoder(mlp_body((1, 2, 2), family.numbers), family), sg.LinearGaussian(3, (1, 2, 2)))
        >>> found = gradient_variance(model, torch.rand(4, 5, 1, 2, 2), 10, [sg.Exact(), sg.Reparameterized()])
        >>> found["Exact"].est, found["Reparameterized"].est > 0
        (0.0, True)
        >>> q = torch.distributions.Bernoulli(logits=torch.zeros(1, 20))  # a latent and a function by themselves
        >>> pair = [sg.DisARM(), sg.estimators.IndeCateR()]
        >>> toy = gradient_variance(q, lambda z: (z - 0.499).square().sum(-1), 50, pair)
        >>> toy["DisARM"].est > toy["IndeCateR"].est, toy["IndeCateR"].evaluations
        (True, 21)
    """
    if draws < 2 or products < 1:
        raise DomainError(f"a variance needs at least 2 draws and 1 product, got {draws} and {products}")
    copies = {name: copy.deepcopy(estimator) for name, estimator in named(estimators).items()}
    tallies = {name: Tally(2 if own.exact else draws, own.unbiased) for name, own in copies.items()}
    exact, names = list[Tensor](), list[str]()
    seeds = torch.Generator().manual_seed(seed)
    for batch in _measured(model, batches, method, epoch):
        closed_form, means = batch.exact_gradient(), {}
        exact = added(exact, closed_form)
        for name, tally in tallies.items():
            draw_seed, sign_seed = torch.randint(2**62, (2,), generator=seeds).tolist()
            with seeded(draw_seed, batch.device):
                tally.evaluations = batch.learn(copies[name])
                how = _method(method, batch.pullback, products, sign_seed)
                found = batch.over_draws(copies[name], how, tally.draws)
            means[name] = Mean(batch.pullback(found.mean), found.variance.sum() / tally.draws)
            tally.add(means[name].gradient, found.variance)
        _compare(tallies, copies, means, closed_form if batch.knows_truth else [])
        names = list(batch.names)
    return {name: tally.result(names, exact) for name, tally in tallies.items()}


def decoder_variance(model: MeasurableModel, batches: Iterable[Tensor], draws: int, seed: int = 0) -> Decomposition:
    """Measure the same of the gradient of -log p(x|z) in the decoder's parameters, by one draw of z for each example.

    Arguments are those of :func:`silentgrad.gradient_variance`; the decoder is a module.
    """
    named = model.decoder.named_parameters() if isinstance(model.decoder, nn.Module) else ()
    parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
    if not parameters:
        raise DomainError("the decoder has no parameters that take a gradient")
    tally = Tally(draws)

    def gradients(x: Tensor) -> Iterator[Gradient]:
        for z in model.encoder(x).sample(torch.Size([draws])):
            loss = -log_prob_of(model.decoder, x, z).mean()
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
            yield [gradient.unsqueeze(0) for gradient in found]

    for x in batches:
        with seeded(seed + tally.batches, x.device):
            tally.add(*over_draws(gradients(x), Every(lambda gradient: gradient), draws))
    return tally.result(list(parameters), exact=[])


def _measured(
    model: MeasurableModel | td.Distribution,
    batches: Iterable[Tensor] | Integrand,
    method: MethodName,
    epoch: int | None,
) -> Iterator[MeasuredBatch]:
    """Yield what is measured, batch after batch."""
    if isinstance(model, td.Distribution):
        if epoch is not None or not callable(batches):
            raise DomainError("a latent by itself is measured with a function of z in place of batches, and no epoch")
        with seeded(0, device_of(model)):
            batch = MeasuredBatch.of_function(model, batches)
        for _ in range(FEWEST_BATCHES):
            yield batch
        return
    if not isinstance(batches, Iterable):
        raise DomainError("a plain function of z is measured with a latent in place of the model")
    integrand = integrand_of if method == "every" else quick_integrand_of
    for x in batches:
        yield MeasuredBatch.of_model(model, x, integrand(model.decoder, x), epoch)


def _compare(
    tallies: Mapping[str, Tally], estimators: Mapping[str, Estimator], means: Mapping[str, Mean], truth: Gradient
) -> None:
    """Compare the biased estimators with the true gradient of a batch, or with the best that is known of it."""
    known = {name: means[name] for name, own in estimators.items() if own.unbiased and not own.uses_prior}
    if truth:
        known["the closed form"] = Mean(truth, torch.zeros_like(truth[0].sum()))
    if known:
        best = min(known, key=lambda name: float(known[name].noise))
        for name, tally in tallies.items():
            if not tally.unbiased:
                tally.compare(means[name], known[best], best)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Use randomness of its own; the global random state is put back afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _method(name: MethodName, pullback: Pullback, products: int, seed: int) -> SquaresMethod:
    if name == "every":
        return Every(pullback)
    if name == "sketch":
        return Sketch(pullback, products, torch.Generator().manual_seed(seed))
    raise DomainError(f'method has to be "sketch" or "every", got {name!r}')


def _name(estimator: Estimator) -> str:
    inner = getattr(estimator, "estimator", None)
    return type(estimator).__name__ + ("" if inner is None else f"({_name(inner)})")


def named(estimators: Mapping[str, Estimator] | Iterable[Estimator]) -> dict[str, Estimator]:
    """Name estimators; a list is named after their classes, one made of another after both."""
    listed = list(estimators.values() if isinstance(estimators, Mapping) else estimators)
    for estimator in listed:
        require_estimator(estimator)
    if isinstance(estimators, Mapping):
        found = dict(estimators)
    else:
        found = {_name(estimator): estimator for estimator in listed}
        if len(found) < len(listed):
            raise DomainError("two estimators of one class: give them names, {'a': ..., 'b': ...}")
    if not found:
        raise DomainError("there is no estimator to measure")
    return found
