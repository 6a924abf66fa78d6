"""Pyro: black and white images, a model and a guide under SVI, whose loss begins as the linear decoder's.

What Pyro calls a guide is q(z|x); silentgrad's is the `silent_guide`. SVI takes any function of a model and a guide as
its loss. `SilentELBO` is one: it runs both and finds in their traces what the silent guide needs, q(z|x) at the site of
the latent and the likelihood at the observed one.
"""

from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import Adam
from torch import Tensor, nn
from torch.distributions import kl_divergence

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels

LATENTS, HIDDEN = 50, 400


class SilentELBO:
    """A loss for any model and guide with one latent and one observed site: `TraceMeanField_ELBO`'s, annealed.

    Dimensions of one example are declared by `to_event`. Subsampling, scales and masks count as in Pyro's own losses.
    The schedule stands at `epoch`, which the loop sets.
    """

    def __init__(self, silent_guide: sg.SilentGuide, latent: str = "z", observed: str = "x") -> None:
        self.silent_guide, self.latent, self.observed, self.epoch = silent_guide, latent, observed, 1

    def __call__(self, model: Callable, guide: Callable, *args: object, **kwargs: object) -> Tensor:
        pyro.module("silent_guide", self.silent_guide)  # SVI steps the parameters that it sees registered
        q_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        p_trace = poutine.trace(poutine.replay(model, trace=q_trace)).get_trace(*args, **kwargs)
        self._require_sites(p_trace, q_trace)
        q, prior, likelihood = q_trace.nodes[self.latent], p_trace.nodes[self.latent], p_trace.nodes[self.observed]
        x = likelihood["value"]
        nll = self.silent_guide(x, q["fn"], -likelihood["fn"].log_prob(x), epoch=self.epoch)
        kld = kl_divergence(q["fn"], prior["fn"])
        return _total(nll, likelihood) + _total(kld, q)

    def _require_sites(self, p_trace: poutine.Trace, q_trace: poutine.Trace) -> None:
        p_trace, q_trace = (poutine.util.prune_subsample_sites(trace) for trace in (p_trace, q_trace))
        for what, expected, found in (
            ("the guide samples", self.latent, q_trace.stochastic_nodes),
            ("the model samples", self.latent, p_trace.stochastic_nodes),
            ("the model observes", self.observed, p_trace.observation_nodes),
        ):
            if found != [expected]:
                raise sg.DomainError(f"expected one site {expected!r}, but {what} {', '.join(found) or 'nothing'}")
        if not q_trace.nodes[self.latent]["fn"].has_rsample:
            raise sg.DomainError(
                f"the guide's site {self.latent!r} is not reparameterized: the model's loss would misguide its gradient"
            )


def _total(losses: Tensor, site: dict) -> Tensor:
    return scale_and_mask(losses, site["scale"], site["mask"]).sum()


def train(images: Levels, seed: int, guided: bool, epochs: int) -> float:
    bits = comparison.bits_of(comparison.flat(images))
    x_train = bits.as_seen(bits.rows("train"), torch.Generator().manual_seed(0))
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    pixels = bits.event_shape.numel()
    encoder = nn.Sequential(nn.Linear(pixels, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, 2 * LATENTS))
    decoder = nn.Sequential(nn.Linear(LATENTS, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, pixels))

    def latent(x: Tensor) -> dist.Distribution:  # q(z|x)
        loc, log_scale = encoder(x).chunk(2, dim=-1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)

    def likelihood(z: Tensor) -> dist.Distribution:  # p(x|z)
        return dist.Bernoulli(logits=decoder(z)).to_event(1)

    def model(x: Tensor) -> None:
        pyro.module("decoder", decoder)
        with pyro.plate("images", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(len(x), LATENTS), 1.0).to_event(1))
            pyro.sample("x", likelihood(z), obs=x)

    def guide(x: Tensor) -> None:
        pyro.module("encoder", encoder)
        with pyro.plate("images", len(x)):
            pyro.sample("z", latent(x))

    bernoulli = sg.likelihoods.Bernoulli()
    silent_guide = sg.SilentGuide(LATENTS, pixels, sg.linear_decay(epochs=epochs / 5), likelihood=bernoulli)  # 1.
    silent_guide.init_from_data(x_train)
    silent_elbo = SilentELBO(silent_guide)
    loss = silent_elbo if guided else TraceMeanField_ELBO()
    svi = SVI(model, guide, Adam({"lr": 1e-3}), loss=loss)  # 2. SVI finds the parameters that the loss registers
    for epoch in range(1, epochs + 1):
        silent_elbo.epoch = epoch  # 3. w falls to 0 in a fifth of the epochs
        total = sum(svi.step(x) for x in x_train[torch.randperm(len(x_train))].split(128))
        print(f"epoch {epoch}: loss {total / len(x_train):.2f}", flush=True)
    return -comparison.judge(nn.ModuleList([encoder, decoder]), latent, likelihood, bits)


if __name__ == "__main__":
    comparison.main(train, "ELBO", epochs=10)
