"""What every estimator does with every latent, layout and precision, and what a step costs.

`test_check_estimator.py` measures what estimators claim, on random problems. A claim is made for every latent that is
not refused: so each estimator that claims to be unbiased meets each latent of `members.ALL_LATENTS` here, one latent an
example where they are independent. Its mean is within 4 standard errors of the oracle, or the error has a name.

The policy of all statistical tests here: seeds are fixed, so a test passes always or never, and one example is repeated
along the batch, so that one call gives as many independent estimates.
"""

import copy
import inspect
import math
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from contenders import ALL_ESTIMATORS, BITS, PAIRS, PLAIN_ESTIMATORS, Member, each, each_pair, latent_of, squares
from members import ALL_LATENTS, Latent
from oracles import deviation
from refusals import Refusals, refusals, refused
from silentgrad import estimators
from silentgrad.estimators import ESTIMATORS, Estimator, Integrand, base_of, choices, integrand_of
from silentgrad.lab.build import build_model
from silentgrad.lab.settings import suitable_estimators
from silentgrad.lab.training import ModelConfig
from silentgrad.latents.families import FAMILIES
from silentgrad.schedules import constant, geometric, linear_decay, linear_rise
from silentgrad.testing import KINDS, Kind, Problem, call

INSIDE, DRAWS = 5, 10_000  # standard errors, and draws behind a mean
CLAIMING = [member for member in ALL_ESTIMATORS if member.build().unbiased and member.samples == 1]


@each(CLAIMING)
@pytest.mark.parametrize("latent", ALL_LATENTS, ids=lambda latent: latent.name)
def test_a_claim_holds_for_every_latent_or_is_refused(latent: Latent, member: Member) -> None:
    torch.manual_seed(1)
    leaves = latent.draw()
    if latent.independent:
        leaves = [leaf.detach()[:, :1].requires_grad_() for leaf in leaves]
    q = latent.build(*leaves)
    (examples, *shape) = q.batch_shape + q.event_shape
    decoder = sg.LinearGaussian(torch.Size(shape).numel(), 3, variance=2.0).double()
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
    truth = latent.expectation(q)(lambda z: decoder.log_prob(x, z.flatten(2)))
    columns = [value.detach(), *torch.autograd.grad(value.sum(), repeated)]
    for found, expected in zip(columns, (truth.detach(), *torch.autograd.grad(truth.sum(), leaves)), strict=True):
        rows = found.reshape(repeats, -1)
        if estimator.exact:
            torch.testing.assert_close(rows[0], expected.flatten(), rtol=1e-7, atol=1e-7)
        else:
            assert deviation(rows, expected.reshape(1, -1)) < 4


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


OF_FAMILIES = [(member, family) for member in ALL_ESTIMATORS for family in member.families]


@pytest.mark.parametrize(("member", "family"), OF_FAMILIES, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_latents_is_estimated_like_rows(member: Member, family: str, layout: str) -> None:
    """The same noise gives the same value and gradient as with a latent of shape (examples, latents)."""
    shape, events, examples = LAYOUTS[layout]
    count, latents = torch.Size(examples).numel(), torch.Size(shape[len(examples) :]).numel()
    torch.manual_seed(6)
    decoder, x = sg.LinearGaussian(latents, 3, variance=0.3).double(), torch.randn(count, 3, dtype=torch.float64)
    numbers, results = torch.randn(count, latents, dtype=torch.float64), []
    for rows, dims, batch in ((numbers, (1,), (count,)), (numbers.reshape(shape), events, examples)):
        torch.manual_seed(0)
        leaf = rows.clone().requires_grad_()
        q = latent_of(family, leaf)
        for event in dims:
            q = td.Independent(q, event)
        value = member.build()(q, integrand_of(decoder, x.reshape(*batch, 3)))
        assert value.shape == batch
        (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True, materialize_grads=True)
        results.append([value.reshape(count), gradient.reshape(count, latents)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_disarm_is_unbiased_for_saturated_bits() -> None:
    """In half precision, where it can be measured: 1 - p rounds as it does in single precision at |logit| = 17."""
    torch.manual_seed(0)
    leaf = torch.tensor([-8.5, 8.5, -7.0, 7.0], dtype=torch.float16).expand(1_000_000, 4).clone().requires_grad_()
    probs, drawn = leaf[:1].detach().double().sigmoid(), list[Tensor]()
    sg.DisARM()(td.Bernoulli(logits=leaf), lambda z: (drawn.append(z), z)[1]).sum().backward()
    for bits in drawn:
        assert deviation(bits.double(), probs) < INSIDE
    assert deviation(leaf.grad.double(), probs * (1 - probs)) < INSIDE


@pytest.mark.parametrize("estimator", [sg.DisARM(), sg.GumbelSoftmax(hard=True)], ids=["DisARM", "GumbelSoftmax"])
def test_bits_rarer_than_the_numbers_of_torch_rand(estimator: Estimator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `torch.rand` gives 0, as one number in 2^24 is, the rarer bit has the rest of its probability."""
    rand_like, calls, drawn = torch.rand_like, [], list[Tensor]()

    def first_zero(x: Tensor, **options: object) -> Tensor:
        calls.append(x)
        return rand_like(x, **options) if len(calls) > 1 else torch.zeros_like(x)

    torch.manual_seed(0)
    monkeypatch.setattr(torch, "rand_like", first_zero)
    logits = torch.tensor([-22.0, 22.0, -18.0, 18.0])
    estimator(td.Bernoulli(logits=logits.expand(200_000, 4)), lambda z: (drawn.append(z), z)[1])
    rarer = (-logits.double().abs()).sigmoid().unsqueeze(0)
    for bits in drawn:
        assert deviation((bits.round() == (logits < 0)).double(), rarer * 2**24) < INSIDE


@pytest.mark.parametrize("logit", [-30.0, -20.0, -17.0, 17.0, 20.0, 30.0])
def test_enumeration_keeps_the_rarer_bit_in_single_precision(logit: float) -> None:
    value = sg.Enumerate()(td.Bernoulli(logits=torch.tensor([[logit]])), lambda z: (1 - z).sum(-1))
    double = torch.tensor(logit, dtype=torch.float64)
    torch.testing.assert_close(value.double().squeeze(), torch.sigmoid(-double), rtol=1e-5, atol=0)


@pytest.mark.parametrize("given", ["logits", "probs"])
@each_pair([(member, kind) for member, kind in PAIRS if kind in KINDS[:2]])
def test_values_that_are_certain(member: Member, kind: Kind, given: str) -> None:
    """Probabilities of 0 and 1 in single precision: the value is right, and their logits have no gradient.

    A logit of minus infinity is a probability of 0; the other two categories go on to be estimated.
    """
    torch.manual_seed(0)
    if kind is BITS:
        build, logits = td.Bernoulli, torch.tensor([[[200.0], [-200.0], [20.0]]])
    else:
        lowest = -torch.inf if member.samples == 1 else -200.0  # where torch's KL divergence has a gradient
        build, logits = td.OneHotCategorical, torch.tensor([[[200.0, -200.0, -200.0], [0.3, -0.2, lowest]]])
    leaf = logits.repeat(300, 1, 1).requires_grad_()
    chosen = leaf if given == "logits" else leaf.sigmoid() if kind is BITS else leaf.softmax(-1)
    value = member.build()(build(**{given: chosen}), lambda z: z[:, 0, 0] + 2 * z[:, 1, -1])
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert value.dtype == torch.float32
    if member.samples == 1 or kind is BITS:
        torch.testing.assert_close(value, torch.ones(300), atol=1e-4, rtol=0)
    assert all(numbers.isfinite().all() for numbers in (value, gradient))
    assert gradient[:, : 3 if kind is BITS else 1].abs().max() < 1e-4


COMPARING = ("RLOO", "RLOO 5", "DisARM", "ARM", "ARMS", "ARMS 2", "ARMS 3", "CARMS", "DisARMTree")


@each_pair([(member, kind) for member, kind in PAIRS if member.samples == 1])
def test_a_constant_has_no_gradient(member: Member, kind: Kind) -> None:
    """On average; of estimators that compare samples in every replicate. A bound of several samples has one."""
    found = call(member.build(), Problem.random(kind._replace(slope=0.0), 1).repeated(1000))[1]
    assert deviation(found, torch.zeros(1, found.shape[-1])) < INSIDE
    assert member.name not in COMPARING or found.abs().max() < 1e-10


@each_pair([(member, kind) for member, kind in PAIRS if member.build().unbiased and kind.name != "Gaussian"])
def test_a_plain_function_without_a_gradient_is_integrated(member: Member, kind: Kind) -> None:
    """A table, say: z only picks a number out of it. A biased estimator would have nothing to pass on."""
    value = member.build()(Problem.random(kind, 6).q, lambda z: (z.detach().flatten(1)[:, 0] > 0.5).double())
    value.sum().backward()
    assert value.isfinite().all()


def when_passed(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    if tensor.requires_grad:
        tensor.register_hook(hook)


@each_pair(PAIRS)
def test_evaluations_passes_and_second_derivatives_are_those_declared(member: Member, kind: Kind) -> None:
    """With learning and without: counted at the integrand's value, and for the second time at its z."""
    estimator, problem, shapes = member.build(), Problem.random(kind, 3), list[torch.Size]()
    q, passes, twice = problem.q, Counter[int](), set[int]()

    def f(z: Tensor) -> Tensor:
        number, z = len(shapes), z.clone()
        shapes.append(z.shape)
        when_passed(z, lambda gradient: when_passed(gradient, lambda _: twice.add(number)))
        value = problem.network(z).clone()
        when_passed(value, lambda _: passes.update([number]))
        return value

    for training in (True, False):
        for seen in (shapes, passes, twice):
            seen.clear()
        estimator.train(training)(q, f).sum().backward(retain_graph=True)
        assert shapes == [q.batch_shape + q.event_shape] * estimator.evaluations(*kind.sizes)
        assert len(twice) == (estimator.differentiated_twice if training else 0)
        assert max(passes.values()) == 1 + (len(twice) > 0)
        assert passes.total() <= len(shapes) + len(twice)


@each(ALL_ESTIMATORS)
def test_another_latent_is_refused_by_name(member: Member) -> None:
    inner = getattr(member.build(), "estimator", member.build())  # that of an average, which knows its latents
    for kind in KINDS:
        q = kind.family.latent(torch.zeros(5, kind.family.numbers))
        name = type(base_of(q)).__name__
        if not inner.suits(type(kind.family)):
            named = f"{type(inner).__name__} is for .* latents, got {name}|{name} cannot be reparameterized"
            called = partial(member.build(), q, lambda z: z.flatten(1).sum(-1))
            refused(sg.SilentgradError, f"{named}|{name} latents belong to no family", called)


IMPOSSIBLE = {
    "samples": [0, -1],
    **{f"{of}temperature": [0.0, -1.0, math.nan] for of in ("", "forward_", "backward_")},
    "decay": [1.0, -0.1],
    "step": [0.0],
    "gap": [-1.0, math.nan],
}


@refusals
def test_an_impossible_argument_is_refused() -> Refusals:
    return {
        f"{own.__name__}, {name} {value}": (sg.DomainError, rf"got {value}\b", partial(own, **{name: value}))
        for own in ESTIMATORS.values()
        for name in inspect.signature(own).parameters
        for value in IMPOSSIBLE.get(name, ())
    }


@refusals
def test_what_estimators_and_schedules_refuse() -> Refusals:
    bits, many = td.Bernoulli(logits=torch.zeros(5, 9)), td.Bernoulli(logits=torch.zeros(2, 17))
    groups = td.OneHotCategorical(logits=torch.zeros(2, 20, 10))
    levels, silent = sg.DiscretizedLogistic(9, (4, 2)), sg.SilentControlVariate(sg.RLOO())
    decoders = sg.LinearGaussian(9, 4), sg.Circuit(9, 4, 2, leaves=levels)
    linear, bounded = (integrand_of(decoder, torch.zeros(5, 4)) for decoder in decoders)

    def f(z: Tensor) -> Tensor:
        return z.flatten(1).sum(-1)

    class Column(Estimator):
        def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
            return integrand(q.sample()).unsqueeze(-1)

    returned = r"Column returned shape \(5, 1\) for 5 examples: return one number per example, shape \(5,\)"
    alone = r"shape \(\), .* one example, Independent\(q, 2\)"
    shapes = r"shape \(9,\), for a latent of batch shape \(5, 9\) and event shape \(\)"
    domain = {
        "one sample": ("RLOO needs at least two samples, got 1", lambda: sg.RLOO(1)),
        "a schedule": ("be positive, got 0", lambda: sg.GumbelSoftmax(lambda epoch: 2.0 - epoch).on_epoch(2)),
        "a wide window": (r"temperature of EAT has to be in \(0, 1\], got 1.5", lambda: estimators.EAT(1.5)),
        "an average of what is exact": ("draws nothing: there is nothing", lambda: sg.Averaged(sg.Exact(), 4)),
        "an average of nothing": ("at least one draw, got 0", lambda: sg.Averaged(sg.Reparameterized(), 0)),
        "control of what is exact": ("no noise", lambda: sg.SilentControlVariate(sg.Exact())),
        "control of what is biased": ("unbiased", lambda: sg.SilentControlVariate(sg.GumbelSoftmax())),
        "control of a bound": ("unbiased", lambda: sg.SilentControlVariate(estimators.VIMCO(2))),
        "a negative slope": (r"between 0 and 1; got -0\.1", lambda: linear_decay(-0.1)),
        "no slope": ("between 0 and 1; got nan", lambda: linear_decay(math.nan)),
        "a steep slope": (r"between 0 and 1; got 1.5.*linear_decay\(steps=...\)", lambda: linear_decay(1.5)),
        "no steps": ("number of steps has to be positive", lambda: linear_decay(steps=0)),
        "epochs before the first": ("number of epochs has to be positive", lambda: linear_decay(epochs=-3)),
        "no end": ("positive and finite", lambda: linear_decay(steps=math.inf)),
        "no length": ("in one way", lambda: linear_decay()),
        "two lengths": ("in one way", lambda: linear_decay(steps=10, epochs=2)),
        "a start at zero": ("positive start and floor", lambda: geometric(0.0, 0.5, 0.1)),
        "a floor at zero": ("positive start and floor", lambda: geometric(1.0, 0.5, 0.0)),
        "growth": (r"factor in \(0, 1\]", lambda: geometric(1.0, 1.5, 0.1)),
    }
    intractable = {
        "a plain function": (r"pass integrand_of\(decoder, x\), or choose", lambda: sg.Exact()(bits, f)),
        "too many bits": (r"2\^17 terms; its limit is 16 latents", lambda: sg.Enumerate()(many, f)),
        "more than said": (r"2\^9 terms; its limit is 2 latents", lambda: sg.Enumerate(2)(bits, f)),
        "too many categories": (r"10\^20 terms", lambda: sg.Enumerate()(groups, f)),
        "no statistics": ("needs an integrand with statistics", lambda: silent(bits, f)),
        "no function of them": (r"LinearGaussian.* is no function of stat", lambda: silent(bits, linear)),
        "no expectation of them": ("no exact expectation for Bernoulli latents", lambda: silent(bits, bounded)),
    }
    shape = {
        "a shape": (shapes, lambda: sg.RLOO()(bits, lambda z: z[0])),
        "a mean over examples": (alone, lambda: sg.RLOO()(bits, lambda z: f(z).mean())),
        "an estimator's shape": (returned, lambda: Column()(bits, f)),
        "its shape for a decoder": (returned, lambda: Column()(bits, linear)),
        "a large example": ("9 numbers and the network takes 8: give inp", lambda: estimators.NVIL(inputs=8)(bits, f)),
    }
    domain["a float"] = "integrand returned float", lambda: sg.RLOO()(bits, lambda z: 0.5)
    of_errors = {sg.DomainError: domain, sg.IntractableError: intractable, sg.ShapeError: shape}
    return {name: (error, *case) for error, cases in of_errors.items() for name, case in cases.items()}


def test_schedules_are_what_they_say() -> None:
    assert [constant(0.3)(epoch) for epoch in (1, 50)] == [0.3, 0.3]
    assert [linear_decay(0.0)(epoch) for epoch in (1, 500)] == [1.0, 1.0]
    decay = [linear_decay(0.05)(epoch) for epoch in range(1, 30)]
    assert decay == pytest.approx([max(0.0, 1 - 0.05 * epoch) for epoch in range(1, 30)])
    assert decay[19:] == [0.0] * 10
    assert [geometric(1.0, 0.5, 0.2)(epoch) for epoch in (1, 2, 3, 4, 9)] == [1.0, 0.5, 0.25, 0.2, 0.2]
    assert [linear_decay(epochs=2.5)(epoch) for epoch in (0.1, 1, 2, 3, 4)] == pytest.approx([1, 1, 0.6, 0.2, 0])
    assert [linear_rise(epochs=4, value=2.0)(epoch) for epoch in (0.5, 1, 4, 9)] == [0.25, 0.5, 2.0, 2.0]


@pytest.mark.parametrize("length", [1, 2, 7, 49, 1000])  # 49 * (1 / 49) is not 1
def test_a_length_in_words_begins_at_one_and_is_zero_after_its_end_and_not_before(length: int) -> None:
    for decay in (linear_decay(steps=length), linear_decay(epochs=length)):
        weights = [decay(time) for time in range(1, length + 1)]
        assert weights == pytest.approx([1 - (time - 1) / length for time in range(1, length + 1)])
        assert weights[0] == 1.0
        assert decay(length + 1) == decay(length + 0.5) == decay(math.inf) == 0.0
        assert decay(length - 0.5) == weights[-1] > 0.0  # within the last epoch


# They meet their slopes within the backward pass.
LAZY = {"IMLE": estimators.IMLE, "DoubleCV": partial(estimators.DoubleCV, 2)}


@pytest.mark.parametrize("name", LAZY)
def test_a_penalty_on_z_alone_ends_at_the_draws(name: str) -> None:
    """After a backward pass of the value too, which leaves nothing for it."""
    leaf, own = torch.zeros(4, 3).requires_grad_(), torch.ones(()).requires_grad_()
    penalties: list[Tensor] = []

    def f(z: Tensor) -> Tensor:
        penalties.append((own * z).sum())
        return squares(z)

    value = LAZY[name]()(td.Bernoulli(logits=leaf), f)
    torch.autograd.grad(value.sum(), leaf, retain_graph=True)
    torch.stack(penalties).sum().backward()
    assert own.grad is not None
    assert leaf.grad is None or leaf.grad.abs().max() == 0


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("weight", [1e-5, 1e-3])
def test_small_weights_in_half_precision(name: str, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same in double precision: the slope is a quotient of small numbers."""
    found, bits = [], torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    monkeypatch.setattr(choices.Bits, "sample", lambda self: bits.to(self.logits.dtype))
    monkeypatch.setattr(choices.Bits, "noisy", lambda self: 2 * bits.to(self.logits.dtype) - 1)
    for dtype in (torch.float64, torch.float16):
        leaf = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
        value = LAZY[name]()(td.Bernoulli(logits=leaf), lambda z: 1.5 * z[..., 0])
        (weight * value).sum().backward()
        found.append(leaf.grad.double())
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=1e-7)
    assert found[0].abs().max() > 0


def test_the_graph_of_a_differentiable_gradient_is_freed() -> None:
    leaf = torch.zeros(4, 3).requires_grad_()
    value = estimators.IMLE()(td.Bernoulli(logits=leaf), squares)
    gone = weakref.ref(value)
    gradient = torch.autograd.grad(value.square().sum(), leaf, create_graph=True)
    del value, gradient
    assert gone() is None


def test_integers_are_integrated_in_the_precision_of_the_latents() -> None:
    value = estimators.IMLE()(Problem.random(BITS, 4).q, lambda z: z.sum(-1).long())
    assert value.dtype == torch.float64
    assert (value == value.round()).all()


COMPILED = [
    *("IMLE", "DoubleCV", "DReG", "CARMS", "DisARMTree", "RODEO", "ReinMaxRao", "ReinMaxCV", "EAT"),
    *("DecoupledStraightThrough", "Reinforce", "NVIL", "RELAX"),
]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@each([member for member in PLAIN_ESTIMATORS if member.name in COMPILED])
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


@pytest.mark.parametrize("training", [True, False])
@each([member for member in PLAIN_ESTIMATORS if member.families])
def test_transforms_of_gradients_are_right_or_refused(member: Member, training: bool) -> None:
    """Of several at once too, be they the first or not."""
    leaf = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
    same = [member.build().train(training)]
    same += [copy.deepcopy(same[0]) for _ in range(2)]

    def values(logits: Tensor, estimator: Estimator) -> Tensor:
        torch.manual_seed(0)
        return estimator(latent_of(member.families[-1], logits), squares)

    found, other = (values(leaf, estimator) for estimator in same[:2])
    plain, again = (torch.autograd.grad(found.sum(), leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(again, plain)  # what the first pass has learned belongs to later batches
    assert plain.abs().max() > 0
    weights = torch.tensor([1.0, -2.0]).double()
    for value in (found, other):
        each_example = torch.diag_embed(weights.unsqueeze(-1).expand(2, 4)).flatten(0, 1)
        (batched,) = torch.autograd.grad(value, leaf, each_example, is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(batched.unflatten(0, (2, 4)).sum(1), torch.stack([plain, -2 * plain]))
    try:
        transformed = torch.func.grad(lambda logits: values(logits, same[2]).sum())(leaf.detach())
    except sg.DomainError as error:
        assert "no transform of torch.func allows" in str(error)  # noqa: PT017
        return
    torch.testing.assert_close(transformed, plain)


def test_a_linear_function_of_statistics_has_no_noise_under_the_silent_control_variate() -> None:
    """One component: the circuit is the sum of its leaves' log-densities."""
    torch.manual_seed(0)
    logits = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    integrand = integrand_of(sg.Circuit(2, 4, 1).double(), torch.randn(5, 4, dtype=torch.float64))
    found = []
    for estimator in (sg.SilentControlVariate(sg.RLOO()), sg.Exact()):
        value = estimator(td.Bernoulli(logits=logits), integrand)
        found.append([value, *torch.autograd.grad(value.sum(), logits)])
    torch.testing.assert_close(*found)


def test_the_silent_control_variate_takes_off_most_noise_where_statistics_vary_little() -> None:
    """Four fifths in the median of nine circuits, of RLOO's variance."""
    rows = torch.zeros(2000, 2, dtype=torch.float64, requires_grad=True)  # a draw of one example each
    ratios = []
    for seed in range(9):
        torch.manual_seed(seed)
        decoder, x = sg.Circuit(2, 4, 3, gates="all").double(), torch.randn(4, dtype=torch.float64)
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.normal_(std=0.8)
            for parameter in decoder.leaves.parameters():
                parameter.mul_(0.3)
        variances = []
        for estimator in (sg.SilentControlVariate(sg.RLOO()), sg.RLOO()):
            value = estimator(td.Bernoulli(logits=rows), integrand_of(decoder, x.expand(2000, -1)))
            (gradient,) = torch.autograd.grad(value.sum(), rows)
            variances.append(gradient.var(0).sum())
        ratios.append(variances[0] / variances[1])
    assert torch.stack(ratios).median() < 0.2


def test_sticking_the_landing_has_no_variance_at_the_posterior() -> None:
    """N(0, 1) before and N(x, 1) given z: the posterior is N(x/2, 1/2)."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    loc, scale = (x / 2).requires_grad_(), torch.full((5,), 0.5**0.5, dtype=torch.float64).requires_grad_()
    for estimator in (estimators.STL(), estimators.DReG(3)):
        q = td.Normal(loc, scale)
        elbo = estimator(q, lambda z: td.Normal(z, 1.0).log_prob(x)) - td.kl_divergence(q, td.Normal(0.0, 1.0))
        for gradient in torch.autograd.grad(elbo.sum(), (loc, scale)):
            assert gradient.abs().max() < 1e-12
        torch.testing.assert_close(elbo, td.Normal(0.0, 2**0.5).log_prob(x))


@pytest.mark.parametrize("estimator", [estimators.VIMCO(4), estimators.DReG(4), estimators.STL()], ids=repr)
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
    draws = [q.sample() for _ in range(estimator.evaluations())]
    weights = torch.stack([decoder.log_prob(x, z) + prior.log_prob(z) - q.log_prob(z) for z in draws])
    torch.testing.assert_close(first, -(weights.logsumexp(0) - math.log(len(weights))).mean())


NAMED = [(name, family) for family in FAMILIES for name in suitable_estimators(FAMILIES[family])]


@pytest.mark.parametrize(("name", "family"), [(n, f) for n, f in NAMED if n not in ("exact", "none")])
def test_every_estimator_that_a_run_can_name_gives_the_encoder_a_gradient(name: str, family: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(latent=family, latent_dim=2, hidden=[8], tractable="none", estimator=name, prior="learned")
    model = build_model(config, torch.Size([1, 2, 2]), levels=17)
    losses = model(torch.rand(6, 1, 2, 2), epoch=1)
    losses.total.backward()
    assert losses.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.encoder.parameters())
    assert any(parameter.grad.any() for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.estimator.parameters())
    copy.deepcopy(model)
