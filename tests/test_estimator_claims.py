"""What estimators declare of their evaluations, what they learn, and which gradients they have.

Problems are those of `silentgrad.testing`: random networks of z under latents with random parameters. What estimators
claim of their means is measured in `test_check_estimator.py`.
"""

import copy
import math
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from contenders import PLAIN_ESTIMATORS, Member
from silentgrad.estimators import Estimator, Learning, choices
from silentgrad.lab.build import build_model
from silentgrad.lab.settings import suitable_estimators
from silentgrad.lab.training import ModelConfig
from silentgrad.latents.families import FAMILIES
from silentgrad.testing import KINDS, Kind, Problem

BITS, CATEGORIES = KINDS[:2]
PAIRS = [(member, kind) for member in PLAIN_ESTIMATORS for kind in member.kinds]


def each(pairs: list[tuple[Member, Kind]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("member", "kind"), pairs, ids=[f"{m.name}, {k.name}" for m, k in pairs])


EACH = each(PAIRS)
LEARNING = [member for member in PLAIN_ESTIMATORS if isinstance(member.build(), Learning)]


class PassedBack(torch.autograd.Function):
    """The identity, which counts how often a gradient comes by, and how often that is differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Counter[str], name: str) -> Tensor:
        ctx.counts, ctx.name = counts, name
        counts[name] += 0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.counts[ctx.name] += 1
        return PassedBack.apply(gradient, ctx.counts, f"twice, {ctx.name}"), None, None


@EACH
def test_an_evaluation_is_declared_passed_back_once_and_differentiated_twice_where_declared(
    member: Member, kind: Kind
) -> None:
    """With learning and without: counted at the integrand's value, and for the second time at its z."""
    estimator, problem = member.build(), Problem.random(kind, 3)
    q, shapes = problem.q, list[torch.Size]()
    values: Counter[str] = Counter()
    points: Counter[str] = Counter()

    def f(z: Tensor) -> Tensor:
        name = str(len(shapes))
        shapes.append(z.shape)
        return PassedBack.apply(problem.network(PassedBack.apply(z, points, name)), values, name)

    for mode in (True, False):
        for seen in (shapes, values, points):
            seen.clear()
        estimator.train(mode)(q, f).sum().backward(retain_graph=True)
        assert shapes == [q.batch_shape + q.event_shape] * estimator.evaluations(*kind.sizes)
        twice = {name for name in points if name.startswith("twice") and points[name] > 0}
        assert len(twice) == (estimator.differentiated_twice if mode else 0)
        passes = [values[str(k)] for k in range(len(shapes))]
        assert max(passes) == 1 + (len(twice) > 0)
        assert sum(passes) <= len(passes) + len(twice)


@EACH
def test_examples_have_weights(member: Member, kind: Kind) -> None:
    """The gradient of a weighted sum is weighted, be the weights of the other sign or 0; so is the integrand's own."""
    weights, found = torch.tensor([-0.2, 3.0, 0.0, 1e-6, -7.0], dtype=torch.float64).repeat(4), []
    for weight in (torch.ones(20), weights):
        torch.manual_seed(1)
        problem = Problem.random(kind._replace(slope=1.0), 20)
        value = member.build()(problem.q, problem.network)
        leaves = [problem.parameters, problem.network.last]
        found.append(torch.autograd.grad((weight * value).sum(), leaves, allow_unused=True, materialize_grads=True))
    for plain, weighted in zip(*found, strict=True):
        torch.testing.assert_close(weighted, weights.unsqueeze(-1) * plain)
        assert plain.abs().max() > 0


@each([(member, kind) for member, kind in PAIRS if member.build().unbiased and kind.name != "Gaussian"])
def test_a_plain_function_without_a_gradient_is_integrated(member: Member, kind: Kind) -> None:
    """A table, say: z only picks a number out of it. A biased estimator would have nothing to pass on."""
    value = member.build()(Problem.random(kind, 6).q, lambda z: (z.detach().flatten(1)[:, 0] > 0.5).double())
    value.sum().backward()
    assert value.isfinite().all()


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("member", [m for m, kind in PAIRS if kind is CATEGORIES], ids=lambda member: member.name)
def test_categories_that_are_certain(member: Member, given: str) -> None:
    """A logit of minus infinity is a probability of 0; the other two categories go on to be estimated."""
    lowest = -torch.inf if member.samples == 1 else -200.0  # where torch's KL divergence has a gradient
    leaf = torch.tensor([[200.0, -200.0, -200.0], [0.3, -0.2, lowest]]).repeat(300, 1, 1).requires_grad_()
    chosen = leaf.softmax(-1) if given == "probs" else leaf
    torch.manual_seed(0)
    value = member.build()(td.OneHotCategorical(**{given: chosen}), lambda z: z[..., 0, 0] + 2 * z[..., 1, 2])
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    if member.samples == 1:
        torch.testing.assert_close(value, torch.ones(300), atol=1e-4, rtol=0)
    assert value.isfinite().all()
    assert gradient[:, 0].abs().max() < 1e-4
    assert gradient.isfinite().all()


def test_the_same_estimator_at_two_levels_of_a_hierarchy_is_refused() -> None:
    """The integrand of a level is the next level's estimate."""
    upper, lower = td.Bernoulli(logits=torch.zeros(5, 4)), td.Bernoulli(logits=torch.ones(5, 4))
    for member in LEARNING:
        estimator, other = member.build(), member.build()
        with pytest.raises(sg.DomainError, match=f"{type(estimator).__name__} was called by its own integrand"):
            estimator(upper, lambda z, e=estimator: e(lower, lambda w: (z * w).sum(-1)))
        assert estimator(upper, lambda z: z.sum(-1)).shape == (5,)  # after the error it serves again
        with pytest.raises(sg.DomainError, match=r"latents of shape \(4,\) an example and now of \(2, 4\)"):
            estimator(td.Bernoulli(logits=torch.zeros(5, 2, 4)), lambda z: z.sum((-1, -2)))
        assert estimator(upper, lambda z, e=other: e(lower, lambda w: (z * w).sum(-1))).shape == (5,)


def test_estimators_without_a_memory_have_no_state() -> None:
    for member in PLAIN_ESTIMATORS:
        assert any(isinstance(part, Learning) for part in member.build().modules()) or not member.build().state_dict()


def squares(z: Tensor) -> Tensor:
    """Not additive over the latents, so that a sample says something of the others."""
    return (z.sum(-1) - 0.7).square()


def gradients_of(estimator: Estimator, logits: Tensor, count: int) -> Tensor:
    leaf = logits.repeat(count, 1, 1).requires_grad_()
    estimator(td.Bernoulli(logits=leaf), squares).sum().backward()
    return leaf.grad


def test_the_scale_of_double_cv_is_the_best_one() -> None:
    """The variance is a parabola of alpha; its vertex, from three of its points, is what alpha converges to."""
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64)
    scales, variances = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), []
    for scale in scales:
        torch.manual_seed(1)
        found = gradients_of(sg.DoubleCV(2, scale=scale.item()).eval(), logits, 40_000)
        variances.append(found.var(0).sum())
    low, middle, high = variances
    vertex = 1 - (high - low) / 2 / (high - 2 * middle + low)
    estimator = sg.DoubleCV(2, scale=-0.5).double()
    for _ in range(500):
        gradients_of(estimator, logits, 20)
    assert vertex.item() == pytest.approx(estimator.scale.item(), abs=0.02)
    learned = gradients_of(estimator.eval(), logits, 40_000).var(0).sum()
    assert learned < 1.01 * torch.stack(variances).min()
    start = gradients_of(sg.DoubleCV(2, scale=-0.5).eval(), logits, 40_000).var(0).sum()
    assert learned < 0.7 * start


def test_double_cv_of_a_linear_function_has_no_variance() -> None:
    torch.manual_seed(0)
    logits, slope = torch.randn(1, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    p = torch.sigmoid(logits)
    for scale in (1.0, 0.2):
        leaf = logits.repeat(7, 1).requires_grad_()
        sg.DoubleCV(2, scale)(td.Bernoulli(logits=leaf), lambda z: z @ slope).sum().backward()
        exact = torch.isclose(leaf.grad, p * (1 - p) * slope, rtol=1e-12)
        assert exact.all() if scale == 1 else not exact.any()


LAZY = {"IMLE": sg.IMLE, "DoubleCV": lambda: sg.DoubleCV(2)}


def lazy_logits(dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 3, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", LAZY)
def test_a_penalty_on_z_alone_ends_at_the_draws(name: str) -> None:
    """After a backward pass of the value too, which leaves nothing for it."""
    leaf, penalties, own = lazy_logits(), [], torch.ones((), dtype=torch.float64, requires_grad=True)

    def f(z: Tensor) -> Tensor:
        penalties.append((own * z).sum())
        return squares(z)

    value = LAZY[name]()(td.Bernoulli(logits=leaf), f)
    torch.autograd.grad(value.sum(), leaf, retain_graph=True)
    torch.stack(penalties).sum().backward()
    assert own.grad is not None
    assert leaf.grad is None or leaf.grad.abs().max() == 0


def test_double_cv_forgets_a_batch_that_is_not_finite() -> None:
    leaf, estimator = lazy_logits(), sg.DoubleCV(2).double()
    q = td.Bernoulli(logits=leaf)
    estimator(q, squares).sum().backward()
    before = estimator.state_dict()["scale_averages"].clone()
    for bad in (torch.nan, -torch.inf):
        spoilt = torch.tensor([0.0, 0.0, 0.0, bad])
        estimator(q, lambda z, spoilt=spoilt: squares(z) + spoilt).sum().backward()
    torch.testing.assert_close(estimator.state_dict()["scale_averages"], before, rtol=0, atol=0)
    assert before[1] > 0


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("weight", [1e-5, 1e-3])
def test_small_weights_in_half_precision(name: str, weight: float) -> None:
    """Against the same in double precision: the slope is a quotient of small numbers."""
    found = []
    for dtype in (torch.float64, torch.float16):
        leaf = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            bits = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
            patch.setattr(choices.Bits, "sample", lambda self, b=bits, d=dtype: b.to(d))
            patch.setattr(choices.Bits, "noisy", lambda self, b=bits, d=dtype: 2 * b.to(d) - 1)
            value = LAZY[name]()(td.Bernoulli(logits=leaf), lambda z: 1.5 * z[..., 0])
        (weight * value).sum().backward()
        found.append(leaf.grad.double())
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=1e-7)
    assert found[0].abs().max() > 0


COMPILED = [
    *("IMLE", "DoubleCV", "DReG", "CARMS", "DisARMTree", "RODEO", "ReinMaxRao", "ReinMaxCV", "EAT"),
    *("DecoupledStraightThrough", "Reinforce", "NVIL", "RELAX"),
]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.parametrize("member", [m for m in PLAIN_ESTIMATORS if m.name in COMPILED], ids=lambda member: member.name)
def test_a_compiled_step_is_the_same(member: Member) -> None:
    found, kind = [], member.kinds[-1 if member.name == "EAT" else min(1, len(member.kinds) - 1)]
    for compiled in (False, True):
        problem, estimator = Problem.random(kind, 4), member.build()

        def step(numbers: Tensor, estimator: Estimator = estimator, problem: Problem = problem) -> Tensor:
            return estimator(problem.network.kind.family.latent(numbers, False), problem.network.at).mean()

        torch.manual_seed(1)
        value = (torch.compile(step, backend="aot_eager") if compiled else step)(problem.parameters)
        found.append([value, *torch.autograd.grad(value, problem.parameters)])
    torch.testing.assert_close(*found)


def test_the_graph_of_a_differentiable_gradient_is_freed() -> None:
    leaf = lazy_logits()
    value = sg.IMLE()(td.Bernoulli(logits=leaf), squares)
    gone = weakref.ref(value)
    gradient = torch.autograd.grad(value.square().sum(), leaf, create_graph=True)
    del value, gradient
    assert gone() is None


def test_integers_are_integrated_in_the_precision_of_the_latents() -> None:
    value = sg.IMLE()(td.Bernoulli(logits=lazy_logits()), lambda z: z.sum(-1).long())
    assert value.dtype == torch.float64
    assert (value == value.round()).all()


def test_a_network_says_how_many_numbers_it_takes() -> None:
    with pytest.raises(sg.ShapeError, match="an example has 9 numbers and the network takes 8: give inputs=9"):
        sg.NVIL(inputs=8)(td.Bernoulli(logits=torch.zeros(5, 9)), lambda z: z.sum(-1))


def test_evaluation_without_gradients_learns_nothing() -> None:
    for member, kind in PAIRS:
        if kind is BITS:
            estimator = member.build()
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    value = estimator(td.Bernoulli(logits=torch.zeros(5, 4)), lambda z: z.sum(-1))
                assert not value.requires_grad
                assert estimator.auxiliary_loss() is None


def test_sticking_the_landing_has_no_variance_at_the_posterior() -> None:
    """N(0, 1) before and N(x, 1) given z: the posterior is N(x/2, 1/2)."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    loc, scale = (x / 2).requires_grad_(), torch.full((5,), 0.5**0.5, dtype=torch.float64).requires_grad_()
    for estimator in (sg.STL(), sg.DReG(3)):
        q = td.Normal(loc, scale)
        elbo = estimator(q, lambda z: td.Normal(z, 1.0).log_prob(x)) - td.kl_divergence(q, td.Normal(0.0, 1.0))
        for gradient in torch.autograd.grad(elbo.sum(), (loc, scale)):
            assert gradient.abs().max() < 1e-12
        torch.testing.assert_close(elbo, td.Normal(0.0, 2**0.5).log_prob(x))


@pytest.mark.parametrize("estimator", [sg.VIMCO(4), sg.DReG(4), sg.STL()], ids=lambda e: type(e).__name__)
def test_an_objective_hands_its_prior_to_the_bound(estimator: Estimator) -> None:
    """With a learned prior and its KL divergence, what is left is the bound alone."""
    torch.manual_seed(0)
    family = sg.families.Gaussian(2)
    prior = sg.LearnedPrior(family)
    torch.nn.init.normal_(prior.numbers)
    decoder, x = sg.LinearGaussian(2, 3, 0.5), torch.randn(6, 3)
    q = family.latent(torch.randn(6, 4).requires_grad_())
    torch.manual_seed(1)
    first = sg.GuidedVAE(lambda x: q, decoder, tractable_estimator=estimator, prior=prior)(x, 1).total
    torch.manual_seed(1)
    weights = []
    for _ in range(estimator.evaluations()):
        z = q.sample()
        weights.append(decoder.log_prob(x, z) + prior.log_prob(z) - q.log_prob(z))
    bound = torch.stack(weights).logsumexp(0) - math.log(len(weights))
    torch.testing.assert_close(first, -bound.mean())


NAMED = [(name, family) for family in FAMILIES for name in suitable_estimators(FAMILIES[family])]


@pytest.mark.parametrize(("name", "family"), [(n, f) for n, f in NAMED if n not in ("exact", "none")])
def test_every_estimator_that_a_run_can_name_gives_the_encoder_a_gradient(name: str, family: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(latent=family, latent_dim=2, hidden=[8], tractable="none", estimator=name, prior="learned")
    model = build_model(config, torch.Size([1, 2, 2]), levels=17)
    losses = model(torch.rand(6, 1, 2, 2), epoch=1)
    losses.total.backward()
    assert losses.total.isfinite()
    for parameter in model.encoder.parameters():
        assert parameter.grad.isfinite().all()
    assert any(parameter.grad.any() for parameter in model.encoder.parameters())
    for parameter in model.estimator.parameters():
        assert parameter.grad is not None
    copy.deepcopy(model)
