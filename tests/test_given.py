"""Side information: offsets, covariates, masks and scales, each against a decoder that needs none of them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import oracles
import silentgrad as sg
from members import GAUSSIANS, LIKELIHOODS, counts
from refusals import Refusals, refusals
from silentgrad import likelihoods
from silentgrad.evaluation import evaluate
from silentgrad.latents import families
from silentgrad.objective import Objective, Term
from silentgrad.schedules import constant

DOUBLE = torch.float64
LATENTS, OUTPUTS, BATCH = 2, 6, 4
COUNTS = counts(BATCH, OUTPUTS)
MASK = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]], dtype=torch.bool)

DECODERS = {decoder.name: decoder for decoder in [*GAUSSIANS, *LIKELIHOODS]}
EACH = pytest.mark.parametrize("name", DECODERS)


def make(name: str, outputs: int = OUTPUTS) -> sg.LinearDecoder:
    torch.manual_seed(2)
    decoder = DECODERS[name].build(LATENTS, (outputs,)).double()
    for parameter in decoder.parameters():
        nn.init.uniform_(parameter, -0.3, 0.5)
    return decoder


def normal(dtype: torch.dtype = DOUBLE, batch: int = BATCH) -> td.Normal:
    generator = torch.Generator().manual_seed(0)
    loc, log_scale = torch.randn(2, batch, LATENTS, generator=generator, dtype=DOUBLE)
    return td.Normal(loc.to(dtype).requires_grad_(), (log_scale / 3).exp().to(dtype).detach().requires_grad_())


def offsets(each: bool = True) -> Tensor:
    shape = (BATCH, OUTPUTS) if each else (BATCH,)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def of_row(name: str, decoder: sg.LinearDecoder, kept: Tensor, shift: Tensor) -> sg.LinearDecoder:
    """The decoder of one example that needs no side information: of the outputs that were observed, with u moved."""
    small = make(name, outputs=int(kept.sum()))
    sources = {**dict(decoder.named_parameters()), **dict(decoder.named_buffers())}
    with torch.no_grad():
        for part, value in [*small.named_parameters(), *small.named_buffers()]:
            source = sources[part]
            value.copy_(source[kept] if source.dim() > 0 else source)
        if isinstance(small, sg.StandardizedGaussian):
            shift = shift / decoder.scale
        small.affine.bias += shift[kept]
    return small


COVARIATES = torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
KNOWN = {  # side information and by how much it moves u
    "an offset of examples": lambda d: (sg.SideInfo(offsets(False)), offsets(False).unsqueeze(1).expand(-1, OUTPUTS)),
    "an offset of entries": lambda d: (sg.SideInfo(offsets()), offsets()),
    "a mask": lambda d: (sg.SideInfo(mask=MASK), torch.zeros(BATCH, OUTPUTS, dtype=DOUBLE)),
    "offset and mask": lambda d: (sg.SideInfo(offsets(), mask=MASK), offsets()),
    "covariates": lambda d: (sg.SideInfo(covariates=COVARIATES), d.covariate_affine(COVARIATES)),
}


@EACH
@pytest.mark.parametrize("known", KNOWN)
def test_each_row_has_a_decoder_without_side_information(name: str, known: str) -> None:
    """Of its own, with its value and gradients, and of samples of z with a dimension before the examples'."""
    decoder, q, x = make(name), normal(), DECODERS[name].data(BATCH, OUTPUTS)
    if known == "covariates":
        if not isinstance(decoder, sg.LinearLikelihood):
            return
        decoder.covariate_affine = nn.Linear(3, OUTPUTS, bias=False).double()
    side_info, shifts = KNOWN[known](decoder)
    mask = torch.ones_like(MASK) if side_info.mask is None else side_info.mask
    seen, z = torch.where(mask, x, math.nan), torch.randn(3, BATCH, LATENTS, dtype=DOUBLE)
    given = decoder.given(side_info)
    value = given.expected_log_prob(seen, q)
    rows, weights, laws = [], torch.zeros_like(decoder.affine.weight), []
    for row, kept in enumerate(mask):
        small, own = of_row(name, decoder, kept, shifts[row]), td.Normal(q.loc[row], q.scale[row])
        rows.append(small.expected_log_prob(x[row, kept], own))
        weights[kept] += torch.autograd.grad(rows[-1], small.affine.weight, retain_graph=True)[0]
        laws.append(small.log_prob(x[row, kept].expand(3, -1), z[:, row]))
    torch.testing.assert_close(value, torch.stack(rows), rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(value.sum(), [q.loc, q.scale, decoder.affine.weight])
    truths = *torch.autograd.grad(sum(rows), [q.loc, q.scale]), weights
    torch.testing.assert_close(gradients, truths, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(given.log_prob(seen, z), torch.stack(laws, 1))
    torch.testing.assert_close(sg.integrand_of(given, seen)(z[0]), torch.stack(laws, 1)[0])
    assert given(z).batch_shape == (3, BATCH)
    if mask.all():
        torch.testing.assert_close(given(z).log_prob(x), torch.stack(laws, 1))


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_row_of_which_nothing_was_observed_is_zero(name: str, dtype: torch.dtype) -> None:
    decoder, q = make(name).to(dtype), normal(dtype)
    mask = MASK & (torch.arange(BATCH) != 1).unsqueeze(1)
    x = torch.where(mask, DECODERS[name].data(BATCH, OUTPUTS).to(dtype), math.nan)
    for sign in (-20, 20):
        value = decoder.expected_log_prob(x, q, mask=mask, offset=torch.full((BATCH,), sign, dtype=dtype))
        assert value[1] == 0
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), [q.loc, q.scale, *decoder.parameters()]):
            assert gradient.isfinite().all()
    torch.testing.assert_close(decoder.given(sg.SideInfo(mask=mask)).log_prob(x, q.loc)[1].item(), 0.0)


@pytest.mark.parametrize("latent", ["Normal", "Bernoulli"])
def test_a_known_deviation_adds_to_the_variance(latent: str) -> None:
    decoder, deviation = make("Normal"), offsets().exp()
    q: td.Distribution = normal()
    rule = oracles.standard_normal(lambda q, e: q.loc + q.scale * e)
    if latent == "Bernoulli":
        q, rule = td.Bernoulli(torch.full((BATCH, LATENTS), 0.3, dtype=DOUBLE)), oracles.bits
    scale = (decoder.likelihood.scale.square() + deviation.square()).sqrt()
    expected = oracles.on_grid(rule)(q)(lambda z: td.Normal(decoder.affine(z), scale).log_prob(COUNTS)).sum(-1)
    value = decoder.expected_log_prob(COUNTS, q, scale=deviation)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    parameter = decoder.likelihood.log_scale
    gradients = [torch.autograd.grad(total.sum(), parameter)[0] for total in (value, expected)]
    torch.testing.assert_close(*gradients)
    none = decoder.expected_log_prob(COUNTS, q, scale=torch.zeros_like(deviation))
    torch.testing.assert_close(none, decoder.expected_log_prob(COUNTS, q))
    whole = {"x": COUNTS, "offset": offsets(), "scale": deviation}
    missing = {name: torch.where(MASK, part, math.nan) for name, part in whole.items()}  # which may be anything
    results = [decoder.expected_log_prob(q=q, mask=MASK, **parts) for parts in (whole, missing)]
    assert torch.equal(*results)
    given, z = decoder.given(sg.SideInfo(scale=deviation)), torch.randn(3, BATCH, LATENTS, dtype=DOUBLE)
    under_samples = td.Normal(decoder.affine(z), scale).log_prob(COUNTS).sum(-1)
    torch.testing.assert_close(given(z).log_prob(COUNTS), under_samples)
    torch.testing.assert_close(given.log_prob(COUNTS, z), under_samples)


@pytest.mark.parametrize("likelihood", [likelihoods.Poisson(), likelihoods.ZeroInflatedPoisson(OUTPUTS)])
def test_bits_are_enumerated_given_side_information(likelihood: nn.Module) -> None:
    decoder = sg.LinearLikelihood(LATENTS, OUTPUTS, likelihood, covariates=1).double()
    assert not decoder.covariate_affine.weight.any()  # covariates start without an effect
    nn.init.uniform_(decoder.covariate_affine.weight, -0.5, 0.5)
    logits = torch.randn(BATCH, LATENTS, dtype=DOUBLE, requires_grad=True)
    given = decoder.given(sg.SideInfo(offset=offsets(), covariates=torch.randn(BATCH, 1, dtype=DOUBLE), mask=MASK))
    integrand = sg.integrand_of(given, torch.where(MASK, COUNTS, math.nan))
    results = []
    for estimator in (sg.Exact(), sg.Enumerate()):
        value = estimator(td.Bernoulli(logits=logits), integrand)
        results.append((value, *torch.autograd.grad(value.sum(), [logits, decoder.affine.weight])))
    if isinstance(likelihood, likelihoods.Poisson):
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert (results[0][0] <= results[1][0] + 1e-12).all()


def test_examples_of_several_dimensions() -> None:
    flat = make("NegativeBinomial")
    decoder = sg.LinearLikelihood(LATENTS, (2, 3), likelihoods.NegativeBinomial((2, 3))).double()
    for own, other in zip(decoder.parameters(), flat.parameters(), strict=True):
        own.data.copy_(other.reshape(own.shape))
    parts, z = {"x": COUNTS, "offset": offsets(), "mask": MASK}, normal().loc.detach()
    results = []
    for model, shape in ((flat, (OUTPUTS,)), (decoder, (2, 3))):
        own = {name: part.unflatten(1, shape) for name, part in parts.items()}
        x, known = own["x"], sg.SideInfo(offset=own["offset"], mask=own["mask"])
        results.append((model.expected_log_prob(q=normal(), **own), model.given(known).log_prob(x, z)))
    torch.testing.assert_close(*results)


def test_rows_of_shares_are_masked_each_by_itself() -> None:
    """Several totals in an example, of one of which nothing was observed."""
    decoder = sg.LinearLikelihood(LATENTS, (2, 3), likelihoods.Multinomial()).double()
    x, mask = COUNTS.unflatten(1, (2, 3)), MASK.unflatten(1, (2, 3)).clone()
    mask[0, 1] = False
    truth = torch.zeros(BATCH, dtype=DOUBLE)
    for example, row in ((i, j) for i in range(BATCH) for j in range(2) if mask[i, j].any()):
        kept, q = mask[example, row], td.Normal(normal().loc[example], normal().scale[example])
        small = sg.LinearLikelihood(LATENTS, int(kept.sum()), likelihoods.Multinomial()).double()
        with torch.no_grad():
            small.affine.weight.copy_(decoder.affine.weight.unflatten(0, (2, 3))[row, kept])
            small.affine.bias.copy_(decoder.affine.bias.unflatten(0, (2, 3))[row, kept])
        truth[example] += small.expected_log_prob(x[example, row, kept], q)
    torch.testing.assert_close(decoder.expected_log_prob(x, normal(), mask=mask), truth)


def test_parts_come_in_the_precision_of_the_decoder_and_a_batch_may_be_empty() -> None:
    decoder, x, q = make("NegativeBinomial").float(), COUNTS.float(), normal(torch.float32)
    value = decoder.expected_log_prob(x, q, offset=offsets(), mask=MASK)
    assert value.dtype == decoder.given(sg.SideInfo(offset=offsets()))(q.loc).mean.dtype == torch.float32
    whole = decoder.expected_log_prob(x, q, offset=torch.full((BATCH,), 2))
    torch.testing.assert_close(whole, decoder.expected_log_prob(x, q, offset=torch.full((BATCH,), 2.0)))
    for offset in (offsets()[:0], offsets(False)[:0]):
        nobody = normal(torch.float32, batch=0)
        assert decoder.expected_log_prob(x[:0], nobody, offset=offset, mask=MASK[:0]).shape == (0,)


class Encoder(nn.Linear):
    """From x to a Gaussian latent; an entry that is missing is seen as zero."""

    def forward(self, x: Tensor) -> td.Normal:
        loc, log_scale = super().forward(x.nan_to_num()).chunk(2, -1)
        return td.Normal(loc, log_scale.exp())


def guided(name: str) -> sg.GuidedVAE:
    torch.manual_seed(0)
    return sg.GuidedVAE(Encoder(OUTPUTS, 2 * LATENTS).double(), make(name))


def test_weights_of_examples_are_how_often_they_stand_in_the_batch() -> None:
    model, weights = guided("Poisson"), torch.tensor([1.0, 0.0, 3.0, 2.0], dtype=DOUBLE)
    often = torch.tensor([0, 2, 2, 2, 3, 3])
    x, side_info = torch.where(MASK, COUNTS, math.nan), sg.SideInfo(offset=offsets(), mask=MASK)
    repeated = sg.SideInfo(offset=offsets()[often], mask=MASK[often])
    losses = model(x, 1, side_info, weights), model(x[often], 1, repeated)
    torch.testing.assert_close(*(list(loss[:3]) for loss in losses))
    torch.testing.assert_close(*(torch.autograd.grad(loss.total, list(model.parameters())) for loss in losses))
    q = model.encoder(x)
    integers = model.objective(q, 1)(x, q, side_info, weights.long())
    torch.testing.assert_close(integers.total, losses[0].total)


def test_objective_and_evaluation_are_those_of_the_given_decoder() -> None:
    model = guided("Poisson")
    x, side_info = torch.where(MASK, COUNTS, math.nan), sg.SideInfo(offset=offsets(), mask=MASK)
    q = model.encoder(x)
    bound = model.tractable.expected_log_prob_given(x, q, side_info) - model.prior_of(q).divergence(q)
    torch.testing.assert_close(model(x, 1, side_info).total, -bound.mean())
    torch.testing.assert_close(evaluate(model, x, side_info=side_info).elbo, bound.sum())
    torch.manual_seed(0)
    sampled = evaluate(model, x, samples=400, side_info=side_info)
    assert sampled.sampled.item() == pytest.approx(bound.sum().item(), abs=1)
    decoder = sg.LinearPrecisionGaussian(LATENTS, OUTPUTS, log_term="taylor").double()
    nn.init.uniform_(decoder.precision_affine.weight, -1, 1)
    model, side_info = sg.GuidedVAE(model.encoder, decoder), sg.SideInfo(offset=0 * offsets())  # the best log term
    torch.testing.assert_close(evaluate(model, COUNTS, side_info=side_info).elbo, evaluate(model, COUNTS).elbo)


@pytest.mark.filterwarnings("ignore:the guide starts at random")
def test_the_guide_takes_side_information() -> None:
    x, q = torch.where(MASK, COUNTS, math.nan), normal()
    guide = sg.SilentGuide(LATENTS, OUTPUTS, constant(0.25), likelihood=likelihoods.NegativeBinomial(OUTPUTS)).double()
    nll = torch.full((BATCH,), 9.0, dtype=DOUBLE)
    loss = guide(x, q, nll, epoch=1, offset=offsets(), mask=MASK)
    silent = -guide.decoder.expected_log_prob(x, q, offset=offsets(), mask=MASK)
    torch.testing.assert_close(loss, 0.25 * silent + 0.75 * nll)


@pytest.mark.filterwarnings("ignore:the guide starts at random")
def test_the_guide_expects_a_loss_of_what_was_observed() -> None:
    """Three of two hundred outputs: a loss of two nats is no mean over outputs."""
    mask = torch.zeros(BATCH, 200, dtype=torch.bool)
    mask[:, :3] = True
    x, q, nll = torch.where(mask, 1.0, math.nan), normal(torch.float32), torch.tensor(2.0)
    for options in ({}, {"variance": 0.5}):
        sg.SilentGuide(LATENTS, 200, constant(1.0), "mean", **options)(x, q, nll, epoch=1, mask=mask)
    with pytest.raises(UserWarning, match="a sum over the batch"):
        sg.SilentGuide(LATENTS, 200, constant(1.0), "mean", variance=0.5)(x, q, 100 * nll, epoch=1, mask=mask)


@refusals
def test_bad_input_is_named() -> Refusals:
    q, x = normal(), COUNTS
    poisson, precision, gaussian = make("Poisson"), make("linear link, auto"), make("Normal")
    short = poisson.given(sg.SideInfo(mask=MASK[:2]))
    covaried = sg.LinearLikelihood(LATENTS, OUTPUTS, likelihoods.Poisson(), covariates=2).double().expected_log_prob
    two, ones = torch.ones(BATCH, 2, dtype=DOUBLE), torch.ones(BATCH, OUTPUTS, dtype=DOUBLE)
    zero_size = offsets(False).clone()
    zero_size[2] = -math.inf
    negative = ones.clone()
    negative[1, 1] = -0.1
    objective = Objective({"tractable": Term(poisson, sg.Exact())}, families.Gaussian(LATENTS).prior())
    nothing_given = Objective({"other": Term(nn.Identity(), sg.Reparameterized())}, objective.prior)
    approximate = sg.integrand_of(make("a function").given(sg.SideInfo(offset=offsets())), x)
    expected, normals, noisy = (decoder.expected_log_prob for decoder in (poisson, gaussian, precision))
    shares, counted = make("Multinomial").expected_log_prob, make("LogNormal").expected_log_prob
    named = r"of LinearLikelihood\(\) is an approximation"
    return {
        "mask of floats": (sg.DomainError, "mask has to be bool", lambda: expected(x, q, mask=ones)),
        "mask of another shape": (sg.ShapeError, "mask has shape", lambda: expected(x, q, mask=MASK[:, :1])),
        "offset of another shape": (sg.ShapeError, r"expected \(4,\) or \(4, 6\)", lambda: expected(x, q, offset=two)),
        "one offset": (sg.ShapeError, "offset has shape", lambda: expected(x, q, offset=torch.tensor(1.0))),
        "a size of zero": (sg.DomainError, "size of zero", lambda: expected(x, q, offset=zero_size)),
        "NaN offset": (sg.DomainError, "offset holds", lambda: expected(x, q, offset=math.nan * zero_size)),
        "covariates missing": (sg.ShapeError, "none were given", lambda: covaried(x, q)),
        "covariates missing beside": (sg.ShapeError, "none were", lambda: covaried(x, q, mask=MASK)),
        "covariates unexpected": (sg.ShapeError, "no weights for cov", lambda: expected(x, q, covariates=two)),
        "covariates elsewhere": (sg.IntractableError, "takes no covariates", lambda: noisy(x, q, covariates=two)),
        "another number": (sg.ShapeError, "3 were", lambda: covaried(x, q, covariates=ones[:, :3])),
        "one row of them": (sg.ShapeError, "one row", lambda: covaried(x, q, covariates=two[:1])),
        "NaN covariates": (sg.DomainError, "covariates holds", lambda: covaried(x, q, covariates=two * math.nan)),
        "scale of counts": (sg.IntractableError, "no known scale", lambda: expected(x, q, scale=ones)),
        "scale of shares": (sg.IntractableError, "no known scale", lambda: shares(x, q, scale=ones)),
        "scale of logarithms": (sg.IntractableError, "no known scale", lambda: counted(x + 1, q, scale=ones)),
        "scale elsewhere": (sg.IntractableError, "takes no scale", lambda: noisy(x, q, scale=ones)),
        "negative scale": (sg.DomainError, "cannot be negative", lambda: normals(x, q, scale=negative)),
        "NaN scale": (sg.DomainError, "or NaN", lambda: normals(x, q, scale=math.nan * ones)),
        "scale of another shape": (sg.ShapeError, "scale has", lambda: normals(x, q, scale=ones[0])),
        "negative count": (sg.DomainError, "takes counts", lambda: expected(x - 1, q, offset=offsets())),
        "missing without a mask": (sg.DomainError, "takes counts", lambda: expected(math.nan * x, q, offset=offsets())),
        "an approximation, named by its decoder": (sg.IntractableError, named, lambda: sg.Exact()(q, approximate)),
        "decode": (sg.ShapeError, "offset has shape", lambda: poisson.given(sg.SideInfo(offset=offsets()[:2]))(q.loc)),
        "log_prob": (sg.ShapeError, "mask has shape", lambda: short.log_prob(x, q.loc)),
        "no given": (sg.IntractableError, "no method `given`", lambda: nothing_given(x, q, sg.SideInfo(mask=MASK))),
        "weights of another shape": (sg.ShapeError, "one per example", lambda: objective(x, q, example_weights=two)),
        "negative weights": (sg.DomainError, "weights of", lambda: objective(x, q, example_weights=-two[:, 0])),
        "weights of zero": (sg.DomainError, "nor zero for all", lambda: objective(x, q, example_weights=0 * two[:, 0])),
    }
