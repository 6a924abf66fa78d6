"""Check-ups of models that nobody here wrote, for the gallery: pythae, diffusers, scvi-tools.

`python -P benchmarks/check_up_hosts.py pythae_vae pythae_beta_vae diffusers` with the extra `examples`, and `scvi`
where scvi-tools is installed, write `docs/tables/check_up_NAME.txt`; half a minute of one core each.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import silentgrad as sg

TABLES = Path(__file__).parents[1] / "docs" / "tables"
STEPS = 1120


def digits() -> Tensor:
    return torch.tensor(load_digits().images).float().unsqueeze(1) / 16


def pythae(model: Any, x: Tensor) -> sg.CheckUp:
    """Trains for 40 epochs of 28 steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS // 28):
        for batch in x[:1400][torch.randperm(1400)].split(50):
            optimizer.zero_grad()
            model({"data": batch}).loss.backward()
            optimizer.step()
    return sg.check_up(model, x[:1400], test=x[1400:], steps=STEPS, examples=200)


def pythae_vae() -> sg.CheckUp:
    from pythae.models import VAE, VAEConfig

    return pythae(VAE(VAEConfig(input_dim=(1, 8, 8), latent_dim=8)), digits())


def pythae_beta_vae() -> sg.CheckUp:
    from pythae.models import BetaVAE, BetaVAEConfig

    config = BetaVAEConfig(input_dim=(1, 8, 8), latent_dim=8, beta=4.0, reconstruction_loss="bce")
    return pythae(BetaVAE(config), digits().round())


def diffusers() -> sg.CheckUp:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        latent_channels=2, sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        mid_block_add_attention=False,
    )  # fmt: skip
    x = 2 * digits() - 1
    return sg.check_up(model, x[:300], test=x[300:], examples=100)


def scvi() -> sg.CheckUp:
    """Return counts of three factors; 30 epochs, in which SCVI's own warm-up of the KL divergence has hardly begun."""
    import anndata
    from scvi.model import SCVI

    log_rates = torch.randn(600, 3) @ torch.randn(3, 50) * 0.7 + 0.5
    x = torch.poisson(log_rates.exp().clamp(max=200))
    data = anndata.AnnData(x[:500].numpy())
    SCVI.setup_anndata(data)
    model = SCVI(data, n_latent=5, n_hidden=32)
    model.train(max_epochs=30, accelerator="cpu", enable_progress_bar=False, logger=False)
    return sg.check_up(model, x[:500], test=x[500:], examples=100)


HOSTS: dict[str, Callable[[], sg.CheckUp]] = {
    "pythae_vae": pythae_vae, "pythae_beta_vae": pythae_beta_vae, "diffusers": diffusers, "scvi": scvi
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        (TABLES / f"check_up_{name}.txt").write_text(f"{HOSTS[name]()}\n")
