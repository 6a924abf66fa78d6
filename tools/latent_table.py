"""Writes docs/latents.md, the table of latent families: every registered one, and what the decoders make of it.

python tools/latent_table.py
"""

from pathlib import Path

import torch
from torch import distributions as td

import silentgrad as sg

OUTPUT = Path(__file__).parents[1] / "docs" / "latents.md"
HEADER = """# Latent families

Made by `python tools/latent_table.py`, which asks the decoders. `Independent` is looked through; a subclass (`Chi2` of
`Gamma`, say) is served by its parent's formula.

| family | fixed variance | linear precision link | exponential precision link |
|---|---|---|---|
"""
LATENTS = 2
half = torch.full((1, LATENTS), 0.5)
identity = torch.eye(LATENTS)
EXAMPLES: dict[type[td.Distribution], td.Distribution] = {
    td.Bernoulli: td.Bernoulli(half),
    td.Beta: td.Beta(half, half),
    td.Binomial: td.Binomial(3, half),
    td.Exponential: td.Exponential(half),
    td.Gamma: td.Gamma(half, half),
    td.Geometric: td.Geometric(half),
    td.Gumbel: td.Gumbel(half, half),
    td.HalfNormal: td.HalfNormal(half),
    td.Laplace: td.Laplace(half, half),
    td.LogNormal: td.LogNormal(half, half),
    td.LowRankMultivariateNormal: td.LowRankMultivariateNormal(half, identity[None, :, :1], half),
    td.MultivariateNormal: td.MultivariateNormal(half, identity),
    td.NegativeBinomial: td.NegativeBinomial(half, half),
    td.Normal: td.Normal(half, half),
    td.OneHotCategorical: td.OneHotCategorical(half),
    td.Poisson: td.Poisson(half),
    td.StudentT: td.StudentT(half + 5),
    td.Uniform: td.Uniform(half - 1, half),
}


def has_closed_form(decoder: sg.LinearDecoder, q: td.Distribution) -> bool:
    try:
        decoder.expected_log_prob(torch.zeros(1, 1), q)
    except sg.IntractableError:
        return False
    return True


def row(family: type[td.Distribution]) -> str:
    q = EXAMPLES[family]
    fixed = "exact" if has_closed_form(sg.LinearGaussian(LATENTS, 1), q) else "no closed form"
    exponential = "exact" if has_closed_form(sg.LinearPrecisionGaussian(LATENTS, 1, "exp"), q) else "no closed form"
    return f"| `{family.__name__}` | {fixed} | {linear_link(q)} | {exponential} |"


def linear_link(q: td.Distribution) -> str:
    if has_closed_form(sg.LinearPrecisionGaussian(LATENTS, 1, "linear", "exact"), q):
        return "exact"
    if has_closed_form(sg.LinearPrecisionGaussian(LATENTS, 1, "linear"), q):
        return "exact but for the log term"
    return "not available"


def name_of(family: type[td.Distribution]) -> str:
    return family.__name__


def table() -> str:
    ours = [f for f in sg.central_moments.registry if f.__module__.startswith("torch.")]  # not what a user registered
    families = [f for f in ours if f not in (td.Distribution, td.Independent)]
    return HEADER + "\n".join(map(row, sorted(families, key=name_of))) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(table())
