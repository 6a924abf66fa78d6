"""Every estimator with every latent family it takes: what it claims is measured, and what it refuses has a name.

The policy of all statistical tests here. Seeds are fixed, so a test passes always or never. One example's latent is
repeated along the batch, so that one call gives REPLICATES independent estimates and the gradient of their sum in the
repeated parameters gives each estimate's own gradient. The truth is enumeration (Bernoulli), the closed form or
quadrature (Gaussian). An estimator that claims to be unbiased has a mean within 5 standard errors of the truth in every
component; one that does not is beyond 8 in at least one. One that claims to be exact gives the same bits in every
replicate, equal to the truth to 1e-10; one that does not has a variance. The truth of a bound of several samples is the
sum over their pairs. `test_estimator_claims.py` goes on with random problems, categories and subsets.

A claim is made for every latent that is not refused. So each estimator that claims to be unbiased meets each latent of
`members.ALL_LATENTS`, one latent an example where they are independent: its mean is within 4 standard errors of the
oracle, or the error has a name.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from members import ALL_ESTIMATORS, ALL_LATENTS, Latent, Member, latent_of
from oracles import Expectation, hermite
from silentgrad.decoders import LinearDecoder, LinearGaussian
from silentgrad.estimators import Estimator, base_of, integrand_of
from silentgrad.lab.networks import NonlinearGaussian
from silentgrad.latents.families import FAMILIES
from silentgrad.schedules import constant, geometric, linear_decay, linear_rise

REPLICATES, GROUPS = 40_000, 100
INSIDE, OUTSIDE = 5, 8  # standard errors
RELAXING = ("GumbelSoftmax", "Averaged GumbelSoftmax")  # they evaluate the decoder at values that no latent has
PAIRS = [(member, family) for member in ALL_ESTIMATORS for family in member.families]
EACH = pytest.mark.parametrize(("member", "family"), PAIRS, ids=[f"{m.name}, {f}" for m, f in PAIRS])
EACH_ESTIMATOR = pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if m.families], ids=lambda m: m.name)

PARAMETERS = {  # none of the probabilities is 1/2, where some biases vanish
    "gaussian": [torch.tensor([0.4, -0.7]), torch.tensor([-0.3, 0.2])],  # mean, log standard deviation
    "bernoulli": [torch.tensor([0.9, -1.4, 0.3])],  # logits
}
X = torch.tensor([0.2, -0.7, 1.1], dtype=torch.float64)


class Linear(nn.Module):
    """A decoder whose log-probability is linear in z for every x far above its mean."""

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.affine = nn.Linear(latents, 3)

    def forward(self, z: Tensor) -> td.Independent:
        return td.Independent(td.Laplace(self.affine(z) - 100, 1.0), 1)


def constant_rung(latents: int) -> LinearGaussian:
    decoder = LinearGaussian(latents, 3, variance=0.3)
    nn.init.zeros_(decoder.affine.weight)
    return decoder


def network_rung(latents: int) -> NonlinearGaussian:
    network = nn.Sequential(nn.Linear(latents, 8), nn.Tanh(), nn.Linear(8, 6))
    return NonlinearGaussian(network, (3,))


LADDER: dict[str, Callable[[int], nn.Module]] = {
    "constant": constant_rung,
    "linear": Linear,
    "quadratic": lambda latents: LinearGaussian(latents, 3, variance=0.3),
    "network": network_rung,
}


def decoder_of(rung: str, family: str) -> nn.Module:
    torch.manual_seed(3)
    return LADDER[rung](PARAMETERS[family][0].numel()).double()


def leaves_of(family: str, repeats: int = 1) -> list[Tensor]:
    """The parameters of one latent, repeated along the batch, as leaves."""
    return [p.double().expand(repeats, -1).clone().requires_grad_() for p in PARAMETERS[family]]


def event_of(family: str, leaves: list[Tensor]) -> td.Independent:
    base = td.Bernoulli(logits=leaves[0]) if family == "bernoulli" else td.Normal(leaves[0], leaves[1].exp())
    return td.Independent(base, 1)


def true_value(decoder: nn.Module, family: str, leaves: list[Tensor], samples: int = 1) -> Tensor:
    """E_q[log p(x|z)] of one example: the closed form, or the sum over configurations or quadrature nodes.

    Of a bound of two samples, that bound and the KL divergence.
    """
    if family == "gaussian" and isinstance(decoder, LinearDecoder) and samples == 1:
        return decoder.expected_log_prob(X.unsqueeze(0), event_of(family, leaves)).squeeze(0)
    if family == "bernoulli":
        probs = leaves[0].sigmoid()
        z = torch.tensor(list(itertools.product((0.0, 1.0), repeat=probs.shape[-1])), dtype=torch.float64)
        weights = (z * probs + (1 - z) * (1 - probs)).prod(-1)
    else:
        order = 40 if samples == 1 else 20
        picks = torch.cartesian_prod(torch.arange(order), torch.arange(order))
        nodes, masses = (a.flatten() for a in hermite(order))
        z, weights = leaves[0] + leaves[1].exp() * nodes[picks], masses[picks].prod(-1)
    f = decoder(z).log_prob(X.expand(len(z), 3))
    if samples == 1:
        return weights @ f
    q, p = event_of(family, leaves), event_of(family, [torch.zeros_like(leaf) for leaf in leaves])
    log_weights = f + p.log_prob(z) - q.log_prob(z)
    pairs = torch.logaddexp(log_weights.unsqueeze(0), log_weights.unsqueeze(1)) - math.log(2)
    return weights @ pairs @ weights + td.kl_divergence(q, p).squeeze(0)


class Estimates(NamedTuple):
    """One row per replicate: its value and its gradient in the latent's parameters."""

    value: Tensor
    gradient: Tensor


def flat(gradients: Sequence[Tensor], rows: int = 1) -> Tensor:
    return torch.cat([g.reshape(rows, -1) for g in gradients], -1)


def gradients_of(value: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)


def replicate(estimator: Estimator, decoder: nn.Module, family: str, replicates: int = REPLICATES) -> Estimates:
    torch.manual_seed(0)
    leaves = leaves_of(family, replicates)
    value = estimator(event_of(family, leaves), integrand_of(decoder, X.expand(replicates, 3)))
    assert value.shape == (replicates,)
    return Estimates(value.detach().unsqueeze(-1), flat(gradients_of(value.sum(), leaves), replicates))


def decoder_gradients(estimator: Estimator, decoder: nn.Module, family: str) -> Tensor:
    """One row per group of replicates, whose mean gradient in the decoder's parameters it is."""
    torch.manual_seed(0)
    rows, size = [], REPLICATES // GROUPS
    for _ in range(GROUPS):
        value = estimator(event_of(family, leaves_of(family, size)), integrand_of(decoder, X.expand(size, 3)))
        rows.append(flat(gradients_of(value.mean(), list(decoder.parameters()))))
    return torch.cat(rows)


def truths(decoder: nn.Module, family: str, samples: int = 1) -> Estimates:
    leaves = leaves_of(family)
    value = true_value(decoder, family, leaves, samples)
    return Estimates(value.detach().reshape(1, 1), flat(gradients_of(value, leaves)))


def true_decoder_gradient(decoder: nn.Module, family: str, samples: int = 1) -> Tensor:
    return flat(gradients_of(true_value(decoder, family, leaves_of(family), samples), list(decoder.parameters())))


def deviation(sample: Tensor, truth: Tensor) -> float:
    """The largest distance of a mean from the truth, in standard errors; rounding counts as none."""
    distance = (sample.mean(0) - truth.squeeze(0)).abs()
    error = sample.std(0) / len(sample) ** 0.5
    rounding = 1e-10 * truth.abs().max().clamp(min=1)
    return float(torch.where(distance < rounding, 0.0, distance / error).max())


@EACH
@pytest.mark.parametrize("rung", LADDER)
def test_claims_hold_on_every_rung(member: Member, family: str, rung: str) -> None:
    estimator, decoder = member.build(), decoder_of(rung, family)
    if member.name == "Exact" and not isinstance(decoder, LinearDecoder):
        with pytest.raises(sg.IntractableError, match=r"tractable decoder: pass integrand_of\(decoder, x\), or choose"):
            replicate(estimator, decoder, family)
        return
    estimates, truth = replicate(estimator, decoder, family), truths(decoder, family, member.samples)
    bias = deviation(estimates.gradient, truth.gradient)
    if estimator.unbiased or rung == "constant":
        assert bias < INSIDE
    elif rung == "network":  # some are unbiased for every log-probability that is quadratic
        assert bias > OUTSIDE
    if member.name not in RELAXING:
        assert deviation(estimates.value, truth.value) < INSIDE
        in_decoder = decoder_gradients(estimator, decoder, family)
        assert deviation(in_decoder, true_decoder_gradient(decoder, family, member.samples)) < INSIDE
    if not estimator.exact:
        assert rung not in ("quadratic", "network") or estimates.gradient.std(0).max() > 1e-3
        return
    for sample, expected in ((estimates.value, truth.value), (estimates.gradient, truth.gradient)):
        assert (sample == sample[0]).all()
        torch.testing.assert_close(sample[:1], expected, rtol=1e-10, atol=1e-10)
    state = torch.random.get_rng_state()
    estimator(event_of(family, leaves_of(family)), integrand_of(decoder, X.unsqueeze(0)))
    assert torch.equal(state, torch.random.get_rng_state())


CLAIMING = [member for member in ALL_ESTIMATORS if member.build().unbiased]
DRAWS = 10_000


def claimed(member: Member, q: td.Distribution, decoder: nn.Module, x: Tensor, expectation: Expectation) -> Tensor:
    """What an estimator claims to estimate, by the latent's oracle; of a bound, over both of its samples."""
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
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def laid_out(family: str, parameter: Tensor, events: tuple[int, ...]) -> td.Distribution:
    q = latent_of(family, parameter)
    for dims in events:
        q = td.Independent(q, dims)
    return q


def quadratic_of(examples: int, latents: int) -> tuple[LinearGaussian, Tensor]:
    """A decoder of so many latents, and as many different examples."""
    torch.manual_seed(6)
    return LinearGaussian(latents, 3, variance=0.3).double(), torch.randn(examples, 3, dtype=torch.float64)


@EACH
@EACH_LAYOUT
def test_every_layout_of_latents_is_estimated_like_examples_in_rows(
    member: Member, family: str, layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> None:
    """The same noise gives the same value and gradient as with a latent of shape (examples, latents)."""
    shape, events, examples = layout
    count, latents = torch.Size(examples).numel(), torch.Size(shape[len(examples) :]).numel()
    decoder, x = quadratic_of(count, latents)
    numbers, results = torch.randn(count, latents, dtype=torch.float64), []
    for rows, dims, batch in ((numbers, (1,), (count,)), (numbers.reshape(shape), events, examples)):
        torch.manual_seed(0)
        parameter = rows.clone().requires_grad_()
        value = member.build()(laid_out(family, parameter, dims), integrand_of(decoder, x.reshape(*batch, 3)))
        assert value.shape == batch
        results.append([value.reshape(count), gradients_of(value.sum(), [parameter])[0].reshape(count, latents)])
    for in_rows, as_laid_out in zip(*results, strict=True):
        torch.testing.assert_close(as_laid_out, in_rows, rtol=1e-10, atol=1e-10)


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

    class OfShape(sg.estimators.TractableIntegrand):
        def __call__(self, z: Tensor) -> Tensor:
            return torch.zeros(shape)

        def expectation(self, q: td.Distribution) -> Tensor:
            return torch.zeros(shape)

        def exactness(self, q: td.Distribution) -> sg.Exactness:
            return sg.Exactness.EXACT

    both = rf"shape \({', '.join(map(str, shape))},?\), for a latent of batch shape \(5.*event shape \("
    with pytest.raises(sg.ShapeError, match=both):
        member.build()(laid_out(member.families[-1], torch.zeros(latents), events), OfShape())


def bits_and_gradients(estimator: Estimator, logits: Tensor, replicates: int) -> tuple[list[Tensor], Tensor]:
    """The bits an estimator draws, and its gradients where the log-probability is the bit itself."""
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


def trained_reinforce(decoder: nn.Module, decay: float = 0.9, calls: int = 50) -> sg.Reinforce:
    torch.manual_seed(5)
    estimator = sg.Reinforce(decay)
    for _ in range(calls):
        estimator(event_of("bernoulli", leaves_of("bernoulli", 64)), integrand_of(decoder, X.expand(64, 3)))
    return estimator


@pytest.mark.parametrize("rung", ["linear", "quadratic", "network"])
def test_the_baseline_of_reinforce_reduces_variance_without_bias(rung: str) -> None:
    decoder = decoder_of(rung, "bernoulli")
    fresh = replicate(sg.Reinforce().eval(), decoder, "bernoulli")
    trained = replicate(trained_reinforce(decoder).eval(), decoder, "bernoulli")
    assert trained.gradient.var(0).sum() < 0.8 * fresh.gradient.var(0).sum()
    assert deviation(trained.gradient, truths(decoder, "bernoulli").gradient) < INSIDE


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


def test_the_baseline_of_reinforce_rests_in_eval_mode_and_is_saved() -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    estimator = trained_reinforce(decoder)
    saved = {name: value.clone() for name, value in estimator.state_dict().items()}
    assert set(saved) == {"baseline", "seen"}
    assert saved["baseline"] != 0
    replicate(estimator.eval(), decoder, "bernoulli")
    assert all(torch.equal(value, saved[name]) for name, value in estimator.state_dict().items())
    loaded = sg.Reinforce(0.9)
    loaded.load_state_dict(saved)
    first, second = (replicate(e.eval(), decoder, "bernoulli") for e in (estimator, loaded))
    assert torch.equal(first.gradient, second.gradient)
    replicate(estimator.train(), decoder, "bernoulli")
    assert estimator.baseline != saved["baseline"]


@pytest.mark.parametrize(
    ("better", "rung", "share"),
    [(sg.DisARM(), "quadratic", 0.95), (sg.DisARM(), "network", 0.95), (sg.RLOO(8), "quadratic", 0.25)],
)
def test_it_varies_less_than_two_independent_samples(better: Estimator, rung: str, share: float) -> None:
    decoder = decoder_of(rung, "bernoulli")
    less, more = (replicate(e, decoder, "bernoulli").gradient.var(0).sum() for e in (better, sg.RLOO(2)))
    assert less < share * more


@pytest.mark.parametrize("estimator", [sg.RLOO(2), sg.RLOO(5), sg.DisARM()], ids=["RLOO 2", "RLOO 5", "DisARM"])
def test_estimators_that_compare_samples_give_a_constant_no_gradient(estimator: Estimator) -> None:
    """Not on average: in every replicate."""
    estimates = replicate(estimator, decoder_of("constant", "bernoulli"), "bernoulli")
    assert estimates.gradient.abs().max() < 1e-10


def test_a_colder_relaxation_is_less_biased_and_varies_more() -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    truth = truths(decoder, "bernoulli").gradient
    warm, cold = (replicate(sg.GumbelSoftmax(t), decoder, "bernoulli").gradient for t in (1.0, 0.1))
    assert (cold.mean(0) - truth).norm() < (warm.mean(0) - truth).norm() / 2
    assert cold.var(0).sum() > warm.var(0).sum()


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


@pytest.mark.parametrize("kind", ["bernoulli", "one-hot"])
def test_hard_samples_have_their_probabilities_and_soft_ones_lie_between(kind: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 2, 3, dtype=torch.float64).expand(20_000, 2, 3)
    q = td.Bernoulli(logits=logits) if kind == "bernoulli" else td.OneHotCategorical(logits=logits)
    seen: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        seen.append(z)
        return z.sum((-1, -2))

    for estimator in (sg.GumbelSoftmax(hard=True), sg.StraightThrough(), sg.GumbelSoftmax()):
        estimator(q, log_prob)
    *hard, soft = seen
    for z in hard:
        torch.testing.assert_close(z, z.round(), rtol=0, atol=1e-6)
        assert kind == "bernoulli" or (z.sum(-1).round() == 1).all()
        assert deviation(z, q.mean[:1]) < INSIDE
    assert ((soft > 0.01) & (soft < 0.99)).float().mean() > 0.5


@EACH_ESTIMATOR
def test_a_wrong_latent_family_is_refused_by_name(member: Member) -> None:
    others = [f for f in PARAMETERS if f not in member.families]
    inner = getattr(member.build(), "estimator", member.build())  # that of an average, which knows its latents
    for family in others:
        q, decoder = event_of(family, leaves_of(family)), decoder_of("quadratic", family)
        message = {
            "gaussian": f"{type(inner).__name__} is for Bernoulli.* latents, got Normal",
            "bernoulli": "Bernoulli cannot be reparameterized; for discrete latents choose GumbelSoftmax",
        }[family]
        with pytest.raises(sg.IntractableError, match=message):
            member.build()(q, integrand_of(decoder, X.unsqueeze(0)))


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
