"""What a training run is told: plain dataclasses, from which the command line and the recipes follow."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml  # type: ignore[import-untyped]

from silentgrad.decoders.precision import LogTerm
from silentgrad.models import Weighting
from silentgrad.networks import LatentFamily

Network = Literal["mlp", "conv", "strided"]
LinearKind = Literal["none", "fixed", "linear", "exp"]
EstimatorName = Literal[
    "exact", "reparameterized", "gumbel-softmax", "straight-through", "reinforce", "rloo", "disarm", "none"
]
Start = Literal["random", "mean", "ppca"]


@dataclass
class DataConfig:
    """Which images.

    Args:
        name: digits, mnist, fashion-mnist, cifar10, imagenet32, imagenet64, or a path to a folder, .npy or .npz.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
        batch_size: Images per step, over all processes.
    """

    name: str = "digits"
    root: Path | None = None
    batch_size: int = 64


@dataclass
class ModelConfig:
    """Which model, and how its gradient is estimated.

    Args:
        latent: Family of q(z|x).
        latent_dim: Number of latents.
        network: Encoder and nonlinear decoder: mlp for small machines; conv and strided are the paper's.
        hidden: Widths of the mlp's hidden layers.
        channels: Of the convolutions, the first one's for strided. The paper does not give it.
        linear: Linear decoder: none, fixed variance, or learned precision with linear or exponential link.
        log_term: How the linear link evaluates E[log v^2].
        nonlinear: Whether there is a nonlinear decoder beside the linear one.
        estimator: Of the gradient through the sampled decoder: the nonlinear one, or the linear one if it is alone.
            With both decoders, none trains the encoder by the linear one only ("None + SG").
        temperature: Of gumbel-softmax.
        temperature_start: Start the temperature here and shrink it every epoch, down to `temperature`.
        temperature_factor: By which it shrinks.
        hard: Round gumbel-softmax's samples and pass the relaxed ones' gradient.
        variance: The fixed variance.
        variance_start: Start the fixed variance here and shrink it every epoch; keeps Bernoulli latents unsaturated.
        variance_factor: By which it shrinks.
        annealing_rate: w_lin falls by this much every epoch.
        weighting: What w_lin weights: the losses (Algorithm 1) or the encoder's gradient (the paper's text).
        cutoff: Epoch at which the encoder is frozen.
        kl_weight: Of the KL divergence.
        start: The linear decoder's mean: random, the mean image, or probabilistic PCA.
    """

    latent: LatentFamily = "gaussian"
    latent_dim: int = 32
    network: Network = "mlp"
    hidden: list[int] = field(default_factory=lambda: [512])
    channels: int = 32
    linear: LinearKind = "exp"
    log_term: LogTerm = "auto"
    nonlinear: bool = True
    estimator: EstimatorName = "reparameterized"
    temperature: float = 0.5
    temperature_start: float | None = None
    temperature_factor: float = 0.9
    hard: bool = False
    variance: float = 0.01
    variance_start: float | None = None
    variance_factor: float = 0.5
    annealing_rate: float = 0.05
    weighting: Weighting = "loss"
    cutoff: int | None = None
    kl_weight: float = 1.0
    start: Start = "random"


@dataclass
class TrainConfig:
    """How to train.

    Args:
        epochs: Passes over the training images.
        lr: Learning rate of AdamW, betas (0.9, 0.95).
        lr_mean: The linear decoder's own rate for its mean; lr if absent.
        lr_precision: And for its precision.
        clip: Largest norm of the gradient; 0 leaves it alone.
        seed: Of everything random.
        accelerator: As Lightning names them: auto, cpu, gpu, mps.
        devices: How many processes, one per device.
        precision: As Lightning names them: 32-true, bf16-mixed, 64-true.
        keep: Epochs whose weights are kept, in epochs/ of the run's folder.
        variance_every: Epochs between measurements of the gradient's variance, in gradient_variance.csv; 0 for none.
        iwae_samples: Samples of the importance-weighted bound in the final evaluation; 1 is the ELBO.
        tensorboard: Log for TensorBoard too (needs the extra of that name).
    """

    epochs: int = 60
    lr: float = 5e-4
    lr_mean: float | None = None
    lr_precision: float | None = None
    clip: float = 0.0
    seed: int = 0
    accelerator: str = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    keep: list[int] = field(default_factory=list)
    variance_every: int = 0
    iwae_samples: int = 1
    tensorboard: bool = False


class Settings(NamedTuple):
    """All that a run is told."""

    data: DataConfig
    model: ModelConfig
    train: TrainConfig

    def as_yaml(self) -> str:
        """As a run's `config.yaml` and a recipe have it."""
        content = {name: asdict(part) for name, part in self._asdict().items()}
        content["data"]["root"] = None if self.data.root is None else str(self.data.root)
        return str(yaml.safe_dump(content, sort_keys=False))


def read_settings(path: Path) -> Settings:
    """The settings in a recipe or a run's `config.yaml`; what the file leaves out is the default."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())
    data = DataConfig(**content.get("data", {}))
    data.root = Path(data.root) if data.root else None
    return Settings(data, ModelConfig(**content.get("model", {})), TrainConfig(**content.get("train", {})))
