"""Black and white images, a linear decoder with a Bernoulli likelihood: one sample, or the expectation itself.

No guide and no second decoder here. "Without" is reparameterization, "with" the deterministic expectation of the same
decoder; both are judged by the latter.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels
from silentgrad.lab.runs.evaluation import evaluate_model

LATENTS, HIDDEN = 200, 512


def train(images: Levels, seed: int, silent: bool, epochs: int) -> float:
    bits = comparison.bits_of(images)
    x_train = bits.as_seen(bits.rows("train"), torch.Generator().manual_seed(0))
    torch.manual_seed(seed)
    pixels = images.event_shape.numel()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENTS))
    decoder = sg.LinearLikelihood(LATENTS, images.event_shape, sg.likelihoods.Bernoulli())
    decoder.init_from_data(x_train)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)

    def latent(x: Tensor) -> Normal:  # q(z|x)
        loc, log_scale = encoder(x).chunk(2, dim=-1)
        return Normal(loc, log_scale.exp())

    def elbo(x: Tensor, estimator: sg.Estimator) -> Tensor:
        q = latent(x)
        return estimator(q, sg.integrand_of(decoder, x)) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)

    estimator = sg.Exact() if silent else sg.Reparameterized()
    for epoch in range(1, epochs + 1):
        for x in x_train[torch.randperm(len(x_train))].split(64):
            loss = -elbo(x, estimator).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: ELBO of the last batch {-loss:.2f}", flush=True)
    model = sg.GuidedVAE(comparison.Part(latent, encoder), tractable=decoder)
    return -evaluate_model(model, bits).figure


if __name__ == "__main__":
    comparison.main(train, "ELBO")
