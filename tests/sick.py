"""Fourteen sick VAEs, each with one known disease, and four healthy ones; on small synthetic digits, in seconds.

Each is a function of a seed that returns how `check_up` is called on it: the model, the data and options.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

SIDE, OUTPUTS, LATENTS, EXAMPLES, BATCH, WIDTH = 8, 64, 8, 500, 50, 32
RATE = 1e-2
STANDARD = td.Normal(0.0, 1.0)
Loss = Callable[[Any, Tensor], Tensor]
Likelihood = Callable[[Tensor], td.Distribution]
narrow: Likelihood = partial(td.Normal, scale=0.1)
squared: Likelihood = partial(td.Normal, scale=0.5**0.5)  # whose loss is a summed squared error
coins: Likelihood = lambda logits: td.Bernoulli(logits=logits, validate_args=False)  # noqa: E731


def images(seed: int) -> Tensor:
    """Soft strokes: two Gaussian blobs an image, `(EXAMPLES, 64)` between 0 and 1."""
    g = torch.Generator().manual_seed(1000 + seed)
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"), -1).reshape(-1, 2)
    centers = 1.5 + 4 * torch.rand(EXAMPLES, 2, 2, generator=g)
    widths = 0.7 + 0.6 * torch.rand(EXAMPLES, 2, 1, generator=g)
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

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(OUTPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2 * LATENTS))
        self.body = nn.Sequential(nn.Linear(LATENTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS))
        self.likelihood = likelihood

    def encode(self, x: Tensor) -> Any:
        return self.encoder(x).chunk(2, -1)

    def decode(self, z: Tensor) -> td.Distribution:
        return self.likelihood(self.body(z))

    def terms(self, x: Tensor, noise: float = 1.0) -> tuple[Tensor, Tensor]:
        """-log p(x|z) of each output and the KL divergence of each latent."""
        mu, logvar = self.encode(x)
        z = mu + noise * (logvar / 2).exp() * torch.randn_like(mu)
        return -self.decode(z).log_prob(x), -0.5 * (1 + logvar - mu.square() - logvar.exp())


def elbo(vae: Vae, x: Tensor, noise: float = 1.0) -> Tensor:
    nll, kld = vae.terms(x, noise)
    return nll.sum(1).mean() + kld.sum(1).mean()


def fit(vae: nn.Module, data: Tensor, loss: Loss = elbo, epochs: int = 20, optimizer: Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.Adam(vae.parameters(), lr=RATE)
    for _ in range(epochs):
        for x in data[torch.randperm(len(data))].split(BATCH):
            optimizer.zero_grad()
            loss(vae, x).backward()
            optimizer.step()


def trained(seed: int, data: Tensor, likelihood: Likelihood, loss: Loss = elbo, epochs: int = 35) -> Vae:
    torch.manual_seed(seed)
    vae = Vae(likelihood)
    fit(vae, data, loss, epochs)
    return vae


class Case(NamedTuple):
    """A call of `check_up`, and the name, a word of the cause and the verdict of what it has to put first."""

    model: Any
    data: Tensor
    options: dict[str, Any]
    name: str = ""
    cause: str = ""
    verdict: str = "wrong"


# The sick


def by_loss(cause: str, weighed: Loss, seed: int, likelihood: Likelihood = narrow, verdict: str = "wrong") -> Case:
    """A loss of the reconstruction of each output and the KL divergence of each latent."""

    def loss(vae: Vae, x: Tensor) -> Tensor:
        return weighed(*vae.terms(x))

    data = greys(seed)
    vae = trained(seed, data, likelihood, loss)
    return Case(vae, data, {"loss": lambda x: loss(vae, x)}, "weight of the KL divergence", cause, verdict)


def as_usual(
    data: Callable[[int], Tensor], likelihood: Likelihood, *said: str, **options: Any
) -> Callable[[int], Case]:
    """Train on data of the seed; `said` is the name of what has to come first, and a word of its cause."""
    return lambda seed: Case(trained(seed, data(seed), likelihood, **options), data(seed), {}, *said)


def strings(seed: int) -> Tensor:
    """Bits that mostly repeat the one before them, and depend on nothing else."""
    changes = torch.full((EXAMPLES, OUTPUTS), 0.15)
    return torch.bernoulli(changes, generator=torch.Generator().manual_seed(4000 + seed)).cumsum(1) % 2


def autoregressive(seed: int) -> Case:
    """64 latents, and a decoder that sees every earlier pixel of x, and z by units that are dead."""
    torch.manual_seed(seed)
    data, latents = strings(seed), 64
    encoder, of_z, of_x = nn.Linear(OUTPUTS, 2 * latents), nn.Linear(latents, OUTPUTS), nn.Linear(OUTPUTS, OUTPUTS)
    earlier = torch.ones(OUTPUTS, OUTPUTS).tril(-1)

    def encode(x: Tensor) -> td.Distribution:
        mu, logvar = encoder(x).chunk(2, -1)
        return td.Normal(mu, (logvar / 2).exp())

    def log_likelihood(x: Tensor, z: Tensor) -> Tensor:
        return coins(F.linear(x, of_x.weight * earlier, of_x.bias) + (of_z(z) - 50).relu()).log_prob(x).sum(1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        q = encode(x)
        return (td.kl_divergence(q, STANDARD).sum(1) - log_likelihood(x, q.rsample())).mean()

    fit(nn.ModuleList([encoder, of_z, of_x]), data, loss)
    return Case((encode, log_likelihood), data, {}, "latents in use", "ignores z")


def of_variances(likelihood: Callable[[Tensor, Tensor], td.Distribution], data: Tensor, rate: float, own: float) -> Vae:
    """Train a VAE with a log-variance of each pixel, which has a rate of its own."""
    log_variance = nn.Parameter(torch.zeros(OUTPUTS))
    vae = Vae(lambda numbers: likelihood(numbers, (log_variance / 2).exp()))
    groups = [{"params": [*vae.parameters()], "lr": rate}, {"params": [log_variance], "lr": own}]
    vae.log_variance = log_variance
    fit(vae, data, optimizer=torch.optim.Adam(groups))
    return vae


def unbounded_log_variance(seed: int) -> Case:
    """Pixels that are exactly black, and a log-variance of every pixel that is learned without a bound."""
    torch.manual_seed(seed)
    data = images(seed)
    data[:, ::SIDE] = 0
    vae = of_variances(lambda numbers, deviation: td.Normal(numbers.relu(), deviation), data, 3e-3, 0.2)
    return Case(vae, data, {}, "variance of the likelihood", "runs away")


def saturated(seed: int) -> Case:
    """A learning rate far too high has thrown the logits to the ends."""
    data = black_and_white(seed)
    vae = trained(seed, data, coins, epochs=5)
    with torch.no_grad():
        vae.body[-1].weight.mul_(200)
    return Case(vae, data, {}, "saturation", "no gradient")


class Gumbel(Vae):
    """Bits, relaxed at a temperature."""

    temperature: float

    def encode(self, x: Tensor) -> Any:
        logits, _ = self.encoder(x).chunk(2, -1)
        return td.RelaxedBernoulli(torch.tensor(self.temperature), logits=logits)

    def terms(self, x: Tensor, noise: float = 1.0) -> tuple[Tensor, Tensor]:
        q = self.encode(x)
        bits = td.Bernoulli(logits=q.logits)
        return -self.decode(q.rsample()).log_prob(x), td.kl_divergence(bits, td.Bernoulli(torch.tensor(0.5)))


def cold_gumbel(seed: int, temperature: float = 0.05) -> Case:
    torch.manual_seed(seed)
    data, vae = greys(seed), Gumbel(partial(td.Normal, scale=0.3))
    vae.temperature = temperature
    fit(vae, data)
    return Case(vae, data, {}, "relaxation", "temperature 0.05")


def other_family(seed: int) -> Case:
    """A log-normal posterior, and draws of a normal prior."""
    torch.manual_seed(seed)
    data, vae = greys(seed), Vae(narrow)

    def encode(x: Tensor) -> td.Distribution:
        mu, logvar = vae.encode(x)
        return td.LogNormal(mu, (logvar / 2).exp())

    def loss(_: Vae, x: Tensor) -> Tensor:
        q = encode(x)
        z = q.rsample()
        kld = q.log_prob(z) - STANDARD.log_prob(z)
        return (kld.sum(1) - vae.decode(z).log_prob(x).sum(1)).mean()

    fit(vae, data, loss)
    return Case((encode, vae.decode), data, {"prior": STANDARD}, "prior and posterior", "LogNormal")


def dropout_left_on(seed: int) -> Case:
    vae, data, *_ = HEALTHY["gaussian"](seed)
    first, *others = vae.encoder

    def encode(x: Tensor) -> Any:
        return nn.Sequential(*others)(F.dropout(first(x), 0.3)).chunk(2, -1)

    return Case((encode, vae.decode), data, {}, "evaluation mode", "dropout")


SICK: dict[str, Callable[[int], Case]] = {
    "KL mean over the batch": partial(by_loss, "over the batch", lambda nll, kld: nll.sum() + kld.sum(1).mean()),
    "KL mean over latents": partial(by_loss, "over the 8 latents", lambda nll, kld: nll.sum(1).mean() + kld.mean(),
                                    likelihood=squared, verdict="suspicious"),  # whose scale is off too
    "mean over pixels": partial(by_loss, "mean over the 64", lambda nll, kld: nll.mean() + kld.sum(1).mean()),
    "beta 50": partial(by_loss, "beta in the loss", lambda nll, kld: nll.sum(1).mean() + 50 * kld.sum(1).mean()),
    "at the mean of q alone": as_usual(greys, narrow, "training", "at other z", loss=partial(elbo, noise=0.0)),
    "autoregressive": autoregressive,
    "unbounded log-variance": unbounded_log_variance,
    "saturated": saturated,
    "pixels to 255": as_usual(lambda seed: (255 * images(seed)).round(), lambda u: td.Normal(u.sigmoid(), 0.1),
                              "range of the data", "0 to 255", epochs=8),
    "cross-entropy of greys": as_usual(images, coins, "bits", "lie between 0 and 1"),
    "untrained": as_usual(greys, narrow, "training", "not trained", epochs=0),
    "cold Gumbel": cold_gumbel,
    "other family": other_family,
    "dropout left on": dropout_left_on,
}  # fmt: skip


# The healthy


def learned_variance(seed: int) -> Case:
    """Dequantized levels, with a learned variance of every pixel."""
    torch.manual_seed(seed)
    levels = 16
    data = ((15 * images(seed)).round() + torch.rand(EXAMPLES, OUTPUTS)) / levels
    vae = of_variances(td.Normal, data, RATE, 0.02)
    return Case(vae, data, {"levels": levels, "loss": lambda x: elbo(vae, x)})


HEALTHY: dict[str, Callable[[int], Case]] = {
    "gaussian": functools.cache(as_usual(greys, narrow)),
    "binary": as_usual(black_and_white, coins),
    "learned variance": learned_variance,
    "warm Gumbel": partial(cold_gumbel, temperature=0.5),
}
