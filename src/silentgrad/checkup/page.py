"""A check-up as a page of HTML with figures, which matplotlib draws."""

import base64
import io
from html import escape
from typing import Any

import torch
from torch import Tensor

from silentgrad.checkup.findings import CheckUp
from silentgrad.checkup.measurements import Measurements
from silentgrad.errors import SilentgradError

SHOWN, STEPS = 8, 9  # reconstructions and latents; points of a traversal
PAGE = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>body{{font:16px sans-serif'
    ";max-width:60em;margin:2em auto}}pre{{white-space:pre-wrap}}img{{max-width:100%}}</style></head><body>"
    "<h1>{title}</h1><pre>{text}</pre>{images}</body></html>"
)
IMAGE = '<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{content}">'


def page(found: CheckUp) -> str:
    """Return the page of a check-up with its figures; those that a model does not allow are left out."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figures need matplotlib: pip install matplotlib", name=error.name) from error
    images = ""
    for title, draw in {
        "KL divergence of each latent": _divergences,
        "Aggregate posterior and prior": _aggregate,
        "Variance of the encoder's gradient": _noise,
        "Examples and reconstructions": lambda m, figure: _show(figure, [m.x[:SHOWN], m.mean[:SHOWN]]),
        "Traversal of the most active latents": _traversal,
    }.items():
        figure, content = Figure(figsize=(7, 3), layout="constrained"), io.BytesIO()
        try:
            with torch.no_grad():
                draw(found.measurements, figure)
        except (SilentgradError, NotImplementedError):
            continue
        figure.savefig(content, dpi=80)
        images += IMAGE.format(title=title, content=base64.b64encode(content.getvalue()).decode())
    return PAGE.format(title=f"Check-up of {escape(found.model)}", text=escape(str(found)), images=images)


def _divergences(m: Measurements, figure: Any) -> None:
    nats = m.kld_per_latent.mean(0).sort(descending=True).values.tolist()
    figure.subplots().bar(range(len(nats)), nats)
    figure.supxlabel("latents, the most active first")
    figure.supylabel("nats")


def _aggregate(m: Measurements, figure: Any) -> None:
    axes, active = figure.subplots(), _most_active(m)
    first, second = active[0], active[-1]
    for z, label in ((m.model.prior.sample(len(m.x)), "prior"), (m.z[0], "aggregate posterior")):
        points = z.flatten(1)
        axes.scatter(*points[:, [first, second]].T.tolist(), s=4, label=label)
    axes.set(xlabel=f"latent {first}", ylabel=f"latent {second}")
    axes.legend()


def _noise(m: Measurements, figure: Any) -> None:
    axes, names, batch = figure.subplots(), list(m.gradients), [found.batch for found in m.gradients.values()]
    axes.barh(names, batch, label="batches")
    axes.barh(names, [found.est for found in m.gradients.values()], left=batch, label="draws of z")
    axes.legend()


def _traversal(m: Measurements, figure: Any) -> None:
    rows, x = [], m.x[:1].expand(STEPS, *m.x.shape[1:])
    for latent in _most_active(m):
        z = m.z[0][:1].flatten(1).repeat(STEPS, 1)
        z[:, latent] = torch.linspace(float(m.z[0].min()), float(m.z[0].max()), STEPS).to(z)
        rows.append(m.model.at(z.reshape(STEPS, *m.z.shape[2:]), x).mean.reshape(x.shape))
    _show(figure, rows)


def _most_active(m: Measurements) -> list[int]:
    if m.z[0][0].numel() != m.kld_per_latent.shape[1]:
        raise NotImplementedError
    return m.kld_per_latent.mean(0).argsort(descending=True)[:SHOWN].tolist()


def _show(figure: Any, rows: list[Tensor]) -> None:
    """Draw rows of examples: images as such, flat ones as squares if they are; others as curves."""
    for row, places in zip(rows, figure.subplots(len(rows), len(rows[0]), squeeze=False), strict=True):
        for x, axes in zip(row.double().cpu(), places, strict=True):
            side = round(x.numel() ** 0.5)
            flat = x.reshape(side, side) if x.dim() == 1 and side**2 == x.numel() else x
            if flat.dim() == 1:
                axes.plot(flat.tolist())
            else:
                axes.imshow(flat.reshape(-1, *flat.shape[-2:]).mean(0).tolist(), cmap="gray")
            axes.set_axis_off()
