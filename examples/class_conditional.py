"""A class-conditional circuit: p(x | z, label) of the digits, trained without a sample, beside one that sees no label.

    python examples/class_conditional.py                  # about a minute on one core
    python examples/class_conditional.py --epochs 1

The context of the leaves is told the label by `SideInfo(context=...)`, and so is the encoder. Told is the bound on test
digits in bits per pixel, and ten digits are drawn, one of each class.
"""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

import silentgrad as sg

SHAPE, LATENTS, CLASSES, LEVELS, COMPONENTS, HIDDEN = (1, 8, 8), 8, 10, 17, 4, 32


class ConditionalVAE(nn.Module):
    """A circuit whose context sees earlier pixels and, if it is `told`, the label."""

    def __init__(self, told: bool) -> None:
        super().__init__()
        self.told = told
        self.encoder = nn.Sequential(nn.Linear(64 + CLASSES, 64), nn.ReLU(), nn.Linear(64, 2 * LATENTS))
        context = sg.CausalContext(SHAPE, hidden=HIDDEN, given=nn.Embedding(CLASSES, HIDDEN) if told else None)
        leaves = sg.DiscretizedLogistic(LATENTS, (*SHAPE, COMPONENTS), LEVELS, "bound", context)
        self.circuit = sg.Circuit(LATENTS, SHAPE, COMPONENTS, leaves=leaves)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the bound on the ELBO, one number per example."""
        seen = nn.functional.one_hot(labels, CLASSES) * float(self.told)
        loc, log_scale = self.encoder(torch.cat([x.flatten(1) / LEVELS, seen], 1)).chunk(2, -1)
        q = Independent(Normal(loc, log_scale.exp()), 1)
        bound = self.decoder(labels).expected_log_prob(x, q)
        return bound - kl_divergence(q, Independent(Normal(torch.zeros_like(loc), 1.0), 1))

    def decoder(self, labels: Tensor) -> sg.decoders.Tractable:
        """Return the circuit, given the labels if it is told them."""
        return self.circuit.given(sg.SideInfo(context=labels)) if self.told else self.circuit


def train(told: bool, epochs: int) -> tuple[ConditionalVAE, float]:
    """Return the trained model, and its bound on test digits in bits per pixel."""
    torch.manual_seed(0)
    digits = load_digits()
    x, labels = torch.from_numpy(digits.images).float().unsqueeze(1), torch.from_numpy(digits.target)
    model = ConditionalVAE(told)
    model.circuit.init_from_data(x[:1500])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(1500).split(50):
            optimizer.zero_grad()
            (-model(x[batch], labels[batch]).mean()).backward()
            optimizer.step()
    with torch.no_grad():
        return model, -model(x[1500:], labels[1500:]).mean().item() / (64 * math.log(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    for told in (False, True):
        model, bits = train(told, epochs)
        print(f"{'given the label' if told else 'without labels'}: {bits:.3f} bits per pixel", flush=True)
    drawn = model.decoder(torch.arange(CLASSES))(torch.randn(CLASSES, LATENTS)).sample()
    for rows in drawn.squeeze(1).unbind(1):
        print("  ".join("".join(" .:*#"[int(level) // 4] for level in row) for row in rows))


if __name__ == "__main__":
    main()
