"""What estimators remember and learn, whoever calls them: checkpointing, copies, hierarchies, frozen parameters."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.utils.checkpoint import checkpoint

import silentgrad as sg
from contenders import BITS, PAIRS, PLAIN_ESTIMATORS, Member, each, latent_of, squares
from refusals import refused
from silentgrad import estimators
from silentgrad.estimators import Estimator, Integrand, Learning, PriorIntegrand
from silentgrad.estimators.choices import Choices
from silentgrad.estimators.learning import RunningMeans
from silentgrad.latents.families import FAMILIES
from silentgrad.testing import Problem, call, check_estimator

LEARNING = [m for m in PLAIN_ESTIMATORS if any(isinstance(part, Learning) for part in m.build().modules())]


def differentiable() -> Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


def transformed(base: td.Distribution, *transforms: td.Transform) -> td.Distribution:
    return td.TransformedDistribution(base, list(transforms))


ONE, UNIT, WHICH = torch.ones(2), td.Uniform(torch.zeros(2), 1.0), td.Categorical(torch.ones(2))
MOVING: dict[str, Callable[[Tensor], td.Distribution]] = {
    "Uniform": lambda a: td.Uniform(-a, 1.0),
    "Independent": lambda a: td.Independent(td.Uniform(0.0, a), 1),
    "Pareto": lambda a: td.Pareto(a, 3.0),
    "mixture": lambda a: td.MixtureSameFamily(WHICH, td.Uniform(-a, a, validate_args=False), validate_args=False),
    "transformed base": lambda a: transformed(td.Uniform(-a, a), td.TanhTransform()),
    "shifted": lambda a: transformed(td.Exponential(ONE), td.AffineTransform(a, 1.0)),
    "shifted twice": lambda a: transformed(UNIT, td.AffineTransform(3.0, 2.0), td.AffineTransform(a, 1.0)),
    "composed": lambda a: transformed(UNIT, td.ComposeTransform([td.AffineTransform(0.0, a), td.ExpTransform()])),
    "inverse": lambda a: transformed(td.Exponential(ONE), td.AffineTransform(a, 1.0).inv),
    "bounded, then scaled": lambda a: transformed(td.Normal(a, 1.0), td.TanhTransform(), td.AffineTransform(0.0, a)),
}
STILL: dict[str, Callable[[Tensor], td.Distribution]] = {
    "constant ends": lambda a: td.Uniform(-ONE, ONE),
    "constant scale": lambda a: td.Pareto(ONE, a),
    "Gumbel": lambda a: td.Gumbel(a, a),
    "Weibull": lambda a: td.Weibull(a, a),
    "Kumaraswamy": lambda a: td.Kumaraswamy(a, a),
    "Binomial": lambda a: td.Binomial(5, logits=a),
    "relaxed": lambda a: td.RelaxedBernoulli(torch.tensor(0.5), logits=a),
    "relaxed categories": lambda a: td.RelaxedOneHotCategorical(torch.tensor(0.5), logits=a),
    "mixture": lambda a: td.MixtureSameFamily(WHICH, td.Normal(a, a)),
    "squashed": lambda a: transformed(td.Normal(a, a), td.TanhTransform()),
    "logistic": lambda a: transformed(UNIT, td.SigmoidTransform().inv, td.AffineTransform(a, a)),
    "flow": lambda a: transformed(td.Normal(ONE, 1.0), td.AffineTransform(a, a), td.ExpTransform()),
    "subset": lambda a: sg.KSubset(a, 1),
}


@pytest.mark.parametrize("case", MOVING)
def test_a_support_that_moves_is_refused_by_the_score_function(case: str) -> None:
    q = MOVING[case](differentiable())
    remedy = "choose Reparameterized" if q.has_rsample else "no estimator that samples is unbiased"

    def f(z: Tensor) -> Tensor:
        return z.reshape(*q.batch_shape, -1).sum(-1)

    for build in (sg.Reinforce, sg.RLOO):
        with pytest.raises(sg.IntractableError, match=rf"support of \w+ latents depends on their parameters.*{remedy}"):
            build()(q, f)
        with torch.no_grad():  # a value alone has no bias
            assert build()(q, f).shape == q.batch_shape


@pytest.mark.parametrize("case", STILL)
def test_a_support_that_stays_is_taken(case: str) -> None:
    q = STILL[case](differentiable())
    assert sg.RLOO()(q, lambda z: z.reshape(*q.batch_shape, -1).sum(-1)).shape == q.batch_shape


def test_bounds_refuse_a_family_of_uniform_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its score, which has a mean here, log q would lose part of its gradient."""

    class Ends(sg.families.Family):
        distribution = td.Uniform
        arguments = ("low", "high")

    monkeypatch.setattr("silentgrad.latents.families.FAMILIES", {"uniform": Ends, **FAMILIES})
    integrand = PriorIntegrand(lambda z: z, sg.latents.StandardPrior(sg.families.Gaussian(2)))
    q = MOVING["Uniform"](differentiable())
    for estimator in (estimators.STL(), estimators.DReG(2), estimators.VIMCO(2), estimators.NVIL()):
        refused(sg.IntractableError, "support of Uniform latents depends", partial(estimator, q, integrand))


def test_a_baseline_of_the_mean_needs_a_mean() -> None:
    with pytest.raises(sg.IntractableError, match=r"TransformedDistribution latents have no mean.*choose"):
        estimators.NVIL()(STILL["flow"](differentiable()), lambda z: z)


def plain_control(integrand: Integrand, choices: Choices, noisy: Tensor) -> Tensor:
    return 0.5 * integrand(choices.relaxed(noisy, 0.4))


class Unused(nn.Linear):
    """A control variate whose parameters have no part in it."""

    def forward(self, integrand: Integrand, choices: Choices, noisy: Tensor) -> Tensor:
        return plain_control(integrand, choices, noisy)


NOTHING_TO_LEARN: dict[str, Callable[[], Estimator]] = {
    "REBAR": lambda: estimators.REBAR().requires_grad_(False),
    "RELAX": lambda: estimators.RELAX(inputs=8).requires_grad_(False),
    "NVIL": lambda: estimators.NVIL(inputs=8).requires_grad_(False),
    "Averaged": lambda: sg.Averaged(estimators.REBAR(), 2).requires_grad_(False),
    "plain control": lambda: estimators.RELAX(plain_control),
    "unused": lambda: estimators.RELAX(Unused(1, 1)),
}


@pytest.mark.parametrize("case", NOTHING_TO_LEARN)
def test_an_estimator_with_nothing_to_learn_estimates(case: str) -> None:
    estimator, q = NOTHING_TO_LEARN[case](), td.Bernoulli(logits=torch.zeros(5, 3, requires_grad=True))
    assert check_estimator(estimator).passed
    estimator(q, lambda z: z.sum(-1)).sum().backward()
    assert estimator.auxiliary_loss() is None or case == "unused"


def step(member: Member, checkpointed: str) -> list[Tensor]:
    """Return the gradients of an encoder and a decoder."""
    torch.manual_seed(0)
    encoder, decoder, estimator = nn.Linear(5, 4), nn.Linear(4, 3), member.build()

    def decoded(z: Tensor) -> Tensor:
        return 3 + torch.tanh(decoder(z)).sum(-1)

    def integrand(z: Tensor) -> Tensor:
        return checkpoint(decoded, z, use_reentrant=False) if checkpointed == "decoder" else decoded(z)

    def loss(x: Tensor) -> Tensor:
        return estimator(latent_of(member.families[-1], encoder(x)), integrand).sum()

    x, whole = torch.randn(6, 5).requires_grad_(), checkpointed.startswith("all")
    (checkpoint(loss, x, use_reentrant=checkpointed == "all, reentrant") if whole else loss(x)).backward()
    return [parameter.grad for part in (encoder, decoder) for parameter in part.parameters()]


@each([member for member in PLAIN_ESTIMATORS if member.families])  # of bits and Gaussians
@pytest.mark.parametrize("checkpointed", ["decoder", "all", "all, reentrant"])
def test_a_checkpointed_step_is_the_same_or_refused(member: Member, checkpointed: str) -> None:
    if member in LEARNING and checkpointed != "decoder":
        with pytest.raises(sg.DomainError, match="was called within a backward pass, and what it learns has moved"):
            step(member, checkpointed)
        return
    torch.testing.assert_close(step(member, checkpointed), step(member, "nothing"))


@each(LEARNING)
def test_no_graph_is_kept_and_no_loss_lost(member: Member) -> None:
    """Copied after a call; of two calls the losses add up."""
    estimator, totals = member.build(), []
    torch.manual_seed(0)
    for parameter in estimator.parameters():
        nn.init.normal_(parameter, 0.3, 0.3)
    q = latent_of(member.families[-1], torch.randn(5, 4).requires_grad_())
    for calls in ((0,), (1,), (0, 1)):
        kept = copy.deepcopy(estimator)
        for seed in calls:
            buffers = copy.deepcopy(kept.state_dict())
            torch.manual_seed(seed)
            kept(q, squares)
            kept.load_state_dict(buffers)  # averages move with every call
        kept = copy.deepcopy(kept)
        loss = kept.auxiliary_loss()
        assert kept.auxiliary_loss() is None
        totals.append([] if loss is None else [loss, *torch.autograd.grad(loss, list(kept.parameters()))])
    first, second, both = totals
    torch.testing.assert_close(both, [a + b for a, b in zip(first, second, strict=True)])


@each([member for member in LEARNING if not hasattr(member.build(), "estimator")])
def test_what_is_learned_is_saved_and_belongs_to_one_latent(member: Member) -> None:
    """The integrand of a level of a hierarchy is the next level's estimate: it needs an estimator of its own."""
    estimator, other, kind = member.build(), member.build(), member.kinds[0]
    for seed in range(3):
        call(estimator, Problem.random(kind, 4), seed)
    other.load_state_dict(estimator.state_dict())
    found, same = (call(own.eval(), Problem.random(kind, 4)) for own in (estimator, other))
    torch.testing.assert_close(found, same, rtol=0, atol=0)
    upper, lower = td.Bernoulli(logits=torch.zeros(5, 3)), td.Bernoulli(logits=torch.ones(5, 3))
    estimator = member.build()
    with pytest.raises(sg.DomainError, match=f"{type(estimator).__name__} was called by its own integrand"):
        estimator(upper, lambda z: estimator(lower, lambda w: (z * w).sum(-1)))
    assert estimator(upper, lambda z: z.sum(-1)).shape == (5,)  # after the error it serves again
    with pytest.raises(sg.DomainError, match=r"latents of shape \(3,\) an example and now of \(2, 3\)"):
        estimator(td.Bernoulli(logits=torch.zeros(5, 2, 3)), lambda z: z.sum((-1, -2)))
    assert estimator(upper, lambda z: other(lower, lambda w: (z * w).sum(-1))).shape == (5,)


def test_estimators_without_a_memory_have_no_state_and_evaluation_leaves_none() -> None:
    for member in PLAIN_ESTIMATORS:
        assert member in LEARNING or not member.build().state_dict()
    for member in [member for member, kind in PAIRS if kind is BITS]:
        estimator = member.build()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                value = estimator(td.Bernoulli(logits=torch.zeros(5, 4)), lambda z: z.sum(-1))
            assert not value.requires_grad
            assert estimator.auxiliary_loss() is None


def test_running_means_are_of_earlier_batches() -> None:
    """From the first batch on, without the pull towards zero that a running average starts with."""
    means, one = RunningMeans(2, decay=0.5), torch.ones(2)
    for nothing in (torch.ones(0), torch.tensor([1.0, torch.nan]), torch.tensor([-torch.inf, 0.0])):
        means.remember(one, nothing)
        assert [mean.item() for mean in means()] == [0, 0]
    means.remember(-4 * one, one)
    assert [mean.item() for mean in means()] == [-4, 1]
    means.remember(-8 * one, one)
    means.remember(one, torch.nan * one)
    assert [mean.item() for mean in means()] == pytest.approx([(0.25 * -4 + 0.5 * -8) / 0.75, 1])


def gradients_of(estimator: Estimator, logits: Tensor, count: int) -> Tensor:
    leaf = logits.repeat(count, 1, 1).requires_grad_()
    estimator(td.Bernoulli(logits=leaf), squares).sum().backward()
    return leaf.grad


def test_the_scale_of_double_cv_is_the_best_one() -> None:
    """The variance is a parabola of alpha; its vertex, from three of its points, is what alpha converges to."""
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64)

    def variance(estimator: Estimator) -> float:
        torch.manual_seed(1)
        return gradients_of(estimator.eval(), logits, 40_000).var(0).sum().item()

    low, middle, high = (variance(estimators.DoubleCV(2, scale=scale)) for scale in (0.0, 1.0, 2.0))
    vertex = 1 - (high - low) / 2 / (high - 2 * middle + low)
    estimator = estimators.DoubleCV(2, scale=-0.5).double()
    for _ in range(500):
        gradients_of(estimator, logits, 20)
    assert estimator.scale.item() == pytest.approx(vertex, abs=0.02)
    assert variance(estimator) < min(1.01 * low, 1.01 * middle, 0.7 * variance(estimators.DoubleCV(2, scale=-0.5)))


@pytest.mark.parametrize("build", [estimators.DoubleCV, estimators.ReinMaxCV])
def test_a_linear_function_has_no_variance_at_a_scale_of_one(build: Callable[[int, float], Estimator]) -> None:
    torch.manual_seed(0)
    logits, slope = torch.randn(1, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    p = torch.sigmoid(logits)
    for scale in (1.0, 0.2):
        leaf = logits.repeat(7, 1).requires_grad_()
        build(2, scale)(td.Bernoulli(logits=leaf), lambda z: z @ slope).sum().backward()
        exact = torch.isclose(leaf.grad, p * (1 - p) * slope, rtol=1e-12)
        assert exact.all() if scale == 1 else not exact.any()
