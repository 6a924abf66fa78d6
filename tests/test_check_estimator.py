"""Faults that `check_estimator` finds, and none in our own estimators; what `recommend` measures."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from contenders import ALL_ESTIMATORS, SILENT, Member
from silentgrad.analysis import recommend
from silentgrad.estimators import Estimator, Integrand, joint_log_prob, per_example, value_with_gradient_of


class Sound(Estimator):
    """Leave-one-out of two samples, with places to plant a fault."""

    unbiased = True
    latents = (td.Bernoulli,)

    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 2

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        draws = [q.sample() for _ in range(2)]
        f = torch.stack([self.value(integrand, z, q) for z in draws])
        scores = torch.stack([self.score(q, z, f[0].shape) for z in draws])
        gain = f.detach() - f.detach().flip(0)
        return value_with_gradient_of(f, self.own(f) + self.factor() * gain * scores).mean(0)

    def value(self, integrand: Integrand, z: Tensor, q: td.Distribution) -> Tensor:
        return per_example(integrand(z), q)

    def score(self, q: td.Distribution, z: Tensor, examples: torch.Size) -> Tensor:
        return joint_log_prob(q, z, examples)

    def own(self, f: Tensor) -> Tensor:
        return f

    def factor(self) -> float:
        return 1.0


class MissingScore(Sound):
    def score(self, q: td.Distribution, z: Tensor, examples: torch.Size) -> Tensor:
        """Of the first latent alone."""
        return td.Bernoulli(logits=q.base_dist.logits[..., :1]).log_prob(z[..., :1]).sum(-1)


class Doubled(Sound):
    def factor(self) -> float:
        return 2.0


class WrongCount(Sound):
    def evaluations(self, latents: int = 1, values: int = 2) -> int:
        return 1


class Leaking(Sound):
    calls = 0

    def factor(self) -> float:
        self.calls += 1
        return 1.0 + 1e-6 * self.calls


class Broadcasting(Sound):
    def value(self, integrand: Integrand, z: Tensor, q: td.Distribution) -> Tensor:
        return integrand(z)

    def score(self, q: td.Distribution, z: Tensor, examples: torch.Size) -> Tensor:
        return q.log_prob(z)


class Detached(Sound):
    def own(self, f: Tensor) -> Tensor:
        return f.detach()


FAULTS = {
    MissingScore: "unbiased: gradient of the latents",
    Doubled: "unbiased: gradient of the latents",
    WrongCount: "evaluations as declared",
    Leaking: "no memory but buffers, which rest in eval()",
    Broadcasting: "one number per example",
    Detached: "unbiased: gradient of the integrand",
}


@pytest.mark.parametrize("kind", [Sound, *FAULTS], ids=lambda kind: kind.__name__)
def test_a_planted_fault_is_found_and_nothing_else(kind: type[Estimator]) -> None:
    found = sg.testing.check_estimator(kind())
    assert [check.what for check in found if not check.holds] == ([FAULTS[kind]] if kind in FAULTS else [])
    assert found.passed == (kind not in FAULTS)
    assert ("FAILS" in str(found)) == (kind in FAULTS)


def at_random(estimator: Estimator) -> Estimator:
    """With parameters of its own that nothing has fitted: what it claims may not depend on them."""
    torch.manual_seed(5)
    for parameter in estimator.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.3)
    if isinstance(estimator, sg.DoubleCV):
        estimator.start_scale = 0.3
    return estimator


# They evaluate the integrand at values that no latent has, or draw other subsets than those of q.
RELAXING = ("GumbelSoftmax", "Averaged GumbelSoftmax", "EAT", "IMLE")


@pytest.mark.parametrize("member", [*ALL_ESTIMATORS, *SILENT], ids=lambda member: member.name)
def test_all_of_ours_pass(member: Member) -> None:
    """Within 4 standard errors of the truth on 50 problems; a biased gradient is 8 away in one, its value is right."""
    draws, problems = (50_000, 20) if member.name == "EAT" else (1200, 50)  # whose bias is small
    found = sg.testing.check_estimator(at_random(member.build()), draws, problems)
    assert found.passed, str(found)
    assert {check.latents for check in found} == {kind.name for kind in member.kinds}
    for check in found:
        errors = re.search(r"([\d.]+|inf) standard errors", check.measured)
        if errors is None:
            continue
        if check.what == "biased: gradient of the latents":
            assert float(errors[1]) > 8, str(check)
        elif check.what.endswith("of the latents") or member.name not in RELAXING:
            assert float(errors[1]) < 4, str(check)
        assert float(errors[1]) > 0  # only an exact one has no variance


def test_an_error_of_a_strangers_is_a_finding() -> None:
    class Raising(Sound):
        def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
            raise ValueError("not yet written")

    found = sg.testing.check_estimator(Raising())
    assert not found.passed
    assert "ValueError: not yet written" in str(found)


def square(z: Tensor) -> Tensor:
    return (z.flatten(1).sum(-1) - 1.3).square()


@pytest.mark.parametrize(
    ("q", "names"),
    [
        (lambda: td.Bernoulli(logits=torch.zeros(6, 4)), {"disarm", "arms", "rloo", "reinmax"}),
        (lambda: td.OneHotCategorical(logits=torch.zeros(6, 2, 3)), {"carms", "disarm-tree", "rloo", "reinmax"}),
        (lambda: td.Normal(torch.zeros(6, 4), 1.0), {"reparameterized", "rloo"}),
        (lambda: td.Poisson(torch.ones(6, 4)), {"eat", "rloo"}),
    ],
    ids=["bits", "categories", "Gaussian", "counts"],
)
def test_a_handful_that_suits_is_measured(q: Callable[[], td.Distribution], names: set[str]) -> None:
    found = recommend(q(), square, budget=0.1)
    assert names <= set(found.errors)
    assert "exact" not in found.errors
    assert found.errors[found.name] == min(found.errors.values())
    assert str(found).splitlines()[1].startswith(found.name)


def test_a_function_of_statistics_is_measured_with_their_control_variate() -> None:
    integrand = sg.integrand_of(sg.Circuit(4, 3, 2), torch.zeros(6, 3))
    assert "silent-rloo" in recommend(td.Bernoulli(logits=torch.zeros(6, 4)), integrand, budget=0.1).errors


def test_the_exact_gradient_of_a_model_is_recommended() -> None:
    torch.manual_seed(0)
    model = sg.GuidedVAE(Encoding(), sg.LinearGaussian(4, 3, variance=0.1))
    found = recommend(model, torch.randn(8, 3), budget=0.5)
    assert found.name == "exact"
    assert isinstance(found.estimator, sg.Exact)
    assert found.found["exact"].error(1) == 0
    with pytest.raises(sg.DomainError, match="examples x"):
        recommend(model, square)


class Encoding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 4)

    def forward(self, x: Tensor) -> td.Distribution:
        return td.Bernoulli(logits=self.body(x))


def test_the_bias_of_an_estimator_is_that_of_enumeration() -> None:
    """One bit and a cubic: straight-through passes E f'(z) p(1 - p), where the gradient is (f(1) - f(0)) p(1 - p)."""
    p = torch.tensor(0.7, dtype=torch.float64)
    q = td.Bernoulli(logits=torch.logit(p).expand(64, 1))

    def cubic(z: Tensor) -> Tensor:
        return z.sum(-1) ** 3

    known = ((3 * p - 1) * p * (1 - p)).square() / 64  # the mean over 64 examples, each with a logit of its own
    for estimators in ([sg.StraightThrough(), sg.Enumerate()], [sg.StraightThrough(), sg.RLOO(4)]):
        found = sg.gradient_variance(q, cubic, 200, estimators)
        own = found["StraightThrough"]
        assert own.squared_bias == pytest.approx(known.item(), rel=0.1)
        assert own.error(10) == pytest.approx(own.squared_bias + own.est / 10)
    assert found["RLOO"].squared_bias == 0
    alone = sg.gradient_variance(q, cubic, 20, [sg.StraightThrough()])["StraightThrough"]
    assert alone.squared_bias is alone.error() is None
    assert "unknown" in str(sg.ranked({"alone": alone}))
