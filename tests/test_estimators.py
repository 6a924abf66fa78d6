"""Every estimator with every latent family it takes: what it claims is measured, and what it refuses has a name.

The policy of all statistical tests here. Seeds are fixed, so a test passes always or never. One example's latent is
repeated along the batch, so that one call gives REPLICATES independent estimates and the gradient of their sum in the
repeated parameters gives each estimate's own gradient. The truth is enumeration (Bernoulli), the closed form or
quadrature (Gaussian). An estimator that claims to be unbiased has a mean within 5 standard errors of the truth in every
component; one that does not is beyond 8 in at least one. One that claims to be exact gives the same bits in every
replicate, equal to the truth to 1e-10; one that does not has a variance. The truth of a bound of several samples is the
sum over their pairs. `test_estimator_claims.py` goes on with random problems, categories and subsets.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from oracles import hermite
from silentgrad.decoders import LinearDecoder, LinearGaussian
from silentgrad.estimators import (
    Arm,
    Arms,
    Averaged,
    DisArm,
    DoubleCV,
    Dreg,
    Enumerate,
    Estimator,
    Exact,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    Imle,
    IndeCateR,
    MuProp,
    Nvil,
    Rebar,
    Reinforce,
    ReinMax,
    Relax,
    Reparameterized,
    Rloo,
    Simple,
    Stl,
    StraightThrough,
    Vimco,
    integrand_of,
)
from silentgrad.lab.networks import NonlinearGaussian
from silentgrad.schedules import constant, geometric, linear_decay, linear_rise

REPLICATES, GROUPS = 40_000, 100
INSIDE, OUTSIDE = 5, 8  # standard errors


@dataclass(frozen=True)
class Member:
    """An estimator, the latent families it takes, whether it evaluates the decoder at values no latent has, and the
    samples of its bound."""

    name: str
    build: Callable[[], Estimator]
    families: tuple[str, ...]
    relaxes: bool = False
    samples: int = 1


ALL_ESTIMATORS = [
    Member("Exact", Exact, ("gaussian", "bernoulli")),
    Member("Enumerate", Enumerate, ("bernoulli",)),
    Member("Reparameterized", Reparameterized, ("gaussian",)),
    Member("GumbelSoftmax soft", GumbelSoftmax, ("bernoulli",), relaxes=True),
    Member("GumbelSoftmax hard", lambda: GumbelSoftmax(hard=True), ("bernoulli",)),
    Member("StraightThrough", StraightThrough, ("bernoulli",)),
    Member("Reinforce", Reinforce, ("gaussian", "bernoulli")),
    Member("Rloo 2", Rloo, ("gaussian", "bernoulli")),
    Member("Rloo 5", lambda: Rloo(5), ("gaussian", "bernoulli")),
    Member("DisArm", DisArm, ("bernoulli",)),
    Member("ReinMax", ReinMax, ("bernoulli",)),
    Member("GumbelRao", GumbelRao, ("bernoulli",)),
    Member("GappedStraightThrough", GappedStraightThrough, ("bernoulli",)),
    Member("Arm", Arm, ("bernoulli",)),
    Member("Arms 2", lambda: Arms(2), ("bernoulli",)),
    Member("Arms 4", Arms, ("bernoulli",)),
    Member("DoubleCV 2", lambda: DoubleCV(2), ("bernoulli",)),
    Member("Rebar", Rebar, ("bernoulli",)),
    Member("Relax", lambda: Relax(inputs=16), ("bernoulli",)),
    Member("MuProp", MuProp, ("bernoulli",)),
    Member("Nvil", lambda: Nvil(inputs=16), ("gaussian", "bernoulli")),
    Member("IndeCateR", IndeCateR, ("bernoulli",)),
    Member("Vimco 2", lambda: Vimco(2), ("gaussian", "bernoulli"), samples=2),
    Member("Dreg 2", lambda: Dreg(2), ("gaussian",), samples=2),
    Member("Stl", Stl, ("gaussian",)),
    Member("Simple", Simple, ("bernoulli",)),
    Member("Imle", Imle, ("bernoulli",)),
    Member("Averaged Reparameterized", lambda: Averaged(Reparameterized(), 3), ("gaussian",)),
    Member("Averaged Gumbel-Softmax", lambda: Averaged(GumbelSoftmax(), 3), ("bernoulli",), relaxes=True),
    Member("Averaged Reinforce", lambda: Averaged(Reinforce(), 2), ("gaussian", "bernoulli")),
]
PAIRS = [(member, family) for member in ALL_ESTIMATORS for family in member.families]
EACH = pytest.mark.parametrize(("member", "family"), PAIRS, ids=[f"{m.name}, {f}" for m, f in PAIRS])
EACH_ESTIMATOR = pytest.mark.parametrize("member", ALL_ESTIMATORS, ids=lambda m: m.name)

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


def latents_of(family: str) -> int:
    return PARAMETERS[family][0].numel()


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
    return LADDER[rung](latents_of(family)).double()


def leaves_of(family: str, repeats: int = 1) -> list[Tensor]:
    """The parameters of one latent, repeated along the batch, as leaves."""
    return [p.double().expand(repeats, -1).clone().requires_grad_() for p in PARAMETERS[family]]


def latent_of(family: str, leaves: list[Tensor]) -> td.Independent:
    base = td.Bernoulli(logits=leaves[0]) if family == "bernoulli" else td.Normal(leaves[0], leaves[1].exp())
    return td.Independent(base, 1)


def true_value(decoder: nn.Module, family: str, leaves: list[Tensor], samples: int = 1) -> Tensor:
    """E_q[log p(x|z)] of one example: the closed form, or the sum over configurations or quadrature nodes.

    Of a bound of two samples, that bound and the KL divergence.
    """
    if family == "gaussian" and isinstance(decoder, LinearDecoder) and samples == 1:
        return decoder.expected_log_prob(X.unsqueeze(0), latent_of(family, leaves)).squeeze(0)
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
    q, p = latent_of(family, leaves), latent_of(family, [torch.zeros_like(leaf) for leaf in leaves])
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
    value = estimator(latent_of(family, leaves), integrand_of(decoder, X.expand(replicates, 3)))
    assert value.shape == (replicates,)
    return Estimates(value.detach().unsqueeze(-1), flat(gradients_of(value.sum(), leaves), replicates))


def decoder_gradients(estimator: Estimator, decoder: nn.Module, family: str) -> Tensor:
    """One row per group of replicates, whose mean gradient in the decoder's parameters it is."""
    torch.manual_seed(0)
    rows, size = [], REPLICATES // GROUPS
    for _ in range(GROUPS):
        value = estimator(latent_of(family, leaves_of(family, size)), integrand_of(decoder, X.expand(size, 3)))
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


def is_refused(member: Member, decoder: nn.Module) -> bool:
    return member.build is Exact and not isinstance(decoder, LinearDecoder)


@EACH
@pytest.mark.parametrize("rung", LADDER)
def test_an_unbiased_estimator_is_unbiased(member: Member, family: str, rung: str) -> None:
    estimator, decoder = member.build(), decoder_of(rung, family)
    if is_refused(member, decoder):
        with pytest.raises(sg.IntractableError, match=r"tractable decoder: pass integrand_of\(decoder, x\)"):
            replicate(estimator, decoder, family)
        return
    estimates, truth = replicate(estimator, decoder, family), truths(decoder, family, member.samples)
    if estimator.unbiased or rung == "constant":
        assert deviation(estimates.gradient, truth.gradient) < INSIDE
    if not member.relaxes:
        assert deviation(estimates.value, truth.value) < INSIDE
        in_decoder = decoder_gradients(estimator, decoder, family)
        assert deviation(in_decoder, true_decoder_gradient(decoder, family, member.samples)) < INSIDE


@pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if not m.build().unbiased], ids=lambda m: m.name)
def test_a_biased_estimator_is_biased(member: Member) -> None:
    """With a network; some are unbiased for every log-probability that is quadratic."""
    (family,) = member.families
    decoder = decoder_of("network", family)
    estimates, truth = replicate(member.build(), decoder, family), truths(decoder, family)
    assert deviation(estimates.gradient, truth.gradient) > OUTSIDE


@EACH
@pytest.mark.parametrize("rung", LADDER)
def test_an_exact_estimator_has_no_variance_and_no_other_has_none(member: Member, family: str, rung: str) -> None:
    estimator, decoder = member.build(), decoder_of(rung, family)
    if is_refused(member, decoder):
        pytest.skip("refused, as the first test checks")
    state = torch.random.get_rng_state()
    estimates, truth = replicate(estimator, decoder, family), truths(decoder, family, member.samples)
    if not estimator.exact:
        assert rung not in ("quadratic", "network") or estimates.gradient.std(0).max() > 1e-3
        return
    for sample, expected in ((estimates.value, truth.value), (estimates.gradient, truth.gradient)):
        assert (sample == sample[0]).all()
        torch.testing.assert_close(sample[:1], expected, rtol=1e-10, atol=1e-10)
    torch.random.set_rng_state(state)
    estimator(latent_of(family, leaves_of(family)), integrand_of(decoder, X.unsqueeze(0)))
    assert torch.equal(state, torch.random.get_rng_state())


@EACH
def test_examples_do_not_touch_each_other(member: Member, family: str) -> None:
    """The gradient of one example's estimate is zero in every other example's parameters."""
    decoder, leaves = decoder_of("quadratic", family), leaves_of(family, 4)
    value = member.build()(latent_of(family, leaves), integrand_of(decoder, X.expand(4, 3)))
    for gradient in torch.autograd.grad(value[1], leaves):
        assert gradient[1].abs().max() > 0
        assert not gradient[[0, 2, 3]].any()


@EACH
def test_latents_may_be_the_event_or_part_of_the_batch(member: Member, family: str) -> None:
    decoder, leaves = decoder_of("quadratic", family), leaves_of(family, 6)
    q = latent_of(family, leaves)
    results = []
    for latent in (q, q.base_dist):
        torch.manual_seed(0)
        value = member.build()(latent, integrand_of(decoder, X.expand(6, 3)))
        results.append([value, *gradients_of(value.sum(), leaves)])
    for event, batch in zip(*results, strict=True):
        torch.testing.assert_close(batch, event, rtol=1e-12, atol=1e-12)


@EACH_ESTIMATOR
def test_latents_may_have_several_dimensions(member: Member) -> None:
    """Two rows of two latents are four latents."""
    family = member.families[-1]
    torch.manual_seed(4)
    decoder = LinearGaussian(4, 3, variance=0.3).double()
    numbers = torch.randn(5, 4, dtype=torch.float64)
    results = []
    for shape in ((5, 4), (5, 2, 2)):
        torch.manual_seed(0)
        loc = numbers.reshape(shape).clone().requires_grad_()
        base = td.Bernoulli(logits=loc) if family == "bernoulli" else td.Normal(loc, 1.0)
        value = member.build()(td.Independent(base, len(shape) - 1), integrand_of(decoder, X.expand(5, 3)))
        results.append((value, torch.autograd.grad(value.sum(), loc)[0].reshape(5, 4)))
    for flat_result, nested in zip(*results, strict=True):
        torch.testing.assert_close(nested, flat_result, rtol=1e-12, atol=1e-12)


LAYOUTS = {  # shape of the latents, how many trailing dimensions are events of nested `Independent`, of the examples
    "one batch dimension": ((5, 3), (), (5,)),
    "two batch dimensions": ((2, 2, 3), (), (2, 2)),
    "a batch dimension of one": ((1, 4, 3), (), (1, 4)),
    "no batch": ((3,), (), ()),
    "no batch, as an event": ((3,), (1,), ()),
    "latents in a square": ((3, 2, 2), (), (3,)),
    "nested events": ((3, 2, 2), (1, 1), (3,)),
    "batch and event both of two": ((2, 2, 1, 3), (1, 1), (2, 2)),
    "one latent an example": ((4,), (), (4,)),
    "one example": ((1, 3), (), (1,)),
    "one example of one latent": ((1, 1), (), (1,)),
    "no examples": ((0, 3), (), (0,)),
}
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def laid_out(family: str, parameter: Tensor, events: tuple[int, ...]) -> td.Distribution:
    q: td.Distribution = td.Bernoulli(logits=parameter) if family == "bernoulli" else td.Normal(parameter, 0.6)
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


UNBIASED = [m for m in ALL_ESTIMATORS if m.build().unbiased and "bernoulli" in m.families]


@pytest.mark.parametrize("member", UNBIASED, ids=lambda m: m.name)
@pytest.mark.parametrize("examples", [(2, 2, -1), (1, -1), (-1, 1)], ids=str)
def test_every_layout_has_the_enumerated_mean(member: Member, examples: tuple[int, ...]) -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    (rows,) = leaves_of("bernoulli", REPLICATES)
    q = td.Bernoulli(logits=rows.reshape(*examples, 3))
    torch.manual_seed(0)
    value = member.build()(q, integrand_of(decoder, X.expand(*q.batch_shape[:-1], 3)))
    assert value.shape == q.batch_shape[:-1]
    truth = truths(decoder, "bernoulli", member.samples)
    assert deviation(value.detach().reshape(-1, 1), truth.value) < INSIDE
    assert deviation(torch.autograd.grad(value.sum(), rows)[0], truth.gradient) < INSIDE


WRONG_LAYOUTS = {
    "per latent of an event": (td.Independent(td.Bernoulli(logits=torch.zeros(5, 3)), 1), (5, 3)),
    "half of an event": (td.Independent(td.Bernoulli(logits=torch.zeros(5, 2, 2)), 2), (5, 2)),
    "another batch": (td.Bernoulli(logits=torch.zeros(5, 3)), (4,)),
    "a broadcast batch of one": (td.Bernoulli(logits=torch.zeros(5, 3)), (1, 5)),
    "latents first": (td.Bernoulli(logits=torch.zeros(5, 3)), (3,)),
    "beyond the latents": (td.Bernoulli(logits=torch.zeros(5, 3)), (5, 3, 1)),
}


@pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if m.families != ("gaussian",)], ids=lambda m: m.name)
@pytest.mark.parametrize("case", WRONG_LAYOUTS)
def test_a_log_probability_of_another_shape_is_refused(member: Member, case: str) -> None:
    q, shape = WRONG_LAYOUTS[case]

    class OfShape(sg.TractableIntegrand):
        def __call__(self, z: Tensor) -> Tensor:
            return torch.zeros(shape)

        def expectation(self, q: td.Distribution) -> Tensor:
            return torch.zeros(shape)

        def exactness(self, q: td.Distribution) -> sg.Exactness:
            return sg.Exactness.EXACT

    both = rf"shape \({', '.join(map(str, shape))},?\), for a latent of batch shape \(5.*event shape \("
    with pytest.raises(sg.ShapeError, match=both):
        member.build()(q, OfShape())


def test_a_reparameterized_log_probability_of_another_shape_is_refused() -> None:
    q = td.Normal(torch.zeros(5, 3), 1.0)
    with pytest.raises(sg.ShapeError, match=r"shape \(1, 5\), for a latent of batch shape \(5, 3\)"):
        Reparameterized()(q, lambda z: z.sum(-1).unsqueeze(0))


def test_a_batch_without_examples_leaves_the_baseline_of_reinforce_alone() -> None:
    estimator = Reinforce()
    estimator(td.Bernoulli(logits=torch.zeros(0, 3)), lambda z: z.sum(-1))
    assert estimator.seen == 0
    assert estimator.baseline == 0


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
    pair, gradients = bits_and_gradients(DisArm(), logits, 1_000_000)
    for bits in pair:
        assert deviation(bits, probs) < INSIDE
    assert deviation(gradients, probs * (1 - probs)) < INSIDE


@pytest.mark.parametrize("estimator", [DisArm(), GumbelSoftmax(hard=True)], ids=["DisArm", "GumbelSoftmax"])
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
    value = Enumerate()(td.Bernoulli(logits=logits), lambda z: (1 - z).sum(-1))
    double = torch.tensor(logit, dtype=torch.float64)
    torch.testing.assert_close(value.double().squeeze(), torch.sigmoid(-double), rtol=1e-5, atol=0)


@pytest.mark.parametrize("member", [m for m in ALL_ESTIMATORS if "bernoulli" in m.families], ids=lambda m: m.name)
def test_saturated_probabilities_stay_finite_in_single_precision(member: Member) -> None:
    torch.manual_seed(0)
    decoder = LinearGaussian(3, 3)
    logits = torch.tensor([100.0, -100.0, 20.0]).expand(500, -1).clone().requires_grad_()
    value = member.build()(td.Bernoulli(logits=logits), integrand_of(decoder, X.float().expand(500, 3)))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.dtype == torch.float32
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def trained_reinforce(decoder: nn.Module, decay: float = 0.9, calls: int = 50) -> Reinforce:
    torch.manual_seed(5)
    estimator = Reinforce(decay)
    for _ in range(calls):
        estimator(latent_of("bernoulli", leaves_of("bernoulli", 64)), integrand_of(decoder, X.expand(64, 3)))
    return estimator


@pytest.mark.parametrize("rung", ["linear", "quadratic", "network"])
def test_the_baseline_of_reinforce_reduces_variance_without_bias(rung: str) -> None:
    decoder = decoder_of(rung, "bernoulli")
    fresh = replicate(Reinforce().eval(), decoder, "bernoulli")
    trained = replicate(trained_reinforce(decoder).eval(), decoder, "bernoulli")
    assert trained.gradient.var(0).sum() < 0.8 * fresh.gradient.var(0).sum()
    assert deviation(trained.gradient, truths(decoder, "bernoulli").gradient) < INSIDE


def test_the_baseline_of_reinforce_is_the_average_of_earlier_batches() -> None:
    """From the first batch on, without the pull towards zero that a running average starts with."""
    estimator, log_probs = Reinforce(decay=0.5), iter([torch.full((2,), value) for value in (-4.0, -8.0)])
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
    loaded = Reinforce(0.9)
    loaded.load_state_dict(saved)
    first, second = (replicate(e.eval(), decoder, "bernoulli") for e in (estimator, loaded))
    assert torch.equal(first.gradient, second.gradient)
    replicate(estimator.train(), decoder, "bernoulli")
    assert estimator.baseline != saved["baseline"]


@pytest.mark.parametrize("rung", ["quadratic", "network"])
def test_disarm_varies_less_than_two_independent_samples(rung: str) -> None:
    decoder = decoder_of(rung, "bernoulli")
    pair, independent = (replicate(e, decoder, "bernoulli").gradient.var(0).sum() for e in (DisArm(), Rloo(2)))
    assert pair < 0.95 * independent


@pytest.mark.parametrize("estimator", [Rloo(2), Rloo(5), DisArm()], ids=["Rloo 2", "Rloo 5", "DisArm"])
def test_estimators_that_compare_samples_give_a_constant_no_gradient(estimator: Estimator) -> None:
    """Not on average: in every replicate."""
    estimates = replicate(estimator, decoder_of("constant", "bernoulli"), "bernoulli")
    assert estimates.gradient.abs().max() < 1e-10


def test_more_samples_vary_less() -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    few, many = (replicate(Rloo(n), decoder, "bernoulli").gradient.var(0).sum() for n in (2, 8))
    assert many < few / 4


def test_a_colder_relaxation_is_less_biased_and_varies_more() -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    truth = truths(decoder, "bernoulli").gradient
    warm, cold = (replicate(GumbelSoftmax(t), decoder, "bernoulli").gradient for t in (1.0, 0.1))
    assert (cold.mean(0) - truth).norm() < (warm.mean(0) - truth).norm() / 2
    assert cold.var(0).sum() > warm.var(0).sum()


def test_the_temperature_follows_its_schedule() -> None:
    estimator = GumbelSoftmax(geometric(1.0, 0.5, 0.2))
    assert estimator.temperature == 1.0
    seen = []
    for epoch in (1, 2, 3, 4, 9):
        estimator.on_epoch(epoch)
        seen.append(estimator.temperature)
    assert seen == [1.0, 0.5, 0.25, 0.2, 0.2]
    fixed = GumbelSoftmax(0.7)
    fixed.on_epoch(100)
    assert fixed.temperature == 0.7


def test_a_hard_sample_is_of_bits_and_a_soft_one_lies_between() -> None:
    torch.manual_seed(0)
    q = td.Bernoulli(logits=torch.zeros(1000, 3))
    seen: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        seen.append(z)
        return z.sum(-1)

    for estimator in (GumbelSoftmax(hard=True), StraightThrough(), GumbelSoftmax()):
        estimator(q, log_prob)
    hard, straight, soft = seen
    for bits in (hard, straight):
        torch.testing.assert_close(bits, bits.round(), rtol=0, atol=1e-6)
    assert ((soft > 0.01) & (soft < 0.99)).float().mean() > 0.5


@EACH_ESTIMATOR
def test_a_wrong_latent_family_is_refused_by_name(member: Member) -> None:
    others = [f for f in PARAMETERS if f not in member.families]
    inner = getattr(member.build(), "estimator", member.build())  # that of an average, which knows its latents
    for family in others:
        q, decoder = latent_of(family, leaves_of(family)), decoder_of("quadratic", family)
        message = {
            "gaussian": f"{type(inner).__name__} is for Bernoulli.* latents, got Normal",
            "bernoulli": "Bernoulli cannot be reparameterized; for discrete latents choose GumbelSoftmax",
        }[family]
        with pytest.raises(sg.IntractableError, match=message):
            member.build()(q, integrand_of(decoder, X.unsqueeze(0)))


def test_exact_needs_a_closed_form() -> None:
    decoder = decoder_of("quadratic", "bernoulli")
    with pytest.raises(sg.IntractableError, match=r"pass integrand_of\(decoder, x\), or choose an estimator"):
        Exact()(latent_of("bernoulli", leaves_of("bernoulli")), lambda z: decoder(z).log_prob(X.unsqueeze(0)))


def test_enumerate_has_a_limit() -> None:
    calls: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z)
        return z.sum(-1)

    with pytest.raises(sg.IntractableError, match=r"2\^17 terms; its limit is 16 latents"):
        Enumerate()(td.Bernoulli(logits=torch.zeros(2, 17)), log_prob)
    assert len(calls) == 1  # the log-probability's shape tells how many latents there are
    calls.clear()
    with pytest.raises(sg.IntractableError, match=r"2\^3 terms; its limit is 2 latents"):
        Enumerate(largest=2)(td.Bernoulli(logits=torch.zeros(2, 3)), log_prob)
    calls.clear()
    value = Enumerate(largest=3)(td.Bernoulli(logits=torch.zeros(2, 3)), log_prob)
    assert len(calls) == 8
    assert value.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Reinforce(decay=1.0), r"decay has to be in \[0, 1\), got 1\.0"),
        (lambda: Reinforce(decay=-0.1), r"decay has to be in \[0, 1\), got -0\.1"),
        (lambda: Rloo(samples=1), "at least two samples, got 1"),
        (lambda: GumbelSoftmax(0.0), "temperature has to be positive, got 0"),
        (lambda: GumbelSoftmax(float("nan")), "temperature has to be positive, got nan"),
        (lambda: GumbelSoftmax(lambda epoch: 2.0 - epoch).on_epoch(2), "temperature has to be positive, got 0"),
        (lambda: Averaged(sg.Exact(), 4), "draws nothing: there is nothing to average"),
        (lambda: Averaged(Reparameterized(), 0), "at least one draw, got 0"),
        (lambda: Arms(samples=1), "at least two samples, got 1"),
        (lambda: DoubleCV(samples=1), "at least two samples, got 1"),
        (lambda: Vimco(samples=1), "at least two samples, got 1"),
        (lambda: Dreg(samples=0), "at least one sample, got 0"),
        (lambda: ReinMax(0.0), "temperature has to be positive, got 0"),
        (lambda: Rebar(0.0), "temperature has to be positive, got 0"),
        (lambda: GumbelRao(-1.0), "temperature has to be positive, got -1"),
        (lambda: GumbelRao(samples=0), "at least one draw of the noise, got 0"),
        (lambda: GappedStraightThrough(0.0), "temperature has to be positive, got 0"),
        (lambda: GappedStraightThrough(gap=-1.0), "gap has to be at least 0, got -1"),
        (lambda: Nvil(decay=1.0), r"decay has to be in \[0, 1\), got 1\.0"),
        (lambda: Imle(step=0.0), "step has to be positive, got 0"),
        (lambda: linear_decay(-0.1), r"between 0 and 1; got -0\.1"),
        (lambda: linear_decay(float("nan")), "between 0 and 1; got nan"),
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


def test_a_length_in_words_reaches_zero_at_its_end_and_not_before() -> None:
    for length in (1, 7, 49, 1000):  # 49 * (1 / 49) is not 1
        for decay in (linear_decay(steps=length), linear_decay(epochs=length)):
            assert decay(length) == 0.0
            assert decay(length - 0.5) > 0.0
            assert decay(1) == pytest.approx(1 - 1 / length)
    rise = linear_rise(epochs=4, value=2.0)
    assert [rise(epoch) for epoch in (0.5, 1, 4, 9)] == [0.25, 0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 1.5}, "between 0 and 1; got 1.5.*linear_decay\\(steps=...\\)"),
        ({"steps": 0}, "number of steps has to be positive"),
        ({"epochs": -3}, "number of epochs has to be positive"),
        ({"steps": float("inf")}, "positive and finite"),
        ({}, "in one way"),
        ({"steps": 10, "epochs": 2}, "in one way"),
    ],
)
def test_a_schedule_that_is_got_wrong_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(sg.DomainError, match=message):
        linear_decay(**arguments)
