"""Kinds of observations, likelihoods that suit them, side columns, and units of results."""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

Kind = Literal["auto", "levels", "binarized", "reals", "counts"]
CountLikelihoodName = Literal[
    "negative-binomial", "poisson", "zero-inflated-poisson", "zero-inflated-negative-binomial"
]
LikelihoodName = Literal["gaussian", "constant", "logistic", "bernoulli", "mixture", "circuit", CountLikelihoodName]

TractableKind = Literal["none", "fixed", "constant", "linear", "exp", "mixture", "circuit"]
LeafKind = Literal["exp", "constant", "logistic", "categorical"]

OF_LEVELS = ("logistic", "categorical")  # leaves that give probabilities of whole levels
COMPONENTS = {"mixture": 3, "circuit": 8}  # of what is made of components, if nothing is said
OF_COUNTS: tuple[CountLikelihoodName, ...] = get_args(CountLikelihoodName)  # the default first
NO_OFFSET, BY_SIZE = "none", "size"
WORDS = {"bpd": "bits per dimension"}
COUNTED = {
    "kld": "nats per example",
    "mse": "summed over outputs, per example",
    "active": "latents that are used",
    "loss": "nats per example",
    "weight": "of the tractable decoder, from 0 to 1",
    "variance": "of the linear decoder's outputs",
    "lr": "learning rate",
    "seconds": "of training",
}


class Unit(NamedTuple):
    """Unit in which a result is told; of every unit, the lower the better.

    Args:
        metric: Its name in a run's files; in print it stands in capitals.
        of: What stands behind the number in print.

    Example:
        >>> Unit("nll", " nats per entry").tell(1.25)
        'NLL 1.2500 nats per entry'
        >>> Unit.from_print("NLL nats per entry")
        Unit(metric='nll', of=' nats per entry')
        >>> Unit("nll", " nats per entry").words, Unit("bpd").words
        ('nats per entry', 'bits per dimension')
    """

    metric: str
    of: str = ""

    @classmethod
    def from_print(cls, text: str) -> "Unit":
        title, space, of = text.partition(" ")
        return cls(title.lower(), space + of)

    @property
    def title(self) -> str:
        """The metric's name in print."""
        return self.metric.upper()

    @property
    def in_print(self) -> str:
        """The whole unit in print."""
        return self.title + self.of

    @property
    def words(self) -> str:
        """Return the name of what the number counts; empty for a unit that does not say what it is counted per."""
        return self.of.strip() or WORDS.get(self.metric, "")

    @property
    def in_words(self) -> str:
        """The metric's name and what it counts, as in a sentence."""
        return f"{self.title} in {self.words}" if self.words else self.title

    def title_of(self, metric: str) -> str:
        """Return a metric's name in print; the squared error is called MSE of pixels only, as in the paper.

        Example:
            >>> BITS_PER_DIMENSION.title_of("mse"), NATS_PER_ENTRY.title_of("mse"), NATS_PER_ENTRY.title_of("kld")
            ('MSE', 'squared error', 'KLD')
        """
        return "squared error" if metric == "mse" and self.metric != "bpd" else metric.upper()

    def counted(self, metric: str) -> str:
        """Return what a metric counts; empty for one of a user's own.

        Example:
            >>> BITS_PER_DIMENSION.counted("bpd"), BITS_PER_DIMENSION.counted("kld")
            ('bits per dimension', 'nats per example')
        """
        return self.words if metric in (self.metric, "sampled") else COUNTED.get(metric, "")

    def counted_in(self, column: str) -> str:
        """Return what the numbers of a table's column count, by the words of its name; empty if none is known.

        Example:
            >>> [BITS_PER_DIMENSION.counted_in(name) for name in ("valid_bpd", "test BPD, best", "epoch")]
            ['bits per dimension', 'bits per dimension', '']
        """
        words = column.lower().replace(",", " ").replace("_", " ").split()
        return next(filter(None, map(self.counted, words)), "")

    def axis_title(self, metric: str) -> str:
        """Return a metric's name and what it counts, as a title of axes.

        Example:
            >>> BITS_PER_DIMENSION.axis_title("kld"), BITS_PER_DIMENSION.axis_title("worst")
            ('KLD, nats per example', 'WORST')
        """
        return ", ".join(filter(None, [self.title_of(metric), self.counted(metric)]))

    def tell(self, figure: float) -> str:
        """Return a figure in print."""
        return f"{self.title} {figure:.4f}{self.of}"


BITS_PER_DIMENSION = Unit("bpd")
NATS_PER_EXAMPLE = Unit("nll", " nats per example")
NATS_PER_ENTRY = Unit("nll", " nats per entry")


@dataclass(frozen=True)
class Selection:
    """Columns and layers of files that have a meaning of their own, all others being data; and the size of images.

    Args:
        layer: Layer of an .h5ad file that holds the counts; its X if absent.
        label: Column that names or colors the rows.
        covariates: Columns that are known of each row.
        offset: Where log size factors come from: none, size (the sums of the rows), or a column of size factors.
        missing: Whether empty cells and NaN are entries that were not observed.
        resize: Side of the squares, in pixels, to which a folder's images are cropped and scaled.
        index: Column of a table that names its rows.
        drop: Columns of a table that are left out.

    Example:
        >>> chosen = Selection(label="cluster", covariates=("batch", "cluster"), offset="size")
        >>> chosen.side_columns
        ('cluster', 'batch')
        >>> chosen.given
        ('label', 'covariates', 'offset')
    """

    layer: str | None = None
    label: str | None = None
    covariates: tuple[str, ...] = ()
    offset: str = NO_OFFSET
    missing: bool = False
    resize: int | None = None
    index: str | None = None
    drop: tuple[str, ...] = ()

    @property
    def offset_column(self) -> str | None:
        """The column that holds size factors, if they come from one."""
        return None if self.offset in (NO_OFFSET, BY_SIZE) else self.offset

    @property
    def side_columns(self) -> tuple[str, ...]:
        """The columns that are not data, each once."""
        named = self.label, *self.covariates, self.offset_column, self.index, *self.drop
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were chosen, by name."""
        return tuple(option.name for option in fields(self) if getattr(self, option.name) != option.default)


EVERYTHING = Selection()
