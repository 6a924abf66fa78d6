"""What would help: only what the measurements support, each with its expected size."""

import math

from silentgrad.analysis import ranked
from silentgrad.checkup.findings import Advice, Finding
from silentgrad.checkup.measurements import Measurements

ENOUGH = 10.0  # percent of the gradient's variance: less is no reason to change the estimator


def advice_on(m: Measurements, findings: list[Finding]) -> list[Advice]:
    """Return what would help, by the findings on a model; the largest gains in nats first."""
    found = {finding.name: finding for finding in findings}
    if any(found[name].verdict == "wrong" for name in ("finite numbers", "range of the data") if name in found):
        return []
    advice, lost = [], {name: finding for name, finding in found.items() if finding.verdict != "fine"}
    if "variance of the likelihood" in lost and not lost["variance of the likelihood"].unit.startswith("%"):
        chi, half = m.calibration, m.outputs / 2
        gain, error = half * (chi.value - 1 - math.log(chi.value)), half * abs(1 - 1 / chi.value) * chi.error
        advice.append(Advice("a learned factor of the likelihood's variance", gain, "nats an example", error))
    if "linear model" in lost:
        action = f"a guide, {_guide(m)}: as much is the linear model above this one"
        advice.append(Advice(action, -lost["linear model"].number, "nats an example", lost["linear model"].error))
    if "amortization gap" in lost:
        gap = lost["amortization gap"]
        advice.append(Advice("a better encoder: its q(z|x) refined by themselves", gap.number, gap.unit, gap.error))
    advice.sort(key=lambda one: -one.gain)
    if "beside baselines" in found and m.comparison.at_floor:
        action = "a likelihood of levels, sg.DiscretizedLogistic: the floor is where a Gaussian ends"
        advice.append(Advice(action, found["beside baselines"].number, "bits per dimension at most"))
    return advice + (_estimators(m) if "gradient noise" in found else [])


def _guide(m: Measurements) -> str:
    """The call that makes a guide for the model."""
    likelihood = ", likelihood=sg.likelihoods.Bernoulli()" * m.bits
    if m.fixed_variance:
        likelihood = f", variance={m.fixed_variance:.4g}"
    return f"sg.SilentGuide.for_model(q, x, total_steps={m.steps or '...'}{likelihood})"


def _estimators(m: Measurements) -> list[Advice]:
    """Estimators that lower the variance of the encoder's gradient, by work, biased ones last."""
    own, advice = next(iter(m.gradients.values())), []
    for name, found in ranked(m.gradients).items():
        saved, error = ((a - b) / (own.est + own.batch) * 100 for a, b in ((own.est, found.est), (0, -own.errors.est)))
        if saved > max(ENOUGH, 3 * error):
            action = f"{name}: {found.evaluations} evaluations of the decoder against {own.evaluations}"
            action += "" if found.unbiased else ", and it is biased"
            advice.append(Advice(action, saved, "% less variance of the encoder's gradient", error))
    return advice
