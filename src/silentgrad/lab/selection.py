"""Which part of a file is data, and which columns of it stand beside the data."""

from dataclasses import dataclass, fields

NO_OFFSET, BY_SIZE = "none", "size"


@dataclass(frozen=True)
class Selection:
    """What is taken from a table or a matrix of counts; what is left out of it is data.

    Args:
        layer: Layer of an .h5ad file that holds the counts; its X if absent.
        label: Column that names or colours the rows.
        covariates: Columns that are known of each row beside x.
        offset: Where log size factors come from: none, size (the sums of the rows), or a column of size factors.
        missing: Whether empty cells and NaN are entries that were not observed.

    Example:
        >>> chosen = Selection(label="cluster", covariates=("batch", "cluster"), offset="size")
        >>> chosen.beside
        ('cluster', 'batch')
        >>> chosen.given
        ('label', 'covariates', 'offset')
    """

    layer: str | None = None
    label: str | None = None
    covariates: tuple[str, ...] = ()
    offset: str = NO_OFFSET
    missing: bool = False

    @property
    def offset_column(self) -> str | None:
        """The column that holds size factors, if they come from one."""
        if self.offset in (NO_OFFSET, BY_SIZE):
            return None
        return self.offset

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are not data, each once."""
        wanted = (self.label, *self.covariates, self.offset_column)
        named = filter(None, wanted)
        return tuple(dict.fromkeys(named))

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were chosen, by name."""
        chosen = []
        for option in fields(self):
            if getattr(self, option.name) != option.default:
                chosen.append(option.name)
        return tuple(chosen)


EVERYTHING = Selection()
