"""The bound in its unit, beside models without latents."""

import math
from typing import TYPE_CHECKING, NamedTuple

from torch import distributions as td

from silentgrad.baselines import baselines, bits_per_dim, dequantization_floor
from silentgrad.checkup.findings import Estimate, estimate

if TYPE_CHECKING:
    from silentgrad.checkup.measurements import Measurements

NEAR = 0.05  # bits above the floor of dequantization


class Comparison(NamedTuple):
    """A figure of which less is better, and those of models without latents in the same unit."""

    figure: Estimate
    unit: str
    baselines: dict[str, float]
    remark: str = ""
    at_floor: bool = False

    @property
    def independent(self) -> float:
        """The figure of the best model of independent outputs; infinity if there is none."""
        return min((self.baselines.get(name, math.inf) for name in ("histogram", "gaussian")), default=math.inf)


def compared(m: "Measurements") -> Comparison:
    """Return bits per dimension where p(x|z) is a probability of levels or a density of dequantized ones, else nats.

    The baselines are those of `silentgrad.baselines`, fitted to the training examples; for a density of anything else,
    an independent Gaussian of every output.
    """
    bound, levels, whole = estimate(m.elbo), m.levels, bool((m.x == m.x.round()).all() and m.x.min() >= 0)
    discrete = _discrete(m.p, whole)
    if levels is None and discrete and whole:
        levels = max(2, int(max(m.train.max(), m.x.max())) + 1)
    if levels is None or levels > 256:
        return _in_nats(m, bound, discrete)
    scale = levels if not discrete and m.x.max() <= 1 else 1
    bits = float(bits_per_dim(bound.value, m.outputs, None if discrete else scale))
    train, test = ((part * scale).floor().clamp(0, levels - 1).long() for part in (m.train, m.x))
    floor, remark = dequantization_floor(), ""
    if at_floor := not discrete and bits < floor + NEAR:
        remark = f"no Gaussian of dequantized levels comes below {floor:.4g}"
    figure = Estimate(bits, bound.error / m.outputs / math.log(2))
    return Comparison(figure, "bits per dimension", baselines(train, test, levels), remark, at_floor)


def _in_nats(m: "Measurements", bound: Estimate, discrete: bool) -> Comparison:
    found, remark = {}, ""
    if not discrete:
        mean, variance = m.train.double().mean(0), m.train.double().var(0, correction=0).clamp(min=m.floor)
        found["gaussian"] = -float(td.Normal(mean, variance.sqrt()).log_prob(m.x.double()).flatten(1).sum(1).mean())
        if m.spacing is not None:
            remark = "the data lie on levels: dequantize them and pass levels=... for bits per dimension"
    elif m.bits:
        remark = "a cross-entropy of greys is not the log-probability of anything"
    return Comparison(Estimate(-bound.value, bound.error), "nats an example", found, remark)


def _discrete(p: td.Distribution, whole: bool) -> bool:
    """Whether p is of whole numbers; one that does not say is of what the data are."""
    try:
        return p.support is not None and p.support.is_discrete
    except NotImplementedError:
        return whole
