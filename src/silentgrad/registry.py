"""Classes by name: what options name, tables list and tests go through is entered in one place, on the class.

A class that is in no registry is named by where it is imported from, `package.module:Class`.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Generic, TypeVar

from silentgrad.errors import DomainError

T = TypeVar("T")
C = TypeVar("C", bound=type)

ALIKE = 0.6  # the least likeness, from 0 to 1, of a name that is worth a question


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the question after a message, or nothing if no name is near; capitals do not count.

    Example:
        >>> did_you_mean("mnits", ["cifar10", "mnist"]), did_you_mean("RLOO", ["rloo"])
        (' Did you mean mnist?', ' Did you mean rloo?')
    """
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), list(lowered), n=1, cutoff=ALIKE)
    return f" Did you mean {lowered[near[0]]}?" if near else ""


class Registry(dict[str, type[T]], Generic[T]):
    """Subclasses of one class, by name.

    Args:
        kind: Noun for one of them, for messages.
        base: Class that all of them are subclasses of.

    Example:
        >>> shapes = Registry("shape", object)
        >>> @shapes.register("square")
        ... class Square: ...
        >>> shapes.resolve("square").__name__, shapes.resolve("fractions:Fraction").__name__
        ('Square', 'Fraction')
        >>> shapes.resolve("sqare")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        silentgrad.errors.DomainError: sqare is no shape: choose among square, or name ... Did you mean square?
    """

    def __init__(self, kind: str, base: type[T]) -> None:
        super().__init__()
        self.kind, self.base = kind, base

    def register(self, name: str) -> Callable[[C], C]:
        """Enter the decorated class under a name.

        Raises:
            DomainError: Another class has the name.
        """

        def entered(member: C) -> C:
            taken = self.get(name, member)
            if (taken.__module__, taken.__qualname__) != (member.__module__, member.__qualname__):
                raise DomainError(f"{name} is the name of another {self.kind}, {taken.__module__}:{taken.__qualname__}")
            self[name] = member
            return member

        return entered

    def resolve(self, name: str) -> type[T]:
        """Return the class of a name, or import the one that `package.module:Class` names.

        Raises:
            DomainError: There is none, or it is of another kind.
        """
        if name in self:
            return self[name]
        if ":" not in name:
            raise DomainError(
                f"{name} is no {self.kind}: choose among {', '.join(sorted(self))}, or name a class as "
                f"package.module:Class.{did_you_mean(name, self)}"
            )
        path, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(path)
        except (ImportError, TypeError, ValueError) as error:
            raise DomainError(
                f"{name} cannot be imported, {error}: its module has to be installed, or in a folder of PYTHONPATH"
            ) from error
        found = getattr(module, attribute, None)
        if found is None:
            raise DomainError(self._without(path, attribute, vars(module)))
        if not isinstance(found, type) or not issubclass(found, self.base):
            raise DomainError(f"{name} is no {self.kind}: it has to be a subclass of {self.base.__qualname__}")
        return found

    def _without(self, path: str, attribute: str, names: Mapping[str, object]) -> str:
        """Return the message for a module that has no such class: those that it has."""
        classes = {name: one for name, one in names.items() if isinstance(one, type) and one is not self.base}
        own = [name for name, one in classes.items() if issubclass(one, self.base)]
        told = f"but {', '.join(own)}.{did_you_mean(attribute, own)}" if own else f"and no {self.kind}."
        return f"{path}:{attribute} cannot be imported, module {path!r} has no attribute {attribute!r}, {told}"
