"""Units in which a result is told."""

from typing import NamedTuple

WORDS = {"bpd": "bits per dimension"}


class Unit(NamedTuple):
    """How a result is told; of every unit, the lower the better.

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
        """The unit that a text names as :attr:`in_print` does."""
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
        """What the number counts, in words; empty for a unit that does not say what it is counted per."""
        return self.of.strip() or WORDS.get(self.metric, "")

    @property
    def in_words(self) -> str:
        """The metric's name and what it counts, as in a sentence."""
        if not self.words:
            return self.title
        return f"{self.title} in {self.words}"

    def tell(self, figure: float) -> str:
        """A figure in print."""
        return f"{self.title} {figure:.4f}{self.of}"


BITS_PER_DIMENSION = Unit("bpd")
NATS_PER_EXAMPLE = Unit("nll", " nats per example")
NATS_PER_ENTRY = Unit("nll", " nats per entry")
