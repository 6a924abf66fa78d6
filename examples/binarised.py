"""Black and white images, a linear decoder with a Bernoulli likelihood: one sample, or the expectation itself.

No guide and no second decoder here. "Without" is reparameterisation, "with" the deterministic expectation of the same
decoder; both are judged by the latter.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels

LATENTS, HIDDEN = 200, 512


def train(images: Levels, seed: int, silent: bool, epochs: int) -> float:
    x_train, x_test = (comparison.binarise(split, images.levels, seed=0) for split in (images.train, images.test))
    torch.manual_seed(seed)
    pixels = images.event_shape.numel()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENTS))
    decoder = sg.LinearLikelihood(LATENTS, images.event_shape, sg.likelihoods.Bernoulli())
    decoder.init_from_data(x_train)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)

    def elbo(x: Tensor, estimator: sg.Estimator) -> Tensor:
        loc, log_scale = encoder(x).chunk(2, dim=-1)
        q = Normal(loc, log_scale.exp())  # q(z|x)
        return estimator(q, decoder.log_prob_of(x)) - kl_divergence(q, Normal(0.0, 1.0)).sum(-1)

    estimator = sg.Exact() if silent else sg.Reparameterized()
    for epoch in range(1, epochs + 1):
        for x in x_train[torch.randperm(len(x_train))].split(64):
            loss = -elbo(x, estimator).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: ELBO of the last batch {-loss:.2f}", flush=True)
    return comparison.mean_elbo(lambda x: elbo(x, sg.Exact()), x_test, draws=1)


if __name__ == "__main__":
    comparison.main(train, "ELBO")
