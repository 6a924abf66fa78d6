"""What was trained, on what, and whether that is good: the sentences with which a run's page begins."""

from pathlib import Path

from silentgrad.lab.reports.rounding import number
from silentgrad.lab.runs.records import Run
from silentgrad.lab.runs.summary import Summary
from silentgrad.lab.training.config import ModelConfig, Settings

LATENTS = {
    "gaussian": "Gaussian latents",
    "full-gaussian": "Gaussian latents with full covariance",
    "laplace": "Laplace latents",
    "bernoulli": "Bernoulli latents",
    "categorical": "categorical latents",
    "poisson": "Poisson latents",
}
NETWORKS = {"mlp": "fully connected", "conv": "convolutional", "strided": "strided convolutional"}
TRACTABLE = {"mixture": "mixture of linear decoders", "circuit": "circuit of linear decoders"}


def opening(run: Run, summary: Summary, settings: Settings | None) -> str:
    """The first paragraph of a finished run's page.

    Args:
        run: The run.
        summary: Its final figures.
        settings: Its settings; None if this version does not know them all.
    """
    sentences = [f"{_trained(run, summary, settings)}: {_reached(run, summary)}."]
    if summary.baseline is not None:
        sentences.append(_against_baseline(summary.figure, summary.baseline.figure, summary.baseline.model))
    if summary.limit is not None:
        sentences.append(f"No linear decoder of this variance can get below {number(summary.limit)} (pPCA limit).")
    return " ".join(sentences)


def _trained(run: Run, summary: Summary, settings: Settings | None) -> str:
    model, data = "A VAE", ""
    if settings is not None:
        model = f"A VAE with {_model(settings.model)}"
        data = f"{Path(settings.data.name).name} ("
    examples = f"{summary.training_examples:,} {_examples(run)}"
    if data:
        examples += ")"
    return f"{model}, trained for {_epochs(summary.epochs)} on {data}{examples}"


def _model(model: ModelConfig) -> str:
    """The latents, the networks and the decoders."""
    latents = LATENTS.get(model.latent, f"{model.latent} latents")
    network = NETWORKS.get(model.network, model.network)
    decoders = model.decoders
    if not decoders.nonlinear:
        tractable = TRACTABLE.get(decoders.tractable, "linear decoder")
        return f"{model.latent_dim} {latents}, a {network} encoder and a {tractable}"
    return f"{model.latent_dim} {latents}, a {network} network and {_guide(model)}"


def _guide(model: ModelConfig) -> str:
    if not model.decoders.guided:
        return "no guide"
    if model.guide_estimator == "exact":
        return "a silent guide"
    return f"a guide by {model.guide_estimator}"


def _epochs(count: int) -> str:
    if count == 1:
        return "1 epoch"
    return f"{count:,} epochs"


def _reached(run: Run, summary: Summary) -> str:
    """The figure of the test, and which way is better."""
    told = f"{number(summary.figure)} {summary.unit.words or summary.unit.title}"
    if summary.test_examples is None:
        return f"{told} on the test {_examples(run)}; lower is better"
    return f"{told} on {summary.test_examples:,} test {_examples(run)}; lower is better"


def _examples(run: Run) -> str:
    if run.pictures is not None:
        return "images"
    return "rows"


def _against_baseline(figure: float, without: float, model: str) -> str:
    ignoring = f"A model that ignores its input ({model}, fitted to the same training data, no latent)"
    told = f"{ignoring} has {number(without)}"
    if figure < without:
        return f"{told}, so the latents gain {number(without - figure)}."
    return f"{told}: this run is not better than that."
