"""A reader for the one kind of pickle that a dataset comes in: a dictionary of strings, lists and an array of bytes.

A pickle is a program. This one may neither call anything nor exhaust the interpreter: it is read through first, and
only the steps that such a file needs are admitted, with few containers, so that nothing can be nested deeply. What
stands for an array is put together here, not by numpy's own functions for pickles, which believe what they are told.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTAINERS = frozenset(
    {"EMPTY_DICT", "DICT", "EMPTY_LIST", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
)
MOST_CONTAINERS = 64  # a batch of CIFAR-10 has about ten; nothing is nested deeper than there are containers
NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "NONE", "NEWTRUE", "NEWFALSE"})
TEXTS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"})
BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"})
FILLING = frozenset({"MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS"})
STORING = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
RECALLING = frozenset({"MEMOIZE", "GET", "BINGET", "LONG_BINGET"})
OBJECTS = frozenset({"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"})
FRAMING = frozenset({"PROTO", "FRAME", "STOP"})
ADMITTED = CONTAINERS | NUMBERS | TEXTS | BYTES | FILLING | STORING | RECALLING | OBJECTS | FRAMING


def read_pickle(content: bytes) -> object:
    """What a pickle holds, with strings of Python 2 as bytes.

    Raises:
        pickle.UnpicklingError: It is not of this kind; a malformed one can raise anything.
    """
    _require_plain(content)
    return _arrays_put_together(_Unpickler(io.BytesIO(content), encoding="bytes").load())


def _require_plain(content: bytes) -> None:
    containers = 0
    for position, (step, argument, _) in enumerate(pickletools.genops(content)):
        containers += step.name in CONTAINERS
        if step.name not in ADMITTED:
            raise pickle.UnpicklingError(f"it has the step {step.name}, which no array needs")
        if containers > MOST_CONTAINERS:
            raise pickle.UnpicklingError(f"it has more than {MOST_CONTAINERS} containers")
        if step.name in STORING and int(argument or 0) > position:  # memory is reserved for all numbers up to this one
            raise pickle.UnpicklingError("it numbers its objects with gaps")


class _PickledType:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, of which bytes have none."""


class _PickledArray:
    """Stands for an array while the pickle is read."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        """The array; only bytes in the order of C are known."""
        _, shape, kind, by_columns, content = self.state
        if kind.name not in ("u1", b"u1") or by_columns or not isinstance(content, bytes):
            raise pickle.UnpicklingError("its array is not one of bytes, row by row")
        return np.frombuffer(content, np.uint8).reshape(shape).copy()  # a buffer of bytes is read-only


class _Unpickler(pickle.Unpickler):
    _admitted = {  # noqa: RUF012 (read only)
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,  # before numpy 2
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an array")
        return self._admitted[module, name]


def _arrays_put_together(found: object) -> object:
    if not isinstance(found, dict):
        return found
    return {key: value.array() if isinstance(value, _PickledArray) else value for key, value in found.items()}
