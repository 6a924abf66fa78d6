"""What a training run is told: plain dataclasses, from which the command line and the recipes follow.

Whatever the settings come from, `validate` decides whether a run can be made with them, before anything is written.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.decoders.circuit import Gates
from silentgrad.decoders.precision import LogTerm
from silentgrad.lab.kinds import Kind, LikelihoodName
from silentgrad.lab.runs.documents import write_yaml
from silentgrad.lab.selection import NO_OFFSET, Selection
from silentgrad.lab.training.ranges import RANGES, ConfigError, require
from silentgrad.lab.training.suitable import (
    EstimatorName,
    LeafKind,
    TractableKind,
    family_named,
    require_closed_form,
    require_estimator,
    require_guide_estimator,
    require_network,
    require_options,
)
from silentgrad.objective import Weighting

PriorKind = Literal["standard", "learned", "mixture"]
Start = Literal["random", "mean", "ppca"]
Decay = Literal["none", "cosine"]


@dataclass
class DataConfig:
    """Which data.

    Args:
        name: digits, mnist, fashion-mnist, cifar10, imagenet32, imagenet64, or a path to a folder of images, a .npy,
            .npz, .csv, .tsv, .parquet or .h5ad file.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
        batch_size: Rows per step, over all processes.
        kind: What the rows are. auto: images are levels, tables are reals, sparse matrices and .h5ad files are counts;
            images can be binarized, tables counts.
        layer: Layer of an .h5ad file that holds the counts; its X if absent.
        label: Column of a table, or of an .h5ad file's obs, that names or colours the rows.
        covariates: Columns that are known of each row beside x: numbers are standardized, categories are one-hot.
        offset: Log size factors of counts: none, size (the sum of each row over the median of training rows), or the
            name of a column of size factors.
        missing: Whether empty cells and NaN of a table are entries that were not observed.
    """

    name: str = "digits"
    root: Path | None = None
    batch_size: int = 64
    kind: Kind = "auto"
    layer: str | None = None
    label: str | None = None
    covariates: list[str] = field(default_factory=list)
    offset: str = NO_OFFSET
    missing: bool = False

    def validate(self) -> None:
        """Raises ConfigError for what no data can be read by."""
        _require_ranges("data", self)
        if not self.name:
            raise ConfigError("--data.name is empty: give a dataset's name or a path")
        for option in ("layer", "label", "offset"):
            if getattr(self, option) == "":
                raise ConfigError(f"--data.{option} is empty: give a name, or leave it out")
        if "" in self.covariates or len(set(self.covariates)) < len(self.covariates):
            raise ConfigError(f"--data.covariates has to name each column once, got {self.covariates}")

    @property
    def selection(self) -> Selection:
        """What of a file is data, and what stands beside it."""
        return Selection(self.layer, self.label, tuple(self.covariates), self.offset, self.missing)


@dataclass
class ModelConfig:
    """Which model, and how its gradient is estimated.

    Args:
        latent: Family of q(z|x): gaussian, full-gaussian, laplace, bernoulli, categorical or poisson.
        latent_dim: Number of latents; number of groups, for categorical.
        categories: Number of categories in a group, for categorical; 10 if absent.
        prior: What stands against the latents: their family's standard prior, a learned one, or a learned mixture, for
            which the KL divergence is a bound.
        prior_components: Number of components of the prior's mixture; 10 if absent.
        network: Encoder and nonlinear decoder: mlp for small machines; conv and strided are the paper's.
        hidden: Widths of the mlp's hidden layers.
        channels: Number of channels of the convolutions; of the first one, for strided. The paper does not give it.
        tractable: Tractable decoder: none; a linear one with fixed variance, with a learned one that is constant in z,
            or with learned precision of linear or exponential link; a mixture of linear ones, or a circuit of them over
            a tree of the outputs.
        components: Number of components of the mixture or circuit, that of --model.likelihood too; 3 and 8 if absent.
        leaves: Precision of the leaves of a mixture or circuit: constant, or with a logarithm linear in z (exp).
        gates: Which of a circuit's sums have weights linear in z: those over leaves, all or none.
        log_term: How the linear link evaluates E[log v^2].
        nonlinear: Whether there is a nonlinear decoder beside the linear one.
        estimator: Estimator of the gradient through the sampled decoder: the nonlinear one, or the linear one if it is
            alone. With both decoders, none trains the encoder by the linear one only ("None + SG").
        temperature: Temperature of gumbel-softmax.
        temperature_start: Temperature of the first epoch, from which it shrinks every epoch, down to `temperature`.
        temperature_factor: Factor by which the temperature shrinks.
        hard: Whether gumbel-softmax's samples are rounded, with the relaxed ones' gradient.
        variance: Fixed variance of the linear decoder.
        variance_start: Fixed variance of the first epoch, from which it shrinks every epoch, down to `variance`; keeps
            Bernoulli latents unsaturated.
        variance_factor: Factor by which the fixed variance shrinks.
        guided: Part of the training in which the tractable decoder guides a nonlinear one: its weight falls from 1 to 0
            over it. Above 1 it never reaches 0.
        guide_estimator: Estimator of the guide's expectation; another than exact is there to compare with it.
        guide_draws: Number of draws over which that estimator's gradient is averaged.
        weighting: What the decoders' weights scale: their losses (Algorithm 1) or the encoder's gradient (the text).
        cutoff: Epoch at which the encoder is frozen.
        kl_weight: Weight of the KL divergence.
        kl_warmup: Part of the training in which the KL divergence's weight rises from 0.
        start: Start of the tractable decoder: random, the mean image, or probabilistic PCA. If absent, ppca where the
            learned variance is constant, as it is in mixtures and circuits, whose leaves also start from the values of
            the data, and random for the other linear decoders.
        likelihood: Likelihood of the nonlinear decoder: gaussian, or a mixture or circuit of Gaussians, for levels and
            reals; bernoulli for binarized images. If absent, gaussian or bernoulli.
    """

    latent: str = "gaussian"
    latent_dim: int = 32
    categories: int | None = None
    prior: PriorKind = "standard"
    prior_components: int | None = None
    network: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [512])
    channels: int = 32
    tractable: TractableKind = "constant"
    components: int | None = None
    leaves: LeafKind = "constant"
    gates: Gates = "leaves"
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
    guided: float = 0.25
    guide_estimator: EstimatorName = "exact"
    guide_draws: int = 1
    weighting: Weighting = "loss"
    cutoff: int | None = None
    kl_weight: float = 1.0
    kl_warmup: float = 0.0
    start: Start | None = None
    likelihood: LikelihoodName | None = None

    def validate(self) -> None:
        """Raises ConfigError for what makes no model."""
        _require_ranges("model", self)
        if self.tractable == "none" and not self.nonlinear:
            raise ConfigError("there is no decoder: --model.tractable none needs --model.nonlinear true")
        require_network(self.network)
        family = family_named(self.latent)
        require_options(family, self.categories)
        if self.prior_components is not None and self.prior != "mixture":
            raise ConfigError("--model.prior_components is for --model.prior mixture")
        self._require_estimators()
        require_closed_form(family, self.tractable, self.log_term, self.leaves)
        self._require_components()
        _require_shrinking("temperature", self.temperature_start, self.temperature)
        _require_shrinking("variance", self.variance_start, self.variance)

    @property
    def starts_from(self) -> Start:
        """How the tractable decoder starts."""
        if self.start is not None:
            return self.start
        if self.tractable in ("constant", "mixture", "circuit"):
            return "ppca"
        return "random"

    @property
    def weight_left(self) -> float:
        """The weight that a guide still has when training ends, though it is meant to give way to the other decoder."""
        if self.tractable == "none" or not self.nonlinear or self.estimator == "none":
            return 0.0
        return max(0.0, 1 - 1 / self.guided)

    def _require_components(self) -> None:
        """Refuses options of mixtures and circuits where there is none."""
        kinds = {self.tractable, self.likelihood}
        if self.components is not None and not kinds & {"mixture", "circuit"}:
            raise ConfigError(
                "--model.components is for a mixture or circuit, as --model.tractable or --model.likelihood"
            )
        if self.leaves != "constant" and self.tractable not in ("mixture", "circuit"):
            raise ConfigError(f"--model.leaves {self.leaves} is for --model.tractable mixture or circuit")
        if self.gates != "leaves" and self.tractable != "circuit":
            raise ConfigError(f"--model.gates {self.gates} is for --model.tractable circuit")
        if self.tractable in ("mixture", "circuit") and self.start == "mean":
            raise ConfigError("--model.start mean is for linear decoders: choose ppca or random")

    def _require_estimators(self) -> None:
        """Refuses estimators that the latents or the decoders do not allow."""
        family = family_named(self.latent)
        both = self.tractable != "none" and self.nonlinear
        require_estimator("estimator", self.estimator, family)
        require_guide_estimator(self.guide_estimator, self.guide_draws, family, both)
        if self.estimator == "none" and not both:
            raise ConfigError(
                "--model.estimator none (the encoder follows the linear decoder only) needs both decoders: "
                "--model.tractable other than none and --model.nonlinear true"
            )
        if self.estimator == "exact" and self.nonlinear:
            raise ConfigError(
                "the nonlinear decoder has no closed form: --model.estimator exact is for a linear decoder alone, "
                "--model.nonlinear false"
            )


@dataclass
class TrainConfig:
    """How to train.

    Args:
        epochs: Number of passes over the training images.
        lr: Learning rate of AdamW, betas (0.9, 0.95).
        lr_network: Learning rate of the networks, of encoder and nonlinear decoder; lr if absent. The other parameters
            of a circuit tolerate ten times this rate.
        lr_mean: Learning rate of the linear decoder's mean; lr if absent.
        lr_precision: Learning rate of the linear decoder's precision; lr if absent.
        decay: How the learning rates fall: not at all, or along half a cosine to 0 at the last step.
        warmup: Number of steps in which the learning rates rise to their values; below 1, a part of the training.
        clip: Largest norm of the gradient; 0 leaves it alone.
        seed: Seed of everything random.
        accelerator: Kind of device, as Lightning names it: auto, cpu, gpu, mps.
        devices: Number of processes, one per device.
        precision: Precision of the numbers, as Lightning names it: 32-true, bf16-mixed, 64-true.
        keep: Epochs whose weights are kept, in epochs/ of the run's folder.
        variance_every: Number of epochs between measurements of the gradient's variance, in gradient_variance.csv; 0
            for none.
        iwae_samples: Number of samples of the importance-weighted bound in the final evaluation; 1 is the ELBO.
        tensorboard: Whether to log for TensorBoard too (needs the extra of that name).
    """

    epochs: int = 60
    lr: float = 5e-4
    lr_network: float | None = None
    lr_mean: float | None = None
    lr_precision: float | None = None
    decay: Decay = "none"
    warmup: float = 0
    clip: float = 0.0
    seed: int = 0
    accelerator: str = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    keep: list[int] = field(default_factory=list)
    variance_every: int = 0
    iwae_samples: int = 1
    tensorboard: bool = False

    def validate(self) -> None:
        """Raises ConfigError for what nothing can be trained by, on whatever machine."""
        _require_ranges("train", self)
        for epoch in self.keep:
            if epoch > self.epochs:
                raise ConfigError(f"--train.keep {epoch} comes after the last of {self.epochs} epochs (--train.epochs)")


class Settings(NamedTuple):
    """All that a run is told."""

    data: DataConfig
    model: ModelConfig
    train: TrainConfig

    def validate(self) -> None:
        """Raises ConfigError, which names the option, unless a run can be made with these settings."""
        self.data.validate()
        self.model.validate()
        self.train.validate()
        if self.train.variance_every and self.model.guide_estimator != "exact":
            raise ConfigError(
                "--train.variance_every measures one estimator, and with --model.guide_estimator "
                f"{self.model.guide_estimator} two of them draw: leave one of both out"
            )
        if self.data.batch_size % self.train.devices:
            raise ConfigError(
                f"--data.batch_size {self.data.batch_size} has to be a multiple of --train.devices {self.train.devices}"
            )

    def as_yaml(self) -> str:
        """The text of a run's `config.yaml` or a recipe."""
        content = {name: asdict(part) for name, part in self._asdict().items()}
        if self.data.root is not None:
            content["data"]["root"] = str(self.data.root)
        return write_yaml(content)


GROUPS: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}


def _require_ranges(group: str, config: Any) -> None:
    for name, setting in config.__dataclass_fields__.items():
        option, value = f"{group}.{name}", getattr(config, name)
        if value is None and setting.default is not None:
            raise ConfigError(f"--{option} has to have a value")
        if option in RANGES:
            require(f"--{option}", value, RANGES[option])


def _require_shrinking(name: str, start: float | None, end: float) -> None:
    if start is not None and start < end:
        raise ConfigError(f"--model.{name}_start has to be at least --model.{name}, {end}; got {start}")
