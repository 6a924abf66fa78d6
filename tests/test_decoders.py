"""Decoders at larger sizes, at the extremes, and with wrong input."""

import copy
import itertools
import math
import pickle
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td

import random_circuits
import silentgrad as sg
from members import ALL_DECODERS, ALL_LATENTS, Decoder, Latent
from refusals import Refusals, refusals, refused
from silentgrad import likelihoods
from silentgrad.decoders import precision, projection

NAMES = ("fixed", "linear auto", "linear taylor", "exp auto")
EACH_NAME = pytest.mark.parametrize("name", NAMES)


def every_decoder(latents: int, event_shape: tuple[int, ...] = (4,)) -> dict[str, sg.LinearDecoder]:
    torch.manual_seed(0)
    decoders: dict[str, sg.LinearDecoder] = {"fixed": sg.LinearGaussian(latents, event_shape, variance=0.01)}
    for link, log_term in (("linear", "auto"), ("linear", "taylor"), ("exp", "auto")):
        decoders[f"{link} {log_term}"] = sg.LinearPrecisionGaussian(latents, event_shape, link=link, log_term=log_term)
    return decoders


def randomize(decoder: sg.LinearDecoder, scale: float = 0.05) -> None:
    for layer in decoder.children():
        torch.nn.init.normal_(layer.weight, std=scale)


def test_edgeworth_is_ten_times_closer_to_enumeration_than_taylor() -> None:
    generator, errors = torch.Generator().manual_seed(0), {"edgeworth": [], "taylor": []}
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=12)), dtype=torch.float64)
    for _ in range(300):
        p = torch.rand(12, dtype=torch.float64, generator=generator)
        a = torch.randn(12, dtype=torch.float64, generator=generator) / 12**0.5
        c = 2 * torch.randn((), dtype=torch.float64, generator=generator)
        weights = (z * p + (1 - z) * (1 - p)).prod(-1)
        truth = (weights * (z @ a + c).square().log()).sum()
        s2 = p * (1 - p)
        cumulants = (s2 * (1 - 2 * p)) @ a**3, (s2 * (1 - 6 * s2)) @ a**4
        for name, found in errors.items():
            found.append((getattr(precision, name)(p @ a + c, s2 @ a**2, *cumulants) - truth).abs().item())
    median = {name: torch.tensor(found).median().item() for name, found in errors.items()}
    assert median["edgeworth"] <= median["taylor"] / 10, median


EXTREMES = {  # a family and its parameters
    "probabilities of exactly 0 and 1": (td.Bernoulli, torch.eye(2)),
    "tiny deviations": (td.Normal, torch.zeros(2, 2), torch.full((2, 2), 1e-8)),
    "huge deviations": (td.Normal, torch.zeros(2, 2), torch.full((2, 2), 1e4)),
}


@pytest.mark.parametrize("extreme", EXTREMES)
@EACH_NAME
@pytest.mark.parametrize("precision", ["start", "mean zero", "random"])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
def test_extremes_are_finite(extreme: str, name: str, precision: str, size: float) -> None:
    decoder = every_decoder(2)[name]
    if precision != "start" and isinstance(decoder, sg.LinearPrecisionGaussian):
        torch.nn.init.normal_(decoder.precision_affine.weight, std=0.05 if precision == "random" else 0.0)
        torch.nn.init.zeros_(decoder.precision_affine.bias)
    family, *parameters = EXTREMES[extreme]
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    q = family(*leaves)
    if (extreme, name, precision) == ("huge deviations", "exp auto", "random"):
        with pytest.raises(sg.DomainError, match="overflow"):  # e to the power of about a million
            decoder.expected_log_prob(torch.full((2, 4), size), q)
        return
    value = decoder.expected_log_prob(torch.full((2, 4), size), q)
    for result in (value, *torch.autograd.grad(value.sum(), [*leaves, *decoder.parameters()])):
        assert result.isfinite().all()


@EACH_NAME
def test_probability_zero_has_the_right_one_sided_gradient(name: str) -> None:
    decoder = every_decoder(3)[name].double()
    randomize(decoder, 0.1)
    probs = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    x = torch.full((1, 4), 0.3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(decoder.expected_log_prob(x, td.Bernoulli(probs)).sum(), probs)
    inwards, step = torch.tensor([[1.0, -1.0, 1.0]], dtype=torch.float64), 1e-6
    value, moved = (decoder.expected_log_prob(x, td.Bernoulli(probs.detach() + s * inwards)) for s in (0, step))
    assert (gradient * inwards).sum().item() == pytest.approx(((moved - value) / step).item(), rel=1e-4)


@given(
    batch=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    latents=st.integers(1, 5),
    event_shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    family=st.sampled_from(["normal", "bernoulli", "laplace", "poisson", "gamma", "multivariate", "categories"]),
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_shapes_families_and_parameters(
    batch: list[int], latents: int, event_shape: list[int], family: str, name: str, seed: int
) -> None:
    """A batch is its examples: the result has the batch's shape, and equals one example at a time."""
    torch.manual_seed(seed)
    if family == "categories" and name.startswith("linear"):
        return
    rows = torch.rand(*batch, latents, dtype=torch.float64) + 0.05
    families = {
        "normal": lambda r: td.Independent(td.Normal(r, r), 1),
        "bernoulli": lambda r: td.Bernoulli(r / 1.1),
        "laplace": lambda r: td.Laplace(r, r),
        "poisson": lambda r: td.Poisson(r),
        "gamma": lambda r: td.Gamma(r, 1 + r),
        "multivariate": lambda r: td.MultivariateNormal(r, torch.diag_embed(r)),
        "categories": lambda r: td.OneHotCategorical(logits=r),
    }
    decoder = every_decoder(latents, tuple(event_shape))[name].double()
    randomize(decoder)
    x = torch.rand(*batch, *event_shape, dtype=torch.float64)
    value = decoder.expected_log_prob(x, families[family](rows))
    assert value.shape == tuple(batch)
    examples = zip(x.flatten(0, len(batch) - 1), rows.flatten(0, -2), strict=True)
    single = torch.stack([decoder.expected_log_prob(a, families[family](r)) for a, r in examples])
    torch.testing.assert_close(value.flatten(), single, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", ["bernoulli", "multivariate", "categories"])
def test_chunks_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = sg.LinearPrecisionGaussian(6, 7, link="exp").double()
    randomize(decoder, 0.2)
    leaf = torch.rand(3, 6, dtype=torch.float64, requires_grad=True)
    build = {
        "bernoulli": lambda: td.Bernoulli(leaf),
        "multivariate": lambda: td.MultivariateNormal(leaf, torch.diag_embed(leaf + 0.1) + 0.05),
        "categories": lambda: td.Independent(td.OneHotCategorical(logits=leaf.unflatten(1, (2, 3))), 1),
    }[family]
    x, results = torch.rand(3, 7, dtype=torch.float64), []
    for chunk in (projection.CHUNK, 2 * 3 * 6):
        monkeypatch.setattr(projection, "CHUNK", chunk)
        value = decoder.expected_log_prob(x, build())
        first = torch.autograd.grad(value.sum(), [leaf, *decoder.parameters()], create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), [leaf, *decoder.parameters()])
        plain = torch.autograd.grad(decoder.expected_log_prob(x, build()).sum(), [leaf, *decoder.parameters()])
        results.append([value, *first, *second, *plain])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


LIKELIHOODS = {  # the negative binomial with `log_rising` and `expected_softplus_of_both`, of which it is made
    "Bernoulli": lambda: sg.LinearLikelihood(3, 4, likelihoods.Bernoulli()),
    "a function": lambda: sg.LinearLikelihood(3, 4, lambda u: td.Gumbel(u, 2.0), nodes=3),
    "NegativeBinomial": lambda: sg.LinearLikelihood(3, 4, likelihoods.NegativeBinomial(4)),
}
TRACED = [  # every path through a closed form once
    *((name, "bernoulli") for name in NAMES if name != "fixed"),
    *((name, "normal") for name in (*LIKELIHOODS, "fixed", "linear auto", "exp auto")),
]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the tracer's own doing
@pytest.mark.parametrize(("name", "family"), TRACED)
def test_traceable_in_one_graph(name: str, family: str) -> None:
    """Forward and backward, by the compiler's front end: no C++ compiler needed."""
    leaf, x, side_info = torch.rand(2, 3).requires_grad_(), torch.rand(2, 4), {}
    if name in LIKELIHOODS:
        decoder, x = LIKELIHOODS[name](), torch.eye(2, 4)
    else:
        decoder = every_decoder(3)[name]
        randomize(decoder)
    if name == "NegativeBinomial":
        side_info = {"offset": torch.rand(2, 4), "mask": torch.rand(2, 4) < 0.7}
        x = torch.where(side_info["mask"], x, math.nan)

    def objective(leaf: Tensor) -> Tensor:
        q = td.Bernoulli(leaf, validate_args=False)
        if family == "normal":
            q = td.Normal(leaf, leaf, validate_args=False)
        return decoder.expected_log_prob(x, q, **side_info).sum()

    torch.compiler.reset()  # no more graphs of one function are kept than there are cases here
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    values = compiled(leaf), objective(leaf)
    torch.testing.assert_close(*values)
    gradients = [torch.autograd.grad(value, [leaf, *decoder.parameters()]) for value in values]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_a_schedule_changes_the_variance() -> None:
    decoder = sg.LinearGaussian(2, 3, variance=0.3)
    q, x = td.Normal(torch.zeros(1, 2), torch.ones(1, 2)), torch.ones(1, 3)
    before = decoder.expected_log_prob(x, q)
    decoder.set_variance(0.01)
    assert before != decoder.expected_log_prob(x, q)
    refused(sg.DomainError, "positive", lambda: decoder.set_variance(-1.0))  # which changes nothing
    torch.testing.assert_close(decoder(torch.zeros(1, 2)).stddev, torch.full((1, 3), 0.1))
    several = "one variance for all outputs, got one per output"
    refused(sg.ShapeError, several, lambda: decoder.set_variance(torch.ones(3)))
    each = sg.LinearGaussian(2, 3, torch.ones(3))
    each.set_variance(0.1)
    assert torch.equal(each.double().variance, torch.full((3,), 0.1, dtype=torch.float64))


def test_a_user_adds_a_family() -> None:
    class Triangular(td.Distribution):
        def __init__(self, half_width: Tensor) -> None:
            self.half_width = half_width
            super().__init__(half_width.shape, validate_args=False)

        @property
        def mean(self) -> Tensor:
            return torch.zeros_like(self.half_width)

        @property
        def variance(self) -> Tensor:
            return self.half_width.square() / 6

    decoder = sg.LinearGaussian(2, 1)
    q, x = Triangular(torch.ones(1, 2)), torch.zeros(1, 1)
    missing = sg.errors.UnregisteredLatentError
    with pytest.raises(missing, match=r"Triangular[\s\S]*central_moments.register\(Triangular\)"):
        decoder.expected_log_prob(x, q)

    @sg.latents.central_moments.register(Triangular)
    def _(q: Triangular) -> sg.latents.Moments:
        return sg.latents.Moments(q.mean, q.variance)

    same = td.Normal(torch.zeros(1, 2), torch.full((1, 2), 6**-0.5))
    torch.testing.assert_close(decoder.expected_log_prob(x, q), decoder.expected_log_prob(x, same))
    with pytest.raises(missing, match=r"generating_function.register\(Triangular\)"):
        sg.LinearPrecisionGaussian(2, 1, link="exp").expected_log_prob(x, q)


def test_two_moments_are_enough_for_a_fixed_variance() -> None:
    """The variance of StudentT(3) is 3, its fourth moment infinite."""
    decoder, x, loc = sg.LinearGaussian(2, 3), torch.rand(4, 3), torch.rand(4, 2)
    value = decoder.expected_log_prob(x, td.StudentT(torch.tensor(3.0), loc))
    torch.testing.assert_close(value, decoder.expected_log_prob(x, td.Normal(loc, 3**0.5)))


class Tilting(td.Distribution):
    """Bits of which only the generating function is known."""

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs
        super().__init__(probs.shape, validate_args=False)


@sg.latents.generating_function.register(Tilting)
def _(q: Tilting) -> sg.latents.GeneratingFunction:
    return sg.latents.generating_function(td.Bernoulli(q.probs))


@pytest.mark.parametrize("name", ["fixed", "exp auto", "linear auto"])
def test_a_generating_function_alone_is_enough_but_for_the_linear_link(name: str) -> None:
    decoder, probs, x = every_decoder(2)[name], torch.rand(5, 2), torch.rand(5, 4)
    randomize(decoder)
    if name == "linear auto":
        missing = r"third and fourth central moments.*link='exp' or LinearGaussian"
        refused(sg.IntractableError, missing, lambda: decoder.expected_log_prob(x, Tilting(probs)))
        return
    value = decoder.expected_log_prob(x, td.Independent(Tilting(probs), 1))
    torch.testing.assert_close(value, decoder.expected_log_prob(x, td.Bernoulli(probs)))


@refusals
def test_bad_input_is_named() -> Refusals:
    q, nan = td.Normal(torch.zeros(2, 3), torch.ones(2, 3)), float("nan")
    decoder, precise = sg.LinearGaussian(3, (2, 2)), sg.LinearPrecisionGaussian(3, (2, 2), link="exp")
    linear = sg.LinearPrecisionGaussian(3, (2, 2))
    wide = td.Laplace(torch.zeros(2, 3), torch.full((2, 3), 1e4))
    torch.nn.init.constant_(precise.precision_affine.weight, 0.1)
    return {
        "x of another shape": (sg.ShapeError, r"\(2, 4\).*\(2, 2, 2\)", lambda: decoder.expected_log_prob(torch.zeros(2, 4), q)),
        "another batch": (sg.ShapeError, "x has shape", lambda: decoder.expected_log_prob(torch.zeros(5, 2, 2), q)),
        "another number of latents": (sg.ShapeError, "3 latents", lambda: decoder(torch.zeros(2, 4))),
        "NaN in x": (sg.DomainError, "not finite: x", lambda: decoder.expected_log_prob(torch.full((2, 2, 2), nan), q)),
        "integers": (sg.DomainError, "dequantize", lambda: decoder.expected_log_prob(torch.zeros(2, 2, 2, dtype=torch.uint8), q)),
        "NaN in the latent": (
            sg.DomainError, "the latent",
            lambda: decoder.expected_log_prob(torch.zeros(2, 2, 2), td.Normal(torch.full((2, 3), nan), 1.0, validate_args=False)),
        ),
        "no distribution": (sg.errors.UnregisteredLatentError, "got Tensor", lambda: decoder.expected_log_prob(torch.zeros(2, 2, 2), torch.zeros(2, 3))),
        "variance of zero": (sg.DomainError, "positive", lambda: sg.LinearGaussian(3, 2, variance=0.0)),
        "variance of NaN": (sg.DomainError, "positive", lambda: sg.LinearGaussian(3, 2, variance=nan)),
        "variances of another shape": (sg.ShapeError, "variance", lambda: sg.LinearGaussian(3, 2, variance=torch.ones(3))),
        "no latents": (sg.ShapeError, "positive", lambda: sg.LinearGaussian(0, 2)),
        "unknown link": (sg.DomainError, "linear, exp; got 'cubic'", lambda: sg.LinearPrecisionGaussian(3, 2, link="cubic")),
        "unknown log term": (sg.DomainError, "log_term", lambda: sg.LinearPrecisionGaussian(3, 2, log_term="none")),
        "outside the domain": (sg.DomainError, r"\|t\| < 1/b", lambda: precise.expected_log_prob(torch.zeros(2, 2, 2), wide)),
        "unknown method": (sg.DomainError, "ppca", lambda: decoder.init_from_data(torch.zeros(5, 2, 2), "pca")),
        "data of another shape": (sg.ShapeError, "examples", lambda: decoder.init_from_data(torch.zeros(5, 3))),
        "heavy tails": (sg.DomainError, "df > 2", lambda: sg.latents.central_moments(td.StudentT(torch.tensor([2.0])))),
        "tails too heavy for the link": (
            sg.DomainError, "df > 4.*LinearGaussian",
            lambda: linear.expected_log_prob(torch.zeros(2, 2, 2), td.StudentT(torch.full((2, 3), 3.0))),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("probs", [1e-6, 1e-4, 0.3, 0.999999])
def test_geometric_latents_keep_their_digits_in_single_precision(probs: float) -> None:
    p = torch.tensor([probs], requires_grad=True)
    single, moments = td.Geometric(p), sg.latents.central_moments(td.Geometric(p))
    double = td.Geometric(p.detach().double())
    truth, t = sg.latents.central_moments(double), 0.3 * probs
    torch.testing.assert_close(moments.mean.double(), (1 - double.probs) / double.probs, rtol=1e-6, atol=0)
    found, expected = ([m.mean.double(), m.s2.double(), m.s3().double(), m.s4().double()] for m in (moments, truth))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    tilted, exact = (sg.latents.generating_function(q)(torch.tensor(t, dtype=q.probs.dtype)) for q in (single, double))
    with mpmath.workdps(40):
        fail = 1 - mpmath.mpf(double.probs.item())
        value = mpmath.log(1 - fail) - mpmath.log(1 - fail * mpmath.exp(t))
    assert exact.value.item() == pytest.approx(float(value), rel=1e-10)
    torch.testing.assert_close([number.double() for number in tilted], list(exact), rtol=2e-6, atol=0)
    large = sg.latents.central_moments(td.Geometric(logits=torch.tensor([20.0])))
    torch.testing.assert_close(large.mean, torch.tensor([-20.0]).exp(), rtol=1e-6, atol=0)


CASTS = {
    "double": lambda decoder: decoder.double(),
    "half and back": lambda decoder: decoder.half().double(),
    "brain float and back": lambda decoder: decoder.to(torch.bfloat16).float().to(torch.float64),
    "inside a module": lambda decoder: torch.nn.Sequential(decoder).half().double()[0],
    "a copy": lambda decoder: copy.deepcopy(decoder.half()).double(),
    "pickled": lambda decoder: pickle.loads(pickle.dumps(decoder.half())).double(),
    "emptied": lambda decoder: decoder.to("meta").to_empty(device="cpu").double(),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("variance", [0.01, torch.tensor([0.01, 0.3, 1e-3], dtype=torch.float64)], ids=["one", "each"])
def test_a_variance_keeps_its_digits(cast: Callable[[sg.LinearGaussian], sg.LinearGaussian], variance: object) -> None:
    decoder = cast(sg.LinearGaussian(2, 3, variance))
    assert decoder.variance.dtype == torch.float64
    assert torch.equal(decoder.variance, torch.as_tensor(variance, dtype=torch.float64))
    annealed = sg.LinearGaussian(2, 3, 1.0)
    annealed.set_variance(0.01)
    assert cast(annealed).variance == 0.01


SINGLE = float(torch.tensor(0.01))


@pytest.mark.parametrize(
    ("saved", "variance", "digits"), [("float32", 0.01, 0.01), ("float32", 0.5, SINGLE), ("float64", 0.5, 0.01)]
)
def test_a_checkpoint_of_another_precision_loads(saved: str, variance: float, digits: float) -> None:
    """One in single precision with its own variance, unless that is what the decoder was given, rounded."""
    state = sg.LinearGaussian(2, 3, 0.01).to(getattr(torch, saved)).state_dict()
    assert state["variance"].dtype == getattr(torch, saved)
    decoder = sg.LinearGaussian(2, 3, variance)
    decoder.load_state_dict(state)
    assert decoder.variance.dtype == torch.float32
    assert decoder.variance.item() == SINGLE
    assert decoder.double().variance == digits
    decoder.variance.fill_(0.25)
    assert decoder.float().double().variance == 0.25
    assert decoder.share_memory().variance.is_shared()


# Families whose formulas hold everywhere, and one of each kind of moments.
EVERYWHERE = ("Normal", "Bernoulli", "Uniform", "MultivariateNormal", "OneHotCategorical")
MAPPED = [m for m in ALL_LATENTS if m.name in EVERYWHERE]
MAPPED_PAIRS = [(d, q) for d in ALL_DECODERS for q in MAPPED if d.tractable(q) and "likelihood" not in d.name]
EACH_MAPPED = pytest.mark.parametrize(
    ("decoder", "latent"), MAPPED_PAIRS, ids=[f"{d.name}, {q.name}" for d, q in MAPPED_PAIRS]
)
OF_MEMBERS = torch.tensor([[0.2, -0.7, 1.1], [0.4, 0.3, -0.6]], dtype=torch.float64)


@EACH_MAPPED
def test_vmap_over_examples_and_over_each_argument(decoder: Decoder, latent: Latent) -> None:
    """Mapped over x and all parameters of q, or over one of them alone, as over a batch; so is the gradient."""
    model, parameters = decoder.make(latent.latents), [p.detach() for p in latent.draw()]
    arguments = [OF_MEMBERS, *parameters]

    def one(x: Tensor, *parameters: Tensor) -> Tensor:
        q = latent.build(*(p.unsqueeze(0) for p in parameters))
        return model.expected_log_prob(x.unsqueeze(0), q).squeeze(0)

    everything = tuple(range(len(arguments)))
    mapped = torch.func.vmap(torch.func.grad_and_value(one, argnums=everything))(*arguments)
    leaves = [a.clone().requires_grad_() for a in arguments]
    value = model.expected_log_prob(leaves[0], latent.build(*leaves[1:]))
    torch.testing.assert_close(mapped, (torch.autograd.grad(value.sum(), leaves), value.detach()), rtol=1e-9, atol=1e-9)
    for position in everything:
        dims = tuple(0 if other == position else None for other in everything)
        rows = [a if other == position else a[0] for other, a in enumerate(arguments)]
        singly = [one(*rows[:position], row, *rows[position + 1 :]) for row in arguments[position]]
        torch.testing.assert_close(torch.vmap(one, dims)(*rows), torch.stack(singly), rtol=1e-10, atol=1e-10)


class ExpectedLogProb(torch.nn.Module):
    def __init__(self, decoder: sg.LinearDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, x: Tensor, q: td.Distribution) -> Tensor:
        return self.decoder.expected_log_prob(x, q)


@EACH_MAPPED
def test_vmap_over_an_ensemble_of_decoders(decoder: Decoder, latent: Latent) -> None:
    models = [ExpectedLogProb(decoder.make(latent.latents, seed)) for seed in (1, 2, 3)]
    parameters, buffers = torch.func.stack_module_state(models)
    q = latent.build(*(p.detach() for p in latent.draw()))

    def of_one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (parameters, buffers), (OF_MEMBERS, q)).sum()

    gradients, values = torch.vmap(torch.func.grad_and_value(of_one))(parameters, buffers)
    for position, model in enumerate(models):
        value = model(OF_MEMBERS, q).sum()
        torch.testing.assert_close(values[position], value, rtol=1e-10, atol=1e-10)
        names, leaves = zip(*model.named_parameters(), strict=True)
        for name, gradient in zip(names, torch.autograd.grad(value, leaves), strict=True):
            torch.testing.assert_close(gradients[name][position], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own doing
def test_forward_derivatives_and_a_nan_under_vmap() -> None:
    decoder = sg.LinearPrecisionGaussian(3, 4)
    randomize(decoder)
    q, x = td.Normal(torch.zeros(2, 3), 1.0), torch.rand(2, 4)
    forward, backward = (
        jac(lambda x: decoder.expected_log_prob(x, q))(x) for jac in (torch.func.jacfwd, torch.func.jacrev)
    )
    torch.testing.assert_close(forward, backward)
    x[1, 1], one = float("nan"), td.Normal(torch.zeros(3), 1.0)
    refused(sg.DomainError, r"not finite: x$", lambda: torch.vmap(lambda x: decoder.expected_log_prob(x, one))(x))


EMPTY = {
    "normal": lambda leaf: td.Normal(leaf, 1.0),
    "multivariate": lambda leaf: td.MultivariateNormal(leaf, scale_tril=torch.zeros(0, 3, 3), validate_args=False),
    "bernoulli": lambda leaf: td.Bernoulli(logits=leaf),
    "categories": lambda leaf: td.OneHotCategorical(logits=leaf, validate_args=False),
}


@pytest.mark.parametrize(
    ("name", "family"), [(n, f) for n in NAMES for f in EMPTY if f != "categories" or not n.startswith("linear")]
)
def test_a_batch_without_examples(name: str, family: str) -> None:
    decoder, leaf, x = every_decoder(3)[name], torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 4)
    with random_circuits.unchecked():  # torch cannot check a support over no examples
        q = EMPTY[family](leaf)
    for value in (decoder.expected_log_prob(x, q), sg.integrand_of(decoder, x)(leaf)):
        assert value.shape == (0,)
        gradients = torch.autograd.grad(value.sum(), [leaf, *decoder.parameters()], materialize_grads=True)
        assert not torch.cat([g.flatten() for g in gradients]).any()


DTYPES = {  # of the decoder, of the latent, of x, and the message
    "a latent of double precision": ("float32", "float64", "float32", r"the latent is torch\.float64, the decoder torch\.float32.*\.to\(torch\.float32\).*decoder\.to\(torch\.float64\)"),
    "latent and x of double precision": ("float32", "float64", "float64", r"the latent is torch\.float64, the decoder torch\.float32"),
    "a decoder of double precision": ("float64", "float32", "float32", r"the latent is torch\.float32, the decoder torch\.float64"),
    "x of double precision": ("float32", "float32", "float64", r"x is torch\.float64, the decoder torch\.float32.*\.to\(torch\.float32\)"),
    "three precisions": ("float32", "float64", "float16", r"the latent is torch\.float64, the decoder torch\.float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", DTYPES)
@EACH_NAME
def test_two_precisions_are_refused_by_name(name: str, case: str) -> None:
    of_decoder, of_latent, of_x, message = DTYPES[case]
    decoder = every_decoder(3)[name].to(getattr(torch, of_decoder))
    zeros, x = torch.zeros(2, 3, dtype=getattr(torch, of_latent)), torch.zeros(2, 4, dtype=getattr(torch, of_x))
    refused(sg.DomainError, message, lambda: decoder.expected_log_prob(x, td.Normal(zeros, 1.0)))
    refused(sg.DomainError, message, lambda: sg.integrand_of(decoder, x)(zeros))
