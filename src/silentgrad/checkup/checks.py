"""The checks, in the order of causes: data and likelihood before weights, weights before what they do to the latents.

Every threshold is a statement about the model, none is a quantile of some models.

- "wrong": the number cannot be that of a VAE whose parts do what they say. Data out of the decoder's reach, an encoder
  that answers differently the second time, a KL divergence that is an order of magnitude off, no latent in use where z
  would help, reconstructions worse than the mean of the data.
- "suspicious": something is lost that another choice would keep, or a figure is not what it seems.

A symptom is never "wrong" where its cause has a check of its own. A weight that is off in the loss itself comes before
whatever was learned under it, however grave.
"""

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad import analysis
from silentgrad.analysis import Estimate
from silentgrad.checkup.findings import SEVERITY, Advice, CheckUp, Finding, Verdict
from silentgrad.checkup.measurements import BATCH, Measurements
from silentgrad.errors import DomainError, IntractableError, SilentgradError
from silentgrad.estimators import GumbelSoftmax
from silentgrad.evaluation import ACTIVE
from silentgrad.latents.independent import base_of

OFF = 10.0  # a weight, a variance or a scale off by more is another order of magnitude
SHARE = 1.0  # percent of values that is more than a stray one
DEAF = 10.0  # |logit| beyond which a sigmoid passes no gradient worth the name: its slope is below 5e-5
TINY = 1e-4  # a deviation in units of the data's, or a tenth of a level: no real measurement is so precise
UNUSED = 0.05  # of what z could give: a decoder that gets less out of it ignores it
DECODED = 0.2  # of the way from the mean of the data to x: what a decoder reaches that has learned its z
ENUMERATED = 256  # configurations of the latents, at the most, of which the bias of a relaxation is known
ENOUGH = 10.0  # percent of the gradient's variance: less is no reason to change the estimator
NATS, WEIGHT = "nats an example", "weight of the KL divergence"


class Answer(NamedTuple):
    """What a check says; unless the verdict is "fine" the cause, the line to change and what would help are kept."""

    number: float | Estimate
    unit: str
    verdict: Verdict
    cause: str = ""
    change: str = ""
    advice: Advice | None = None


Look = Callable[[Measurements], Answer | None]
CHECKS: dict[str, Look] = {}
"""All checks by what they look at, in the order of causes; None where one does not apply."""


def check(name: str) -> Callable[[Look], Look]:
    """Enter a check."""
    return lambda function: CHECKS.setdefault(name, function)


def examine(m: Measurements, model: str) -> CheckUp:
    """Return all findings, the gravest first, and what would help: only what the measurements support."""
    advice, skipped = list[Advice](), dict[str, str]()
    for name, look in CHECKS.items():
        try:
            answer = look(m)
        except (SilentgradError, NotImplementedError) as error:
            skipped[name], answer = str(error), None
        if answer is None:
            continue
        number, unit, verdict, cause, change, helps = answer
        (value, error_of), bad = number if isinstance(number, Estimate) else (number, 0.0), verdict != "fine"
        m.found[name] = Finding(name, value, unit, verdict, cause * bad, change * bad, error_of)
        advice += [helps] if bad and helps is not None else []
        if name == "finite numbers" and bad:
            break
    nonsense = m.off("finite numbers") or m.off("range of the data")
    advice = [] if nonsense else [*sorted(advice, key=lambda one: -one.gain), *better_estimators(m)]
    return CheckUp(model, in_order(m), advice, skipped, m)


def in_order(m: Measurements) -> list[Finding]:
    """Put the gravest first, causes before others; before all that it explains, a weight that was measured."""
    order = list(CHECKS)
    places = {name: (SEVERITY.index(one.verdict), order.index(name)) for name, one in m.found.items()}
    if m.model.loss is not None and m.off(WEIGHT):
        places[WEIGHT] = min(places[name] for name in order[order.index("saturation") :] if name in places)
    return sorted(m.found.values(), key=lambda one: (places[one.name], one.name != WEIGHT))


def graded(value: float, suspicious: float, wrong: float = math.inf) -> Verdict:
    """Return the verdict on a number of which more is worse."""
    return SEVERITY[2 - (value > suspicious) - (value > wrong)]


def percent(mask: Tensor) -> float:
    """Return the share of true values."""
    return 100 * float(mask.double().mean())


@check("finite numbers")
def finite(m: Measurements) -> Answer:
    """Look for NaN and infinity: nothing else means anything then, so that no other check is made."""
    places: dict[str, tuple[Callable[[], Tensor], str]] = {
        "the data": (lambda: m.x, "drop or fill the entries: x = x.nan_to_num()"),
        "q(z|x)": (lambda: m.q.mean + m.q.variance, "bound the log-variance: logvar = logvar.clamp(-10, 10)"),
        "log p(x|z)": (lambda: m.log_px, "bound the decoder's log-variance, logvar.clamp(min=-6), and dequantize x"),
    }
    for place, (values, change) in places.items():
        if share := percent(~values().isfinite()):
            return Answer(share, "% not finite", "wrong", f"NaN or infinity in {place}", change)
    return Answer(0.0, "% not finite", "fine")


@check("range of the data")
def data_range(m: Measurements) -> Answer | None:
    """Look for data in another unit than the decoder's outputs, pixels in 0 to 255 above all."""
    largest = float(m.x.abs().max())
    if m.bits:
        ratio, limit = max(largest, 1 - float(m.x.min())), 1 + 1e-5
    elif m.gaussian:
        ratio, limit = largest / float((m.mean.abs() + 5 * m.variance.sqrt()).max().clamp(min=1e-30)), OFF
    else:
        return None
    cause, change = "the data are in another unit than the decoder's outputs", "standardize: x = (x - mean) / std"
    if m.x.min() >= 0 and 1 < largest <= 255:
        cause, change = "pixels in 0 to 255, where the decoder gives 0 to 1", "x = x / 255"
    return Answer(ratio, "of the decoder's reach", graded(ratio, limit, limit), cause, change)


@check("bits")
def bits(m: Measurements) -> Answer | None:
    """Look for a cross-entropy of values between 0 and 1: its least value is not 0, and it is no likelihood."""
    if not m.bits:
        return None
    inside = m.x.clamp(0, 1)
    grey = percent((inside - inside.round()).abs() > 1e-3)
    floor = float(td.Bernoulli(inside).entropy().flatten(1).sum(1).mean())
    share = 100 * floor / max(-float(m.log_px.mean()), 1e-9)
    unit = f"% of the cross-entropy is its floor, {floor:.4g} nats"
    cause = f"{grey:.0f} % of the values lie between 0 and 1: no log-likelihood that compares with another one"
    change = "binarize, x = (x > 0.5).float(), or take a likelihood of greys, such as sg.DiscretizedLogistic or Normal"
    return Answer(share, unit, graded(share, 1, OFF) if grey > SHARE else "fine", cause, change)


@check("evaluation mode")
def evaluation(m: Measurements) -> Answer:
    """Look for a part that answers differently the second time, or depends on its neighbors in the batch."""
    encoder, half, spread = m.model.encoder, max(1, len(m.x) // 2), m.q.mean.std() + m.q.stddev.mean() + 1e-9
    left_on = "answers differently the second time: dropout or a draw is left on"
    moves = {
        f"the encoder {left_on}": (encoder(m.x).mean - m.q.mean) / spread,
        f"the decoder {left_on}": (m.log_prob(m.z[0]) - m.log_px[0]) / m.outputs,
        "q(z|x) depends on the batch: its statistics are in use": (encoder(m.x[:half]).mean - m.q.mean[:half]) / spread,
    }
    sizes = {cause: 100 * float(move.square().mean().sqrt()) for cause, move in moves.items()}
    cause = next((cause for cause, size in sizes.items() if size > SHARE / 10), "")
    number = sizes.get(cause, 0.0)
    change = "F.dropout(h, p, training=self.training), and model.eval() before evaluation"
    return Answer(number, "% change", graded(number, SHARE / 10, SHARE), cause, change)


@check("prior and posterior")
def families(m: Measurements) -> Answer:
    """Look for a prior that has another support than q(z|x)."""
    p, q = base_of(m.model.prior()), base_of(m.q)
    outside = 0.0
    for own, z in ((q, m.model.prior.sample(len(m.x))), (p, m.z[0])):
        with contextlib.suppress(NotImplementedError):  # of a distribution that does not say
            outside = max(outside, percent(~own.support.check(z)))  # type: ignore[union-attr]
    cause = f"q(z|x) is {type(q).__name__}, p(z) {type(p).__name__}: draws of p were never decoded, or q has none there"
    change = "take both of one family, as Normal and Normal(0, 1)"
    return Answer(outside, "% of z outside", graded(outside, 0, SHARE), cause, change)


@check("saturation")
def saturation(m: Measurements) -> Answer | None:
    """Look for outputs at an end of the sigmoid that their gradient cannot leave, and x is not there."""
    if not (m.bits or m.gaussian) or m.mean.min() < 0 or m.mean.max() > 1:
        return None
    number = percent((torch.minimum(m.mean, 1 - m.mean) < math.exp(-DEAF)) & ((m.x - m.mean).abs() > 0.5))
    cause = "outputs sit at 0 or 1 where x is at the other end: no gradient passes the sigmoid"
    change = "lower the learning rate, clip the gradient, and give the cross-entropy logits, not probabilities"
    return Answer(number, "% of outputs stuck", graded(number, SHARE / 10, SHARE), cause, change)


@check("variance of the likelihood")
def variance(m: Measurements) -> Answer | None:
    """Look for a learned variance that runs away, or one that is not the errors'."""
    if not m.gaussian:
        return None
    tiny = m.spacing / 10 if m.spacing else TINY * float(m.train.std())
    share = percent(m.variance.double().sqrt() < tiny)
    if share > SHARE and m.fixed_variance is None:
        cause = "the learned variance runs away: the density of values on levels, or of constant ones, has no bound"
        change = "dequantize, x = (x + torch.rand_like(x)) / levels, or bound it: log_variance.clamp(min=-6)"
        return Answer(share, f"% of deviations below {tiny:.2g}", "wrong", cause, change)
    squares = Estimate.of(((m.x - m.mean).square() / m.variance).flatten(1).mean(1))
    (chi, error), half = squares, m.outputs / 2
    cause = "the variance is too small: errors count more than they should"
    if chi < 1:
        cause = "the variance is too large: it weighs like beta, and latents are lost to it"
    best = chi * float(m.variance.mean())
    change = f"fix it at {best:.2g}, or learn it from there, log_variance = nn.Parameter(torch.tensor("
    change += f"{math.log(best):.3g})), Normal(mean, (log_variance / 2).exp()); if it is learned already, train longer"
    unit, gain = "is the mean of ((x - mean) / deviation)^2; 1 is right", half * (chi - 1 - math.log(chi))
    advice = Advice("a learned factor of the likelihood's variance", gain, NATS, half * abs(1 - 1 / chi) * error)
    return Answer(squares, unit, graded(max(chi, 1 / chi), 2), cause, change, advice)


@check(WEIGHT)
def kl_weight(m: Measurements) -> Answer:
    """Find the loss's units: beta, declared or in disguise."""
    train, mixed, explained = m.train[: len(m.x)], False, m.way(m.log_px[0])
    if m.model.loss is not None:
        units = analysis.loss_units(m.model, train, m.model.loss)
        beta, cause, mixed = units.beta, f"by the loss: {units.cause}", units.mixed
    elif m.comparison.figure.value > m.comparison.independent if explained is None else explained < UNUSED:
        raise IntractableError("the decoder is not trained, so that nothing tells the weight: pass loss=...")
    else:
        beta = analysis.implied_kl_weight(m.model, train)
        cause = "a KL divergence that is a mean over latents or the batch, free bits, or training that has not ended"
        if beta.value > 1:
            cause = f"beta, or a reconstruction that is a mean over some of the {m.outputs} outputs"
        cause = f"by the optimum that the encoder is at: {cause}"
    if 3 * beta.error >= max(abs(beta.value), 0.5):
        remedy = "does the loss draw z as q(z|x) does?" if m.model.loss else "pass loss=..., or more examples=..."
        raise IntractableError(f"{beta}: its error is as large as itself; {remedy}")
    nearest = min(max(1.0, beta.value - 3 * beta.error), beta.value + 3 * beta.error)  # the value within noise
    off = math.inf if mixed or nearest <= 0 else max(nearest, 1 / nearest)
    change = "sum -log p over the outputs and the KL divergence over the latents, then average both over the batch"
    if m.model.loss is not None and not mixed and beta.value > 0:
        change += f"; or divide the KL divergence in the loss by {beta.value:.3g}"
    return Answer(beta, "(1 is the ELBO's)", graded(off, 2, OFF), cause, change)


@check("relaxation")
def relaxation(m: Measurements) -> Answer | None:
    """Look for a temperature at which a relaxation's gradient is noise, or another expectation's."""
    own = m.model.estimator
    if not isinstance(own, GumbelSoftmax):
        return None
    mine, usual, bias = next(iter(m.gradients.values())), m.gradients["GumbelSoftmax(0.5)"], None
    base, x, times = base_of(m.q), m.train[:BATCH], mine.est / max(usual.est, 1e-30)
    values = base.event_shape.numel() if isinstance(base, td.OneHotCategorical) else 2
    if values ** base.batch_shape[1:].numel() <= ENUMERATED:
        with torch.enable_grad():
            bias = analysis.gradient_bias(m.model, x, {"own": own}, draws=1000)["own"].relative
    unit = "times the variance at temperature 0.5"
    unit += "" if bias is None else f"; its bias is {100 * bias:.0f} % of the gradient"
    cause = f"at temperature {own.temperature:g} draws make {mine.est_percent:.0f} % of the gradient's variance"
    change = "a temperature of 0.5, or an unbiased estimator, such as sg.DisARM() or sg.RLOO()"
    return Answer(times, unit, graded(times, 3, OFF if mine.est_percent > 50 else math.inf), cause, change)


@check("training")
def training(m: Measurements) -> Answer | None:
    """Compare reconstructions with the mean of the data, which knows nothing of x."""
    explained = m.way(m.log_px[0])
    if explained is None:
        return None
    verdict = graded(-explained, -UNUSED, UNUSED)
    than = "no better than" if verdict == "suspicious" else "worse than"
    cause = f"the reconstructions are {than} the mean of the data: not trained, hardly trained, or diverged"
    change = "train it for longer, at another rate; and see the latents"
    if m.q.has_rsample and (m.way(m.log_prob(m.q.mean)) or 0.0) > max(DECODED, 2 * explained):
        cause = "the mean of q(z|x) is decoded well, its draws are not: the decoder was trained at other z"
        change = "draw z in the loss by the deviation of q(z|x): z = mu + torch.randn_like(mu) * (logvar / 2).exp()"
    return Answer(100 * explained, "% of the way from the mean of the data to x", verdict, cause, change)


@check("latents in use")
def collapse(m: Measurements) -> Answer:
    """Look for posterior collapse, and why: how much log p(x|z) loses if each x is decoded from another one's z."""
    active, kld, expected = int((m.kld_per_latent.mean(0) > ACTIVE).sum()), Estimate.of(m.kld), m.of_use
    others = torch.stack([m.log_prob(z.roll(1, 0)) for z in m.z])
    loss = Estimate.of((m.log_px - others).mean(0))
    unit = f"of {m.kld_per_latent.shape[1]} have a KL divergence above {ACTIVE} nats, {kld} nats in all; "
    unit += f"decoding from another example's z costs {loss} nats"
    cause, verdict = f"a linear model of this variance would use {expected}", graded(expected or 0, 2 * active)
    change = "warm the KL divergence up, weigh it by 1 at most, or start at PCA with a guide"
    if active and loss.value + 3 * loss.error >= UNUSED * kld.value:
        return Answer(active, unit, verdict, cause, change)
    if m.comparison.figure.value < m.comparison.independent < math.inf:
        cause = "p(x|z) is better than independent outputs without z: the decoder sees x itself and ignores z"
        change = "a weaker decoder (smaller context, dropout on x), or a bound on the KL divergence (free bits)"
    elif expected == 0:
        cause = "no principal component has more variance than the decoder's own: at this variance z cannot help"
        change = "learn the variance, or fix a smaller one"
    else:
        cause = f"{'the decoder ignores z' if active else 'the posterior has collapsed'}, where {cause}"
    return Answer(active, unit, "wrong", cause, change)


@check("aggregate posterior")
def aggregate(m: Measurements) -> Answer:
    """Measure the mutual information of x and z, and how far q(z) is from the prior."""
    (least, most), kld = analysis.mutual_information(m.q), float(m.kld.mean())
    mismatch = max(0.0, kld - most)
    unit = f"of {kld:.4g} nats are its distance from p(z), at least; x and z share {max(0.0, min(least, most)):.3g} to "
    unit += f"{most:.3g} nats, and {len(m.x)} examples can show {math.log(len(m.x)):.3g} at most"
    cause = "draws of the prior are not what the decoder was trained on"
    change = "learn the prior, sg.MixturePrior(family), or weigh the KL divergence more"
    return Answer(mismatch, unit, graded(mismatch, max(1.0, kld / 4)), cause, change)


@check("beside baselines")
def beside_baselines(m: Measurements) -> Answer:
    """Put the bound in its unit beside models without latents."""
    (figure, unit, simpler, at_floor), bound = m.comparison, m.comparison.figure.value - 3 * m.comparison.figure.error
    told = ", ".join(f"{name} {value:.4g}" for name, value in simpler.items()) or "none is known for such data"
    better = [f"{name} by {figure.value - value:.4g}" for name, value in simpler.items() if bound > value]
    cause = f"simpler models are ahead, {', '.join(better)}: what they know of x is not in the bound"
    cause = cause if better else "no Gaussian of dequantized levels comes below 0.2546 bits"
    change = "see the other findings; a likelihood of levels is sg.DiscretizedLogistic"
    helps = "a likelihood of levels, sg.DiscretizedLogistic: the floor is where a Gaussian ends"
    advice = Advice(helps, figure.value, "bits per dimension at most") if at_floor else None
    unit = f"{unit} (lower is better); without latents: {told}"
    return Answer(figure, unit, graded(bool(better) or at_floor, 0.5), cause, change, advice)


@check("linear model")
def linear(m: Measurements) -> Answer:
    """Compare with what linear decoders reach: on this encoder, by the exact gradient, and at the optimum, pPCA."""
    name, best = max(m.linear_models.items(), key=lambda entry: float(entry[1].mean()))
    gain = Estimate.of(m.elbo.double() - best)
    worse = -gain.value > 3 * gain.error and -gain.value > 0.01 * abs(float(m.elbo.mean()))
    cause = "with as many latents it is better: what is linear was not learned"
    change = "start with sg.SilentGuide.for_model(q, x, total_steps=...), or train for longer"
    options = f", variance={m.fixed_variance:.4g}" if m.fixed_variance else ""
    options = ", likelihood=sg.likelihoods.Bernoulli()" if m.bits else options
    guide = f"sg.SilentGuide.for_model(q, x, total_steps={m.steps or '...'}{options})"
    advice = Advice(f"a guide, {guide}: as much is the linear model above this one", -gain.value, NATS, gain.error)
    return Answer(gain, f"{NATS} above {name}", graded(worse, 0.5), cause, change, advice)


@check("amortization gap")
def amortization(m: Measurements) -> Answer:
    """Measure what the encoder leaves on the table."""
    gap = Estimate.of(analysis.amortization_gap(m.model, m.x))
    cause = "the encoder is too small, or not trained: refined, q gains that"
    change = "a larger encoder, more steps for it, or a few steps of refinement for each example"
    better = "a KL divergence of weight 1" if m.off(WEIGHT) else "a better encoder"
    advice = Advice(f"{better}: its q(z|x) refined by themselves", gap.value, NATS, gap.error)
    verdict = graded(gap.value - 3 * gap.error, max(1.0, float(m.kld.mean()) / 10))
    return Answer(gap, f"{NATS}, at least", verdict, cause, change, advice)


@check("overfitting")
def overfitting(m: Measurements) -> Answer:
    """Compare training with test."""
    if m.split != "test":
        raise IntractableError("pass test=... with examples that the model was not trained on")
    seen = Measurements(m.model, m.train[: len(m.x)], m.train, "training", m.levels, m.steps)
    ours, theirs, constant = Estimate.of(m.elbo), Estimate.of(seen.elbo), m.with_mean(m.train.mean(0).expand_as(m.x))
    gap = Estimate(theirs.value - ours.value, math.hypot(theirs.error, ours.error))
    learned = abs(ours.value - (0 if constant is None else float(constant.mean())))
    cause = "more than a tenth of what was learned is the training examples' own"
    unit, change = "nats an example lost on the test", "more data, weight decay, or stop earlier"
    return Answer(gap, unit, graded(gap.value - 3 * gap.error, learned / 10), cause, change)


@check("gradient noise")
def gradient(m: Measurements) -> Answer:
    """Tell whose noise the encoder's gradient has, and the signal beside it."""
    own, *others = m.gradients.values()
    share, error, decoder = own.est_percent, own.errors.est_percent, ""
    unit = "% of the variance of the encoder's gradient is that of sampling z; signal-to-noise ratio of a batch: "
    exact = m.model.estimator is not None and m.model.estimator.exact  # which draws no z for the decoder either
    with contextlib.suppress(DomainError), torch.enable_grad():  # of a decoder that has no parameters
        decoder = "" if exact else f", decoder {analysis.decoder_variance(m.model, m.batches, draws=4).snr:.2g}"
    unit += f"encoder {own.snr:.2g}{decoder}"
    halved = any(found.unbiased and found.work < own.work / 2 for found in others)
    verdict, cause = graded(share - 3 * error, 50 if halved else 100), "another estimator has less, at the same cost"
    return Answer(Estimate(share, error), unit, verdict, cause, "see the estimators below")


def better_estimators(m: Measurements) -> list[Advice]:
    """Return estimators that lower the variance of the encoder's gradient, by work, biased ones last."""
    if "gradient noise" not in m.found:
        return []
    own, advice = next(iter(m.gradients.values())), []
    for name, found in analysis.ranked(m.gradients).items():
        whole = (own.est + own.batch) / 100
        saved, error = (own.est - found.est) / whole, (own.errors.est + found.errors.est) / whole
        if saved > max(ENOUGH, 3 * error):
            action = f"{name}: {found.evaluations} evaluations of the decoder against {own.evaluations}"
            action += "" if found.unbiased else ", and it is biased"
            advice.append(Advice(action, saved, "% less variance of the encoder's gradient", error))
    return advice
