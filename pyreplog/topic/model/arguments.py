"""Checks of the arguments of topics and consumers, local or remote, before anything is done or sent."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import Message
from pyreplog.arguments import as_int, check_bool, check_text
from pyreplog.errors import InvalidArgumentError, OutOfRangeError, WrongTypeError

QUEUE_MAX = 1 << 20
OFFSET_MAX = 1 << 62
DELAY_MAX_S = 10_000 * 366 * 86_400
REASON_BYTES_MAX = 1024
"""Most bytes, as UTF-8, of the reason that a consumer gives in `nack`."""


def check_consumer(name: str | None, durable: bool, priority: int) -> None:
    """Check the arguments of a new consumer.

    Raises WrongTypeError for another type, InvalidArgumentError for a value out of bounds.
    """
    if name is not None:
        check_text("name", name)
    check_bool("durable", durable)
    if as_int("priority", priority) not in range(-(1 << 31), 1 << 31):
        raise InvalidArgumentError(f"priority: expected 32 bits, found {priority}")


def check_queue(queue: int) -> int:
    """Return the number of messages that may wait in a consumer. Raises InvalidArgumentError if it is out of bounds."""
    if isinstance(queue, bool) or not isinstance(queue, int) or not 1 <= queue <= QUEUE_MAX:
        raise InvalidArgumentError(f"queue: expected 1 to {QUEUE_MAX} messages, found {queue!r}")
    return queue


def as_offset(name: str, value: Any) -> int:
    """Return a value as an offset. Raises WrongTypeError, or OutOfRangeError if no message can have that offset."""
    offset = as_int(name, value)
    if not 0 <= offset < OFFSET_MAX:
        raise OutOfRangeError(f"{name}: expected an offset from 0 on, of 62 bits, found {offset}")
    return offset


def as_offsets(messages: Message | int | Iterable[Message | int]) -> NDArray[np.int64]:
    """Return the offsets of messages, ascending and distinct. Raises the errors of `as_offset`."""
    is_text = isinstance(messages, str | bytes | bytearray | memoryview)  # bytes are integers, too
    items: Iterable[Any] = messages if isinstance(messages, Iterable) and not is_text else (messages,)
    offsets = []
    for item in items:
        offset = item.offset if isinstance(item, Message) else item
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise WrongTypeError(
                f"messages: expected messages, a batch of them, or offsets, found {type(item).__name__}"
            )
        offsets.append(as_offset("messages", offset))
    return np.unique(np.array(offsets, np.int64))


def as_delay_us(delay: float | None) -> int | None:
    """Return seconds as microseconds; a negative delay counts as 0.

    Raises WrongTypeError if it is no number, InvalidArgumentError if it is above DELAY_MAX_S.
    """
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise WrongTypeError(f"delay: expected a number of seconds, found {type(delay).__name__}")
    if isnan(delay) or delay > DELAY_MAX_S:
        raise InvalidArgumentError(f"delay: expected at most {DELAY_MAX_S} seconds, found {delay}")
    return int(max(delay, 0.0) * 1e6)


def as_reason(reason: str | None) -> str | None:
    """Return the first REASON_BYTES_MAX bytes of a text; None: there is no text. Raises WrongTypeError if it is no
    str."""
    if reason is None:
        return None
    data = check_text("reason", reason).encode("utf-8", "replace")
    return data[:REASON_BYTES_MAX].decode("utf-8", "ignore") or None
