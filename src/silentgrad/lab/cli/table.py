"""The list of all commands, without the commands themselves: each is imported when it is called."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        help: What it does, in the first line of its docstring.
        module: Its module in this package.
        function: Its function there.
        takes_recipe: Whether its options are a run's settings, which a recipe can give.
    """

    help: str
    module: str
    function: str
    takes_recipe: bool = False


@dataclass(frozen=True)
class Group:
    """Commands that share their first word.

    Args:
        help: What they are about.
        commands: Each by its second word.
    """

    help: str
    commands: dict[str, Command]


COMMANDS: dict[str, Command | Group] = {
    "demo": Command(
        "Trains without and with the guide, and the silent circuit, and shows the three side by side.",
        "demo",
        "demo",
    ),
    "train": Command(
        "Trains a VAE and leaves a run's folder with figures, weights, pictures and a report.",
        "train",
        "train",
        takes_recipe=True,
    ),
    "evaluate": Command(
        "Measures a finished run on the test split of its own dataset, or on another dataset's of the same shape.",
        "evaluate",
        "evaluate",
    ),
    "reconstruct": Command(
        "Reconstructs test images and draws samples with a finished run; writes the pictures and renews its report.",
        "evaluate",
        "reconstruct",
    ),
    "sample": Command(
        "Draws images from a finished run's prior and decoder, as a picture.",
        "evaluate",
        "sample",
    ),
    "latents": Command(
        "Writes the means of the latents of all rows, those of training too, in the order of the data's file.",
        "latents",
        "latents",
    ),
    "variance": Command(
        "Decomposes the encoder's gradient variance into the batches' part and the latent draws', as the paper does.",
        "measure",
        "variance",
    ),
    "bias": Command(
        "Measures how far gradients are from the true one, which is found by enumerating Bernoulli latents.",
        "measure",
        "bias",
    ),
    "reproduce": Command(
        "Makes the runs behind a table and writes it; those of the paper stand beside the paper's own figures.",
        "reproduce",
        "reproduce",
    ),
    "benchmark": Command(
        "Compares estimators of the gradient of Bernoulli latents on the protocol of the papers, beside the exact one.",
        "benchmark",
        "benchmark",
    ),
    "sweep": Command(
        "Trains every point of a grid, the paper's by default, and writes the best one's recipe.",
        "sweep",
        "sweep",
        takes_recipe=True,
    ),
    "compare": Command(
        "Compares runs: a table of what differs and where they ended, and a page that shows their curves too.",
        "compare",
        "compare",
    ),
    "export": Command(
        "Exports a finished run: weights (safetensors), encoder and decoder (ONNX), each checked, and a model card.",
        "export",
        "export",
    ),
    "recipes": Command("Lists the recipes, what each is, what to expect and how long it takes.", "recipes", "recipes"),
    "data": Group(
        "Datasets: which there are, and whether their files are.",
        {
            "list": Command("Lists the datasets and where they were found.", "data", "list_all"),
            "get": Command("Downloads a dataset, or says which files to put where.", "data", "get"),
            "check": Command("Verifies a dataset's files.", "data", "verify"),
        },
    ),
}
