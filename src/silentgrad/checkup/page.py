"""A check-up as a page of HTML with figures, which matplotlib draws."""

import base64
import io
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from silentgrad.checkup.findings import CheckUp, Estimate
from silentgrad.errors import SilentgradError

if TYPE_CHECKING:
    from silentgrad.checkup.measurements import Measurements

COLORS = {"wrong": "#b3261e", "suspicious": "#8a6100", "fine": "#2e6b34"}
SHOWN, STEPS = 8, 9  # reconstructions and latents; points of a traversal
STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td{padding:.4em;vertical-align:top}"


def page(found: CheckUp, pictures: dict[str, bytes]) -> str:
    """Return the page of a check-up with pictures by their titles."""
    rows = []
    for one in found.findings:
        number = escape(f"{Estimate(one.number, one.error)} {one.unit}")
        said = escape(one.cause) + f"<br><b>{escape(one.change)}</b>" * bool(one.change)
        verdict = f'<td style="color:{COLORS[one.verdict]}"><b>{one.verdict}</b></td>'
        rows.append(f"<tr>{verdict}<td>{escape(one.name)}</td><td>{number}</td><td>{said}</td></tr>")
    helps = "".join(f"<li>{escape(str(one))}</li>" for one in found.advice)
    skipped = "".join(f"<li>{escape(f'{name}: {reason}')}</li>" for name, reason in found.skipped.items())
    images = "".join(
        f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{base64.b64encode(content).decode()}">'
        for title, content in pictures.items()
    )
    title = f"Check-up of {escape(found.model)}"
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><p>{escape(str(found.measurements))}</p><table>{''.join(rows)}</table>"
        f"<h2>What would help</h2><ul>{helps}</ul>{images}<h2>Not measured</h2><ul>{skipped}</ul></body></html>"
    )


def figures(m: "Measurements") -> dict[str, bytes]:
    """Return pictures by their titles; those that a model does not allow are left out."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the figures need matplotlib: pip install matplotlib", name=error.name) from error
    found = {}
    drawn: dict[str, Callable[[Measurements, Any], None]] = {
        "KL divergence of each latent": _divergences, "Aggregate posterior and prior": _aggregate,
        "Variance of the encoder's gradient": _noise, "Examples and reconstructions": _reconstructions,
        "Traversal of the most active latents": _traversal,
    }  # fmt: skip
    for title, draw in drawn.items():
        figure, content = Figure(figsize=(7, 3), layout="constrained"), io.BytesIO()
        try:
            with torch.no_grad():
                draw(m, figure)
        except (SilentgradError, NotImplementedError):
            continue
        figure.savefig(content, dpi=80)
        found[title] = content.getvalue()
    return found


def _divergences(m: "Measurements", figure: Any) -> None:
    nats = m.kld_per_latent.mean(0).sort(descending=True).values.tolist()
    axes = figure.subplots()
    axes.bar(range(len(nats)), nats)
    axes.set(xlabel="latents, the most active first", ylabel="nats")


def _aggregate(m: "Measurements", figure: Any) -> None:
    z, p = (draws.flatten(1) for draws in (m.z[0], m.subject.prior.sample(len(m.x))))
    first, second = _most_active(m)[[0, -1]].tolist()
    axes = figure.subplots()
    for points, label in ((p, "prior"), (z, "aggregate posterior")):
        axes.scatter(points[:, first].tolist(), points[:, second].tolist(), s=4, label=label)
    axes.set(xlabel=f"latent {first}", ylabel=f"latent {second}")
    axes.legend()


def _noise(m: "Measurements", figure: Any) -> None:
    axes, names = figure.subplots(), list(m.gradients)
    batch, draws = ([getattr(found, part) for found in m.gradients.values()] for part in ("batch", "est"))
    axes.barh(names, batch, label="batches")
    axes.barh(names, draws, left=batch, label="draws of z")
    axes.legend()


def _reconstructions(m: "Measurements", figure: Any) -> None:
    if m.mean is None:
        raise NotImplementedError
    _show(figure, [m.x[:SHOWN], m.mean[:SHOWN]])


def _traversal(m: "Measurements", figure: Any) -> None:
    rows = []
    for latent in _most_active(m)[:SHOWN].tolist():
        z = m.z[0][:1].flatten(1).repeat(STEPS, 1)
        z[:, latent] = torch.linspace(float(m.z[0].min()), float(m.z[0].max()), STEPS).to(z)
        x = m.x[:1].expand(STEPS, *m.x.shape[1:])
        rows.append(m.subject.decoder.at(z.reshape(STEPS, *m.z.shape[2:]), x).mean.reshape(x.shape))
    _show(figure, rows)


def _most_active(m: "Measurements") -> torch.Tensor:
    if m.z[0][0].numel() != m.kld_per_latent.shape[1]:
        raise NotImplementedError
    return m.kld_per_latent.mean(0).argsort(descending=True)[:SHOWN]


def _show(figure: Any, rows: list[torch.Tensor]) -> None:
    """Rows of examples: images as such, flat ones as squares if they are; others as curves."""
    for row, places in zip(rows, figure.subplots(len(rows), len(rows[0]), squeeze=False), strict=True):
        for x, axes in zip(row.double().cpu(), places, strict=True):
            side = round(x.numel() ** 0.5)
            flat = x.reshape(side, side) if x.dim() == 1 and side**2 == x.numel() else x
            if flat.dim() == 1:
                axes.plot(flat.tolist())
            else:
                axes.imshow(flat.reshape(-1, *flat.shape[-2:]).mean(0).tolist(), cmap="gray")
            axes.set_axis_off()
