"""Misuses of a guide: what its first call refuses, what it warns of, and honest uses that come near to them."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.func import functional_call, stack_module_state
from torch.utils.data import DataLoader, TensorDataset

import silentgrad as sg
from refusals import refused
from silentgrad import likelihoods
from silentgrad.guide import SilentGuide, freeze
from silentgrad.guided import GuidedVAE
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


def guide_of(name: str = "standardized", **options: object) -> SilentGuide:
    torch.manual_seed(0)
    guide = SilentGuide(LATENTS, SHAPE, constant(0.5), **DECODERS[name](), **options)
    nn.init.zeros_(guide.decoder.affine.bias)  # so that it is not as it was drawn
    return guide


@pytest.fixture
def x() -> Tensor:
    return torch.rand(BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def q() -> td.Normal:
    return td.Normal(torch.zeros(BATCH, LATENTS), torch.ones(BATCH, LATENTS))


def loss_of(x: Tensor, scale: float = 0.3) -> Tensor:
    """An untrained host's, with one mean for all."""
    return -td.Independent(td.Normal(0.5, scale).expand(SHAPE), 2).log_prob(x)


# --- the scale of x


@pytest.mark.parametrize("name", ["standardized", "linear", "exp", "fixed"])
def test_pixels_in_0_to_255_are_refused(name: str, x: Tensor, q: td.Normal) -> None:
    with pytest.raises(sg.DomainError, match=r"deviations from the linear decoder's mean.*pixels from 0 to 255"):
        guide_of(name)(255 * x, q, loss_of(x), epoch=1)
    assert guide_of(name, check=False)(255 * x, q, loss_of(x), epoch=1).isfinite().all()


def test_bits_in_0_to_255_are_refused(x: Tensor, q: td.Normal) -> None:
    refused(sg.DomainError, "takes x between 0 and 1", lambda: guide_of("bits")(255 * x, q, loss_of(x), epoch=1))
    with pytest.raises(sg.DomainError, match=r"x between 0 and 1; the data to start from"):
        guide_of("bits").init_from_data(255 * x)
    plain = {"likelihood": lambda u: td.Bernoulli(logits=u, validate_args=False), "allow_approximation": True}
    unchecked = SilentGuide(LATENTS, SHAPE, constant(0.5), **plain)
    refused(sg.DomainError, "a probability above 1", lambda: unchecked(255 * x, q, loss_of(x), epoch=1))


def test_a_learned_variance_takes_any_scale_that_it_started_from(x: Tensor, q: td.Normal) -> None:
    guide = guide_of()
    guide.init_from_data(255 * x)
    assert guide(255 * x, q, loss_of(x), epoch=1).isfinite().all()


@pytest.mark.parametrize(("started", "seen"), [(255.0, 1.0), (1.0, 255.0)])
def test_x_in_other_units_than_the_start_is_refused(started: float, seen: float, x: Tensor, q: td.Normal) -> None:
    guide = guide_of()
    guide.init_from_data(started * x)
    with pytest.raises(sg.DomainError, match="start it from data that are scaled as x is"):
        guide(seen * x, q, loss_of(x), epoch=1)
    assert guide(started * x, q, loss_of(x), epoch=1).isfinite().all()


def test_columns_in_unlike_units_are_warned_of() -> None:
    torch.manual_seed(0)
    data = torch.randn(200, 4) * torch.tensor([1.0, 2.0, 3.0, 1000.0])
    guide = SilentGuide(2, 4, constant(0.5))
    with pytest.warns(UserWarning, match="differ in scale by a factor of 1e\\+03.*standard deviation"):
        guide.init_from_data(data)
    guide.init_from_data(data / data.std(0))
    SilentGuide(2, 4, constant(0.5), check=False).init_from_data(data)
    SilentGuide(2, 4, constant(0.5), likelihood=likelihoods.Poisson()).init_from_data(data.abs().round())


def test_pixels_that_are_nearly_always_black_are_not_unlike_columns() -> None:
    digits = load("digits")
    for generator in (None, torch.Generator().manual_seed(0)):
        x = digits.as_seen(digits.rows("train"), generator)
        SilentGuide(LATENTS, digits.event_shape, constant(0.5)).init_from_data(x)


# --- how the guide starts


@pytest.mark.parametrize("name", DECODERS)
def test_a_guide_that_starts_at_random_is_warned_of_once(name: str, x: Tensor, q: td.Normal) -> None:
    guide = SilentGuide(LATENTS, SHAPE, constant(0.5), **DECODERS[name]())
    with pytest.warns(UserWarning, match=r"starts at random.*guide\.init_from_data\(data\)") as shown:
        guide(x, q, loss_of(x), epoch=1)
    assert [warning.filename for warning in shown] == [__file__]
    guide(x, q, loss_of(x), epoch=1)


def test_a_guide_that_was_started_loaded_or_trained_does_not_start_at_random(x: Tensor, q: td.Normal) -> None:
    def new(**options: object) -> SilentGuide:
        return SilentGuide(LATENTS, SHAPE, constant(0.5), **options)

    started, loaded, assigned, trained = new(), new(), new(), new()
    started.init_from_data(x, method="mean")
    loaded.load_state_dict(new().state_dict())
    assigned.load_state_dict(new().state_dict(), assign=True)
    trained.decoder.expected_log_prob(x, q).sum().backward()
    torch.optim.SGD(trained.parameters(), lr=1e-3).step()
    for guide in (started, loaded, assigned, trained, copy.deepcopy(started), new(check=False)):
        guide(x, q, loss_of(x), epoch=3)
    moved = new().double()
    wide = td.Normal(q.loc.double(), q.scale.double())
    with pytest.warns(UserWarning, match="starts at random"):
        moved(x.double(), wide, loss_of(x), epoch=1)
    with torch.device("meta"):
        meta = new()
    meta.load_state_dict(started.state_dict(), assign=True)
    meta(x, q, loss_of(x), epoch=1)


def test_a_likelihood_without_a_start_may_start_at_random(x: Tensor, q: td.Normal) -> None:
    guide = SilentGuide(LATENTS, SHAPE, constant(0.5), likelihood=lambda u: td.Normal(u, 0.3), allow_approximation=True)
    guide(x, q, loss_of(x), epoch=1)


@pytest.mark.parametrize("name", DECODERS)
def test_fewer_examples_than_latents_are_warned_of(name: str, x: Tensor) -> None:
    for count in (1, LATENTS - 1, LATENTS):  # n examples have n - 1 principal components
        with pytest.warns(
            UserWarning, match=f"{count} examples have at most {count - 1} principal components"
        ) as shown:
            guide_of(name).init_from_data(x[:count])
        assert [warning.filename for warning in shown] == [__file__]
    guide_of(name).init_from_data(x[: LATENTS + 1])
    guide_of(name, check=False).init_from_data(x[:2])
    guide_of("bits").init_from_data(x[:2], method="mean")


@pytest.mark.parametrize("name", ["standardized", "linear", "exp", "fixed"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_gaussian_guide_of_a_cross_entropy_is_warned_of(name: str, reduction: str, x: Tensor, q: td.Normal) -> None:
    bits = (x > 0.5).float()
    nll = nn.functional.binary_cross_entropy_with_logits(x - 0.5, bits, reduction="none").sum((1, 2))
    if reduction == "sum":
        nll = nll.sum()
    with pytest.warns(UserWarning, match=r"x is 0 or 1 in 100%.*likelihood=silentgrad\.likelihoods\.Bernoulli\(\)"):
        guide_of(name, reduction=reduction)(bits, q, nll, epoch=1)


def test_other_data_than_bits_suit_a_gaussian_guide(x: Tensor, q: td.Normal) -> None:
    bits, nll = (x > 0.5).float(), torch.full((BATCH,), 30.0)
    guide_of("bits")(bits, q, nll, epoch=1)
    guide_of(check=False)(bits, q, nll, epoch=1)
    guide_of()(bits, q, nll.index_fill(0, torch.tensor([3]), -1.0), epoch=1)  # a density's
    for other in (torch.where(x > 0.9, x, 0), 2 * bits, bits - 0.5, torch.zeros_like(x)):
        guide_of()(other, q, nll, epoch=1)
    mask = x > 0.25
    with pytest.warns(UserWarning, match="x is 0 or 1"):
        guide_of()(torch.where(mask, bits, x), q, nll, epoch=1, mask=mask)


# --- the sign of the loss


def test_log_p_of_bits_is_refused(x: Tensor, q: td.Normal) -> None:
    bits = (x > 0.5).float()
    nll = -td.Independent(td.Bernoulli(torch.full(SHAPE, 0.4)), 2).log_prob(bits)
    refused(sg.DomainError, r"looks like log p\(x\|z\): pass -log p", lambda: guide_of("bits")(bits, q, -nll, epoch=7))
    assert guide_of("bits")(bits, q, nll, epoch=7).isfinite().all()


@pytest.mark.parametrize("variance", [1.0, 0.01])
def test_log_p_of_a_fixed_variance_is_refused(variance: float, x: Tensor, q: td.Normal) -> None:
    guide = SilentGuide(LATENTS, SHAPE, constant(0.5), "sum", variance=variance)
    nll = loss_of(x, variance**0.5).sum()
    refused(sg.DomainError, r"looks like log p\(x\|z\)", lambda: guide(x, q, -nll, step=3))
    guide.init_from_data(x)
    assert guide(x, q, nll, step=3).isfinite()


def test_log_p_of_a_density_is_warned_of_once_and_where_training_begins(x: Tensor, q: td.Normal) -> None:
    guide, nll = guide_of(), loss_of(x, 1.0)
    with pytest.warns(UserWarning, match=r"Is it log p\(x\|z\) in place of -log p\(x\|z\)") as shown:
        guide(x, q, -nll, step=1)
    assert [warning.filename for warning in shown] == [__file__]
    guide(x, q, -nll, step=1)
    guide_of()(x, q, -nll, step=500)  # a run that goes on may have learned it
    guide_of(check=False)(x, q, -nll, step=1)


def test_a_narrow_density_may_be_negative(x: Tensor, q: td.Normal) -> None:
    guide, near = guide_of(), 0.5 + 0.02 * x
    guide.init_from_data(near)
    assert loss_of(near, 0.02).mean() < 0
    guide(near, td.Normal(q.loc, 0.1), loss_of(near, 0.02), step=1)


# --- parameters that no optimizer moves

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
    "a rate of 0": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "a rate of 0, fused": lambda parameters: torch.optim.Adam(parameters, lr=0.0, fused=True),
}


def train(guide: SilentGuide, optimizer: torch.optim.Optimizer, x: Tensor, batches: int, accumulated: int = 1) -> None:
    """Trains on the same batch time after time, with an optimizer that also has the host's parameter."""
    loc = nn.Parameter(torch.zeros(BATCH, LATENTS))
    optimizer.add_param_group({"params": [loc]})
    for count in range(1, batches + 1):
        guide(x, td.Normal(loc, 1.0), loss_of(x), step=count).mean().backward()
        if count % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()


def no_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1e-3)


def test_a_guide_that_no_optimizer_moves_is_warned_of_once(x: Tensor) -> None:
    with pytest.warns(UserWarning, match=r"after 128 calls no optimizer has moved.*guide.parameters\(\)") as shown:
        train(guide_of(), no_optimizer(), x, batches=300)
    assert [warning.filename for warning in shown] == [__file__]


def test_an_epoch_is_long_enough_to_see_it(x: Tensor, q: td.Normal) -> None:
    guide = guide_of()
    for _ in range(20):
        guide(x, q, loss_of(x), epoch=1).mean().backward()
    with pytest.warns(UserWarning, match="after 20 calls no optimizer has moved"):
        guide(x, q, loss_of(x), epoch=2)


@pytest.mark.parametrize(("name", "accumulated"), [*((name, 1) for name in OPTIMIZERS), ("Adam", 64)])
def test_an_optimizer_may_move_it_by_nothing_or_seldom(name: str, accumulated: int, x: Tensor) -> None:
    guide = guide_of()
    train(guide, OPTIMIZERS[name](guide.parameters()), x, batches=140, accumulated=accumulated)


def test_a_guide_that_is_not_to_learn_is_let_be(x: Tensor, q: td.Normal) -> None:
    frozen = guide_of().requires_grad_(False)
    train(frozen, no_optimizer(), x, batches=140)
    train(guide_of(check=False), no_optimizer(), x, batches=140)
    asked = guide_of()
    for count in range(1, 141):  # an analysis: no gradient is left behind
        torch.autograd.grad(asked(x, q, loss_of(x), step=count).mean(), list(asked.parameters()))
    with torch.no_grad():
        for count in range(1, 141):
            guide_of()(x, q, loss_of(x), step=count)


# --- eval mode


def test_in_eval_mode_the_loss_is_the_hosts(x: Tensor, q: td.Normal) -> None:
    guide, nll = guide_of(), loss_of(x)
    guided = guide(x, q, nll, epoch=1)
    guide.eval()
    assert guide(x, q, nll, epoch=1) is nll
    assert guide(x, q, nll) is nll
    assert torch.equal(guide.train()(x, q, nll, epoch=1), guided)
    refused(sg.DomainError, r"requires_grad_\(False\)", lambda: freeze(guide))
    assert guide.training


# --- inputs that are something else


class Pairs(TensorDataset):
    """Examples and their labels."""


def test_data_to_start_from_that_are_no_tensor_and_the_remedies(x: Tensor) -> None:
    pairs, same = Pairs(x, torch.zeros(BATCH)), guide_of()
    for data, message in (
        (DataLoader(pairs), r"DataLoader: pass torch.cat\(\[x for x, \*_ in loader\]\)"),
        (pairs, r"Pairs: pass torch.stack\(\[x for x, \*_ in dataset\]\)"),
        (x.numpy(), r"ndarray: pass torch.as_tensor\(data\)"),
        ((255 * x).byte(), "floating point and scaled alike; got torch.uint8"),
    ):
        with pytest.raises(sg.DomainError, match=message):
            guide_of().init_from_data(data)
    same.init_from_data(x)
    for data in (torch.cat([x for x, *_ in DataLoader(pairs, batch_size=8)]), torch.stack([x for x, *_ in pairs])):
        guide = guide_of()
        guide.init_from_data(data)
        assert torch.equal(guide.decoder.affine.weight, same.decoder.affine.weight)


def test_a_schedule_that_is_no_function_or_was_not_called() -> None:
    for schedule in (0.5, None, "linear"):
        with pytest.raises(sg.DomainError, match=r"linear_decay\(steps=\.\.\.\), and constant"):
            SilentGuide(LATENTS, SHAPE, schedule)
    for schedule in (0.5, "linear"):
        with pytest.raises(sg.DomainError, match=r"linear_decay\(steps=\.\.\.\), and constant"):
            GuidedVAE(nn.Identity(), sg.LinearGaussian(2, 3), schedule=schedule)
    refused(sg.DomainError, "call it first", lambda: SilentGuide(LATENTS, SHAPE, linear_decay).weight(epoch=1))


@pytest.mark.parametrize("name", DECODERS)
def test_precisions(name: str, x: Tensor, q: td.Normal) -> None:
    """Half is widened, double needs a guide in double, and a mixture of the two is named."""
    guide, nll = guide_of(name), loss_of(x)
    wide = td.Normal(q.loc.double(), q.scale.double())
    with pytest.raises(sg.DomainError, match=r"x is torch.float64, the decoder torch.float32"):
        guide(x.double(), q, nll, epoch=1)
    with pytest.raises(sg.DomainError, match=r"the latent is torch.float64, the decoder torch.float32"):
        guide(x, wide, nll, epoch=1)
    with pytest.raises(sg.DomainError, match=r"the latent's variance is torch.float64, the decoder torch.float32"):
        guide(x, td.Normal(q.loc, q.scale.double()), nll, epoch=1)
    half = guide(x.half(), td.Normal(q.loc.half(), q.scale.half()), nll.half(), epoch=1)
    mixed = guide(x, q, nll.double(), epoch=1)
    truth = guide.double()(x.double(), wide, nll.double(), epoch=1)
    torch.testing.assert_close(half.double(), truth, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(mixed, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_vmap_over_guides(name: str, x: Tensor, q: td.Normal) -> None:
    guides, nll = [guide_of(name) for _ in range(3)], loss_of(x)
    for guide in guides[1:]:
        guide.init_from_data(x)
    state = stack_module_state(guides)  # type: ignore[arg-type]

    def one(*state: dict[str, Tensor]) -> Tensor:
        result: Tensor = functional_call(guides[0], state, (x, q, nll), {"epoch": 1})
        return result

    expected = torch.stack([guide(x, q, nll, epoch=1) for guide in guides])
    torch.testing.assert_close(torch.vmap(one)(*state), expected)


# --- latents without a closed form


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
def test_a_latent_without_a_closed_form(case: str, x: Tensor) -> None:
    q, estimator, known = unregistered()[case]
    with pytest.raises(sg.errors.UnregisteredLatentError) as error:
        guide_of()(x, q, loss_of(x), epoch=1)
    message = str(error.value)
    assert type(q).__name__ in message
    assert "Bernoulli, Beta" in message
    assert f"silentgrad.{estimator}()" in message
    assert ("central_moments.register" in message) == known
    sampled: sg.Estimator = getattr(sg, estimator)()
    assert sampled(q, lambda z: z.sum(-1)).shape == (BATCH,)


def test_the_exponential_link_names_decoders_that_need_less(x: Tensor) -> None:
    tails = td.StudentT(5.0, torch.zeros(BATCH, LATENTS))
    with pytest.raises(sg.errors.UnregisteredLatentError, match="need its mean and variance only") as error:
        guide_of("exp")(x, tails, loss_of(x), epoch=1)
    assert "register(" not in str(error.value)
    assert guide_of()(x, tails, loss_of(x), epoch=1).isfinite().all()


# --- types

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
    errors = found.stdout.splitlines()[:-1]
    assert len(errors) == 2, found
    assert "host.py:15: error: Too few arguments" in errors[0]
    assert 'host.py:16: error: Missing positional argument "integrand"' in errors[1]
    assert Path(sg.__file__).with_name("py.typed").exists()
