"""Makes named tuples for Python code that makes one for every message: their own constructors are Python code."""

from pyreplog._native.machines.named cimport named
from pyreplog.errors import WrongTypeError


def make_named(type kind not None, /, *fields):
    """Return a named tuple, as its constructor does, in a fifth of the time.

    Args:
        kind: its class.
        fields: all its fields, in their order. Their number is not checked.

    Raises:
        WrongTypeError: the class is none of tuples.
    """
    if not issubclass(kind, tuple):
        raise WrongTypeError(f"kind: expected a class of named tuples, found {kind.__name__}")
    return named(kind, fields)
