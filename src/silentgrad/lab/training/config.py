"""What a training run is told: plain dataclasses, from which the command line and the recipes follow.

Whatever the settings come from, `validate` decides whether a run can be made with them, before anything is written.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.decoders.circuit import Gates
from silentgrad.decoders.precision import LogTerm
from silentgrad.lab.kinds import OF_COUNTS, Kind, LikelihoodName
from silentgrad.lab.runs.documents import write_yaml
from silentgrad.lab.selection import NO_OFFSET, Selection
from silentgrad.lab.training.defaults import Decoders, decoders_for, guide_stays, rates_for
from silentgrad.lab.training.ranges import ConfigError, require_ranges, require_shrinking
from silentgrad.lab.training.suitable import (
    EstimatorName,
    LeafKind,
    TractableKind,
    family_named,
    require_closed_form,
    require_components,
    require_decoders,
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
    """The data of a run.

    Args:
        name: Name or path of the data: digits, mnist, fashion-mnist, cifar10, imagenet32, imagenet64, a folder of
            images, or a .npy, .npz, .csv, .tsv, .parquet or .h5ad file.
        root: Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache.
        batch_size: Number of rows in a training step, over all processes.
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
        require_ranges("data", self)
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
    """The model of a run, and how its gradient is estimated.

    Args:
        latent: Family of q(z|x): gaussian, full-gaussian, laplace, bernoulli, categorical or poisson.
        latent_dim: Number of latents; number of groups, for categorical.
        categories: Number of categories in a group, for categorical; 10 if absent.
        prior: Prior of the latents: their family's standard one, a learned one of the family, or a learned mixture, for
            which the KL divergence is a bound.
        prior_components: Number of components of the prior's mixture; 10 if absent.
        network: Network of the encoder and of the nonlinear decoder: mlp for small machines; conv and strided, the
            paper's convolutional ones, for images.
        hidden: Widths of the mlp's hidden layers.
        channels: Number of channels of the convolutions of --model.network conv, or of the first one of strided; the
            paper does not give its own.
        tractable: Tractable decoder, whose expected log-likelihood is a closed form: none; a linear one with a fixed
            variance (fixed), with a learned one that is constant in z (constant), or with a learned precision of linear
            or exponential link (linear, exp); a mixture of linear ones, or a circuit of them over a tree of the
            outputs. If absent, constant; linear for bits and counts, which have no precision; none beside the network
            conv with Bernoulli latents, which a guide hurts.
        components: Number of components of the mixture or circuit that --model.tractable or --model.likelihood names; 3
            of a mixture and 8 of a circuit if absent.
        leaves: Precision of the leaves of a mixture or circuit: constant, or with a logarithm linear in z (exp).
        gates: Which of a circuit's sums have weights linear in z: those over leaves, all or none.
        log_term: How --model.tractable linear evaluates E[log v^2] of its precision v: exactly, which Gaussian latents
            allow, by an approximation (Edgeworth's, or Taylor's as the paper), or by the best of these (auto).
        nonlinear: Whether there is a nonlinear decoder, beside the tractable one or alone. If absent, there is one, but
            not for counts.
        estimator: Estimator of the gradient through the sampled decoder: the nonlinear one, or the linear one if it is
            alone. With both decoders, none trains the encoder by the linear one only ("None + SG"). If absent, one that
            suits the latents: reparameterized, gumbel-softmax for bernoulli and categorical, rloo for poisson; but
            exact for counts with a linear decoder alone.
        temperature: Temperature of the estimator gumbel-softmax.
        temperature_start: Temperature of gumbel-softmax in the first epoch, from which it shrinks every epoch, down to
            --model.temperature; it is constant if absent.
        temperature_factor: Factor by which the temperature of gumbel-softmax shrinks every epoch.
        hard: Whether the samples of gumbel-softmax are rounded, with the gradient of those that are not.
        variance: Variance of the decoder --model.tractable fixed.
        variance_start: Variance of --model.tractable fixed in the first epoch, from which it shrinks every epoch, down
            to --model.variance, which keeps Bernoulli latents unsaturated; it is constant if absent.
        variance_factor: Factor by which the variance of --model.tractable fixed shrinks every epoch.
        guided: Part of the training in which the tractable decoder guides a nonlinear one: its weight falls from 1 to 0
            over it. Above 1 it never reaches 0.
        guide_estimator: Estimator of the tractable decoder's expectation while it guides a nonlinear one; others than
            exact are there to be compared with it.
        guide_draws: Number of draws over which the gradient of --model.guide_estimator is averaged.
        weighting: What the weights of a guide and of the decoder that it guides scale: their losses, as in the paper's
            Algorithm 1 (loss), or the encoder's gradient, as in its text (encoder).
        cutoff: Epoch at which the encoder is frozen; it is never frozen if absent.
        kl_weight: Weight of the KL divergence in the objective.
        kl_warmup: Part of the training in which the KL divergence's weight rises from 0.
        start: Start of the tractable decoder: random, the mean image, or probabilistic PCA. If absent, ppca where the
            learned variance is constant, as it is in mixtures and circuits, whose leaves also start from the values of
            the data, and for counts; random for the other linear decoders.
        likelihood: Likelihood of the nonlinear decoder: gaussian, or a mixture or circuit of Gaussians, for levels and
            reals; bernoulli for binarized images. For counts that of both decoders: negative-binomial, poisson, or
            either with more zeros, zero-inflated-. If absent, gaussian, bernoulli or negative-binomial.
    """

    latent: str = "gaussian"
    latent_dim: int = 32
    categories: int | None = None
    prior: PriorKind = "standard"
    prior_components: int | None = None
    network: str = "mlp"
    hidden: list[int] = field(default_factory=lambda: [512])
    channels: int = 32
    tractable: TractableKind | None = None
    components: int | None = None
    leaves: LeafKind = "constant"
    gates: Gates = "leaves"
    log_term: LogTerm = "auto"
    nonlinear: bool | None = None
    estimator: EstimatorName | None = None
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

    def resolved(self, likelihood: LikelihoodName) -> "ModelConfig":
        """The same with what was left open chosen for data of a likelihood, if it was not given itself."""
        chosen = replace(self, likelihood=self.likelihood or likelihood)
        return replace(chosen, **chosen.decoders._asdict())

    @property
    def decoders(self) -> Decoders:
        """The decoders and the estimator; what was left open is as for the likelihood, or for images."""
        likelihood = self.likelihood or "gaussian"
        return decoders_for(likelihood, self.tractable, self.nonlinear, self.estimator, self.latent, self.network)

    def validate(self) -> None:
        """Raises ConfigError for what makes no model."""
        require_ranges("model", self)
        require_network(self.network)
        family = family_named(self.latent)
        require_options(family, self.categories)
        if self.prior_components is not None and self.prior != "mixture":
            raise ConfigError("--model.prior_components is for --model.prior mixture")
        decoders = self.decoders
        require_decoders(decoders.tractable, decoders.nonlinear, decoders.estimator)
        require_estimator("estimator", decoders.estimator, family)
        require_guide_estimator(self.guide_estimator, self.guide_draws, family, decoders.guided)
        require_closed_form(family, decoders.tractable, self.log_term, self.leaves, self.likelihood)
        require_components(decoders.tractable, self.likelihood, self.components, self.leaves, self.gates, self.start)
        require_shrinking("temperature", self.temperature_start, self.temperature)
        require_shrinking("variance", self.variance_start, self.variance)

    @property
    def starts_from(self) -> Start:
        """How the tractable decoder starts."""
        if self.start is not None:
            return self.start
        if self.likelihood in OF_COUNTS or self.decoders.tractable in ("constant", "mixture", "circuit"):
            return "ppca"
        return "random"

    @property
    def guide_stays(self) -> bool:
        """Whether the guide had better not learn."""
        silent = self.guide_estimator == "exact" and self.starts_from == "ppca"
        return silent and guide_stays(self.decoders, self.latent, self.likelihood)

    @property
    def weight_left(self) -> float:
        """The weight that a guide still has when training ends, though it is meant to give way to the other decoder."""
        if not self.decoders.guided or self.decoders.estimator == "none":
            return 0.0
        return max(0.0, 1 - 1 / self.guided)


@dataclass
class TrainConfig:
    """The training of a run.

    Args:
        epochs: Number of passes over the training rows.
        lr: Learning rate of AdamW, betas (0.9, 0.95). If absent, 5e-4; for counts 1e-2, and --train.lr_network 2e-3.
        lr_network: Learning rate of the networks, of encoder and nonlinear decoder; --train.lr if absent. The other
            parameters of a circuit tolerate ten times this rate.
        lr_mean: Learning rate of the linear decoder's mean; --train.lr if absent. An exact guide of Bernoulli latents
            stays as it starts unless this or the next is given.
        lr_precision: Learning rate of the linear decoder's precision; --train.lr if absent.
        decay: How the learning rates fall: not at all, or along half a cosine to 0 at the last step.
        warmup: Number of steps in which the learning rates rise to their values; below 1, a part of the training.
        clip: Largest norm of the gradient; 0 leaves it alone.
        seed: Seed of everything random in the run.
        accelerator: Kind of device, as Lightning names it: auto, cpu, gpu, mps.
        devices: Number of processes, one per device.
        precision: Precision of the numbers, as Lightning names it: 32-true, bf16-mixed, 64-true.
        keep: Epochs whose weights are kept, in epochs/ of the run's folder; none if absent.
        variance_every: Number of epochs between measurements of the gradient's variance, in gradient_variance.csv; 0
            for none.
        iwae_samples: Number of samples of the importance-weighted bound in the final evaluation; 1 is the ELBO.
        tensorboard: Whether to log for TensorBoard too (needs the extra of that name).
    """

    epochs: int = 60
    lr: float | None = None
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

    def resolved(self, likelihood: LikelihoodName) -> "TrainConfig":
        """The same with the learning rates for data of a likelihood, if they were left open."""
        if self.lr is not None:
            return self
        rates = rates_for(likelihood)
        of_networks = self.lr_network
        if of_networks is None:
            of_networks = rates.lr_network
        return replace(self, lr=rates.lr, lr_network=of_networks)

    @property
    def rate(self) -> float:
        """The learning rate; if it was left open, that for images."""
        if self.lr is None:
            return rates_for("gaussian").lr
        return self.lr

    def validate(self) -> None:
        """Raises ConfigError for what nothing can be trained by, on whatever machine."""
        require_ranges("train", self)
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

    def resolved(self, likelihoods: Sequence[LikelihoodName]) -> "Settings":
        """The same with what was left open chosen for observations that some likelihoods suit, the first by default."""
        if not likelihoods:
            return self
        model = self.model.resolved(likelihoods[0])
        assert model.likelihood is not None
        train = self.train.resolved(model.likelihood)
        if model.guide_stays and train.lr_mean is None and train.lr_precision is None:
            train = replace(train, lr_mean=0.0, lr_precision=0.0)
        return Settings(self.data, model, train)

    def as_yaml(self) -> str:
        """The text of a run's `config.yaml` or a recipe."""
        content = {name: asdict(part) for name, part in self._asdict().items()}
        if self.data.root is not None:
            content["data"]["root"] = str(self.data.root)
        return write_yaml(content)


GROUPS: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}
