"""diffusers' AutoencoderKL, small and from scratch, in a plain loop: convolutions whose latents are a map of the image.

Each latent sees a patch, so the linear decoder begins as probabilistic PCA of patches, the same at every position. One
variance is learned for all pixels, in the host as in the guide. The guide stays outside the model, so at any time
`vae.save_pretrained(folder)` saves no more than what `AutoencoderKL.from_pretrained(folder)` expects.
"""

from functools import partial

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.functional import conv_transpose2d, unfold

import comparison
import silentgrad as sg
from silentgrad.lab.data import Levels, dequantize
from silentgrad.ppca import ppca_weights, principal_components

CHANNELS, BLOCKS = 4, (8, 16, 32)  # of the latents; of the layers
PATCH = 2 ** (len(BLOCKS) - 1)  # pixels to a latent, each way


def build(images: Levels) -> AutoencoderKL:
    colours, height, _ = images.event_shape
    return AutoencoderKL(
        in_channels=colours, out_channels=colours, latent_channels=CHANNELS, sample_size=height,
        down_block_types=["DownEncoderBlock2D"] * len(BLOCKS), up_block_types=["UpDecoderBlock2D"] * len(BLOCKS),
        block_out_channels=BLOCKS, norm_num_groups=4, mid_block_add_attention=False,
    )  # fmt: skip


def losses(vae: AutoencoderKL, log_variance: Tensor, x: Tensor) -> tuple[Normal, Tensor, Tensor]:
    """q(z|x), the reconstruction loss and the KL divergence, in nats of images between 0 and 1."""
    posterior = vae.encode(2 * x - 1).latent_dist  # diffusers' images are between -1 and 1
    nll = -likelihood(vae, log_variance, posterior.sample()).log_prob(x)
    return Normal(posterior.mean, posterior.std), nll, posterior.kl()


def latent(vae: AutoencoderKL, x: Tensor) -> Normal:
    posterior = vae.encode(2 * x - 1).latent_dist
    return Normal(posterior.mean, posterior.std)


def likelihood(vae: AutoencoderKL, log_variance: Tensor, z: Tensor) -> Independent:
    mean = (vae.decode(z).sample + 1) / 2
    return Independent(Normal(mean, (log_variance / 2).exp()), 3)


def start_from_patches(guide: sg.SilentGuide, x: Tensor) -> None:
    mean = x.mean(0)
    components = principal_components(unfold(x - mean, PATCH, stride=PATCH).mT.flatten(0, 1))
    variance = float(components.variances[CHANNELS:].mean())
    kernel = ppca_weights(components, CHANNELS, variance).T.unflatten(1, (-1, PATCH, PATCH)).to(x)
    latents = torch.eye(guide.decoder.latent_dim).unflatten(1, (CHANNELS, x.shape[2] // PATCH, x.shape[3] // PATCH))
    with torch.no_grad():
        guide.decoder.affine.weight.copy_(conv_transpose2d(latents, kernel, stride=PATCH).flatten(1).T)
        guide.decoder.affine.bias.copy_(mean.flatten())
    guide.decoder.likelihood.start(variance)


def fit(images: Levels, seed: int, guided: bool, epochs: int) -> tuple[AutoencoderKL, Tensor]:
    """The trained host and the logarithm of its variance."""
    torch.manual_seed(seed)
    vae, x_train = build(images), images.train / images.levels
    log_variance = nn.Parameter(x_train.var().log())
    latents, gaussian = CHANNELS * x_train[0, 0].numel() // PATCH**2, sg.likelihoods.Normal(())
    guide = sg.SilentGuide(latents, images.event_shape, sg.linear_decay(epochs=epochs / 2), likelihood=gaussian)  # 1.
    start_from_patches(guide, x_train)
    host = [{"params": vae.parameters(), "lr": 3e-3}, {"params": [log_variance], "lr": 1e-2}]
    optimizer = torch.optim.Adam([*host, {"params": guide.parameters(), "lr": 3e-4}])  # 2.
    for epoch in range(1, epochs + 1):
        for batch in images.train[torch.randperm(len(images.train))].split(32):
            x = dequantize(batch, images.levels)
            q, nll, kld = losses(vae, log_variance, x)
            if guided:
                nll = guide(x, q, nll, epoch=epoch)  # 3.
            optimizer.zero_grad()
            (nll + kld).mean().backward()
            optimizer.step()
        print(f"epoch {epoch}: ELBO of the last batch {-(nll + kld).mean():.0f}", flush=True)
    return vae, log_variance


def train(images: Levels, seed: int, guided: bool, epochs: int) -> float:
    vae, log_variance = fit(images, seed, guided, epochs)
    return comparison.judge(vae, partial(latent, vae), partial(likelihood, vae, log_variance), images)


if __name__ == "__main__":
    comparison.main(train, "BPD", data="cifar10", epochs=6)
