"""What estimators do with every latent, layout and precision; what they refuse has a name.

A claim is made for every latent that is not refused. So each estimator that claims to be unbiased meets each latent of
`members.ALL_LATENTS`, one latent an example where they are independent: its mean is within 4 standard errors of the
oracle, or the error has a name. Random problems are met in `test_check_estimator.py`.

The policy of all statistical tests here: seeds are fixed, so a test passes always or never, and one example is repeated
along the batch, so that one call gives as many independent estimates.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from contenders import ALL_ESTIMATORS, PLAIN_ESTIMATORS, Member, deviation, latent_of
from members import ALL_LATENTS, Latent
from oracles import Expectation
from silentgrad.decoders import LinearGaussian
from silentgrad.estimators import Estimator, base_of, integrand_of
from silentgrad.latents.families import FAMILIES
from silentgrad.schedules import constant, geometric, linear_decay, linear_rise
from silentgrad.testing import KINDS, OfShape, Problem

INSIDE = 5  # standard errors
BITS = KINDS[0]
PAIRS = [(member, family) for member in ALL_ESTIMATORS for family in member.families]
EACH = pytest.mark.parametrize(("member", "family"), PAIRS, ids=[f"{m.name}, {f}" for m, f in PAIRS])
EACH_ESTIMATOR = pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if m.families], ids=lambda m: m.name)
X = torch.tensor([0.2, -0.7, 1.1], dtype=torch.float64)


CLAIMING = [member for member in ALL_ESTIMATORS if member.build().unbiased]
DRAWS = 10_000


def claimed(member: Member, q: td.Distribution, decoder: nn.Module, x: Tensor, expectation: Expectation) -> Tensor:
    """Return what an estimator claims to estimate, by the latent's oracle; of a bound, over both of its samples."""
    if member.samples == 1:
        return expectation(lambda z: decoder.log_prob(x, z.flatten(2)))
    prior = sg.families.family_of(q).prior().double()

    def log_weight(z: Tensor) -> Tensor:
        log_q = q.log_prob(z).reshape(*z.shape[:2], -1).sum(-1)
        return decoder.log_prob(x, z.flatten(2)) + prior.log_prob(z) - log_q

    def over_both(z: Tensor) -> Tensor:
        first = log_weight(z).T.unsqueeze(0)  # (1, examples, nodes)
        return expectation(lambda w: torch.logaddexp(first, log_weight(w).unsqueeze(-1)) - math.log(2)).T

    return expectation(over_both) + prior.divergence(q)


@pytest.mark.parametrize("member", CLAIMING, ids=lambda member: member.name)
@pytest.mark.parametrize("latent", ALL_LATENTS, ids=lambda latent: latent.name)
def test_a_claim_holds_for_every_latent_or_is_refused(latent: Latent, member: Member) -> None:
    torch.manual_seed(1)
    leaves = latent.draw()
    if latent.independent:
        leaves = [leaf.detach()[:, :1].requires_grad_() for leaf in leaves]
    q = latent.build(*leaves)
    (examples, *shape) = q.batch_shape + q.event_shape
    decoder = LinearGaussian(torch.Size(shape).numel(), 3, variance=2.0).double()
    x = torch.randn(examples, 3, dtype=torch.float64)
    estimator, repeats = member.build(), 2 if member.build().exact else DRAWS
    repeated = [leaf.detach().repeat(repeats, 1).requires_grad_() for leaf in leaves]
    try:
        value = estimator(latent.build(*repeated), integrand_of(decoder, x.repeat(repeats, 1)))
    except sg.SilentgradError:
        inner = getattr(estimator, "estimator", estimator)  # of an average, what it averages
        taken = [family for family in FAMILIES.values() if inner.suits(family)]
        assert not any(isinstance(base_of(q), family.distribution) for family in taken)
        return
    gradients = torch.autograd.grad(value.sum(), repeated)
    truth = claimed(member, q, decoder, x, latent.expectation(q))
    columns = [value.detach(), *(gradient.flatten() for gradient in gradients)]
    for found, expected in zip(columns, (truth.detach(), *torch.autograd.grad(truth.sum(), leaves)), strict=True):
        rows = found.reshape(repeats, -1)
        if estimator.exact:
            torch.testing.assert_close(rows[0], expected.flatten(), rtol=1e-7, atol=1e-7)
        else:
            assert deviation(rows, expected.reshape(1, -1)) < 4


def test_exact_takes_no_plain_function_and_draws_nothing() -> None:
    problem, state = Problem.random(BITS, 3), torch.get_rng_state()
    sg.Exact()(problem.q, problem.network)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(sg.IntractableError, match=r"tractable decoder: pass integrand_of\(decoder, x\), or choose"):
        sg.Exact()(problem.q, lambda z: z.sum(-1))


LAYOUTS = {  # shape of the latents, how many trailing dimensions are events of nested `Independent`, of the examples
    "one batch dimension": ((5, 3), (), (5,)),
    "two batch dimensions": ((2, 2, 3), (), (2, 2)),
    "a first dimension of one": ((1, 4, 3), (), (1, 4)),
    "a last dimension of one": ((4, 1, 3), (), (4, 1)),
    "the same with nested events": ((3, 1, 2, 4), (1, 1), (3, 1)),
    "no batch": ((3,), (), ()),
    "no batch, as an event": ((3,), (1,), ()),
    "latents in a square": ((3, 2, 2), (), (3,)),
    "a square as one event": ((3, 2, 2), (2,), (3,)),
    "nested events": ((3, 2, 2), (1, 1), (3,)),
    "batch and event both of two": ((2, 2, 1, 3), (1, 1), (2, 2)),
    "one latent an example": ((4,), (), (4,)),
    "one example": ((1, 3), (), (1,)),
    "one example of one latent": ((1, 1), (), (1,)),
    "no examples": ((0, 3), (), (0,)),
}


def laid_out(family: str, parameter: Tensor, events: tuple[int, ...]) -> td.Distribution:
    q = latent_of(family, parameter)
    for dims in events:
        q = td.Independent(q, dims)
    return q


@EACH
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_of_latents_is_estimated_like_examples_in_rows(
    member: Member, family: str, layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> None:
    """The same noise gives the same value and gradient as with a latent of shape (examples, latents)."""
    shape, events, examples = layout
    count, latents = torch.Size(examples).numel(), torch.Size(shape[len(examples) :]).numel()
    torch.manual_seed(6)
    decoder, x = LinearGaussian(latents, 3, variance=0.3).double(), torch.randn(count, 3, dtype=torch.float64)
    numbers, results = torch.randn(count, latents, dtype=torch.float64), []
    for rows, dims, batch in ((numbers, (1,), (count,)), (numbers.reshape(shape), events, examples)):
        torch.manual_seed(0)
        leaf = rows.clone().requires_grad_()
        value = member.build()(laid_out(family, leaf, dims), integrand_of(decoder, x.reshape(*batch, 3)))
        assert value.shape == batch
        (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True, materialize_grads=True)
        results.append([value.reshape(count), gradient.reshape(count, latents)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


WRONG_LAYOUTS = {  # shape of the latents, how many of its dimensions are one event, shape of the log-probability
    "per latent of an event": ((5, 3), (1,), (5, 3)),
    "half of an event": ((5, 2, 2), (2,), (5, 2)),
    "another batch": ((5, 3), (), (4,)),
    "a broadcast batch of one": ((5, 3), (), (1, 5)),
    "latents first": ((5, 3), (), (3,)),
    "beyond the latents": ((5, 3), (), (5, 3, 1)),
}


@EACH_ESTIMATOR
@pytest.mark.parametrize("case", WRONG_LAYOUTS)
def test_a_log_probability_of_another_shape_is_refused(member: Member, case: str) -> None:
    latents, events, shape = WRONG_LAYOUTS[case]
    both = rf"shape \({', '.join(map(str, shape))},?\), for a latent of batch shape \(5.*event shape \("
    with pytest.raises(sg.ShapeError, match=both):
        member.build()(laid_out(member.families[-1], torch.zeros(latents), events), OfShape(*shape))


def bits_and_gradients(estimator: Estimator, logits: Tensor, replicates: int) -> tuple[list[Tensor], Tensor]:
    """Return the bits an estimator draws, and its gradients where the log-probability is the bit itself."""
    leaf, seen = logits.expand(replicates, -1).clone().requires_grad_(), []

    def log_prob(z: Tensor) -> Tensor:
        seen.append(z.detach().double())
        return z

    value = estimator(td.Bernoulli(logits=leaf), log_prob)
    return seen, torch.autograd.grad(value.sum(), leaf)[0].double()


def test_disarm_is_unbiased_for_saturated_bits() -> None:
    """In half precision, where it can be measured: 1 - p rounds as it does in single precision at |logit| = 17."""
    torch.manual_seed(0)
    logits = torch.tensor([-8.5, 8.5, -7.0, 7.0], dtype=torch.float16)
    probs = logits.double().sigmoid().unsqueeze(0)
    pair, gradients = bits_and_gradients(sg.DisARM(), logits, 1_000_000)
    for bits in pair:
        assert deviation(bits, probs) < INSIDE
    assert deviation(gradients, probs * (1 - probs)) < INSIDE


@pytest.mark.parametrize("estimator", [sg.DisARM(), sg.GumbelSoftmax(hard=True)], ids=["DisARM", "GumbelSoftmax"])
def test_rarer_bits_than_single_precision_has_random_numbers(
    estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `torch.rand` gives 0, as one number in 2^24 is, the rarer bit has the rest of its probability."""
    rand_like, calls = torch.rand_like, []

    def first_zero(x: Tensor, **options: object) -> Tensor:
        calls.append(x)
        return rand_like(x, **options) if len(calls) > 1 else torch.zeros_like(x)

    torch.manual_seed(0)
    monkeypatch.setattr(torch, "rand_like", first_zero)
    logits = torch.tensor([-22.0, 22.0, -18.0, 18.0])
    drawn, _ = bits_and_gradients(estimator, logits, 200_000)
    rarer = (-logits.double().abs()).sigmoid().unsqueeze(0)
    for bits in drawn:
        found = torch.where(logits > 0, bits.round() == 0, bits.round() == 1).double()
        assert deviation(found, rarer * 2**24) < INSIDE


@pytest.mark.parametrize("logit", [-30.0, -20.0, -17.0, 17.0, 20.0, 30.0])
def test_enumeration_keeps_the_rarer_bit_in_single_precision(logit: float) -> None:
    logits = torch.tensor([[logit]], requires_grad=True)
    value = sg.Enumerate()(td.Bernoulli(logits=logits), lambda z: (1 - z).sum(-1))
    double = torch.tensor(logit, dtype=torch.float64)
    torch.testing.assert_close(value.double().squeeze(), torch.sigmoid(-double), rtol=1e-5, atol=0)


@pytest.mark.parametrize("given", ["logits", "probs"])
@pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if "bernoulli" in m.families], ids=lambda m: m.name)
def test_bits_that_are_certain(member: Member, given: str) -> None:
    """Probabilities of 0 and 1 in single precision: the value is right and the logits have no gradient."""
    torch.manual_seed(0)
    decoder, x = LinearGaussian(3, 3, variance=1.0), X.float().expand(300, 3)
    leaf = torch.tensor([200.0, -200.0, 20.0]).expand(300, 3).clone().requires_grad_()
    chosen = leaf.sigmoid() if given == "probs" else leaf
    value = member.build()(td.Bernoulli(**{given: chosen}), integrand_of(decoder, x))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, decoder.log_prob(x, torch.tensor([1.0, 0.0, 1.0])), atol=1e-4, rtol=0)
    assert gradient.abs().max() < 1e-4


def gradients(estimator: Estimator, repeats: int = 20_000, offset: float = 0.0) -> Tensor:
    """Draws of the gradient in the logits of three bits, of a network and an offset."""
    problem = Problem.random(BITS, 1).repeated(repeats)
    torch.manual_seed(0)
    value = estimator(problem.q, lambda z: problem.network(z) + offset)
    return torch.autograd.grad(value.sum(), problem.parameters)[0]


def trained_reinforce() -> sg.Reinforce:
    estimator = sg.Reinforce(0.9)
    for _ in range(50):
        gradients(estimator, 64, offset=3.0)
    return estimator


def test_the_baseline_of_reinforce_reduces_variance_without_bias() -> None:
    fresh, trained = (gradients(own.eval(), offset=3.0) for own in (sg.Reinforce(), trained_reinforce()))
    assert trained.var(0).sum() < 0.8 * fresh.var(0).sum()
    assert deviation(trained, Problem.random(BITS, 1).truth()[1]) < INSIDE


def test_the_baseline_of_reinforce_is_the_average_of_earlier_batches() -> None:
    """From the first batch on, without the pull towards zero that a running average starts with."""
    estimator, log_probs = sg.Reinforce(decay=0.5), iter([torch.full((2,), value) for value in (-4.0, -8.0)])
    estimator(td.Bernoulli(logits=torch.zeros(0, 3)), lambda z: z.sum(-1))  # without examples it is left alone
    assert estimator.seen == estimator.baseline == 0
    q = td.Bernoulli(logits=torch.zeros(2, 3))
    estimator(q, lambda z: next(log_probs))
    assert estimator.baseline / estimator.seen == -4.0
    estimator(q, lambda z: next(log_probs))
    assert float(estimator.baseline / estimator.seen) == pytest.approx((0.25 * -4 + 0.5 * -8) / 0.75)


def test_the_baseline_of_reinforce_is_saved() -> None:
    estimator, loaded = trained_reinforce(), sg.Reinforce(0.9)
    saved = estimator.state_dict()
    assert set(saved) == {"baseline", "seen"}
    assert saved["baseline"] != 0
    loaded.load_state_dict(saved)
    assert torch.equal(gradients(estimator.eval()), gradients(loaded.eval()))


COMPARING = ("RLOO", "RLOO 5", "DisARM", "ARM", "ARMS", "ARMS 2", "ARMS 3", "CARMS", "DisARMTree")


@pytest.mark.parametrize("member", PLAIN_ESTIMATORS, ids=lambda member: member.name)
def test_a_constant_has_no_gradient(member: Member) -> None:
    """On average; of estimators that compare samples in every replicate. A bound of several samples has one."""
    if member.samples > 1:
        return
    for kind in member.kinds:
        problem = Problem.random(kind, 1).repeated(1000)
        torch.manual_seed(0)
        value = member.build()(problem.q, lambda z: z.new_full((1000,), 2.0) + 0 * z.reshape(1000, -1).sum(-1))
        (found,) = torch.autograd.grad(value.sum(), problem.parameters)
        assert deviation(found, torch.zeros(1, found.shape[-1])) < INSIDE
        assert member.name not in COMPARING or found.abs().max() < 1e-10


def test_the_temperature_follows_its_schedule() -> None:
    estimator = sg.GumbelSoftmax(geometric(1.0, 0.5, 0.2))
    assert estimator.temperature == 1.0
    seen = []
    for epoch in (1, 2, 3, 4, 9):
        estimator.on_epoch(epoch)
        seen.append(estimator.temperature)
    assert seen == [1.0, 0.5, 0.25, 0.2, 0.2]
    fixed = sg.GumbelSoftmax(0.7)
    fixed.on_epoch(100)
    assert fixed.temperature == 0.7


@EACH_ESTIMATOR
def test_a_wrong_latent_family_is_refused_by_name(member: Member) -> None:
    inner = getattr(member.build(), "estimator", member.build())  # that of an average, which knows its latents
    messages = {
        "gaussian": f"{type(inner).__name__} is for Bernoulli.* latents, got Normal",
        "bernoulli": "Bernoulli cannot be reparameterized; for discrete latents choose GumbelSoftmax",
    }
    for family in messages.keys() - member.families:
        with pytest.raises(sg.IntractableError, match=messages[family]):
            member.build()(latent_of(family, torch.zeros(5, 2)), lambda z: z.sum(-1))


def test_enumerate_has_a_limit() -> None:
    calls: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z)
        return z.sum(-1)

    for limit, q, message in (
        ({}, td.Bernoulli(logits=torch.zeros(2, 17)), r"2\^17 terms; its limit is 16 latents"),
        ({"largest": 2}, td.Bernoulli(logits=torch.zeros(2, 3)), r"2\^3 terms; its limit is 2 latents"),
        ({}, td.OneHotCategorical(logits=torch.zeros(2, 20, 10)), r"10\^20 terms"),
    ):
        with pytest.raises(sg.IntractableError, match=message):
            sg.Enumerate(**limit)(q, lambda z: log_prob(z.flatten(1)))
        assert len(calls) == 1  # the log-probability's shape tells how many latents there are
        calls.clear()
    value = sg.Enumerate(largest=3)(td.Bernoulli(logits=torch.zeros(2, 3)), log_prob)
    assert len(calls) == 8
    assert value.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sg.Reinforce(decay=1.0), r"decay has to be in \[0, 1\), got 1\.0"),
        (lambda: sg.Reinforce(decay=-0.1), r"decay has to be in \[0, 1\), got -0\.1"),
        (lambda: sg.RLOO(samples=1), "at least two samples, got 1"),
        (lambda: sg.GumbelSoftmax(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.GumbelSoftmax(float("nan")), "temperature has to be positive, got nan"),
        (lambda: sg.GumbelSoftmax(lambda epoch: 2.0 - epoch).on_epoch(2), "temperature has to be positive, got 0"),
        (lambda: sg.Averaged(sg.Exact(), 4), "draws nothing: there is nothing to average"),
        (lambda: sg.Averaged(sg.Reparameterized(), 0), "at least one draw, got 0"),
        (lambda: sg.ARMS(samples=1), "at least two samples, got 1"),
        (lambda: sg.DoubleCV(samples=1), "at least two samples, got 1"),
        (lambda: sg.VIMCO(samples=1), "at least two samples, got 1"),
        (lambda: sg.DReG(samples=0), "at least one sample, got 0"),
        (lambda: sg.ReinMax(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.REBAR(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.GumbelRao(-1.0), "temperature has to be positive, got -1"),
        (lambda: sg.GumbelRao(samples=0), "at least one sample, got 0"),
        (lambda: sg.GappedStraightThrough(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.GappedStraightThrough(gap=-1.0), "gap has to be at least 0, got -1"),
        (lambda: sg.CARMS(1), "CARMS needs at least two samples, got 1"),
        (lambda: sg.RODEO(1), "RODEO needs at least two samples, got 1"),
        (lambda: sg.ReinMaxCV(1), "ReinMaxCV needs at least two samples, got 1"),
        (lambda: sg.ReinMaxRao(samples=0), "at least one sample, got 0"),
        (lambda: sg.ReinMaxRao(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.DecoupledStraightThrough(0.0), "temperature has to be positive, got 0"),
        (lambda: sg.EAT(1.5), r"temperature of EAT has to be in \(0, 1\], got 1.5"),
        (lambda: sg.NVIL(decay=1.0), r"decay has to be in \[0, 1\), got 1\.0"),
        (lambda: sg.IMLE(step=0.0), "step has to be positive, got 0"),
        (lambda: linear_decay(-0.1), r"between 0 and 1; got -0\.1"),
        (lambda: linear_decay(float("nan")), "between 0 and 1; got nan"),
        (lambda: linear_decay(1.5), r"between 0 and 1; got 1.5.*linear_decay\(steps=...\)"),
        (lambda: linear_decay(steps=0), "number of steps has to be positive"),
        (lambda: linear_decay(epochs=-3), "number of epochs has to be positive"),
        (lambda: linear_decay(steps=float("inf")), "positive and finite"),
        (lambda: linear_decay(), "in one way"),
        (lambda: linear_decay(steps=10, epochs=2), "in one way"),
        (lambda: geometric(0.0, 0.5, 0.1), "positive start and floor"),
        (lambda: geometric(1.0, 0.5, 0.0), "positive start and floor"),
        (lambda: geometric(1.0, 1.5, 0.1), r"factor in \(0, 1\]"),
    ],
)
def test_bad_arguments_are_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(sg.DomainError, match=message):
        build()


def test_schedules_are_what_they_say() -> None:
    assert [constant(0.3)(epoch) for epoch in (1, 50)] == [0.3, 0.3]
    assert [linear_decay(0.0)(epoch) for epoch in (1, 500)] == [1.0, 1.0]
    decay = [linear_decay(0.05)(epoch) for epoch in range(1, 30)]
    assert decay == pytest.approx([max(0.0, 1 - 0.05 * epoch) for epoch in range(1, 30)])
    assert decay[19:] == [0.0] * 10
    annealed = [geometric(0.3, 0.7, 0.01)(epoch) for epoch in range(1, 30)]
    assert annealed[0] == 0.3
    assert annealed[-1] == 0.01
    assert annealed == sorted(annealed, reverse=True)


def test_a_length_in_words_begins_at_one_and_is_zero_after_its_end_and_not_before() -> None:
    for length in (1, 2, 7, 49, 1000):  # 49 * (1 / 49) is not 1
        for decay in (linear_decay(steps=length), linear_decay(epochs=length)):
            weights = [decay(time) for time in range(1, length + 1)]
            assert weights == pytest.approx([1 - (time - 1) / length for time in range(1, length + 1)])
            assert weights[0] == 1.0
            assert decay(length + 1) == decay(length + 0.5) == decay(math.inf) == 0.0
            assert decay(length - 0.5) == weights[-1] > 0.0  # within the last epoch
    assert [linear_decay(epochs=2.5)(epoch) for epoch in (0.1, 1, 2, 3, 4)] == pytest.approx([1, 1, 0.6, 0.2, 0])
    rise = linear_rise(epochs=4, value=2.0)
    assert [rise(epoch) for epoch in (0.5, 1, 4, 9)] == [0.25, 0.5, 2.0, 2.0]
