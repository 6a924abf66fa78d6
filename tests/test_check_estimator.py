"""Faults that `check_estimator` finds, and none in our own estimators; what `recommend` measures."""

import itertools
import re

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import silentgrad as sg
from contenders import ALL_ESTIMATORS, SILENT, Member, each
from refusals import refused
from silentgrad.estimators import Estimator, Integrand, joint_log_prob, per_example, value_with_gradient_of


class Sound(Estimator):
    """Leave-one-out of two samples, with places to plant a fault."""

    unbiased = True
    latents = (td.Bernoulli,)
    calls = 2

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


def of_the_first(self: Sound, q: td.Distribution, z: Tensor, examples: torch.Size) -> Tensor:
    return td.Bernoulli(logits=q.base_dist.logits[..., :1]).log_prob(z[..., :1]).sum(-1)


def refuse(self: Sound, integrand: Integrand, z: Tensor, q: td.Distribution) -> Tensor:
    raise ValueError("not yet written")


calls = itertools.count()
FAULTS: dict[str, tuple[dict[str, object], set[str]]] = {  # what is planted, and the check that finds it
    "none": ({}, set()),
    "a missing score": ({"score": of_the_first}, {"unbiased: gradient of the latents"}),
    "a factor": ({"factor": lambda self: 2.0}, {"unbiased: gradient of the latents"}),
    "a wrong count": ({"calls": 1}, {"evaluations as declared"}),
    "a leak": ({"factor": lambda self: 1 + 1e-6 * next(calls)}, {"no memory but buffers, which rest in eval()"}),
    "a broadcast": (  # which is refused wherever an estimator is called
        {"value": lambda self, f, z, q: f(z), "score": lambda self, q, z, examples: q.log_prob(z)},
        set(),
    ),
    "a lost gradient": ({"own": lambda self, f: f.detach()}, {"unbiased: gradient of the integrand"}),
    "a mean": ({"own": lambda self, f: f.mean(-1, keepdim=True).expand_as(f)}, {"examples do not mix"}),
    "a column": ({"forward": lambda self, q, f: Sound.forward(self, q, f).unsqueeze(-1)}, {"a call", *sg.testing.OWED}),
    "a single number": ({"forward": lambda self, q, f: Sound.forward(self, q, f).mean()}, {"a call", *sg.testing.OWED}),
    "an error": ({"value": refuse}, {"a call", *sg.testing.OWED}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(fault: str) -> None:
    planted, findings = FAULTS[fault]
    found = sg.testing.check_estimator(type("Faulty", (Sound,), planted)())
    assert {check.what for check in found if not check.holds} == findings
    assert found.passed == (not findings)
    assert ("FAILS" in str(found)) == bool(findings)
    assert ("ValueError: not yet written" in str(found)) == (fault == "an error")


def test_a_declared_bias_is_measured_and_none_is_asked_about() -> None:
    estimators = sg.StraightThrough(), type("Un", (Sound,), {"unbiased": False})()
    told = [str(sg.testing.check_estimator(one, 400)) for one in estimators]
    assert ["no bias found: claim unbiased = True?" in table for table in told] == [False, True]
    assert all("biased: value" in table and " measured " in table for table in told)


def at_random(estimator: Estimator) -> Estimator:
    """With parameters and averages that nothing has fitted: what it claims may not depend on them."""
    torch.manual_seed(5)
    for parameter in estimator.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.3)
    for average in estimator.buffers():
        torch.nn.init.uniform_(average, 0.2, 0.8)
    return estimator


# They evaluate the integrand at values that no latent has, or draw other subsets than those of q.
RELAXING = ("GumbelSoftmax", "Averaged GumbelSoftmax", "EAT", "IMLE")


@each([*ALL_ESTIMATORS, *SILENT])
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


ZEROS = torch.zeros(6, 4)


def square(z: Tensor) -> Tensor:
    return (z.flatten(1).sum(-1) - 1.3).square()


@pytest.mark.parametrize(
    ("q", "f", "names"),
    [
        (td.Bernoulli(logits=ZEROS), square, {"disarm", "arms", "rloo", "reinmax"}),
        (td.OneHotCategorical(logits=torch.zeros(6, 2, 3)), square, {"carms", "disarm-tree", "rloo", "reinmax"}),
        (td.Normal(ZEROS, 1.0), square, {"reparameterized", "rloo"}),
        (td.Poisson(ZEROS + 1), square, {"eat", "rloo"}),
        (td.Bernoulli(logits=ZEROS), sg.integrand_of(sg.Circuit(4, 3, 2), torch.zeros(6, 3)), {"silent-rloo"}),
    ],
    ids=["bits", "categories", "Gaussian", "counts", "statistics"],
)
def test_a_handful_that_suits_is_measured(q: td.Distribution, f: Integrand, names: set[str]) -> None:
    found = sg.recommend(q, f, budget=0.1)
    assert names <= set(found.errors)
    assert ("exact" in found.errors) == (f is not square)
    assert found.errors[found.name] == min(found.errors.values())
    assert str(found).splitlines()[1].startswith(found.name)


def test_the_exact_gradient_of_a_model_is_recommended() -> None:
    class Encoding(torch.nn.Linear):
        def forward(self, x: Tensor) -> td.Distribution:
            return td.Bernoulli(logits=super().forward(x))

    torch.manual_seed(0)
    model = sg.GuidedVAE(Encoding(3, 4), sg.LinearGaussian(4, 3, variance=0.1))
    found = sg.recommend(model, torch.randn(8, 3), budget=0.5)
    assert (found.name, type(found.estimator), found.found["exact"].error(1)) == ("exact", sg.Exact, 0)
    refused(sg.DomainError, "examples x", lambda: sg.recommend(model, square))
