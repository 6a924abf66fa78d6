"""Any VAE as a model that can be measured: an encoder that returns a latent, a decoder that scores x, a prior.

Hosts are known by the module of their class, so that none is imported; others by what they have: `encoder` and
`decoder`, or `encode` and `decode`.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as td

from silentgrad.decoders import is_tractable
from silentgrad.errors import DomainError, IntractableError, ShapeError, UnregisteredLatentError
from silentgrad.estimators import Estimator, GumbelSoftmax
from silentgrad.latents.families import Family, family_of, standard_prior
from silentgrad.latents.independent import base_of, shape_of_one, sum_over_latents
from silentgrad.latents.priors import GivenPrior, Prior

Function = Callable[..., Any]
UNIT_GAUSSIAN = partial(td.Normal, scale=1.0)
A_TENSOR = (
    "a tensor, which is no p(x|z): say of what it is the mean, likelihood=lambda mean: Normal(mean, 1.0), or "
    "Bernoulli for a sigmoid's output; a squared error is a variance of 0.5, half of it one of 1"
)


def modules_of(thing: Any, depth: int = 2) -> nn.ModuleList:
    """Return the modules that a thing is, belongs to, closes over or holds, and those of the things that it holds."""
    thing = getattr(thing, "__self__", thing)
    if isinstance(thing, nn.Module):
        return nn.ModuleList([thing])
    held = thing if isinstance(thing, tuple | list) else getattr(thing, "__dict__", {}).values()
    if inspect.isfunction(thing):
        seen = inspect.getclosurevars(thing)
        held = [*seen.nonlocals.values(), *seen.globals.values()]
    parts = [part for part in held if depth and not inspect.ismodule(part) and not inspect.isclass(part)]
    return nn.ModuleList(dict.fromkeys(module for part in parts for module in modules_of(part, depth - 1)))


class ModelPart(nn.Module):
    """Encoder or decoder as a function, with the modules whose parameters it uses."""

    def __init__(self, function: Function, of: Any = None) -> None:
        super().__init__()
        self.function, self.owners = (function,), modules_of(of or function)  # a tuple hides a module


class Encoding(ModelPart):
    """Encoder that returns one distribution in any case."""

    temperature: float | None = None

    def forward(self, x: Tensor) -> td.Distribution:
        found = latent_of(self.function[0](x))
        q = base_of(found)
        if not isinstance(q, td.RelaxedBernoulli | td.RelaxedOneHotCategorical):
            return found
        self.temperature = float(q.temperature)
        return (td.Bernoulli if isinstance(q, td.RelaxedBernoulli) else td.OneHotCategorical)(logits=q.logits)


class Decoding(ModelPart):
    """Decoder of z and x; `likelihood` makes p(x|z) of a tensor that it returns. One that `scores` gives log p(x|z)."""

    likelihood: Function | None = None
    scores = False

    def at(self, z: Tensor, x: Tensor) -> td.Distribution:
        """Return p(x|z), of as many x as z."""
        if self.scores:
            return td.Distribution(validate_args=False)  # which raises NotImplementedError whatever it is asked for
        p = self.function[0](z, x)
        if isinstance(p, Tensor) and self.likelihood is not None:
            p = self.likelihood(p.reshape(x.shape) if p.numel() == x.numel() else p)
        if isinstance(p, td.Distribution):
            return p
        raise DomainError(f"the decoder returned {A_TENSOR if isinstance(p, Tensor) else type(p).__name__}")

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x|z), one number per example."""
        return sum_over_latents(self.function[0](z, x), x.shape[:1]) if self.scores else log_prob_of(self.at(z, x), x)


def log_prob_of(p: td.Distribution, x: Tensor) -> Tensor:
    """Return log p of each example; in the shape of p's outputs, if they are as many."""
    shape = p.batch_shape + p.event_shape
    if shape and shape.numel() != x.numel():
        raise ShapeError(f"p(x|z) is of outputs {tuple(shape)}, x has shape {tuple(x.shape)}")
    values = p.log_prob(x.reshape(shape or x.shape))
    if values.shape[:1] != x.shape[:1]:
        raise ShapeError(f"log p(x|z) has shape {tuple(values.shape)} for x of shape {tuple(x.shape)}")
    return sum_over_latents(values, x.shape[:1])


@dataclass
class Adapted:
    """A model that is measured as `gradient_variance` and the other measurements take it.

    Args:
        encoder: From x to q(z|x).
        decoder: What scores x given z: the model's own decoder where that is tractable.
        at: From z and x, of as many examples, to p(x|z).
        prior: p(z).
        note: What had to be assumed.
        loss: The host's training loss of a batch, if it is known.
        estimator: The estimator that a relaxed q shows, if it does.
    """

    encoder: nn.Module
    decoder: Any
    at: Callable[[Tensor, Tensor], td.Distribution]
    prior: Any = None
    note: str = ""
    loss: Function | None = None
    estimator: Estimator | None = None


@torch.no_grad()
def measurable(
    model: Any, x: Tensor, likelihood: Function | None = None, prior: Prior | td.Distribution | None = None
) -> Adapted:
    """Return a VAE of any kind as a model that `gradient_variance` and the other measurements take.

    Arguments are those of :func:`silentgrad.check_up`; x are a few examples that the model is tried on.

    Example:
        >>> import silentgrad as sg
        >>> encoder, decoder, x = nn.Linear(4, 2 * 2), nn.Linear(2, 4), torch.randn(40, 4)
        >>> pair = (lambda x: encoder(x).chunk(2, -1)), decoder
        >>> model = measurable(pair, x, likelihood=lambda mean: td.Normal(mean, 1.0))
        >>> sg.gradient_variance(model, x.chunk(4), 10, [sg.Reparameterized()])["Reparameterized"].est > 0
        True
    """
    packages = [kind.__module__.partition(".")[0] for kind in type(model).__mro__]
    found = next((HOSTS[package] for package in packages if package in HOSTS), _of_parts)(model, x)
    q = found.encoder(x)
    shape = q.batch_shape + q.event_shape
    if len(shape) < 2 or shape[0] != len(x):
        raise ShapeError(f"q has shape {tuple(shape)} for x of shape {tuple(x.shape)}: expected (examples, *latents)")
    found.prior = prior or found.prior or standard_prior(q, family_of(q))
    if isinstance(found.prior, td.Distribution):
        found.prior = GivenPrior(Family(shape_of_one(q) if q.event_shape else shape[1:]), found.prior)
    if (temperature := getattr(found.encoder, "temperature", None)) is not None:
        found.estimator = GumbelSoftmax(temperature)
    if likelihood is not None:
        found.decoder.likelihood, found.note = likelihood, ""
    if q.mean.isfinite().all() and q.stddev.isfinite().all():
        found.decoder.log_prob(x, q.sample())  # says now what it does not take
    if is_tractable(own := getattr(model, "decoder", None)):
        found.decoder = own
    return found


def latent_of(found: Any) -> td.Distribution:
    """Return q(z|x) of what an encoder returned: a distribution, or mean and log-variance."""
    if isinstance(found, td.Distribution):
        return found
    parts = found if isinstance(found, tuple | list) else []
    if len(parts) == 2 and all(isinstance(part, Tensor) and part.shape == parts[0].shape for part in parts):
        return td.Normal(parts[0], (parts[1] / 2).exp())
    said = f"{len(parts)} things" if parts else type(found).__name__
    raise UnregisteredLatentError(
        f"the encoder returned {said}, expected a torch.distributions object or (mu, logvar) of one shape: of a "
        "tensor that holds both, give the model `def encode(self, x): return self.encoder(x).chunk(2, dim=-1)` and "
        "`decode`, or give two functions, (encode, decode), in its place"
    )


def _of_functions(encode: Function, decode: Function) -> Adapted:
    """Take those of a user; a decoder that has to be given two arguments is log p(x|z) as a function of x and z."""
    given = list[inspect.Parameter]()
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(decode.forward if isinstance(decode, nn.Module) else decode)
        given = [p for p in signature.parameters.values() if p.default is p.empty and p.kind in (0, 1)]
    scores = len(given) == 2
    decoder = Decoding((lambda z, x: decode(x, z)) if scores else (lambda z, x: decode(z)), decode)
    decoder.scores = scores
    return Adapted(Encoding(encode), decoder, decoder.at)


def _of_parts(model: Any, x: Tensor) -> Adapted:
    """Take a pair of functions; or a model's `encode`, or `encoder` without one, and likewise of the decoder."""
    if callable(getattr(model, "guide", None)) and callable(getattr(model, "model", None)) and "pyro" in sys.modules:
        return _of_pyro(model, x)
    parts: list[Any] = [getattr(model, n, None) or getattr(model, f"{n}r", None) for n in ("encode", "decode")]
    parts = list(model) if isinstance(model, tuple | list) else parts
    if len(parts) != 2 or not all(map(callable, parts)):
        raise DomainError(
            f"{type(model).__name__} has neither encoder and decoder nor encode and decode that give q and p. Give a "
            "pair of functions, (encode, decode), in its place"
        )
    found, prior = _of_functions(*parts), getattr(model, "prior", None)
    found.prior = prior if isinstance(prior, Prior | td.Distribution) else None
    return found


def _of_pythae(model: Any, x: Tensor) -> Adapted:
    parts = attrgetter("embedding", "log_covariance")
    found = _of_functions(lambda x: parts(model.encoder(x)), lambda z: model.decoder(z).reconstruction)
    bits, note = model.model_config.reconstruction_loss == "bce", "halved and summed, is a Gaussian of variance 1"
    found.decoder.likelihood = td.Bernoulli if bits else UNIT_GAUSSIAN
    found.note = "" if bits else f"pythae's squared error, {note}"
    found.loss = lambda x: model({"data": x}).loss
    return found


def _of_diffusers(model: Any, x: Tensor) -> Adapted:
    parts = attrgetter("mean", "logvar")
    found = _of_functions(lambda x: parts(model.encode(x).latent_dist), lambda z: model.decode(z).sample)
    found.note = "diffusers' model has no likelihood: a Gaussian of variance 1 is assumed; say likelihood=..."
    found.decoder.likelihood = UNIT_GAUSSIAN
    return found


def _of_scvi(model: Any, x: Tensor) -> Adapted:
    module = getattr(model, "module", model)

    def inferred(x: Tensor) -> tuple[Any, Tensor]:
        batch = torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
        return module.inference(x, batch), batch

    def decode(z: Tensor, x: Tensor) -> td.Distribution:
        found, batch = inferred(x)
        p: td.Distribution = module.generative(z, found["library"], batch)["px"]
        return p

    decoder, note = Decoding(decode, module), "cells are taken to be of the first batch"
    return Adapted(Encoding(lambda x: inferred(x)[0]["qz"], module), decoder, decoder.at, note=note)


def _of_pyro(model: Any, x: Tensor) -> Adapted:
    """Take one latent site of `model.guide(x)`, and one observed site of `model.model(x)`."""
    from pyro import poutine

    def sites(function: Function, x: Tensor) -> dict[str, Any]:
        nodes = poutine.util.prune_subsample_sites(poutine.trace(function).get_trace(x)).nodes.items()
        return {name: site["fn"] for name, site in nodes if site["type"] == "sample"}

    def modeled(z: Tensor, x: Tensor) -> dict[str, Any]:
        return sites(poutine.condition(model.model, data={name: z}), x)

    ((name, q), *others) = sites(model.guide, x).items()
    known = modeled(q.sample(), x)
    if others or len(known) != 2:
        raise IntractableError(f"expected one latent and one observed site, the model has {', '.join(known)}")
    (observed,) = known.keys() - {name}
    p: Any = base_of(known[name])
    first = type(p)(*(part.expand(q.batch_shape + q.event_shape)[0] for part in family_of(p).parameters(p)))
    encoder = Encoding(lambda x: sites(model.guide, x)[name], model)
    decoder = Decoding(lambda z, x: modeled(z, x)[observed], model)
    return Adapted(encoder, decoder, decoder.at, first)


HOSTS: dict[str, Callable[..., Adapted]] = {"pythae": _of_pythae, "diffusers": _of_diffusers, "scvi": _of_scvi}
"""Adapters by the package of the model's class or of one of its bases."""
