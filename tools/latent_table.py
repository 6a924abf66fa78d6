"""Writes docs/latents.md, the table of latent families, from the registries themselves.

python tools/latent_table.py
"""

from pathlib import Path

from torch import distributions as td

from silentgrad.latents.cumulants import cumulants
from silentgrad.latents.moments import JointMoments, central_moments

OUTPUT = Path(__file__).parents[1] / "docs" / "latents.md"
HEADER = """# Latent families

Made from the registries by `python tools/latent_table.py`. `Independent` is looked through; a subclass (`Chi2` of
`Gamma`, say) is served by its parent's formula.

| family | fixed variance | linear precision link | exponential precision link |
|---|---|---|---|
"""


def row(family: type[td.Distribution]) -> str:
    joint = central_moments.dispatch(family).__annotations__["return"] is JointMoments
    gaussian = "Normal" in family.__name__ and family not in (td.HalfNormal, td.LogNormal)
    categories = family is td.OneHotCategorical
    linear = "exact" if gaussian else "not available" if categories else "exact but for the log term"
    tilted = family in cumulants.registry or (joint and gaussian) or categories
    return f"| `{family.__name__}` | exact | {linear} | {'exact' if tilted else 'no closed form'} |"


def table() -> str:
    ours = [f for f in central_moments.registry if f.__module__.startswith("torch.")]  # not what a user registered
    families = [f for f in ours if f not in (td.Distribution, td.Independent)]
    return HEADER + "\n".join(row(f) for f in sorted(families, key=lambda f: f.__name__)) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(table())
