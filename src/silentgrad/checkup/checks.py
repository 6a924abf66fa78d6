"""The checks, in the order of causes: data and likelihood before weights, weights before what they do to the latents.

Every threshold is a statement about the model, none is a quantile of some models.

- "wrong": the number cannot be that of a VAE whose parts do what they say. Data out of the decoder's reach, an encoder
  that answers differently the second time, a KL divergence that is an order of magnitude off, no latent in use where z
  would help, reconstructions worse than the mean of the data.
- "suspicious": something is lost that another choice would keep, or a figure is not what it seems.

A symptom is never "wrong" where its cause has a check of its own.
"""

import math

import torch
from torch import Tensor
from torch import distributions as td

from silentgrad.checkup.findings import CHECKS, Answer, Estimate, check, estimate, graded
from silentgrad.checkup.loss import implied_kl_weight, loss_units
from silentgrad.checkup.measurements import ACTIVE, Measurements
from silentgrad.checkup.noise import BATCH, decoder_snr, gradients, relative_bias
from silentgrad.errors import IntractableError
from silentgrad.estimators import GumbelSoftmax
from silentgrad.latents.independent import base_of

OFF = 10.0  # a weight, a variance or a scale off by more is another order of magnitude
SHARE = 1.0  # percent of values that is more than a stray one
DEAF = 10.0  # |logit| beyond which a sigmoid passes no gradient worth the name: its slope is below 5e-5
TINY = 1e-4  # a deviation in units of the data's, or a tenth of a level: no real measurement is so precise
UNUSED = 0.05  # of what z could give: a decoder that gets less out of it ignores it

__all__ = ["CHECKS"]


@check("finite numbers")
def finite(m: Measurements) -> Answer:
    """NaN and infinity: nothing else means anything then, so that no other check is made."""
    parts = torch.cat([m.q.mean, m.q.variance])
    share, place, change = _infinite(m.x), "the data", "drop or fill the entries: x = x.nan_to_num()"
    if not share:
        share, place, change = _infinite(parts), "q(z|x)", "bound the log-variance: logvar = logvar.clamp(-10, 10)"
    if not share:
        share, place = _infinite(m.log_px), "log p(x|z)"
        change = "bound the decoder's log-variance, logvar.clamp(min=-6), and dequantize x"
    if share:
        return share, "% not finite", "wrong", f"NaN or infinity in {place}", change
    return 0.0, "% not finite", "fine", "the data, q(z|x) and log p(x|z) are finite", ""


def _infinite(values: Tensor) -> float:
    return 100 * float((~values.isfinite()).double().mean())


@check("range of the data")
def data_range(m: Measurements) -> Answer | None:
    """Data in another unit than the decoder's outputs, pixels in 0 to 255 above all."""
    largest = float(m.x.abs().max())
    if m.bits:
        ratio, limit = max(largest, 1 - float(m.x.min())), 1 + 1e-5
    elif m.gaussian and m.mean is not None and m.variance is not None:
        ratio, limit = largest / float((m.mean.abs() + 5 * m.variance.sqrt()).max().clamp(min=1e-30)), OFF
    else:
        return None
    cause, change = "the data are in another unit than the decoder's outputs", "standardize: x = (x - mean) / std"
    if m.x.min() >= 0 and 1 < largest <= 255:
        cause, change = "pixels in 0 to 255, where the decoder gives 0 to 1", "x = x / 255"
    verdict = graded(ratio, limit, limit)
    return ratio, "of the decoder's reach", verdict, ("the decoder reaches the data", cause), change


@check("bits")
def bits(m: Measurements) -> Answer | None:
    """A cross-entropy of values between 0 and 1: its least value is not 0, and it is no likelihood."""
    if not m.bits:
        return None
    inside = m.x.clamp(0, 1)
    grey = 100 * float(((inside > 1e-3) & (inside < 1 - 1e-3)).double().mean())
    floor = float(td.Bernoulli(inside).entropy().flatten(1).sum(1).mean())
    share = 100 * floor / max(-float(m.log_px.mean()), 1e-9)
    cause = (
        f"{grey:.0f} % of the values lie between 0 and 1: the cross-entropy cannot go below {floor:.4g} nats, "
        "and is no log-likelihood that compares with another one"
    )
    change = "binarize, x = (x > 0.5).float(), or take a likelihood of greys, such as sg.DiscretizedLogistic or Normal"
    verdict = graded(share, 1, OFF) if grey > SHARE else "fine"
    return share, "% of the cross-entropy is its floor", verdict, ("x is 0 or 1", cause), change


@check("evaluation mode")
def evaluation(m: Measurements) -> Answer:
    """An encoder or a decoder that answers differently the second time, or depends on its neighbors in the batch."""
    encoder, half = m.subject.encoder, max(1, len(m.x) // 2)
    spread = m.q.mean.std() + m.q.stddev.mean() + 1e-9
    decoded = m.subject.decoder.log_prob(m.x, m.z[0]) - m.log_px[0]
    left_on = "answers differently the second time: dropout or a draw is left on"
    moves = {
        f"the encoder {left_on}": (encoder(m.x).mean - m.q.mean) / spread,
        f"the decoder {left_on}": decoded / m.outputs,
        "q(z|x) depends on the batch: its statistics are in use": (encoder(m.x[:half]).mean - m.q.mean[:half]) / spread,
    }
    sizes = {cause: 100 * float(move.square().mean().sqrt()) for cause, move in moves.items()}
    cause = next((cause for cause, size in sizes.items() if size > SHARE), "")
    number = sizes.get(cause, max(sizes.values()))
    change = "F.dropout(h, p, training=self.training), and model.eval() before evaluation"
    said = "encoder and decoder repeat themselves", cause or "encoder or decoder do not quite repeat themselves"
    return number, "% change", graded(number, SHARE / 10, SHARE), said, change


@check("prior and posterior")
def families(m: Measurements) -> Answer:
    """A prior that has another support than q(z|x), or that no q of the family equals."""
    p, change = m.subject.prior(), "take both of one family, as Normal and Normal(0, 1)"
    names = f"q(z|x) is {type(base_of(m.q)).__name__}, p(z) {type(base_of(p)).__name__}"
    outside = 100 * max(_outside(m.q, m.subject.prior.sample(len(m.x))), _outside(p, m.z[0]))
    if outside > 0:
        cause = f"{names}, which live on other z: the KL divergence is infinite, or draws from p were never decoded"
        return outside, "% of z outside", graded(outside, 0, SHARE), cause, change
    least = 0.0
    if type(base_of(p)) is not type(base_of(m.q)) and not isinstance(p, td.MixtureSameFamily):
        standard = m.family.latent(torch.zeros(1, m.family.numbers).to(m.q.mean))
        least = float(m.subject.prior.divergence(standard)) / m.family.latents.numel()
    said = names, f"{names}: even a standard q, which knows nothing of x, costs that much"
    return least, "nats a latent of a standard q", graded(least, ACTIVE), said, change


def _outside(p: td.Distribution, z: Tensor) -> float:
    try:
        return float((~base_of(p).support.check(z)).double().mean())  # type: ignore[union-attr]
    except NotImplementedError:
        return 0.0


@check("weight of the KL divergence")
def kl_weight(m: Measurements) -> Answer:
    """The loss's units: beta, declared or in disguise."""
    train, mixed = m.train[: len(m.x)], False
    if m.subject.loss is not None:
        units = loss_units(m.subject, train, m.subject.loss)
        beta, cause, mixed = units.beta, f"by the loss: {units.cause}", units.mixed
    elif (m.explained is None and m.comparison.figure.value > m.comparison.independent) or (m.explained or 1) < UNUSED:
        raise IntractableError("the decoder is not trained, so that nothing tells the weight: pass loss=...")
    else:
        beta = implied_kl_weight(m.subject, train)
        cause = f"by the optimum that the encoder is at: {_looks_like(beta.value, m)}"
    nearest = min(max(1.0, beta.value - 3 * beta.error), beta.value + 3 * beta.error)  # the value within noise
    factor = 2 * OFF if mixed else _factor(nearest)
    change = "sum -log p over the outputs and the KL divergence over the latents, then average both over the batch"
    return beta, "(1 is the ELBO's)", graded(factor, 2, OFF), cause, change


def _looks_like(beta: float, m: Measurements) -> str:
    if _factor(beta) <= 2:
        return "the ELBO's weight"
    if _factor(beta / m.outputs) <= 3:
        return f"a reconstruction that is a mean over the {m.outputs} outputs, or beta"
    if beta > 1:
        return "beta, or a reconstruction that is a mean over some dimension"
    return "a KL divergence that is a mean over latents or the batch, free bits, or training that has not ended"


@check("saturation")
def saturation(m: Measurements) -> Answer | None:
    """Outputs at an end of the sigmoid that their gradient cannot leave, and x is not there."""
    if not (m.bits or m.gaussian) or m.mean is None or m.mean.min() < 0 or m.mean.max() > 1:
        return None
    deaf = torch.minimum(m.mean, 1 - m.mean) < math.exp(-DEAF)
    number = 100 * float((deaf & ((m.x - m.mean).abs() > 0.5)).double().mean())
    said = (
        "outputs are free to move",
        "outputs sit at 0 or 1 where x is at the other end: no gradient passes the sigmoid",
    )
    change = "lower the learning rate, clip the gradient, and give the cross-entropy logits, not probabilities"
    return number, "% of outputs stuck", graded(number, SHARE / 10, SHARE), said, change


@check("variance of the likelihood")
def variance(m: Measurements) -> Answer | None:
    """A learned variance that runs away, or one that is not the errors'."""
    if not m.gaussian or m.variance is None:
        return None
    tiny = m.spacing / 10 if m.spacing else TINY * float(m.train.std())
    share = 100 * float((m.variance.double().sqrt() < tiny).double().mean())
    if share > SHARE and m.fixed_variance is None:
        cause = "the learned variance runs away: the density of values on levels, or of constant ones, has no bound"
        change = "dequantize, x = (x + torch.rand_like(x)) / levels, or bound it: log_variance.clamp(min=-6)"
        return share, f"% of deviations below {tiny:.2g}", "wrong", cause, change
    chi, change = m.calibration, "learn it: log_variance = nn.Parameter(...), Normal(mean, (log_variance / 2).exp())"
    cause = "the variance is too small: errors count more than they should"
    if chi.value < 1:
        cause = "the variance is too large: it weighs like beta, and latents are lost to it"
    unit = "is the mean of ((x - mean) / deviation)^2; 1 is right"
    return chi, unit, graded(_factor(chi.value), 2), ("the deviations are those of the errors", cause), change


@check("relaxation")
def relaxation(m: Measurements) -> Answer | None:
    """A temperature at which a relaxation's gradient is noise, or another expectation's."""
    own = m.subject.estimator
    if not isinstance(own, GumbelSoftmax):
        return None
    mine = next(iter(m.gradients.values()))
    usual = gradients(m.subject, m.train, {"usual": GumbelSoftmax(0.5, own.hard)})["usual"]
    times, bias = mine.est / max(usual.est, 1e-30), relative_bias(m.subject, m.train[:BATCH], own)
    cause = f"at temperature {own.temperature:g} draws make {mine.est_percent:.0f} % of the gradient's variance"
    cause += "" if bias is None else f"; its bias is {100 * bias:.0f} % of the gradient"
    change = "a temperature of 0.5, or an unbiased estimator, such as sg.DisARM() or sg.RLOO()"
    verdict = graded(times, 3, OFF if mine.est_percent > 50 else math.inf)
    return times, "times the variance at temperature 0.5", verdict, cause, change


@check("training")
def training(m: Measurements) -> Answer | None:
    """Reconstructions beside the mean of the data, which knows nothing of x."""
    if m.explained is None:
        return None
    verdict = graded(-m.explained, -UNUSED, UNUSED)
    than = "worse than the mean of the data: not trained, hardly trained, or diverged"
    if verdict == "suspicious":
        than = "no better than the mean of the data"
    said = "the reconstructions are better than the mean of the data", f"the reconstructions are {than}"
    unit = "% of the way from the mean of the data to x"
    return 100 * m.explained, unit, verdict, said, "train it for longer, at another rate; and see the latents"


@check("latents in use")
def collapse(m: Measurements) -> Answer:
    """Posterior collapse, and why: how much log p(x|z) loses if each x is decoded from another one's z."""
    active, kld, expected = int((m.kld_per_latent.mean(0) > ACTIVE).sum()), estimate(m.kld), m.of_use
    others = torch.stack([m.subject.decoder.log_prob(m.x, z.roll(1, 0)) for z in m.z])
    loss = estimate((m.log_px - others).mean(0))
    unit = f"of {m.kld_per_latent.shape[1]} have a KL divergence above {ACTIVE} nats"
    said = f"KL divergence {kld} nats; decoding from another example's z costs {loss} nats"
    ignored = loss.value + 3 * loss.error < UNUSED * kld.value
    if active and not ignored:
        few = f"{said}; a linear model of this variance would use {expected}"
        verdict = graded(expected or 0, 2 * active)
        return active, unit, verdict, (said, few), "start at PCA with a guide, or warm the KL divergence up"
    if not math.isinf(m.comparison.independent) and m.comparison.figure.value < m.comparison.independent:
        said += "; p(x|z) is better than independent outputs without z: the decoder sees x itself and ignores z"
        change = "a weaker decoder (smaller context, dropout on x), or a bound on the KL divergence (free bits)"
        return active, unit, "wrong", said, change
    if expected == 0:
        said += "; no principal component has more variance than the decoder's own: at this variance z cannot help"
        return active, unit, "wrong", said, "learn the variance, or fix a smaller one"
    said += "; the decoder ignores z" if active else "; the posterior has collapsed"
    if expected:
        said += f", where a linear model of this variance would use {expected}: weight of the KL divergence, or start"
    return active, unit, "wrong", said, "weigh the KL divergence by 1 at most, warm it up, or start with a guide"


@check("aggregate posterior")
def aggregate(m: Measurements) -> Answer:
    """Mutual information of x and z, and how far q(z) is from the prior."""
    (least, most), kld = m.information, float(m.kld.mean())
    least = min(least, most)  # which the sample of z may make larger
    mismatch = max(0.0, kld - most)
    said = (
        f"x and z share {max(0, least):.3g} to {most:.3g} nats; the lower bound cannot exceed {math.log(len(m.x)):.3g}"
    )
    verdict = graded(mismatch, max(1.0, kld / 4))
    change = "learn the prior, sg.MixturePrior(family), or weigh the KL divergence more"
    more = f"{said}; draws of the prior are not what the decoder was trained on"
    return mismatch, f"of {kld:.4g} nats are its distance from p(z), at least", verdict, (said, more), change


@check("beside baselines")
def beside_baselines(m: Measurements) -> Answer:
    """The bound in its unit, beside models without latents."""
    found = m.comparison
    told = ", ".join(f"{name} {value:.4g}" for name, value in found.baselines.items()) or "none is known for such data"
    said = f"fewer are better; without latents: {told}" + f"; {found.remark}" * bool(found.remark)
    worse = found.figure.value - 3 * found.figure.error > found.independent
    said += "; independent outputs do better" * worse
    change = "see the other findings; a likelihood of levels is sg.DiscretizedLogistic"
    return found.figure, found.unit, graded(worse or found.at_floor, 0.5), said, change


@check("linear model")
def linear(m: Measurements) -> Answer:
    """What linear decoders reach: on this encoder, by the exact gradient, and at the optimum, pPCA."""
    gain, name = m.linear_gain
    worse = -gain.value > 3 * gain.error and -gain.value > 0.01 * abs(float(m.elbo.mean()))
    said = "with as many latents it is no better", "with as many latents it is better: what is linear was not learned"
    change = "start with sg.SilentGuide.for_model(q, x, total_steps=...), or train for longer"
    return gain, f"nats an example above {name}", graded(worse, 0.5), said, change


@check("amortization gap")
def amortization(m: Measurements) -> Answer:
    """What the encoder leaves on the table."""
    gap = m.amortization
    verdict = graded(gap.value - 3 * gap.error, max(1.0, float(m.kld.mean()) / 10))
    said = (
        "q(z|x) are about the best of their family",
        "the encoder is too small, or not trained: refined, q gains that",
    )
    change = "a larger encoder, more steps for it, or a few steps of refinement for each example"
    return gap, "nats an example, at least", verdict, said, change


@check("overfitting")
def overfitting(m: Measurements) -> Answer:
    """Training against test."""
    if m.split != "test":
        raise IntractableError("pass test=... with examples that the model was not trained on")
    seen = Measurements(m.subject, m.train[: len(m.x)], m.train, "training", m.levels, m.steps)
    ours, theirs, constant = estimate(m.elbo), estimate(seen.elbo), m.with_mean(m.train.mean(0).expand_as(m.x))
    gap = Estimate(theirs.value - ours.value, math.hypot(theirs.error, ours.error))
    learned = abs(ours.value - (0 if constant is None else float(constant.mean())))
    verdict = graded(gap.value - 3 * gap.error, learned / 10)
    said = "training and test examples do alike", "more than a tenth of what was learned is the training examples' own"
    return gap, "nats an example lost on the test", verdict, said, "more data, weight decay, or stop earlier"


@check("gradient noise")
def gradient(m: Measurements) -> Answer:
    """Whose noise the encoder's gradient has, and the signal beside it."""
    own, *others = m.gradients.values()
    said = (
        f"signal-to-noise ratio of a batch: encoder {own.snr:.2g}, decoder {decoder_snr(m.subject, m.train):.2g}; the "
    )
    said += "draws are the larger part" if own.est_percent > 50 else "batches are the larger part"
    halved = any(found.unbiased and found.work < own.work / 2 for found in others)
    verdict = graded(own.est_percent - 3 * own.errors.est_percent, 50 if halved else 100)
    unit = "% of the variance of the encoder's gradient is that of sampling z"
    return Estimate(own.est_percent, own.errors.est_percent), unit, verdict, said, "see the estimators below"


def _factor(value: float) -> float:
    """By which factor a positive number is off 1."""
    return max(value, 1 / value) if value > 0 else math.inf
