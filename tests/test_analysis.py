"""The measurements of gradients against brute force: one full backward pass per draw, and the textbook formulas."""

import copy
import gc
import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import silentgrad as sg
from contenders import latent_of
from oracles import flat_gradient, textbook
from refusals import Refusals, refusals, refused
from runs import rows, train
from silentgrad.analysis import Decomposition, MethodName, drawing, gradient_bias, gradient_variance
from silentgrad.analysis.drawing import Parts
from silentgrad.analysis.products import Pullback, Sketch
from silentgrad.decoders.precision import Link
from silentgrad.estimators import ESTIMATORS, Estimator, Exact, GumbelSoftmax, Integrand, Reinforce, Reparameterized
from silentgrad.lab.cli import measure
from silentgrad.lab.data import load
from silentgrad.lab.networks import Encoder, NonlinearGaussian, mlp_body, mlp_network
from silentgrad.lab.store.folders import RunFolder
from silentgrad.lab.training import DataConfig, ModelConfig, RunError, TrainConfig
from silentgrad.lab.training.loading import load_weights
from silentgrad.latents.families import FAMILIES
from silentgrad.latents.independent import base_of
from silentgrad.schedules import linear_decay

SHAPE, LATENTS = (1, 2, 3), 3
METHODS: list[MethodName] = ["every", "sketch"]
EACH_METHOD = pytest.mark.parametrize("method", METHODS)


class Scripted(Estimator):
    """The score function without a baseline, whose n-th call has the n-th draw, whoever calls."""

    unbiased = True

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        self.calls += 1
        with torch.random.fork_rng([]):
            torch.manual_seed(self.calls)
            z = q.sample()
        f, score = integrand(z), base_of(q).log_prob(z).reshape(len(z), -1).sum(-1)
        return f + f.detach() * (score - score.detach())


def assert_textbook(found: Decomposition, gradients: Tensor) -> None:
    for name, value in textbook(gradients).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9), name


def batches_of(count: int, size: int = 5, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, size, *SHAPE, dtype=torch.float64, generator=generator)


def encoder_of(family: str) -> Encoder:
    latents = FAMILIES[family](LATENTS)
    return Encoder(mlp_body(SHAPE, latents.numbers, (4,)), latents)


def linear_vae(family: str, decoder: sg.LinearDecoder | None = None, kl_weight: float = 1.0) -> sg.GuidedVAE:
    torch.manual_seed(4)
    chosen = decoder or sg.LinearGaussian(FAMILIES[family](LATENTS).shape.numel(), SHAPE, variance=0.1)
    if isinstance(chosen, sg.LinearPrecisionGaussian):
        nn.init.normal_(chosen.precision_affine.weight)
    return sg.GuidedVAE(encoder_of(family), chosen, kl_weight=kl_weight).double()


def brute_force(model: sg.GuidedVAE, batches: Tensor, draws: int, epoch: int = 1) -> tuple[Tensor, Tensor]:
    """Take g_ns `(batches, draws, parameters)`, by one backward pass each through the whole training loss.

    Return the closed form's too, where the model is linear.
    """

    def gradient(x: Tensor) -> Tensor:
        return flat_gradient(model(x, epoch).total, model.encoder)

    own = model.estimator or model.tractable_estimator
    found = []
    for x in batches:
        own.train()
        with torch.no_grad():
            model(x, epoch)
        own.eval()
        found.append(torch.stack([gradient(x) for _ in range(draws)]))
    if model.nonlinear is not None:
        return torch.stack(found), torch.zeros(0)
    model.tractable_estimator = Exact()
    return torch.stack(found), torch.stack([gradient(x) for x in batches]).mean(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_draw_gives_the_textbook_figures(family: str) -> None:
    """With the same noise on both sides the figures agree to rounding: totals, layers and the cosine."""
    batches, draws, variances = batches_of(6), 7, torch.linspace(0.1, 0.6, 6).reshape(SHAPE)
    model = linear_vae(family, sg.LinearGaussian(FAMILIES[family](LATENTS).shape.numel(), SHAPE, variances), 0.7)
    (found,) = gradient_variance(model, batches, draws, [Scripted()], "every").values()
    model.tractable_estimator = Scripted()
    g, exact = brute_force(model, batches, draws)
    assert_textbook(found, g)
    mean = g.mean((0, 1))
    assert found.cosine == pytest.approx((mean @ exact / mean.norm() / exact.norm()).item(), rel=1e-9)
    first = sum(p.numel() for name, p in model.encoder.named_parameters() if name.startswith("body.1."))
    assert list(found.groups) == ["body.1", "body.3"]
    for part, layer in zip((g[..., :first], g[..., first:]), found.groups.values(), strict=True):
        assert (layer.est, layer.batch) == pytest.approx([textbook(part)[n] for n in ("est", "batch")], rel=1e-9)


@pytest.mark.parametrize("epoch", [3, 10])
def test_the_guided_objective_is_that_of_the_epoch(epoch: int) -> None:
    torch.manual_seed(4)
    nonlinear, schedule = NonlinearGaussian(mlp_network(LATENTS, SHAPE, hidden=(6,)), SHAPE), linear_decay(0.1)
    encoder, linear = encoder_of("gaussian"), sg.LinearGaussian(LATENTS, SHAPE)
    model = sg.GuidedVAE(encoder, linear, nonlinear, estimator=Scripted(), schedule=schedule).double()
    batches, draws = batches_of(4), 3
    (found,) = gradient_variance(model, batches, draws, [Scripted()], "every", epoch=epoch).values()
    if epoch == 10:
        (alone,) = gradient_variance(model, batches, draws, [Scripted()], "every").values()
        assert alone == found  # the guide's weight is 0
    assert found.cosine is None
    assert found.est > 1e-6
    assert_textbook(found, brute_force(model, batches, draws, epoch)[0])


def test_the_sketch_is_unbiased_over_its_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Averaged over all 2^S sign vectors it is the sum over draws; so is a long random one."""
    draws = 4
    encoder, x = encoder_of("gaussian").double(), batches_of(1)[0]
    outputs = Parts.of(encoder(x), encoder.family).tensors
    pullback = Pullback(outputs, list(encoder.parameters()))
    c = [torch.randn(draws, *o.shape, dtype=torch.float64) for o in outputs]
    mean = [part.mean(0) for part in c]
    g = torch.stack([torch.cat([p.flatten() for p in pullback([part[s] for part in c])]) for s in range(draws)])
    expected = (g - g.mean(0)).square().sum()
    all_signs = torch.tensor(list(itertools.product((0, 1), repeat=draws)))
    sketch = Sketch(pullback, len(all_signs), torch.Generator())
    monkeypatch.setattr(torch, "randint", lambda *_, **__: all_signs)
    sketch.add(c)
    torch.testing.assert_close(sketch.sum_of_squares(mean, draws).sum(), expected)


def test_both_methods_agree_with_brute_force() -> None:
    """The same batches, other draws: the difference is within the standard errors, which are small."""
    batches, draws, model = batches_of(16), 30, linear_vae("bernoulli")
    nn.init.constant_(model.decoder.affine.bias, 1.5)  # far off: without its baseline REINFORCE would be another
    measured = [gradient_variance(model, batches, draws, [Reinforce()], method, seed=1) for method in METHODS]
    torch.manual_seed(2)
    model.tractable_estimator = Reinforce()
    expected = textbook(brute_force(model, batches, draws)[0])
    for found in (results["Reinforce"] for results in measured):
        for name, value in expected.items():
            assert abs(getattr(found, name) - value) < 3 * getattr(found.errors, name), name
        assert found.errors.est < 0.25 * found.est
        assert found.errors.est_percent < 10
        assert found.cosine > 0.8


def test_standard_errors_are_those_of_repetition() -> None:
    model = linear_vae("gaussian")
    results = (gradient_variance(model, batches_of(8, seed=n), 4, [Reparameterized()], seed=n) for n in range(40))
    found = [result["Reparameterized"] for result in results]
    for name in ("est", "batch", "est_percent", "snr"):
        spread = statistics.stdev(getattr(d, name) for d in found)
        claimed = statistics.mean(getattr(d.errors, name) for d in found)
        assert 0.7 < claimed / spread < 2, name


@EACH_METHOD
@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("link", [None, "linear", "exp"])
def test_exact_has_no_variance_at_all(link: Link | None, family: str, method: MethodName) -> None:
    """In single precision, where draws that differed in one bit would show."""
    decoder = sg.LinearPrecisionGaussian(LATENTS, SHAPE, link) if link else sg.LinearGaussian(LATENTS, SHAPE, 0.01)
    model, estimators = linear_vae(family, decoder).float(), [Exact(allow_approximation=True)]
    (found,) = gradient_variance(model, batches_of(4).float(), 200, estimators, method).values()
    assert found.est == found.est_percent == found.errors.est == 0.0
    assert found.batch > 0
    assert found.cosine == pytest.approx(1, abs=1e-5)


def test_one_encoder_run_and_memory_that_does_not_grow_with_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "AT_ONCE", 100)
    model, batches = linear_vae("gaussian"), batches_of(4)
    runs: list[int] = []
    model.encoder.register_forward_hook(lambda *_: runs.append(1))
    held: dict[int, int] = {}

    class Watching(Reparameterized):
        calls = 0

        def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
            self.calls += 1
            if self.calls == draws // 3:  # the last of a batch; three at once, after one to learn from
                tensors = [o for o in gc.get_objects() if type(o) is Tensor]  # the compiler's have no numbers
                held[draws] = sum(tensor.numel() for tensor in tensors)
            return super().forward(q, integrand)

    for draws in (60, 600):
        gradient_variance(model, batches, draws, [Watching()], "sketch")
    assert len(runs) == 2 * len(batches)
    assert held[600] <= 1.05 * held[60]


def test_nothing_is_disturbed() -> None:
    model, estimator = linear_vae("bernoulli"), Reinforce()
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradient_variance(model, batches_of(4), 5, [estimator])
    gradient_bias(model, batches_of(1)[0], [estimator], draws=5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(p.grad is None for p in model.parameters())
    assert not any(buffer.any() for buffer in estimator.buffers())
    assert estimator.training


@pytest.mark.parametrize("options", [{"log_term": "taylor"}, {"link": "linear"}, {"link": "exp"}], ids=str)
def test_the_deviation_of_a_closed_form_is_the_distance_by_hand(options: dict[str, str]) -> None:
    """The exponential link has an exact form, which deviates by rounding only."""
    model, x = linear_vae("bernoulli", sg.LinearPrecisionGaussian(LATENTS, SHAPE, **options)), batches_of(1)[0]
    gradients = []
    for estimator in (Exact(allow_approximation=True), sg.Enumerate()):
        model.tractable_estimator = estimator
        gradients.append(flat_gradient(model(x, 1).total, model.encoder))
    distance, norm = (gradients[0] - gradients[1]).norm().item(), gradients[1].norm().item()
    model.tractable_estimator = sg.RLOO()  # which has no part in it
    closed_form = [Exact(allow_approximation=True)]
    found = gradient_bias(model, x, closed_form)["Exact"]
    assert found.deviation == pytest.approx(distance, rel=1e-8, abs=1e-14)
    assert found.relative == pytest.approx(distance / norm, rel=1e-8, abs=1e-12)
    assert found.noise == 0
    assert (found.relative < 1e-12) == (options == {"link": "exp"})
    model.prior = sg.LearnedPrior(FAMILIES["bernoulli"](LATENTS)).double()  # which is part of the gradient
    nn.init.constant_(model.prior.numbers, 2.0)
    assert gradient_bias(model, x, closed_form)["Exact"] != found


def test_what_draws_leave_shrinks_and_what_bias_leaves_does_not() -> None:
    model, x = linear_vae("bernoulli", sg.LinearPrecisionGaussian(LATENTS, SHAPE)), batches_of(1)[0]
    few, many = (gradient_bias(model, x, [Reinforce(), GumbelSoftmax()], draws) for draws in (200, 20_000))
    assert 5 < few["Reinforce"].noise / many["Reinforce"].noise < 20
    assert 0.2 < many["Reinforce"].deviation / many["Reinforce"].noise < 3
    assert many["GumbelSoftmax"].deviation > 5 * many["GumbelSoftmax"].noise


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    model = ModelConfig("bernoulli", latent_dim=4, hidden=[16], tractable="fixed", nonlinear=False, estimator="exact")
    train(folder, DataConfig(batch_size=256), TrainConfig(epochs=2, accelerator="cpu", keep=[1]), model=model)
    return folder


def test_variance_of_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in METHODS:
        measure.variance(run, batches=4, draws=10, method=method)
        found = [row for row in rows(run / "variance.csv") if row["layer"] == "all"]
        assert [row["estimator"] for row in found] == ["Exact", "GumbelSoftmax", "Reinforce"]
        assert [float(row["est"]) for row in found if row["estimator"] == "Exact"] == [0.0]
        assert float(found[2]["est_percent"]) > float(found[1]["est_percent"]) > 0
    assert str(run / "variance.csv") in capsys.readouterr().out
    elsewhere = tmp_path / "one.csv"
    for checkpoint in (None, 1):
        measure.variance(run, checkpoint, ["rloo", "disarm"], batches=4, draws=4, output=elsewhere)
        assert [row["estimator"] for row in rows(elsewhere) if row["layer"] == "all"] == ["RLOO", "DisARM"]
    refused(sg.DomainError, "none", lambda: measure.variance(run, estimators=["none"]))


def test_weights_of_a_run(run: Path) -> None:
    images, place = load("digits"), RunFolder(run)
    own, kept = (load_weights(run, path, images) for path in (place.weights, place.kept(1)))
    assert not own.training
    assert any(not torch.equal(a, b) for a, b in zip(own.parameters(), kept.parameters(), strict=True))
    refused(RunError, "there is no", lambda: load_weights(run, place.kept(7), images))


def test_bias_of_two_trained_models(tmp_path: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's order, and the exact form and Edgeworth's below the paper's Taylor."""
    folder = tmp_path / "bias"
    measure.bias(latents=6, epochs=8, images=8, draws=5_000, folder=folder)
    found = {(row["link"], row["gradient"]): float(row["deviation"]) for row in rows(folder / "bias.csv")}
    order = [("exp", "silent, exact"), ("linear", "silent, edgeworth"), ("linear", "silent, taylor"),
             ("linear", "reinforce"), ("linear", "gumbel-softmax")]  # fmt: skip
    deviations = [found[name] for name in order]
    assert deviations == sorted(deviations)
    assert str(folder / "bias.csv") in capsys.readouterr().out
    measure.bias(run=folder / "exp", images=4, draws=100)
    assert {row["link"] for row in rows(folder / "exp" / "bias.csv")} == {"exp"}
    refused(RunError, "Bernoulli", lambda: measure.bias(run=digits_run))


def test_a_latent_and_a_function_by_themselves() -> None:
    """E (z - 0.499)^2 of one bit, where variances and the bias of straight-through are known by hand."""
    p = 0.3
    leaf = torch.tensor([math.log(p / (1 - p))], dtype=torch.float64)

    def f(z: Tensor) -> Tensor:
        return (z - 0.499).square()

    estimators = [sg.Enumerate(), sg.DisARM(), Scripted(), sg.RLOO(), sg.StraightThrough(), sg.estimators.IndeCateR()]
    found = gradient_variance(td.Bernoulli(logits=leaf), f, 200, estimators, "every")
    assert (found["Enumerate"].est, found["Enumerate"].evaluations) == (0, 2)
    assert (list(found["DisARM"].groups), found["DisARM"].work) == (["logits"], 2 * found["DisARM"].est)
    at_one, at_zero = (1 - p) * 0.501**2, -p * 0.499**2  # f times the score
    mean = p * at_one + (1 - p) * at_zero
    variance = p * at_one**2 + (1 - p) * at_zero**2 - mean**2
    assert (found["Scripted"].est, found["Scripted"].cosine) == (pytest.approx(variance, rel=0.1), None)
    difference, slope = 0.501**2 - 0.499**2, 2 * (p - 0.499)  # f(1) - f(0) and E f'(z)
    truth = p * (1 - p) * difference
    of_pairs = 2 * p * (1 - p) * (difference / 2) ** 2  # where the two samples differ, half the difference
    assert found["RLOO"].est == pytest.approx(of_pairs - truth**2, rel=0.1)
    bias, deviation = p * (1 - p) * (slope - difference), 2 * (p * (1 - p)) ** 1.5
    within = 4 * abs(bias) * deviation / math.sqrt(200)  # four standard errors over the four rounds
    assert found["StraightThrough"].squared_bias == pytest.approx(bias**2, abs=within)
    assert found["IndeCateR"].est < 1e-20
    assert found["RLOO"].squared_bias == 0
    own = found["StraightThrough"]
    assert own.error(10) == pytest.approx(own.squared_bias + own.est / 10)
    others = gradient_variance(td.Bernoulli(logits=leaf), f, 200, [sg.StraightThrough(), sg.RLOO(4)])
    assert others["StraightThrough"].squared_bias == pytest.approx(bias**2, abs=within)  # against the unbiased one
    (alone,) = gradient_variance(td.Bernoulli(logits=leaf), f, 20, [sg.StraightThrough()]).values()
    assert alone.squared_bias is alone.error() is None
    assert "unknown" in str(sg.ranked({"alone": alone}))
    assert (own.reference, others["StraightThrough"].reference) == ("Enumerate", "RLOO")
    assert 0 < own.squared_bias_error < within
    best = sg.ranked(found, evaluations=1)
    assert set(list(best)[-4:]) == {"Enumerate", "DisARM", "RLOO", "IndeCateR"}  # which take more
    assert "error in 1 evaluations" in str(best)
    assert "bias² against Enumerate" in str(best)


ONES = torch.ones(3, 2)
LATENTS_BY_THEMSELVES = [
    *(td.Normal(ONES, ONES), td.Gamma(ONES, ONES), td.Independent(td.Beta(ONES, ONES), 1), td.Dirichlet(ONES)),
    *(td.Poisson(ONES), td.Geometric(logits=ONES), td.OneHotCategorical(logits=ONES), td.Bernoulli(logits=ONES)),
    *(sg.KSubset(ONES.T, 2), td.Bernoulli(logits=torch.tensor(0.3))),
]


@pytest.mark.parametrize("q", LATENTS_BY_THEMSELVES, ids=lambda q: type(q).__name__)
def test_any_latent_by_itself(q: td.Distribution) -> None:
    def f(z: Tensor) -> Tensor:
        return (z.sin() * torch.arange(1, 1 + z.shape[-1])).sum(-1) if z.dim() else z.sin()

    estimators = [sg.RLOO(), sg.estimators.NVIL(inputs=8), *([Reparameterized()] if q.has_rsample else [])]
    found = gradient_variance(q, f, 20, estimators)
    assert all(decomposition.est > 0 for decomposition in found.values())
    assert found["RLOO"].evaluations == 2


MEASURED: dict[str, tuple[str, Callable[[], nn.Module] | None]] = {  # a family of latents, a decoder with statistics
    **{family: (family, None) for family in ("bernoulli", "categorical", "gaussian")},
    "circuit": ("bernoulli", lambda: sg.Circuit(LATENTS, SHAPE, 3)),
    "likelihood": ("gaussian", lambda: sg.LinearLikelihood(LATENTS, SHAPE, sg.likelihoods.ZeroInflatedPoisson(SHAPE))),
}


@EACH_METHOD
@pytest.mark.parametrize("case", MEASURED)
def test_every_estimator_is_measured_on_a_model(case: str, method: MethodName) -> None:
    """With the evaluations that it declares; a control variate of statistics has less variance than its base."""
    family, decoder = MEASURED[case]
    model, draws, values = linear_vae(family), 4, 10 if family == "categorical" else 2
    estimators = [one() for one in ESTIMATORS.values() if one.suits(FAMILIES[family]) and not one.exact]
    if decoder is not None:
        model.tractable, draws = decoder().double(), 20
        estimators = [sg.RLOO(), sg.SilentControlVariate(sg.RLOO()), sg.SilentControlVariate(sg.Reinforce())]
    found = gradient_variance(model, batches_of(4).round(), draws, estimators, method)
    for own, decomposition in zip(estimators, found.values(), strict=True):
        assert decomposition.est > 0
        claimed = own.evaluations(LATENTS, values), own.unbiased
        assert (decomposition.evaluations, decomposition.unbiased) == claimed
    if decoder is not None:
        assert list(found) == ["RLOO", "SilentControlVariate(RLOO)", "SilentControlVariate(Reinforce)"]
        assert found["SilentControlVariate(RLOO)"].est < 0.5 * found["RLOO"].est


class LaidOut(nn.Linear):
    """An encoder of 6 numbers to 4 latents, laid out in a shape; x of any batch shape."""

    def __init__(self, shape: tuple[int, ...], family: str) -> None:
        super().__init__(6, 4)
        self.shape, self.of = shape, family

    def forward(self, x: Tensor) -> td.Distribution:
        return latent_of(self.of, super().forward(x.flatten(-3)).unflatten(-1, self.shape))


def laid_out_vae(shape: tuple[int, ...], family: str, decoder: str) -> sg.GuidedVAE:
    torch.manual_seed(4)
    encoder = LaidOut(shape, family)
    if decoder == "network":
        network = nn.Sequential(nn.Flatten(), nn.Linear(4, 12), nn.Unflatten(1, (2, *SHAPE[1:])))
        return sg.GuidedVAE(encoder, None, NonlinearGaussian(network, SHAPE), estimator=Reparameterized()).double()
    linear = sg.LinearPrecisionGaussian(4, SHAPE, "exp") if decoder == "exp" else sg.LinearGaussian(4, SHAPE, 0.1)
    return sg.GuidedVAE(encoder, linear).double()


SQUARE, ROWS = ((2, 2), (6,)), ((4,), (2, 3))  # latents and examples
LAID_OUT = [(SQUARE, "fixed"), (SQUARE, "exp"), (SQUARE, "network"), (ROWS, "fixed"), (ROWS, "exp")]


@pytest.mark.parametrize(("shapes", "decoder"), [*LAID_OUT, (((2, 2), (1, 6)), "fixed")])
def test_any_layout_is_measured_like_rows(shapes: tuple[tuple[int, ...], tuple[int, ...]], decoder: str) -> None:
    results, x = [], batches_of(4, size=6)
    family, estimator = ("gaussian", Reparameterized) if decoder == "network" else ("bernoulli", sg.DisARM)
    for layout, batch in (((4,), (6,)), shapes):
        model, data = laid_out_vae(layout, family, decoder), x.reshape(4, *batch, *SHAPE)
        found = gradient_variance(model, data, 30, [estimator()])[estimator.__name__]
        torch.manual_seed(0)
        results.append([found.est, found.batch, found.snr, *(v.item() for v in model(data[0], 1) if v is not None)])
    assert results[1] == pytest.approx(results[0], rel=1e-9)


class Bare(Estimator):
    """A value, and nothing that is claimed of it."""

    def forward(self, q: td.Distribution, integrand: Integrand) -> Tensor:
        return integrand(q.sample())


def bare(z: Tensor) -> Tensor:
    return z.sum(-1)


@refusals
def test_what_cannot_be_measured_is_refused() -> Refusals:
    model, gaussian, batches = linear_vae("bernoulli"), linear_vae("gaussian"), batches_of(4)
    frozen, laid_out = linear_vae("bernoulli"), laid_out_vae((4,), "bernoulli", "fixed")
    frozen.encoder.requires_grad_(False)
    single, no_slope = batches_of(4, size=1).squeeze(1), "cannot be reparameterized"
    q, empty, of_model = td.Bernoulli(torch.zeros(3, 2)), batches_of(4, size=0), gradient_variance
    alike, one = [GumbelSoftmax(0.5), GumbelSoftmax(1.0)], r"over a batch of examples, got x of shape \(1, 2, 3\)"
    function, no_model = "a latent by itself is measured with a function", "with a latent in place of the model"
    none, valued = r"x of shape \(0, 1, 2, 3\)", "Bare returns a value without a gradient"
    return {
        "one draw": (sg.DomainError, "at least 2 draws", lambda: of_model(model, batches, 1, [Reinforce()])),
        "few batches": (sg.DomainError, "at least 4 batches", lambda: of_model(model, batches[:3], 2, [Reinforce()])),
        "alike": (sg.DomainError, "give them names", lambda: of_model(model, batches, 2, alike)),
        "no estimator": (sg.DomainError, "no estimator", lambda: of_model(model, batches, 2, [])),
        "unknown method": (sg.DomainError, "sketch", lambda: of_model(model, batches, 2, [Reinforce()], "all")),
        "another family": (sg.IntractableError, no_slope, lambda: of_model(model, batches, 2, [Reparameterized()])),
        "frozen": (sg.DomainError, "frozen", lambda: of_model(frozen, batches, 2, [Reinforce()])),
        "a latent with data": (sg.DomainError, function, lambda: of_model(q, batches, 2, [Reinforce()])),
        "a class": (sg.DomainError, "RLOO is no estimator: give an instance", lambda: of_model(q, bare, 2, [sg.RLOO])),
        "no gradient": (sg.DomainError, valued, lambda: of_model(q, bare, 2, [Bare()])),
        "no gradient to time": (sg.DomainError, valued, lambda: sg.recommend(q, bare, 1, [Bare()])),
        "a number for each latent": (sg.ShapeError, "sum over", lambda: of_model(q, lambda z: z, 2, [Reinforce()])),
        "a column": (sg.ShapeError, r"\(3, 1\)", lambda: sg.recommend(q, lambda z: z[:, :1])),
        "a latent in an epoch": (sg.DomainError, "no epoch", lambda: of_model(q, bare, 2, [Reinforce()], epoch=1)),
        "a model with a function": (sg.DomainError, no_model, lambda: of_model(model, lambda z: z, 2, [Reinforce()])),
        "no batch": (sg.ShapeError, one, lambda: of_model(laid_out, single, 2, [sg.DisARM()])),
        "no batch, every": (sg.ShapeError, one, lambda: of_model(laid_out, single, 2, [sg.DisARM()], "every")),
        "no examples": (sg.ShapeError, none, lambda: of_model(gaussian, empty, 2, [Reparameterized()])),
        "no examples in training": (sg.ShapeError, f"{none} holds no examples", lambda: gaussian(empty[0], epoch=1)),
    }
