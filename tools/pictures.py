"""Draw the pictures of README and site: `python tools/pictures.py`, or some of them, by name.

Each is drawn on white, so that it can be read in dark mode too. `curves` are of the runs in `results/guide.csv`; the
others compute what they show, within a minute of one core.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Normal, kl_divergence

import silentgrad as sg
from silentgrad.decoders import quad_tree
from silentgrad.decoders.region_graphs import RegionGraph

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STYLE = {
    "figure.facecolor": "white",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "silentgrad",
}
ESTIMATORS = {"REINFORCE": sg.Reinforce, "one reparameterized sample": sg.Reparameterized, "exact": sg.Exact}
COLORS = {"REINFORCE": "#d62728", "one reparameterized sample": "#ff7f0e", "exact": "#1f77b4"}


def idea() -> None:
    """Draw gradients of one batch, the way of a parameter, and the loss, by three estimators of one toy model."""
    torch.manual_seed(0)
    decoder = sg.LinearGaussian(2, 8, variance=0.5)
    x = torch.randn(16, 2) @ torch.randn(2, 8) + 0.7 * torch.randn(16, 8)
    decoder.init_from_data(x)
    decoder.requires_grad_(False)
    _, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 2.8))
    for name, kind in ESTIMATORS.items():
        found = [_gradient(decoder, x, _start(), kind()) for _ in range(1000)]
        if name == "exact":
            left.axvline(found[0], color=COLORS[name], label=name)
        else:
            left.hist(found, bins=48, range=(-25, 25), color=COLORS[name], alpha=0.6, label=name)
        steps, losses = _descent(decoder, x, kind())
        middle.plot(steps, color=COLORS[name], label=name)
        right.plot(losses, color=COLORS[name], label=name)
    left.set(title="gradient of one encoder output,\n1,000 times on the same batch", xlabel="nats", yticks=[])
    middle.set(title="that output during training", xlabel="step")
    right.set(title="negative ELBO", xlabel="step", ylabel="nats, lower is better")
    right.legend(frameon=False)
    _save("idea")


def _start() -> Tensor:
    return torch.tensor([0.0, 0.0, -1.0, -1.0]).repeat(16, 1).requires_grad_()


def _gradient(decoder: nn.Module, x: Tensor, outputs: Tensor, estimator: nn.Module) -> float:
    """Return the estimated gradient of the negative ELBO in one output of the second example."""
    loss = -_elbo(decoder, x, outputs, estimator).sum()
    return torch.autograd.grad(loss, outputs)[0][1, 0].item()


def _elbo(decoder: nn.Module, x: Tensor, outputs: Tensor, estimator: nn.Module) -> Tensor:
    loc, log_scale = outputs.chunk(2, -1)
    q = Normal(loc, log_scale.exp())
    value: Tensor = estimator(q, sg.integrand_of(decoder, x)) - _kl(q)
    return value


def _kl(q: Distribution) -> Tensor:
    return kl_divergence(q, Normal(0.0, 1.0)).sum(-1)


def _descent(decoder: nn.Module, x: Tensor, estimator: nn.Module) -> tuple[list[float], list[float]]:
    """Return the way of the first output and the exact negative ELBO of each step."""
    torch.manual_seed(0)
    outputs = _start()
    optimizer = torch.optim.Adam([outputs], lr=0.03)
    way, losses = [], []
    for _ in range(300):
        with torch.no_grad():
            losses.append(-_elbo(decoder, x, outputs, sg.Exact()).mean().item())
        way.append(outputs[1, 0].item())
        optimizer.zero_grad()
        (-_elbo(decoder, x, outputs, estimator).mean()).backward()
        optimizer.step()
    return way, losses


def curves() -> None:
    """Draw validation curves of guides on the digits, of the runs at their chosen rates."""
    with (ROOT / "results" / "guide.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] != "0" and row["run"].startswith("digits-guide")]
    lengths: dict[int, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        _, _, epochs, _, method, *_ = row["run"].split("-")
        lengths[int(epochs)][method].append([float(value) for value in row["curve"].split()])
    _, axes = plt.subplots(1, len(lengths), figsize=(3.4 * len(lengths), 2.8), sharey=True, squeeze=False)
    for panel, (epochs, methods) in zip(axes[0], sorted(lengths.items()), strict=True):
        for method, found in methods.items():
            shortest = min(map(len, found))
            values = np.array([curve[:shortest] for curve in found])
            places = np.linspace(epochs / shortest, epochs, shortest)
            line = panel.plot(places, values.mean(0), label=method)[0]
            panel.fill_between(places, values.min(0), values.max(0), color=line.get_color(), alpha=0.2)
        panel.set(title=f"{epochs} epochs", xlabel="epoch", ylim=(2.3, 3.2))
    axes[0][0].set(ylabel="validation BPD, lower is better")
    axes[0][-1].legend(title="guide", frameon=False)
    _save("curves")


def estimators() -> None:
    """Draw the mean squared error of the gradient that ten evaluations buy, for bits and a smooth function."""
    torch.manual_seed(0)
    q = Bernoulli(logits=torch.randn(32, 20))
    target, weight = torch.rand(20), torch.randn(20, 20)
    kinds = (
        sg.Reinforce,
        sg.estimators.NVIL,
        sg.RLOO,
        sg.DisARM,
        sg.estimators.ARMS,
        sg.estimators.DoubleCV,
        sg.GumbelSoftmax,
        sg.StraightThrough,
        sg.ReinMax,
    )
    found = sg.gradient_variance(q, lambda z: -((z - target) @ weight).square().sum(-1), 40, [kind() for kind in kinds])
    errors = {name: one.error(10 / (one.evaluations or 1)) or 0.0 for name, one in found.items()}
    errors = dict(sorted(errors.items(), key=lambda item: item[1]))
    _, axes = plt.subplots(figsize=(5, 3))
    colors = ["#1f77b4" if found[name].unbiased else "#ff7f0e" for name in errors]
    axes.barh([f"{name} *" if found[name].unbiased else name for name in errors], list(errors.values()), color=colors)
    axes.set(xscale="log", xlabel="mean squared error of ten evaluations; * unbiased")
    axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes.invert_yaxis()
    _save("estimators")


def circuit() -> None:
    """Train a circuit on the digits, and draw digits, what it makes of them, and samples."""
    torch.manual_seed(0)
    digits = torch.as_tensor(load_digits().images).reshape(-1, 1, 8, 8).float()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2 * 16))
    leaves = sg.DiscretizedLogistic(16, (1, 8, 8, 8), levels=17)
    decoder = sg.Circuit(16, (1, 8, 8), components=8, gates="all", leaves=leaves)
    decoder.init_from_data(digits)
    rates = [{"params": encoder.parameters(), "lr": 1e-3}, {"params": decoder.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(rates, betas=(0.9, 0.95))
    for _ in range(40):
        for x in digits[200:][torch.randperm(len(digits) - 200)].split(64):
            loc, log_scale = encoder(x / 16).chunk(2, -1)
            q = Normal(loc, log_scale.exp())
            optimizer.zero_grad()
            (_kl(q) - decoder.expected_log_prob(x, q)).mean().backward()
            optimizer.step()
    shown = digits[:12]
    with torch.no_grad():
        found = decoder(encoder(shown / 16).chunk(2, -1)[0])
        rows = {
            "digits": shown,
            "mean": found.mean,
            "deviation": found.stddev,
            "samples": decoder(torch.randn(12, 16)).sample(),
        }
    figure, axes = plt.subplots(len(rows), 12, figsize=(9, 3.2))
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image[0], cmap="gray_r", vmin=0, vmax=None if name == "deviation" else 16)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.subplots_adjust(0.09, 0.01, 0.99, 0.99, 0.05, 0.05)
    figure.savefig(DOCS / "circuit.png", dpi=150)
    plt.close(figure)


def loadings() -> None:
    """Fit counts of three kinds of rows, and draw factors and loadings."""
    from anndata import AnnData

    random = np.random.RandomState(0)
    kinds = random.randint(3, size=600)
    rates = random.gamma(0.6, 2.0, size=(3, 40))
    table = AnnData(random.poisson(rates[kinds]).astype(np.float32))
    table.var_names = [f"gene {number}" for number in range(40)]
    table.obs["kind"] = [f"kind {kind + 1}" for kind in kinds]
    sg.tl.count_factors(table, n_comps=2, likelihood="poisson", size_factors="none")
    sg.pl.loadings(table, factors=(0, 1))
    _save("loadings")


def quad_tree_picture() -> None:
    """Draw how a quad-tree groups the pixels of an 8 x 8 image."""
    titles = ("leaves of each pixel", "2 x 2 pixels", "4 x 4 pixels", "the whole image")
    figure, axes = plt.subplots(1, 4, figsize=(8, 2.2))
    regions = _pixels_of(quad_tree((8, 8)))
    for place, (panel, title, color) in enumerate(
        zip(axes, titles, ("#dbe9f6", "#9ecae1", "#4292c6", "#08519c"), strict=True)
    ):
        for region in (region for region in regions if len(region) == 4**place):
            row, column = divmod(min(region), 8)
            side = 2**place
            panel.add_patch(mpl.patches.Rectangle((column + 0.05, row + 0.05), side - 0.1, side - 0.1, color=color))
        panel.set(title=title, xlim=(0, 8), ylim=(8, 0), aspect="equal")
        panel.axis("off")
    figure.tight_layout()
    _save("quad_tree")


def _pixels_of(region_graph: RegionGraph) -> list[list[int]]:
    """Return the pixels of each region, its parts' among them."""
    pixels = [list(outputs) for outputs in region_graph.outputs]
    for region, parent in enumerate(region_graph.parents):  # a part comes before what it is a part of
        if parent > region:
            pixels[parent] += pixels[region]
    return pixels


def _save(name: str) -> None:
    figure = plt.gcf()
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


PICTURES = {
    "idea": idea,
    "curves": curves,
    "estimators": estimators,
    "circuit": circuit,
    "quad-tree": quad_tree_picture,
    "loadings": loadings,
}


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        for chosen in sys.argv[1:] or PICTURES:
            PICTURES[chosen]()
