"""The errors a user meets, each named after what is wrong."""


class SilentgradError(Exception):
    """Anything silentgrad refuses to do."""


class IntractableError(SilentgradError, NotImplementedError):
    """The expectation asked for has no closed form; nothing is sampled in its place."""


class UnregisteredLatentError(IntractableError, TypeError):
    """The latent's family is not in the registry that was asked."""


class DomainError(SilentgradError, ValueError):
    """A value lies where the formula does not hold: a variance of zero, a cumulant outside its strip, a NaN."""


class ShapeError(SilentgradError, ValueError):
    """Two shapes that have to agree do not."""
