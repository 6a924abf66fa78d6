"""Write docs/latents.md: which closed form every registered latent family has with each decoder.

python tools/latent_table.py
"""

from operator import attrgetter
from pathlib import Path

import torch
from torch import distributions as td

import silentgrad as sg

OUTPUT = Path(__file__).parents[1] / "docs" / "latents.md"
HEADER = """# Latents

Latents are `torch.distributions` objects that an encoder returns. This page says for which of them a linear decoder's
expected log-likelihood is a closed form.

```python
import silentgrad as sg
import torch
from torch.distributions import Laplace

q = Laplace(torch.zeros(8, 2), torch.ones(8, 2))
decoder = sg.LinearGaussian(2, 5)
print(decoder.exactness(q), decoder.expected_log_prob(torch.rand(8, 5), q).mean())
```

## How to choose

Gaussian latents have an exact form with every linear decoder of the table. A [circuit](circuits.md#the-theorem) has a
lower bound. For the others look up the row, and the decoder's column ([which link](links.md)). Made by
`python tools/latent_table.py`, which asks the decoders.

| family | fixed variance | linear precision link | exponential precision link |
|---|---|---|---|
"""
DETAILS = """
## Limitations

- The log term of the linear link is exact for Gaussian latents, and an [approximation](links.md#the-log-term) for
  all others.
- A family without a closed form is an `IntractableError`; [register its moments](extending.md#a-latent) if they exist.
- Other [likelihoods](likelihoods.md) and [circuits](circuits.md) have lists of their own.

## Details

`Independent` is looked through. A subclass, such as `Chi2` of `Gamma`, uses its parent's formula.
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


FIXED = sg.LinearGaussian(LATENTS, 1)
LINEAR_LINK = sg.LinearPrecisionGaussian(LATENTS, 1, "linear")
EXPONENTIAL_LINK = sg.LinearPrecisionGaussian(LATENTS, 1, "exp")
IN_WORDS = {sg.Exactness.EXACT: "exact", sg.Exactness.APPROXIMATION: "exact but for the log term"}


def families() -> list[type[td.Distribution]]:
    """Return the distributions of torch that have closed forms; a user's own are not in the table."""
    of_torch = list(vars(td).values())
    known = [family for family in sg.latents.central_moments.registry if family in of_torch]
    known.remove(td.Independent)
    return sorted(known, key=attrgetter("__name__"))


def told(decoder: sg.decoders.Tractable, q: td.Distribution, absent: str = "no closed form") -> str:
    """Return the exactness of a decoder with a latent, in the words of the table."""
    try:
        decoder.expected_log_prob(torch.zeros(1, 1), q)
    except sg.IntractableError:
        return absent
    return IN_WORDS[decoder.exactness(q)]


def row(family: type[td.Distribution]) -> str:
    """Return a family's line of the table."""
    q = EXAMPLES[family]
    fixed = told(FIXED, q)
    linear = told(LINEAR_LINK, q, absent="not available")
    exponential = told(EXPONENTIAL_LINK, q)
    return f"| `{family.__name__}` | {fixed} | {linear} | {exponential} |\n"


def table() -> str:
    """Return the content of the page."""
    return HEADER + "".join(map(row, families())) + DETAILS


if __name__ == "__main__":
    OUTPUT.write_text(table())
