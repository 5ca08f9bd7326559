"""Sequence numbers as callers give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from pyreplog.errors import InvalidArgumentError, SequenceError, WrongTypeError
from pyreplog.topic.model.producer_snapshot import SEQUENCE_MAX

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def check_sequence(sequence: int | None) -> int:
    """The number of one message; -1: it has none. Errors: WrongTypeError, InvalidArgumentError."""
    if sequence is None:
        return -1
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise WrongTypeError(f"sequence: expected an int, found {type(sequence).__name__}")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"sequence: expected 0 to {SEQUENCE_MAX}, found {sequence}")
    return sequence


def check_sequences(topic: str, sequences: ArrayLike, count: int) -> range | NDArray[numpy.int64]:
    """The numbers of `count` messages, a range if they are consecutive.

    Errors: SequenceError, they do not ascend; WrongTypeError; InvalidArgumentError.
    """
    column = numpy.asarray(sequences)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise WrongTypeError(f"sequences: expected integers in one dimension, found {column.dtype} of {column.shape}")
    if len(column) != count:
        raise InvalidArgumentError(f"sequences: expected {count}, one per value, found {len(column)}")
    if not count:
        return range(0)
    for number in (int(column.min()), int(column.max())):
        check_sequence(number)
    column = numpy.array(column, numpy.int64)  # the caller's may change before it is used
    descends = numpy.flatnonzero(column[1:] <= column[:-1])
    if len(descends):
        at = int(descends[0]) + 1
        raise SequenceError(topic, f"sequences must ascend: message {at} has {column[at]} behind {column[at - 1]}")
    first, last = int(column[0]), int(column[-1])
    return range(first, last + 1) if last - first == count - 1 else column
