"""The error of the approximate forms of E[log v^2]: medians over random Bernoulli latents.

python benchmarks/log_term.py             # about ten seconds
"""

import itertools
import statistics

import torch

from silentgrad.decoders import precision


def median_errors(latents: int, cases: int = 300) -> dict[str, float]:
    """For v = a.z + c with a ~ N(0, 1/latents), c ~ N(0, 4), p ~ U(0, 1)."""
    generator = torch.Generator().manual_seed(0)
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=latents)), dtype=torch.float64)
    errors: dict[str, list[float]] = {"edgeworth": [], "taylor": []}
    for _ in range(cases):
        p = torch.rand(latents, dtype=torch.float64, generator=generator)
        a = torch.randn(latents, dtype=torch.float64, generator=generator) / latents**0.5
        c = 2 * torch.randn((), dtype=torch.float64, generator=generator)
        truth = ((z * p + (1 - z) * (1 - p)).prod(-1) * (z @ a + c).square().log()).sum()
        s2 = p * (1 - p)
        cumulants = p @ a + c, s2 @ a**2, (s2 * (1 - 2 * p)) @ a**3, (s2 * (1 - 6 * s2)) @ a**4
        for name, found in errors.items():
            found.append(abs(getattr(precision, name)(*cumulants) - truth).item())
    return {name: statistics.median(found) for name, found in errors.items()}


if __name__ == "__main__":
    for latents in (8, 12, 16):
        errors = median_errors(latents)
        print(f"{latents:2} latents: Edgeworth {errors['edgeworth']:.5f}, Taylor {errors['taylor']:.5f}")
