"""Thirteen sick VAEs, each with one known disease, and four healthy ones; on small synthetic digits, in seconds.

Each is a function of a seed and a width that returns how `check_up` is called on it: the model, the data and options.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F  # noqa: N812

SIDE, OUTPUTS, LATENTS, EXAMPLES, BATCH = 8, 64, 8, 500, 50
EPOCHS, RATE = 20, 1e-2
Loss = Callable[["Vae", Tensor], Tensor]
Likelihood = Callable[[Tensor], td.Distribution]
Weighed = Callable[[Tensor, Tensor], Tensor]


def images(seed: int, examples: int = EXAMPLES) -> Tensor:
    """Soft strokes: two Gaussian blobs an image, `(examples, 64)` between 0 and 1."""
    g = torch.Generator().manual_seed(1000 + seed)
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"), -1).reshape(-1, 2)
    centers = 1.5 + 4 * torch.rand(examples, 2, 2, generator=g)
    widths = 0.7 + 0.6 * torch.rand(examples, 2, 1, generator=g)
    squares = (grid - centers.unsqueeze(2)).square().sum(-1)
    return torch.exp(-squares / (2 * widths.square())).sum(1).clamp(0, 1)


def greys(seed: int) -> Tensor:
    """Greys with a little noise of measurement, which no decoder explains."""
    g = torch.Generator().manual_seed(2000 + seed)
    return images(seed) + 0.1 * torch.randn(EXAMPLES, OUTPUTS, generator=g)


def black_and_white(seed: int) -> Tensor:
    return torch.bernoulli(images(seed), generator=torch.Generator().manual_seed(3000 + seed))


class Vae(nn.Module):
    """An encoder that returns (mu, logvar), and a decoder that returns p(x|z)."""

    def __init__(self, likelihood: Likelihood, width: int, outputs: int = OUTPUTS) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(OUTPUTS, width), nn.Tanh(), nn.Linear(width, 2 * LATENTS))
        self.body = nn.Sequential(nn.Linear(LATENTS, width), nn.Tanh(), nn.Linear(width, outputs))
        self.likelihood = likelihood

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = self.encoder(x).chunk(2, -1)
        return mu, logvar

    def decode(self, z: Tensor) -> td.Distribution:
        return self.likelihood(self.body(z))

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-log p(x|z) of each output and the KL divergence of each latent."""
        mu, logvar = self.encode(x)
        z = mu + (logvar / 2).exp() * torch.randn_like(mu)
        nll = -self.decode(z).log_prob(x)
        return nll, -0.5 * (1 + logvar - mu.square() - logvar.exp())


def elbo(vae: Vae, x: Tensor) -> Tensor:
    nll, kld = vae.terms(x)
    return nll.sum(1).mean() + kld.sum(1).mean()


def fit(
    vae: nn.Module,
    data: Tensor,
    loss: Callable[[Any, Tensor], Tensor] = elbo,
    epochs: int = EPOCHS,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    optimizer = optimizer or torch.optim.Adam(vae.parameters(), lr=RATE)
    for _ in range(epochs):
        for x in data[torch.randperm(len(data))].split(BATCH):
            optimizer.zero_grad()
            loss(vae, x).backward()
            optimizer.step()


def narrow(mean: Tensor) -> td.Distribution:
    return td.Normal(mean, 0.1)


def squared_error(mean: Tensor) -> td.Distribution:
    return td.Normal(mean, 0.5**0.5)


def coins(logits: Tensor) -> td.Distribution:
    return td.Bernoulli(logits=logits, validate_args=False)


class Case(NamedTuple):
    """A call of `check_up`, and the name, a word of the cause and the verdict of what it has to put first."""

    model: Any
    data: Tensor
    options: dict[str, Any]
    name: str = ""
    cause: str = ""
    verdict: str = "wrong"


def _trained(seed: int, width: int, data: Tensor, likelihood: Likelihood, loss: Loss = elbo, epochs: int = 35) -> Vae:
    torch.manual_seed(seed)
    vae = Vae(likelihood, width)
    fit(vae, data, loss, epochs)
    return vae


Maker = Callable[[int, int], Case]


# The sick


def _by_loss(seed: int, width: int, cause: str, weighed: Weighed, likelihood: Likelihood = narrow) -> Case:
    """A loss of the reconstruction of each output and the KL divergence of each latent."""

    def loss(vae: Vae, x: Tensor) -> Tensor:
        return weighed(*vae.terms(x))

    data = greys(seed)
    vae = _trained(seed, width, data, likelihood, loss)
    return Case(vae, data, {"loss": lambda x: loss(vae, x)}, "weight of the KL divergence", cause)


def kl_mean_over_batch(seed: int, width: int) -> Case:
    """The reconstruction is a sum over the batch, the KL divergence a mean over it and a sum over latents."""
    return _by_loss(seed, width, "over the batch", lambda nll, kld: nll.sum() + kld.sum(1).mean())


def kl_mean_over_latents(seed: int, width: int) -> Case:
    """A squared error, summed, whose variance of 0.5 is off as well."""
    case = _by_loss(seed, width, "over the 8 latents", lambda nll, kld: nll.sum(1).mean() + kld.mean(), squared_error)
    return case._replace(verdict="suspicious")


def mean_over_pixels(seed: int, width: int) -> Case:
    return _by_loss(seed, width, "mean over the 64 outputs", lambda nll, kld: nll.mean() + kld.sum(1).mean())


def beta_50(seed: int, width: int) -> Case:
    return _by_loss(seed, width, "beta in the loss", lambda nll, kld: nll.sum(1).mean() + 50 * kld.sum(1).mean())


def textures(seed: int) -> Tensor:
    """Bits that depend on their neighbors to the left and above, and on nothing else."""
    g = torch.Generator().manual_seed(4000 + seed)
    x = torch.zeros(EXAMPLES, SIDE + 1, SIDE + 1)
    for row in range(1, SIDE + 1):
        for column in range(1, SIDE + 1):
            logits = 3 * (x[:, row - 1, column] + x[:, row, column - 1] - 0.7)
            x[:, row, column] = torch.bernoulli(logits.sigmoid(), generator=g)
    return x[:, 1:, 1:].flatten(1)


def autoregressive(seed: int, width: int) -> Case:
    """64 latents, and a decoder that sees every earlier pixel of x, and z by units that are dead."""
    torch.manual_seed(seed)
    data, latents = textures(seed), 64
    encoder, of_z, of_x = nn.Linear(OUTPUTS, 2 * latents), nn.Linear(latents, OUTPUTS), nn.Linear(OUTPUTS, OUTPUTS)
    earlier = torch.ones(OUTPUTS, OUTPUTS).tril(-1)

    def encode(x: Tensor) -> td.Distribution:
        mu, logvar = encoder(x).chunk(2, -1)
        return td.Normal(mu, (logvar / 2).exp())

    def log_likelihood(x: Tensor, z: Tensor) -> Tensor:
        return coins(F.linear(x, of_x.weight * earlier, of_x.bias) + (of_z(z) - 50).relu()).log_prob(x).sum(1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        q = encode(x)
        return (td.kl_divergence(q, td.Normal(0.0, 1.0)).sum(1) - log_likelihood(x, q.rsample())).mean()

    fit(nn.ModuleList([encoder, of_z, of_x]), data, loss)
    return Case((encode, log_likelihood), data, {}, "latents in use", "ignores z")


def unbounded_log_variance(seed: int, width: int) -> Case:
    """Pixels that are exactly black, and a log-variance of every pixel that is learned without a bound."""
    torch.manual_seed(seed)
    data = images(seed)
    data[:, ::SIDE] = 0
    vae, logvar = Vae(lambda numbers: td.Normal(numbers, 1.0), width), nn.Parameter(torch.zeros(OUTPUTS))
    vae.likelihood = lambda numbers: td.Normal(numbers.relu(), (logvar / 2).exp())
    optimizer = torch.optim.Adam([{"params": vae.parameters(), "lr": 3e-3}, {"params": [logvar], "lr": 0.2}])
    fit(vae, data, optimizer=optimizer)
    return Case(vae, data, {}, "variance of the likelihood", "runs away")


def saturated(seed: int, width: int) -> Case:
    """A learning rate far too high has thrown the logits to the ends."""
    data = black_and_white(seed)
    vae = _trained(seed, width, data, coins, epochs=5)
    with torch.no_grad():
        vae.body[-1].weight.mul_(200)
    return Case(vae, data, {}, "saturation", "no gradient")


def pixels_to_255(seed: int, width: int) -> Case:
    data = (255 * images(seed)).round()
    vae = _trained(seed, width, data, lambda logits: td.Normal(logits.sigmoid(), 0.1), epochs=8)
    return Case(vae, data, {}, "range of the data", "0 to 255")


def cross_entropy_of_greys(seed: int, width: int) -> Case:
    data = images(seed)
    return Case(_trained(seed, width, data, coins), data, {}, "bits", "lie between 0 and 1")


def untrained(seed: int, width: int) -> Case:
    torch.manual_seed(seed)
    return Case(Vae(narrow, width), greys(seed), {}, "training", "not trained")


class Gumbel(Vae):
    """Bits, relaxed at a temperature."""

    temperature: float

    def encode(self, x: Tensor) -> Any:
        logits, _ = self.encoder(x).chunk(2, -1)
        return td.RelaxedBernoulli(torch.tensor(self.temperature), logits=logits)

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = self.encode(x)
        bits = td.Bernoulli(logits=q.logits)
        return -self.decode(q.rsample()).log_prob(x), td.kl_divergence(bits, td.Bernoulli(torch.tensor(0.5)))


def cold_gumbel(seed: int, width: int, temperature: float = 0.05) -> Case:
    torch.manual_seed(seed)
    data, vae = greys(seed), Gumbel(lambda mean: td.Normal(mean, 0.3), width)
    vae.temperature = temperature
    fit(vae, data)
    return Case(vae, data, {}, "relaxation", "temperature 0.05")


def other_family(seed: int, width: int) -> Case:
    """A log-normal posterior, and draws of a normal prior."""
    torch.manual_seed(seed)
    data, vae = greys(seed), Vae(narrow, width)

    def encode(x: Tensor) -> td.Distribution:
        mu, logvar = vae.encode(x)
        return td.LogNormal(mu, (logvar / 2).exp())

    def loss(_: Vae, x: Tensor) -> Tensor:
        q = encode(x)
        z = q.rsample()
        kld = q.log_prob(z) - td.Normal(0.0, 1.0).log_prob(z)
        return (kld.sum(1) - vae.decode(z).log_prob(x).sum(1)).mean()

    fit(vae, data, loss)
    return Case((encode, vae.decode), data, {"prior": td.Normal(0.0, 1.0)}, "prior and posterior", "LogNormal")


def dropout_left_on(seed: int, width: int) -> Case:
    vae, data, *_ = gaussian(seed, width)
    first, *others = vae.encoder

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = nn.Sequential(*others)(F.dropout(first(x), 0.3)).chunk(2, -1)
        return mu, logvar

    return Case((encode, vae.decode), data, {}, "evaluation mode", "dropout")


SICK = [
    kl_mean_over_batch, kl_mean_over_latents, mean_over_pixels, beta_50, autoregressive, unbounded_log_variance,
    saturated, pixels_to_255, cross_entropy_of_greys, untrained, cold_gumbel, other_family, dropout_left_on,
]  # fmt: skip


# The healthy


@functools.cache
def gaussian(seed: int, width: int) -> Case:
    data = greys(seed)
    return Case(_trained(seed, width, data, narrow), data, {})


def binary(seed: int, width: int) -> Case:
    data = black_and_white(seed)
    return Case(_trained(seed, width, data, coins), data, {})


def learned_variance(seed: int, width: int) -> Case:
    """Dequantized levels, with a learned variance of every pixel."""
    torch.manual_seed(seed)
    levels = 16
    data = ((15 * images(seed)).round() + torch.rand(EXAMPLES, OUTPUTS)) / levels
    log_variance = nn.Parameter(torch.zeros(OUTPUTS))
    vae = Vae(lambda mean: td.Normal(mean, (log_variance / 2).exp()), width)
    vae.log_variance = log_variance
    slow, quick = [*vae.encoder.parameters(), *vae.body.parameters()], {"params": [log_variance], "lr": 0.02}
    fit(vae, data, optimizer=torch.optim.Adam([{"params": slow, "lr": RATE}, quick]))
    return Case(vae, data, {"levels": levels, "loss": lambda x: elbo(vae, x)})


def warm_gumbel(seed: int, width: int) -> Case:
    return cold_gumbel(seed, width, temperature=0.5)


HEALTHY = [gaussian, binary, learned_variance, warm_gumbel]
