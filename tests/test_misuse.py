"""Misuses of a guide: what its first call refuses, what it warns of, and honest uses that come near to them."""

import copy
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.func import functional_call, stack_module_state
from torch.utils.data import DataLoader, TensorDataset

import silentgrad as sg
from refusals import Refusals, refusals, refused
from silentgrad import likelihoods
from silentgrad.guide import SilentGuide, freeze
from silentgrad.lab.data import load
from silentgrad.schedules import constant, linear_decay

BATCH, LATENTS, SHAPE = 64, 3, (6, 6)
DECODERS = {
    "standardized": dict,
    "linear": lambda: {"link": "linear"},
    "exp": lambda: {"link": "exp"},
    "fixed": lambda: {"variance": 0.1},
    "bits": lambda: {"likelihood": likelihoods.Bernoulli()},
    "normal": lambda: {"likelihood": likelihoods.Normal(SHAPE)},
}


def new_guide(*arguments: Any, **options: Any) -> SilentGuide:
    return SilentGuide(LATENTS, SHAPE, constant(0.5), *arguments, **options)


def guide_of(name: str = "standardized", start: Tensor | None = None, **options: Any) -> SilentGuide:
    """A guide that is not as it was drawn."""
    torch.manual_seed(0)
    guide = new_guide(**DECODERS[name](), **options)
    nn.init.zeros_(guide.decoder.affine.bias)
    if start is not None:
        guide.init_from_data(start)
    return guide


X = torch.rand(BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))
BITS = (X > 0.5).float()
Q = td.Normal(torch.zeros(BATCH, LATENTS), torch.ones(BATCH, LATENTS))
IN_BITS = -td.Independent(td.Bernoulli(torch.full(SHAPE, 0.4)), 2).log_prob(BITS)
DIGITS = torch.zeros(64, 28, 28).bernoulli_(0.2, generator=torch.Generator().manual_seed(1))
DIGITS = DIGITS * torch.rand(64, 28, 28, generator=torch.Generator().manual_seed(2))  # mostly black, as digits are


def loss_of(x: Tensor, scale: float = 0.3) -> Tensor:
    """An untrained host's, with one mean for all."""
    return -td.Independent(td.Normal(0.5, scale).expand(x.shape[1:]), x.dim() - 1).log_prob(x)


NLL = loss_of(torch.rand(64, 14, 14, generator=torch.Generator().manual_seed(0)))
UNLIKE = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 3.0, 1000.0])
RARE = torch.zeros(64, 784).bernoulli_(0.002, generator=torch.Generator().manual_seed(0))
HOSTS = {  # untrained ones, with one number for all pixels, and the guide that suits them
    "squared error": (lambda x: (x - 0.5).square() / 2, {"variance": 1.0}),
    "a narrow Gaussian": (lambda x: -td.Normal(0.5, 0.05).log_prob(x), {"variance": 0.05**2}),
    "a wide one": (lambda x: -td.Normal(0.5, 1.0).log_prob(x), {}),
    "cross-entropy": (lambda x: -td.Bernoulli(0.4, validate_args=False).log_prob(x),
                      {"likelihood": likelihoods.Bernoulli()}),
}  # fmt: skip


def first(guide: SilentGuide, x: Tensor = X, nll: Tensor | None = None, time: dict[str, Any] | None = None) -> Tensor:
    """A call where training begins, unless it says otherwise."""
    return guide(x, td.Normal(Q.loc[: len(x)], 1.0), loss_of(x) if nll is None else nll, **(time or {"epoch": 1}))


def reduced(how: str, nll: Tensor, shape: tuple[int, ...] = (14, 14), options: dict[str, Any] | None = None) -> Tensor:
    """The first call of a guide, with a host's loss of some reduction."""
    options = dict(options or {})
    x, start = options.pop("x", torch.rand(64, *shape)), options.pop("start", None)
    guide = SilentGuide(LATENTS, shape, constant(0.5), how, **options)
    if start is not None:
        guide.init_from_data(start)
    return first(guide, x, nll)


def of_host(name: str, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    loss, options = HOSTS[name]
    return reduced("mean", reduce(loss(DIGITS).sum((1, 2))), (28, 28), {"x": DIGITS, **options})


@pytest.mark.filterwarnings("ignore:the guide starts at random")
@refusals
def test_misuses() -> Refusals:
    """What is warned of counts as an error here, as in all tests."""
    unit, log_p, over = "start it from data that are scaled", r"looks like log p\(x\|z\): pass", "mean over the outputs"
    far, of_bits = r"deviations from the.*pixels from 0 to 255", r"x is 0 or 1 in 100%.*likelihoods\.Bernoulli\(\)"
    plain = {"likelihood": lambda u: td.Bernoulli(logits=u, validate_args=False), "allow_approximation": True}
    masked = torch.where(X > 0.25, BITS, X), IN_BITS, {"epoch": 1, "mask": X > 0.25}
    cases: dict[str, Any] = {
        "bits in 0 to 255": (sg.DomainError, "takes x between 0 and 1", first, (guide_of("bits"), 255 * X)),
        "a start of bits": (sg.DomainError, "0 and 1; the data to start", guide_of("bits").init_from_data, (255 * X,)),
        "a plain likelihood": (sg.DomainError, "a probability above 1", first, (new_guide(**plain), 255 * X)),
        "x in a smaller unit": (sg.DomainError, unit, first, (guide_of(start=255 * X), X)),
        "x in a larger unit": (sg.DomainError, unit, first, (guide_of(start=X), 255 * X, loss_of(X))),
        "log p of bits": (sg.DomainError, log_p, first, (guide_of("bits"), BITS, -IN_BITS)),
        "masked bits": (UserWarning, "x is 0 or 1", first, (guide_of(), *masked)),
        "a scalar for each": (sg.ShapeError, r"shape \(\).*has to be \(64,\)", reduced, ("none", NLL.mean())),
        "each for a mean": (sg.ShapeError, r"shape \(64,\).*has to be \(\)", reduced, ("mean", NLL)),
        "a column": (sg.ShapeError, r"\(64, 1\)", reduced, ("none", NLL[:, None])),
        "each output's": (sg.ShapeError, "Sum it over", reduced, ("none", NLL[:, None, None].expand(-1, 14, 14))),
        "another batch's": (sg.ShapeError, r"\(3,\)", reduced, ("none", NLL[:3])),
        "a sum for a mean": (UserWarning, "reduction='sum'.*small variance", reduced, ("mean", NLL.sum())),
        "a mean for a sum": (UserWarning, "batch or the outputs", reduced, ("sum", NLL.mean())),
        "a mean for a sum of 3072": (UserWarning, "batch or", reduced, ("sum", torch.tensor(3500.0), (3072,))),
        "a mean over outputs": (UserWarning, over, reduced, ("mean", NLL.mean() / 196)),
        "a mean over outputs of each": (UserWarning, over, reduced, ("none", NLL / 196)),
        "a mean over everything": (UserWarning, "batch or the outputs", reduced, ("sum", NLL.mean() / 196)),
        "NaN": (sg.DomainError, "nll is NaN", reduced, ("none", NLL * float("nan"))),
    }
    for name in ("standardized", "linear", "exp", "fixed"):
        cases[f"pixels in 0 to 255, {name}"] = sg.DomainError, far, first, (guide_of(name), 255 * X, loss_of(X))
        summed = guide_of(name, reduction="sum"), BITS, IN_BITS.sum()
        cases[f"a cross-entropy, {name}"] = UserWarning, of_bits, first, (guide_of(name), BITS, IN_BITS)
        cases[f"a sum of cross-entropies, {name}"] = UserWarning, of_bits, first, summed
    for variance in (1.0, 0.01):
        fixed = new_guide("sum", variance=variance), X, -loss_of(X, variance**0.5).sum(), {"step": 3}
        cases[f"log p of variance {variance}"] = sg.DomainError, log_p, first, fixed
    for name in HOSTS:
        cases[f"a sum over the batch, {name}"] = UserWarning, "a sum over the batch", of_host, (name, torch.sum)
    return {name: (error, said, partial(call, *given)) for name, (error, said, call, given) in cases.items()}


def honest() -> dict[str, Any]:
    near, sums = 0.5 + 0.02 * X, {"none": lambda t: t, "mean": torch.mean, "sum": torch.sum}
    rare = {"likelihood": likelihoods.Bernoulli(), "x": RARE, "start": RARE}
    strange = new_guide(likelihood=lambda u: td.Normal(u, 0.3), allow_approximation=True)
    cases: dict[str, Any] = {
        "a start in x's unit": (first, (guide_of(start=255 * X), 255 * X, loss_of(X))),
        "bits for a guide of bits": (first, (guide_of("bits"), BITS, IN_BITS)),
        "bits, unchecked": (first, (guide_of(check=False), BITS, IN_BITS)),
        "a density of bits": (first, (guide_of(), BITS, IN_BITS.index_fill(0, torch.tensor([3]), -1.0))),
        "a negative density, later": (first, (guide_of(), X, -loss_of(X, 1.0), {"step": 500})),
        "a negative density, unchecked": (first, (guide_of(check=False), X, -loss_of(X, 1.0), {"step": 1})),
        "a narrow density": (first, (guide_of(start=near), near, loss_of(near, 0.02), {"step": 1})),
        "a likelihood without a start": (first, (strange,)),
        "a sum of 3072": (reduced, ("sum", torch.tensor(64 * 3500.0), (3072,))),
        "a sum of rare bits": (reduced, ("sum", -td.Bernoulli(RARE.mean()).log_prob(RARE).sum(), (784,), rare)),
        "a mean over outputs, unchecked": (reduced, ("mean", NLL.mean() / 196, (14, 14), {"check": False})),
    }
    for number, other in enumerate((torch.where(X > 0.9, X / X.max(), 0), 2 * BITS, BITS - 0.5, torch.zeros_like(X))):
        cases[f"nearly bits {number}"] = first, (guide_of(), other, IN_BITS)
    for name in ("standardized", "linear", "exp", "fixed"):
        cases[f"pixels in 0 to 255, unchecked, {name}"] = first, (guide_of(name, check=False), 255 * X, loss_of(X))
    for variance in (1.0, 0.01):
        guide = new_guide("sum", variance=variance)
        cases[f"-log p of variance {variance}"] = first, (guide, X, loss_of(X, variance**0.5).sum(), {"step": 3})
    for factor in (0.3, 1.0, 3.0):
        cases |= {f"{factor} {how}": (reduced, (how, factor * reduce(NLL))) for how, reduce in sums.items()}
    return cases | {f"a mean over the batch, {name}": (of_host, (name, torch.mean)) for name in HOSTS}


@pytest.mark.filterwarnings("ignore:the guide starts at random")
@pytest.mark.parametrize("case", honest())
def test_honest_uses_that_come_near_to_them(case: str) -> None:
    call, given = honest()[case]
    assert call(*given).isfinite().all()


def warned() -> dict[str, Any]:
    """Message and call, and whether a second one is silent."""
    start = r"starts at random.*guide\.init_from_data\(data\)"
    fresh = {n: new_guide(**d()) for n, d in DECODERS.items()}
    negative, sign = guide_of(), r"Is it log p\(x\|z\) in place of -log p\(x\|z\)"
    cases = {f"a random start, {n}": (start, lambda g=g: g(X, Q, loss_of(X), epoch=1), True) for n, g in fresh.items()}
    cases["a negative loss"] = sign, lambda: negative(X, Q, -loss_of(X, 1.0), step=1), True
    unlike = SilentGuide(2, 4, constant(0.5)), r"differ in scale by a factor of 1e\+03.*standard deviation"
    cases["columns in unlike units"] = unlike[1], lambda: unlike[0].init_from_data(UNLIKE), False
    for name, count in itertools.product(DECODERS, (1, LATENTS - 1, LATENTS)):  # with a principal component less each
        said, guide = f"{count} examples have at most {count - 1} principal components", guide_of(name)
        cases[f"{count} examples, {name}"] = said, lambda g=guide, n=count: g.init_from_data(X[:n]), False
    return cases


@pytest.mark.parametrize("case", warned())
def test_warnings_name_the_callers_line(case: str) -> None:
    message, call, once = warned()[case]
    with pytest.warns(UserWarning, match=message) as shown:
        call()
    assert [warning.filename for warning in shown] == [__file__]
    if once:
        call()


def test_starts_that_are_not_warned_of() -> None:
    SilentGuide(2, 4, constant(0.5)).init_from_data(UNLIKE / UNLIKE.std(0))
    SilentGuide(2, 4, constant(0.5), check=False).init_from_data(UNLIKE)
    SilentGuide(2, 4, constant(0.5), likelihood=likelihoods.Poisson()).init_from_data(UNLIKE.abs().round())
    for name in DECODERS:
        guide_of(name).init_from_data(X[: LATENTS + 1])
        guide_of(name, check=False).init_from_data(X[:2])
    guide_of("bits").init_from_data(X[:2], method="mean")
    digits = load("digits")  # pixels that are nearly always black are no columns in unlike units
    for generator in (None, torch.Generator().manual_seed(0)):
        x = digits.as_seen(digits.rows("train"), generator)
        SilentGuide(LATENTS, digits.event_shape, constant(0.5)).init_from_data(x)


def test_a_guide_that_was_started_loaded_or_trained_does_not_start_at_random() -> None:
    started, loaded, assigned, trained = (new_guide() for _ in range(4))
    started.init_from_data(X, method="mean")
    loaded.load_state_dict(new_guide().state_dict())
    assigned.load_state_dict(new_guide().state_dict(), assign=True)
    trained.decoder.expected_log_prob(X, Q).sum().backward()
    torch.optim.SGD(trained.parameters(), lr=1e-3).step()
    for guide in (started, loaded, assigned, trained, copy.deepcopy(started), new_guide(check=False)):
        guide(X, Q, loss_of(X), epoch=3)
    moved = new_guide().double()
    wide = td.Normal(Q.loc.double(), Q.scale.double())
    with pytest.warns(UserWarning, match="starts at random"):
        moved(X.double(), wide, loss_of(X), epoch=1)
    with torch.device("meta"):
        meta = new_guide()
    meta.load_state_dict(started.state_dict(), assign=True)
    meta(X, Q, loss_of(X), epoch=1)


# By the variance of the host and how it reduces its loss: a narrow one has a large loss, others one near zero.
VARIANCES, REDUCED = (1.0, 0.01, 1e-4), {"mean": torch.mean, "sum": torch.sum}


def train_on_batches(variance: float, reduce: Callable[[Tensor], Tensor], guide: SilentGuide, sizes: list[int]) -> None:
    torch.manual_seed(0)
    for step, size in enumerate(sizes, start=1):
        x = torch.rand(size, *SHAPE)
        first(guide, x, reduce(loss_of(x, variance**0.5)), {"step": step})


@pytest.mark.filterwarnings("ignore:nll is", "ignore:the guide starts at random")
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("said", REDUCED)
@pytest.mark.parametrize("done", REDUCED)
def test_batches_of_different_sizes_tell_the_reduction(said: str, done: str, variance: float) -> None:
    guide = new_guide(said)
    train_on_batches(variance, REDUCED[done], guide, [64, 64, 20])
    if said == done:
        train_on_batches(variance, REDUCED[done], guide, [64, 64, 20, 64, 8, 64])
        return
    with pytest.raises(sg.DomainError, match=f"it is a {done} over the batch, not a {said}. Say reduction='{done}'"):
        train_on_batches(variance, REDUCED[done], guide, [64])
    unchecked = new_guide(said, check=False)
    train_on_batches(variance, REDUCED[done], unchecked, [64, 20, 64])


@pytest.mark.filterwarnings("ignore:nll is", "ignore:the guide starts at random")
def test_batches_that_tell_nothing_of_the_reduction_are_let_be() -> None:
    for sizes in ([64, 64, 64], [64, 40, 64], [64, 3, 64]):
        train_on_batches(1.0, torch.sum, new_guide("mean"), sizes)
    guide = new_guide("mean")
    for size, nll in ((64, 0.3), (16, -0.2), (64, 0.0), (16, 0.05), (64, 1.5)):  # a density's, around zero
        first(guide, X[:size], torch.tensor(nll), {"step": 2})


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
    "a rate of 0": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "a rate of 0, fused": lambda parameters: torch.optim.Adam(parameters, lr=0.0, fused=True),
}


def train(guide: SilentGuide, optimizer: torch.optim.Optimizer, batches: int = 140, accumulated: int = 1) -> None:
    """Trains on the same batch time after time, with an optimizer that also has the host's parameter."""
    loc = nn.Parameter(torch.zeros(BATCH, LATENTS))
    optimizer.add_param_group({"params": [loc]})
    for count in range(1, batches + 1):
        guide(X, td.Normal(loc, 1.0), loss_of(X), step=count).mean().backward()
        if count % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()


def no_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-3)


def test_a_guide_that_no_optimizer_moves_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match=r"after 128 calls no optimizer has moved.*guide.parameters\(\)") as shown:
        train(guide_of(), no_optimizer(), batches=300)
    assert [warning.filename for warning in shown] == [__file__]


def test_an_epoch_is_long_enough_to_see_it() -> None:
    guide = guide_of()
    for _ in range(20):
        guide(X, Q, loss_of(X), epoch=1).mean().backward()
    with pytest.warns(UserWarning, match="after 20 calls no optimizer has moved"):
        guide(X, Q, loss_of(X), epoch=2)


@pytest.mark.parametrize(("name", "accumulated"), [*((name, 1) for name in OPTIMIZERS), ("Adam", 64)])
def test_an_optimizer_may_move_it_by_nothing_or_seldom(name: str, accumulated: int) -> None:
    guide = guide_of()
    train(guide, OPTIMIZERS[name](guide.parameters()), accumulated=accumulated)


def test_a_guide_that_is_not_to_learn_is_let_be() -> None:
    frozen = guide_of().requires_grad_(False)
    train(frozen, no_optimizer())
    train(guide_of(check=False), no_optimizer())
    asked = guide_of()
    for count in range(1, 141):  # an analysis: no gradient is left behind
        torch.autograd.grad(asked(X, Q, loss_of(X), step=count).mean(), list(asked.parameters()))
    unmoved = guide_of()
    with torch.no_grad():
        for count in range(1, 141):
            unmoved(X, Q, loss_of(X), step=count)


def test_in_eval_mode_the_loss_is_the_hosts() -> None:
    guide, nll = guide_of(), loss_of(X)
    assert guide.eval()(X, Q, nll) is nll
    guide.train()
    refused(sg.DomainError, r"requires_grad_\(False\)", lambda: freeze(guide))
    assert guide.training


def test_data_to_start_from_that_are_no_tensor_and_the_remedies() -> None:
    pairs, same = TensorDataset(X, torch.zeros(BATCH)), guide_of()
    for data, message in (
        (DataLoader(pairs), r"DataLoader: pass torch.cat\(\[x for x, \*_ in loader\]\)"),
        (pairs, r"TensorDataset: pass torch.stack\(\[x for x, \*_ in dataset\]\)"),
        (X.numpy(), r"ndarray: pass torch.as_tensor\(data\)"),
        ((255 * X).byte(), "floating point and scaled alike; got torch.uint8"),
    ):
        refused(sg.DomainError, message, partial(guide_of().init_from_data, data))
    same.init_from_data(X)
    for data in (torch.cat([x for x, *_ in DataLoader(pairs, batch_size=8)]), torch.stack([x for x, *_ in pairs])):
        guide = guide_of()
        guide.init_from_data(data)
        assert torch.equal(guide.decoder.affine.weight, same.decoder.affine.weight)


def test_a_schedule_that_is_no_function_or_was_not_called() -> None:
    named = r"linear_decay\(steps=\.\.\.\), and constant"
    for schedule in (0.5, None, "linear"):
        refused(sg.DomainError, named, partial(SilentGuide, LATENTS, SHAPE, schedule))
    for schedule in (0.5, "linear"):
        refused(sg.DomainError, named, partial(sg.GuidedVAE, nn.Identity(), sg.LinearGaussian(2, 3), schedule=schedule))
    refused(sg.DomainError, "call it first", lambda: SilentGuide(LATENTS, SHAPE, linear_decay).weight(epoch=1))


@pytest.mark.parametrize("name", DECODERS)
def test_precisions(name: str) -> None:
    """Half is widened, and double needs a guide in double."""
    guide, nll = guide_of(name), loss_of(X)
    wide = td.Normal(Q.loc.double(), Q.scale.double())
    half = guide(X.half(), td.Normal(Q.loc.half(), Q.scale.half()), nll.half(), epoch=1)
    mixed = guide(X, Q, nll.double(), epoch=1)
    truth = guide.double()(X.double(), wide, nll.double(), epoch=1)
    torch.testing.assert_close(half.double(), truth, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(mixed, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_vmap_over_guides_and_over_examples(name: str) -> None:
    guides, nll = [guide_of(name) for _ in range(3)], loss_of(X)
    for guide in guides[1:]:
        guide.init_from_data(X)
    state = stack_module_state(guides)  # type: ignore[arg-type]
    expected = torch.stack([guide(X, Q, nll, epoch=1) for guide in guides])
    found = torch.vmap(lambda *state: functional_call(guides[0], state, (X, Q, nll), {"epoch": 1}))(*state)
    torch.testing.assert_close(found, expected)
    for guide in (guides[0], guide_of(name, check=False)):
        alone = torch.vmap(lambda x, loc, scale, nll, own=guide: own(x, td.Normal(loc, scale), nll, epoch=1))
        torch.testing.assert_close(alone(X, Q.loc, Q.scale, nll), expected[0])
        refused(sg.DomainError, "nll is NaN", partial(alone, X, Q.loc, Q.scale, nll * float("nan")))


def unregistered() -> dict[str, tuple[td.Distribution, str, bool]]:
    """A latent, the estimator that it could be sampled by, and whether its moments are there to be registered."""
    normal, one = td.Normal(torch.zeros(BATCH, 2, LATENTS), 1.0), torch.ones(BATCH, LATENTS)
    which = td.Categorical(torch.ones(BATCH, 2))
    return {
        "a flow": (td.TransformedDistribution(td.Normal(one, 1.0), [td.TanhTransform()]), "Reparameterized", False),
        "a mixture": (td.MixtureSameFamily(which, td.Independent(normal, 1)), "RLOO", False),
        "no mean": (td.Cauchy(one, 1.0), "Reparameterized", False),
        "a Dirichlet": (td.Dirichlet(one), "Reparameterized", False),
        "a Weibull": (td.Weibull(one, 2.0), "Reparameterized", True),
    }


@pytest.mark.parametrize("case", unregistered())
def test_a_latent_without_a_closed_form(case: str) -> None:
    q, estimator, known = unregistered()[case]
    told = rf"{type(q).__name__}[\s\S]*Bernoulli, Beta[\s\S]*silentgrad.{estimator}\(\)"
    message = refused(sg.errors.UnregisteredLatentError, told, lambda: guide_of()(X, q, loss_of(X), epoch=1))
    assert ("central_moments.register" in message) == known
    sampled: sg.Estimator = getattr(sg.estimators, estimator)()
    assert sampled(q, lambda z: z.sum(-1)).shape == (BATCH,)


def test_the_exponential_link_names_decoders_that_need_less() -> None:
    tails = td.StudentT(5.0, torch.zeros(BATCH, LATENTS))
    told, asked = "need its mean and variance only", lambda: guide_of("exp")(X, tails, loss_of(X), epoch=1)
    assert "register(" not in refused(sg.errors.UnregisteredLatentError, told, asked)
    assert guide_of()(X, tails, loss_of(X), epoch=1).isfinite().all()


SNIPPET = """
from typing import assert_type
import torch
from torch import Tensor
from torch.distributions import Normal
import silentgrad as sg
from silentgrad.schedules import linear_decay

x, nll, q = torch.rand(5, 4), torch.ones(5), Normal(torch.zeros(5, 2), torch.ones(5, 2))
guide = sg.SilentGuide(2, 4, linear_decay(steps=10))
assert_type(guide(x, q, nll, step=1, mask=x > 0), Tensor)
assert_type(sg.Guide(sg.LinearGaussian(2, 4), linear_decay(epochs=10))(x, q, nll, epoch=1), Tensor)
assert_type(sg.Reparameterized()(q, lambda z: z.sum(-1)), Tensor)
assert_type(sg.RLOO()(q, lambda z: z.sum(-1)), Tensor)
guide(x, q)  # line 15
sg.RLOO()(q)  # line 16
"""


def test_calls_are_typed(tmp_path: Path) -> None:
    """In a process of its own: what mypy leaves in memory makes every later collection of garbage take seconds."""
    project, module = Path(__file__).parents[1], tmp_path / "host.py"
    module.write_text(SNIPPET)
    options = [f"--config-file={project / 'pyproject.toml'}", f"--cache-dir={project / '.mypy_cache'}"]
    found = subprocess.run([sys.executable, "-m", "mypy", *options, module], capture_output=True, text=True)
    assert not found.stderr
    first, second, _ = found.stdout.splitlines()
    assert "host.py:15: error: Too few arguments" in first
    assert 'host.py:16: error: Missing positional argument "integrand"' in second
    assert Path(sg.__file__).with_name("py.typed").exists()
