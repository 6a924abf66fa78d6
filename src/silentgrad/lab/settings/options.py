"""Every option of a run: its type, default, range and help, from which the command line and the recipes follow.

A number outside its range is refused where it is set, so that no settings hold one. What has to go together is the
concern of `silentgrad.lab.settings.plan`.
"""

import inspect
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from silentgrad.decoders.circuit import Gates
from silentgrad.decoders.precision import LogTerm
from silentgrad.estimators import ESTIMATORS
from silentgrad.lab import kinds
from silentgrad.lab.networks import NETWORKS
from silentgrad.lab.settings.fields import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    ConfigError,
    Group,
    Owner,
    Range,
    one_of,
    option,
)
from silentgrad.lab.store.files import write_yaml
from silentgrad.latents.families import FAMILIES
from silentgrad.objective import Weighting

EstimatorName = str  # one of ESTIMATORS, package.module:Class, or "none" for no estimator
PriorKind = Literal["standard", "learned", "mixture"]
Start = Literal["random", "mean", "moments", "ppca"]
Decay = Literal["none", "cosine"]
Optimizer = Literal["adamw", "adam"]
RATE = 5e-4
TEMPERATURE = 0.5  # that gumbel-softmax ends at, if nothing is said
PARTED = tuple(kinds.COMPONENTS)  # what is made of components
SILENT = "silent-"  # before the name of an estimator that the silent control variate is put around

# What options belong to. An option that is given without its owner is refused, and so never ignored.
FIXED = one_of(tractable=["fixed"])
GUMBEL_SOFTMAX = one_of(estimator=["gumbel-softmax"], guide_estimator=["gumbel-softmax"])
GUIDE = Owner(
    "is for a tractable decoder beside a nonlinear one: one that is alone has --model.estimator",
    lambda model: model.decoders.guided,
)
FADING_GUIDE = Owner(
    "needs a guide that gives way to another estimator: --model.tractable other than none, --model.nonlinear true and "
    "--model.estimator other than none",
    lambda model: model.decoders.fading,
)
LINEAR_PRECISION = Owner(
    "is for --model.tractable linear of Gaussian outputs, whose precision is linear in z",
    lambda model: model.tractable == "linear" and model.likelihood in ("gaussian", *PARTED),
)
TRACTABLE = Owner("is for --model.tractable other than none", lambda model: model.tractable != "none")
PRECISION = Owner(
    "is for --model.tractable other than none and fixed, or for counts",
    lambda model: model.tractable not in ("none", "fixed") or model.likelihood in kinds.OF_COUNTS,
)
CATEGORICAL = Owner(
    "is not for --model.latent {model.latent}: it has no categories",
    lambda model: "categories" in FAMILIES.resolve(model.latent).options,
)


def has_temperature(estimator: EstimatorName) -> bool:
    """Return whether an estimator is made with a temperature."""
    name = estimator.removeprefix(SILENT)
    return name != "none" and "temperature" in inspect.signature(ESTIMATORS.resolve(name)).parameters


TEMPERED = Owner(
    "is for an estimator that has one, such as --model.estimator gumbel-softmax",
    lambda model: has_temperature(model.estimator) or has_temperature(model.guide_estimator),
)


def _network_with(size: str) -> Owner:
    """Return the owner of a size that not all networks have."""
    names = [name for name, network in NETWORKS.items() if size in network.sizes]
    return Owner(
        f"is for --model.network {' or '.join(names)}, not for {{model.network}}",
        lambda model: size in NETWORKS[model.network].sizes,
    )


def _with(setting: str) -> Owner:
    """Return the owner of options that come with a setting that can be left out."""
    return Owner(f"is for --model.{setting}", lambda model: getattr(model, setting) is not None)


@dataclass(frozen=True)
class DataConfig(Group, word="data"):
    """The data of a run."""

    name: str = "digits"
    """Name or path of the data: digits, mnist, fashion-mnist, cifar10, imagenet32, imagenet64, a folder of images, or a
    .npy, .npz, .csv, .tsv, .parquet or .h5ad file."""
    root: Path | None = None
    """Folder that holds the datasets; else the environment variable SILENTGRAD_DATA, else a cache."""
    batch_size: int = option(64, COUNT)
    """Number of rows in a training step, over all processes."""
    kind: kinds.Kind = "auto"
    """What the rows are. auto: images are levels, tables are reals, sparse matrices and .h5ad files are counts; images
    can be binarized, tables counts."""
    layer: str | None = None
    """Layer of an .h5ad file that holds the counts; its X if absent."""
    label: str | None = None
    """Column of a table, or of an .h5ad file's obs, that names or colors the rows."""
    covariates: list[str] = field(default_factory=list)
    """Columns that are known of each row beside x: numbers are standardized, categories are one-hot."""
    offset: str = kinds.NO_OFFSET
    """Log size factors of counts: none, size (the sum of each row over the median of training rows), or the name of a
    column of size factors."""
    missing: bool = False
    """Whether empty cells and NaN of a table are entries that were not observed."""
    index: str | None = None
    """Column of a table that names its rows."""
    drop: list[str] = field(default_factory=list)
    """Columns of a table that are left out."""
    resize: int | None = option(None, Range(2, 4096))
    """Side in pixels of the squares to which a folder's images are cropped and scaled; they stay as they are if
    absent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ConfigError("--data.name is empty: give a dataset's name or a path")
        for name in ("layer", "label", "offset", "index"):
            if getattr(self, name) == "":
                raise ConfigError(f"--data.{name} is empty: give a name, or leave it out")
        for name in ("covariates", "drop"):
            columns = getattr(self, name)
            if "" in columns or len(set(columns)) < len(columns):
                raise ConfigError(f"--data.{name} has to name each column once, got {columns}")

    @property
    def selection(self) -> kinds.Selection:
        """Columns and layers of a file that have a meaning of their own."""
        lists = {name: tuple(getattr(self, name)) for name in ("covariates", "drop")}
        return kinds.Selection(**{own.name: getattr(self, own.name) for own in fields(kinds.Selection)} | lists)


class Decoders(NamedTuple):
    """Which decoders a model has, and how its gradient is estimated: the options of `ModelConfig`, none left open."""

    tractable: kinds.TractableKind
    nonlinear: bool
    estimator: EstimatorName

    @property
    def guided(self) -> bool:
        """True if a tractable decoder stands beside a nonlinear one."""
        return self.tractable != "none" and self.nonlinear

    @property
    def fading(self) -> bool:
        """True if a guide gives way to the estimator of the nonlinear decoder."""
        return self.guided and self.estimator != "none"


@dataclass(frozen=True)
class ModelConfig(Group, word="model"):
    """The model of a run, and how its gradient is estimated."""

    latent: str = "gaussian"
    """Family of q(z|x): gaussian, full-gaussian, laplace, bernoulli, categorical or poisson."""
    latent_dim: int = option(32, COUNT)
    """Number of latents; number of groups, for categorical."""
    categories: int | None = option(None, Range(2), of=CATEGORICAL)
    """Number of categories in a group, for categorical; 10 if absent."""
    prior: PriorKind = "standard"
    """Prior of the latents: their family's standard one, a learned one of the family, or a learned mixture, for which
    the KL divergence is a bound."""
    prior_components: int | None = option(None, COUNT, of=one_of(prior=["mixture"]))
    """Number of components of the prior's mixture; 10 if absent."""
    network: str = "mlp"
    """Network of the encoder and of the nonlinear decoder: mlp for small machines; for images also leaky, whose units
    are LeakyReLUs and whose encoder sees x without its mean, and conv and strided, the paper's convolutional ones."""
    hidden: list[int] = option([512], COUNT, of=_network_with("hidden"))
    """Widths of the hidden layers of mlp and leaky; [] for none."""
    channels: int = option(32, COUNT, of=_network_with("channels"))
    """Number of channels of the convolutions of --model.network conv, or of the first one of strided; the paper does
    not give its own."""
    tractable: kinds.TractableKind | None = None
    """Tractable decoder, whose expected log-likelihood is a closed form: none; a linear one of fixed variance, of a
    learned variance (constant), or of a precision that depends on z (linear, exp: its link); a mixture or a circuit of
    linear ones. If absent, constant; linear for bits and counts; none for Bernoulli latents beside the network conv,
    which a guide hurts."""
    components: int | None = option(None, COUNT, of=one_of(tractable=PARTED, likelihood=PARTED))
    """Number of components of the mixture or circuit that --model.tractable or --model.likelihood names; 3 of a mixture
    and 8 of a circuit if absent."""
    leaves: kinds.LeafKind | None = option(None, of=one_of(tractable=PARTED, likelihood=PARTED))
    """Leaves of a mixture or circuit: Gaussian of constant precision, or of a log-precision linear in z (exp); of whole
    levels a rounded logistic variable, or probabilities that do not depend on z (categorical). If absent, logistic for
    images in levels, else constant."""
    gates: Gates = option("leaves", of=one_of(tractable=["circuit"]))
    """Which of a circuit's sums have weights linear in z: those over leaves, all or none."""
    context: int | None = option(None, COUNT)
    """Number of rows and columns that a tractable decoder alone sees before each output, to shift its location and
    scale; none if absent."""
    context_hidden: int = option(48, COUNT, of=_with("context"))
    """Number of features of the context."""
    context_after: float = option(0.1, Range(0, 1), of=_with("context"))
    """Part of the training in which the context has no weight, which then rises to 1 within as much."""
    without_z: bool = False
    """Whether the decoders are blind to z, and q is the prior: what the model comes to without latents."""
    log_term: LogTerm = option("auto", of=LINEAR_PRECISION)
    """How --model.tractable linear evaluates E[log v^2] of its precision v: exactly for Gaussian latents and
    by Edgeworth's expansion for others (auto), or by the paper's Taylor approximation."""
    nonlinear: bool | None = None
    """Whether there is a nonlinear decoder, beside the tractable one or alone. If absent, there is one, but not for
    counts."""
    estimator: EstimatorName | None = None
    """Estimator of the gradient through the sampled decoder: a name of docs/estimators.md, or a class of your own as
    package.module:Class. With both decoders, none trains the encoder by the linear one only ("None + SG"). silent-NAME
    puts the silent control variate around an unbiased one, for mixtures and circuits with Gaussian leaves. If absent,
    the latents' own: reparameterized, gumbel-softmax or rloo; exact for counts with a linear decoder alone."""
    temperature: float | None = option(None, POSITIVE, of=TEMPERED)
    """Temperature of the estimator; its own if absent, 0.5 of gumbel-softmax."""
    temperature_start: float | None = option(None, POSITIVE, of=GUMBEL_SOFTMAX)
    """Temperature of gumbel-softmax in the first epoch, which shrinks to --model.temperature; constant if absent."""
    temperature_factor: float = option(0.9, SHARE, of=_with("temperature_start"))
    """Factor by which the temperature of gumbel-softmax shrinks every epoch."""
    hard: bool = option(False, of=GUMBEL_SOFTMAX)
    """Whether the samples of gumbel-softmax are rounded, with the gradient of those that are not."""
    variance: float = option(0.01, POSITIVE, of=FIXED)
    """Variance of the decoder --model.tractable fixed."""
    variance_start: float | None = option(None, POSITIVE, of=FIXED)
    """Variance of --model.tractable fixed in the first epoch, which shrinks to --model.variance; constant if absent."""
    variance_factor: float = option(0.5, SHARE, of=_with("variance_start"))
    """Factor by which the variance of --model.tractable fixed shrinks every epoch."""
    guided: float = option(0.25, POSITIVE, of=FADING_GUIDE)
    """Part of the training in which the tractable decoder guides a nonlinear one: its weight falls from 1 to 0 over it.
    Above 1 it never reaches 0."""
    guide_estimator: EstimatorName = option("exact", of=GUIDE)
    """Estimator of the guide's expectation; others than exact are there to be compared with it."""
    weighting: Weighting = option("loss", of=FADING_GUIDE)
    """What the guide's weight scales: the losses, as in the paper's Algorithm 1, or the encoder's gradient."""
    cutoff: int | None = option(None, COUNT)
    """Epoch at which the encoder is frozen; it is never frozen if absent."""
    kl_weight: float = option(1.0, NOT_NEGATIVE)
    """Weight of the KL divergence in the objective."""
    kl_warmup: float = option(0.0, Range(0, 1))
    """Part of the training in which the KL divergence's weight rises from 0."""
    start: Start | None = None
    """Start of the tractable decoder: random; the mean image; moments, the mean and the constant variance of every
    output; or probabilistic PCA. If absent, ppca for counts and where the learned variance is constant, as in mixtures
    and circuits; else random."""
    likelihood: kinds.LikelihoodName | None = None
    """Likelihood of the nonlinear decoder: gaussian, or constant, one whose learned variance does not depend on z; a
    mixture or circuit of --model.leaves; logistic of whole levels, also with --model.tractable linear; bernoulli of
    binarized images. For counts that of both decoders. If absent, gaussian, bernoulli or negative-binomial."""

    @property
    def discrete(self) -> bool:
        """True if the likelihood gives probabilities of whole levels, once nothing is left open."""
        return self.likelihood == "logistic" or self.leaves in kinds.OF_LEVELS

    @property
    def decoders(self) -> Decoders:
        """The decoders and the estimator of a model that `resolve` left nothing open of."""
        assert self.tractable is not None
        assert self.nonlinear is not None
        assert self.estimator is not None
        return Decoders(self.tractable, self.nonlinear, self.estimator)


@dataclass(frozen=True)
class TrainConfig(Group, word="train"):
    """The training of a run."""

    epochs: int = option(60, COUNT)
    """Number of epochs: of passes over the training rows, unless --train.epoch_steps is given."""
    epoch_steps: int | None = option(None, COUNT)
    """Number of steps of an epoch, each of rows drawn from all; one pass over the rows if absent."""
    optimizer: Optimizer = "adamw"
    """Optimizer: AdamW, betas (0.9, 0.95); or Adam, betas (0.9, 0.999), as papers on estimators have it."""
    lr: float | None = option(None, POSITIVE)
    """Learning rate. If absent, 5e-4; for counts 1e-2, and --train.lr_network 2e-3."""
    lr_network: float | None = option(None, NOT_NEGATIVE)
    """Learning rate of the networks, of encoder and nonlinear decoder; --train.lr if absent. The other parameters of a
    circuit tolerate ten times this rate."""
    lr_mean: float | None = option(None, NOT_NEGATIVE, of=TRACTABLE)
    """Learning rate of the linear decoder's mean; --train.lr if absent, or 0 for an exact guide of bits."""
    lr_precision: float | None = option(None, NOT_NEGATIVE, of=PRECISION)
    """Learning rate of the linear decoder's precision; --train.lr if absent."""
    decay: Decay = "none"
    """How the learning rates fall: not at all, or along half a cosine to 0 at the last step."""
    warmup: float = option(0, NOT_NEGATIVE)
    """Number of steps in which the learning rates rise to their values; below 1, a part of the training."""
    clip: float = option(0.0, NOT_NEGATIVE)
    """Largest norm of the gradient; 0 leaves it alone."""
    seed: int = option(0, SEED)
    """Seed of everything random in the run."""
    accelerator: str = "auto"
    """Kind of device, as Lightning names it: auto, cpu, gpu, mps."""
    devices: int = option(1, COUNT)
    """Number of processes, one per device."""
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    """Precision of the numbers, as Lightning names it: 32-true, bf16-mixed, 64-true."""
    keep: list[int] = option([], COUNT)
    """Epochs whose weights are kept, in epochs/ of the run's folder; none if absent."""
    iwae_samples: int = option(1, COUNT)
    """Number of samples of the importance-weighted bound in the final evaluation; 1 is the ELBO."""
    tensorboard: bool = False
    """Whether to log for TensorBoard too (needs the extra of that name)."""

    @property
    def rate(self) -> float:
        """The learning rate; if it was left open, that for images."""
        return RATE if self.lr is None else self.lr


class Settings(NamedTuple):
    """All settings of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()

    def options(self) -> dict[str, Any]:
        """Return the values of all options by name, as in train.lr."""
        return {f"{group}.{name}": value for group, own in self._asdict().items() for name, value in vars(own).items()}

    def as_yaml(self) -> str:
        """Return the text of a run's `config.yaml` or a recipe."""
        content = {name: asdict(part) for name, part in self._asdict().items()}
        if self.data.root is not None:
            content["data"]["root"] = str(self.data.root)
        return write_yaml(content)


GROUPS: dict[str, Any] = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}
