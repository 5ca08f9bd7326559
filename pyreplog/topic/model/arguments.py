"""What callers give to topics and consumers, here or at another process, checked before anything is done or sent."""

from __future__ import annotations

import sys
from asyncio import _get_running_loop
from collections.abc import Iterable
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.topic.messages import Message
from pyreplog.arguments import as_int, check_bool, check_text
from pyreplog.errors import InvalidArgumentError, OutOfRangeError, WrongTypeError

QUEUE_MAX = 1 << 20
OFFSET_MAX = 1 << 62
DELAY_MAX_S = 10_000 * 366 * 86_400
REASON_BYTES_MAX = 1024
"""Of the text that a consumer refuses messages with, as UTF-8."""


def check_may_block(call: str) -> None:
    """Refuse a blocking call in a coroutine, whose event loop it would stop, and in a callback.

    call: its name; with `_async` behind it, the one that coroutines await. Raises: InvalidArgumentError.
    """
    if _get_running_loop() is not None:
        refuse_to_block(call)
    check_may_wait()


def refuse_to_block(call: str) -> None:
    """Raise InvalidArgumentError in an event loop, which a blocking call would stop; see `check_may_block`.

    The loop of a notebook's kernel serves nothing but the cell that runs: there a cell may block it.
    """
    if "ipykernel" not in sys.modules:
        raise InvalidArgumentError(f"{call}() would block the running event loop: await {call}_async() instead")


def check_consumer(name: str | None, durable: bool, priority: int) -> None:
    """What a consumer attaches with. Errors: WrongTypeError; InvalidArgumentError."""
    if name is not None:
        check_text("name", name)
    check_bool("durable", durable)
    if as_int("priority", priority) not in range(-(1 << 31), 1 << 31):
        raise InvalidArgumentError(f"priority: expected 32 bits, found {priority}")


def check_queue(queue: int) -> int:
    """How many messages may wait in a consumer. InvalidArgumentError."""
    if isinstance(queue, bool) or not isinstance(queue, int) or not 1 <= queue <= QUEUE_MAX:
        raise InvalidArgumentError(f"queue: expected 1 to {QUEUE_MAX} messages, found {queue!r}")
    return queue


def as_offset(what: str, value: Any) -> int:
    """Errors: WrongTypeError; OutOfRangeError, no message can have it."""
    offset = as_int(what, value)
    if not 0 <= offset < OFFSET_MAX:
        raise OutOfRangeError(f"{what}: expected an offset from 0 on, of 62 bits, found {offset}")
    return offset


def as_offsets(what: Message | int | Iterable[Message | int]) -> NDArray[np.int64]:
    """Ascending, each once; of an empty list, none. Errors: as as_offset."""
    is_text = isinstance(what, str | bytes | bytearray | memoryview)  # bytes are integers, too
    several: Iterable[Any] = what if isinstance(what, Iterable) and not is_text else (what,)
    found = []
    for one in several:
        offset = one.offset if isinstance(one, Message) else one
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise WrongTypeError(f"what: expected messages, a batch of them, or offsets, found {type(one).__name__}")
        found.append(as_offset("messages", offset))
    return np.unique(np.array(found, np.int64))


def as_delay_us(delay: float | None) -> int | None:
    """Seconds as microseconds; what was to be before now is now. Errors: WrongTypeError; InvalidArgumentError."""
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise WrongTypeError(f"delay: expected a number of seconds, found {type(delay).__name__}")
    if isnan(delay) or delay > DELAY_MAX_S:
        raise InvalidArgumentError(f"delay: expected at most {DELAY_MAX_S} seconds, found {delay}")
    return int(max(delay, 0.0) * 1e6)


def as_reason(reason: str | None) -> str | None:
    """The beginning of a text, of as many bytes as are kept; None: there is none. Errors: WrongTypeError."""
    if reason is None:
        return None
    data = check_text("reason", reason).encode("utf-8", "replace")
    return data[:REASON_BYTES_MAX].decode("utf-8", "ignore") or None
