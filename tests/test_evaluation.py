"""One evaluation: whoever asks, one model has one figure."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributions as td

import comparison
import silentgrad as sg
from members import Posterior
from runs import Cli
from silentgrad.evaluation import evaluate, sampled_elbos
from silentgrad.guided import GuidedVAE
from silentgrad.lab.build import model_for
from silentgrad.lab.data import Levels, Observations, load, load_images
from silentgrad.lab.experiments import runner
from silentgrad.lab.experiments.cells import Request, learned_cells
from silentgrad.lab.kinds import Kind
from silentgrad.lab.runs import evaluation
from silentgrad.lab.runs.evaluation import Share, SplitEvaluation, evaluate_model
from silentgrad.lab.store.files import read_json
from silentgrad.lab.training import DataConfig, ModelConfig, Settings, TrainConfig, load_run
from silentgrad.lab.training.finishing import _closed_form as closed_form
from silentgrad.lab.training.finishing import limit

DIGITS = load_images("digits")
ALONE = {"latent_dim": 3, "hidden": [8], "nonlinear": False, "estimator": "exact"}
MODELS = {
    **{name: ModelConfig(tractable=name, **ALONE) for name in ("fixed", "linear", "exp")},
    "bernoulli": ModelConfig(latent="bernoulli", tractable="exp", **ALONE),
    "mlp": ModelConfig(latent_dim=3, hidden=[8], tractable="none"),
}


def model_of(name: str, observations: Observations) -> GuidedVAE:
    torch.manual_seed(1)
    return model_for(MODELS[name], observations)


def test_train_evaluate_reproduce_and_an_example_print_the_same_digits(tmp_path: Path, cli: Cli) -> None:
    """A run as `silentgrad reproduce` makes it, and its weights judged by the others."""
    (cell, *_) = learned_cells(Request("smoke", 1))
    settings = Settings(DataConfig(batch_size=100), cell.settings.model, TrainConfig(epochs=1, seed=5))
    runner.train_run(settings, tmp_path / "run")
    summary = read_json(tmp_path / "run" / "summary.json")
    printed = [cli("train", "--folder", tmp_path / "run", "--resume", "true"), cli("evaluate", tmp_path / "run")]
    wanted = f"test BPD {summary['figure']:.4f}   MSE {summary['metrics']['mse']:.3f}   KLD {summary['kld']:.2f}"
    assert all(wanted in said for said in printed)
    vae = load_run(tmp_path / "run", DIGITS)
    assert comparison.judge(vae, vae.encoder, vae.decoder, DIGITS) == summary["figure"]


@pytest.mark.parametrize("name", MODELS)
def test_noise_is_integrated_out(name: str) -> None:
    """The figure is the mean over draws of the noise, with an encoder that sees the center of each bin."""
    few = dataclasses.replace(DIGITS, test=DIGITS.test[:20])
    model = model_of(name, few).double()
    found = evaluate_model(model, few)
    center = few.centre(few.rows("test")).double()
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(20):  # of noise and its opposite, whose mean is free of all but the squares
        noise = (torch.rand(center.shape, generator=generator, dtype=torch.float64) - 0.5) / few.levels
        pairs.append((_elbo(model, center, center + noise) + _elbo(model, center, center - noise)) / 2)
    draws = torch.stack(pairs) / 20
    error = float(draws.std() / math.sqrt(len(draws)))
    assert found.elbo == pytest.approx(float(draws.mean()), abs=4.5 * error)
    without = float(_elbo(model, center, center)) / 20
    assert abs(found.elbo - without) > 10 * error  # the noise is not left out


def _elbo(model: GuidedVAE, seen: Tensor, x: Tensor) -> Tensor:
    """The bound on x of a latent that was inferred from another batch, with the draws of the evaluation."""
    torch.manual_seed(evaluation.mixed(2, 0, 1))
    with torch.no_grad():
        q = model.encoder(seen)
        kld = td.kl_divergence(q.base_dist, _prior(q.base_dist)).sum()
        drawn = model.decoder(q.sample()).log_prob(x)
        if isinstance(model.decoder, sg.LinearDecoder):
            drawn = model.decoder.expected_log_prob(x, q)
    return drawn.sum() - kld


def _prior(q: td.Distribution) -> td.Distribution:
    if isinstance(q, td.Bernoulli):
        return td.Bernoulli(torch.full_like(q.probs, 0.5))
    return td.Normal(torch.zeros_like(q.mean), torch.ones_like(q.mean))


def test_noise_is_integrated_out_of_the_importance_weighted_bound() -> None:
    few = dataclasses.replace(DIGITS, test=DIGITS.test[:50])
    model = model_of("mlp", few)
    elbo, weighted = evaluate_model(model, few), evaluate_model(model, few, samples=50)
    center, variance = few.centre(few.rows("test")), 1 / (12 * 17**2)
    torch.manual_seed(evaluation.mixed(2, 0, 1))
    with torch.no_grad():
        q = model.encoder(center)
        q.sample()  # which the squared error is of
        weights = []
        for _ in range(50):
            z = q.sample()
            p = model.decoder(z)
            penalty = (variance / (2 * p.variance)).flatten(1).sum(1)
            prior = td.Independent(_prior(q.base_dist), 1)
            weights.append(p.log_prob(center) - penalty + prior.log_prob(z) - q.log_prob(z))
    log_weights = torch.stack(weights)
    bound = float((log_weights.logsumexp(0) - math.log(50)).mean())
    assert weighted.elbo == pytest.approx(bound, rel=1e-5)
    assert weighted.sampled == pytest.approx(DIGITS.figure(float(log_weights.mean())), rel=1e-3)
    assert weighted.figure < elbo.figure
    assert (elbo.sampled, elbo.samples, weighted.samples) == (None, 1, 50)


def test_noise_that_cannot_be_integrated_out_is_seeded_by_the_data() -> None:
    decoder = sg.LinearLikelihood(3, (1, 8, 8), sg.likelihoods.Logistic((1, 8, 8)))  # the log-probability is no square
    model = GuidedVAE(model_of("mlp", DIGITS).encoder, nonlinear=decoder, estimator=sg.Reparameterized())
    first = evaluate_model(model, DIGITS)
    torch.manual_seed(99)
    assert evaluate_model(model, DIGITS) == first
    x = DIGITS.as_seen(DIGITS.rows("test"), torch.Generator().manual_seed(evaluation.mixed(2, 0, 0)))
    torch.manual_seed(evaluation.mixed(2, 0, 1))
    assert first.elbo == pytest.approx(evaluate(model, x).elbo.item() / 250, rel=1e-6)


@pytest.mark.parametrize("kind", ["levels", "binarized"])
def test_figures_do_not_depend_on_the_random_state_or_autocast_and_leave_it_alone(kind: Kind) -> None:
    """Training in mixed precision measures what `silentgrad evaluate` does."""
    digits = load("digits", kind=kind)
    model = model_of("mlp", digits)
    model.encoder.train()
    model.decoder.eval()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = evaluate_model(model, digits, "valid")
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.encoder.training, model.decoder.training) == (True, False)
    torch.manual_seed(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed_precision = evaluate_model(model, digits, "valid")
    assert evaluate_model(model, digits, "valid") == first == mixed_precision
    assert evaluate_model(model, digits).figure != first.figure


@pytest.mark.parametrize("name", ["mlp", "bounded"])
@pytest.mark.parametrize("processes", [2, 3, 8])
def test_several_processes_have_the_figures_of_one(processes: int, name: str) -> None:
    """To the bit, in one pass over the examples or, with the gap of a bound, two; more processes than batches do."""
    model = bounded(DIGITS) if name == "bounded" else model_of(name, DIGITS)
    passes: list[list[Tensor]] = [[], []]

    def evaluated(rank: int, total: Callable[[list[Tensor], Tensor], Tensor]) -> SplitEvaluation:
        each = iter(passes)
        return evaluate_model(
            model, DIGITS, "train", share=Share(rank, processes, lambda sums: total(next(each), sums)), draws=2
        )

    def keep(parts: list[Tensor], sums: Tensor) -> Tensor:
        parts.append(sums)
        return sums

    for rank in range(processes):
        evaluated(rank, keep)
    assert evaluated(0, lambda parts, _: sum(parts)) == evaluate_model(model, DIGITS, "train", draws=2)


def bounded(observations: Levels) -> GuidedVAE:
    """A model whose bound is below the ELBO, by a little."""
    torch.manual_seed(1)
    model = model_for(dataclasses.replace(MODELS["fixed"], prior="mixture"), observations)
    torch.nn.init.normal_(model.prior.numbers, std=0.3)
    return model


def mixed(observations: Levels) -> GuidedVAE:
    """A model whose decoder has a lower bound, and whose prior is exact."""
    torch.manual_seed(1)
    model = model_for(dataclasses.replace(MODELS["exp"], tractable="mixture", leaves="constant"), observations)
    model.tractable.init_from_data(observations.centre(observations.rows("train")))
    torch.nn.init.normal_(model.encoder.body[-1].weight, std=0.5)
    return model


@pytest.mark.parametrize("build", [bounded, mixed])
def test_a_gap_is_told_with_its_error(build: Callable[[Levels], GuidedVAE]) -> None:
    """And more draws make that small. Against 300 of each example, whose differences are no part of the error."""
    model = build(DIGITS)
    rows = DIGITS.rows("test")
    found, pair = evaluate_model(model, DIGITS), evaluate_model(model, DIGITS, draws=2)
    x, noise = DIGITS.centre(rows), DIGITS.noise_deviation
    if build is mixed:  # whose noise cannot be integrated out
        x, noise = DIGITS.as_seen(rows, torch.Generator().manual_seed(evaluation.mixed(2, 0, 0))), 0.0
    torch.manual_seed(5)
    elbos = sampled_elbos(model.eval(), x, 300, noise).double()
    truth = DIGITS.figure(float(elbos.mean()))
    per_nat = DIGITS.figure(0.0) - DIGITS.figure(1.0)
    expected = per_nat * float(elbos.var(0).mean() / (2 * len(rows))) ** 0.5
    assert pair.sampled_error == pytest.approx(expected, rel=0.2)
    for figures in (found, pair):
        assert figures.figure == found.figure
        assert abs(figures.sampled - truth) < 4 * figures.sampled_error
    gap, least = found.figure - found.sampled, expected * (2 * len(rows) / evaluation.DECODED) ** 0.5
    assert gap > 3 * found.sampled_error
    assert found.sampled_error <= max(evaluation.SMALL * gap, 1.2 * least)
    assert evaluate_model(model, DIGITS, draws=1).sampled_error is None


def test_figures_are_told_with_what_they_are() -> None:
    words = {name: evaluate_model(model_of(name, DIGITS), DIGITS).exactness for name in MODELS}
    assert words == dict.fromkeys(MODELS, "exact") | {"mlp": "sampled"}
    taylor = model_for(dataclasses.replace(MODELS["linear"], log_term="taylor"), DIGITS)  # which it is trained with
    assert evaluate_model(taylor, DIGITS).exactness == "exact"
    approximated = model_for(dataclasses.replace(MODELS["bernoulli"], tractable="linear"), DIGITS)
    assert evaluate_model(approximated, DIGITS).exactness == closed_form(approximated, DIGITS) == "approximation"


def test_the_best_decoder_of_the_test_examples_attains_the_limit() -> None:
    """pPCA of the training examples is no limit there: this one, and other models, are better."""
    config = MODELS["fixed"]
    decoder = sg.LinearGaussian(3, DIGITS.event_shape, config.variance).double()
    decoder.init_from_data(DIGITS.centre(DIGITS.rows("test")).double())
    found = evaluate_model(GuidedVAE(Posterior(decoder), decoder), DIGITS)
    assert found.figure == pytest.approx(limit(config, DIGITS), rel=1e-6)
    decoder.init_from_data(DIGITS.centre(DIGITS.rows("train")).double())
    assert evaluate_model(GuidedVAE(Posterior(decoder), decoder), DIGITS).figure > found.figure + 1e-3


@pytest.mark.parametrize("name", ["fixed", "bernoulli", "mlp"])
def test_a_mixture_prior_makes_a_lower_bound(name: str) -> None:
    """Objective, figures and summary say so; the ELBO by samples is log p(x, z) - log q(z|x), with no bound in it."""
    torch.manual_seed(1)
    model = model_for(dataclasses.replace(MODELS[name], prior="mixture"), DIGITS)
    x = DIGITS.centre(DIGITS.rows("test").between(0, 50))
    torch.manual_seed(2)
    found = evaluate(model, x)
    torch.manual_seed(2)
    with torch.no_grad():
        q = model.encode(x)
        z = q.sample()
        by_definition = model.decoder(z).log_prob(x) + model.prior.log_prob(z) - q.log_prob(z)
        kld = model.prior.divergence(q)
    torch.testing.assert_close(found.sampled, by_definition.sum())
    objective, whole = model.objective(q, None), evaluate_model(model, DIGITS)
    if name == "mlp":
        assert objective.exactness(q) == whole.exactness == "sampled"
        assert (closed_form(model, DIGITS), whole.sampled, found.elbo) == (None, None, found.sampled)
    else:
        assert objective.exactness(q) == whole.exactness == closed_form(model, DIGITS) == "lower bound"
        torch.testing.assert_close(found.elbo, (model.decoder.expected_log_prob(x, q) - kld).sum())
        assert objective._replace(prior=sg.latents.StandardPrior(model.family)).exactness(q) == "exact"
        model.tractable_estimator = sg.Reparameterized()
        assert closed_form(model, DIGITS) is None  # there is one, and it had no part in the training
