"""From what people say of a place in a topic to what lies before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.times import moment_us
from pyreplog.topic.model.topic_position import EntryPosition, TopicPosition

T = TypeVar("T")

Start = int | datetime | Literal["earliest", "latest"]
"""An offset; a moment of publishing, with a time zone; or an end of the topic."""


class Located(Protocol):
    """What can tell where messages are: a ManagedLedger."""

    @property
    def start(self) -> TopicPosition: ...
    @property
    def end(self) -> TopicPosition: ...
    def locate(self, offset: int) -> AppendFuture[EntryPosition]: ...
    def offset_at_time(self, time_us: int) -> AppendFuture[int]: ...


def check_start(start: Start) -> Start:
    """Errors: WrongTypeError, InvalidArgumentError: it is none, or a datetime without a time zone."""
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise InvalidArgumentError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, bool) or not isinstance(start, int | np.integer | datetime | str):
        raise WrongTypeError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, datetime):
        moment_us("start", start)
    return start


def position(log: Located, start: Start) -> AppendFuture[TopicPosition]:
    """What lies before a place. An offset below the first message that is kept, or beyond the end, is an error of the
    AppendFuture: TrimmedError, OutOfRangeError; others are those of `ManagedLedger.locate`."""
    done: AppendFuture[TopicPosition] = AppendFuture()
    if isinstance(check_start(start), str):
        done.complete(log.start if start == "earliest" else log.end)
    elif isinstance(start, datetime):
        then(log.offset_at_time(moment_us("start", start)), done, lambda offset: _at_offset(log, offset, done))
    else:
        _at_offset(log, int(start), done)
    return done


def _at_offset(log: Located, offset: int, done: AppendFuture[TopicPosition]) -> None:
    end = log.end
    if offset == end.offset:
        done.complete(end)
        return
    then(
        log.locate(offset),
        done,
        lambda place: done.complete(TopicPosition(offset, place.entries_before, place.bytes_before)),
    )


def then(future: AppendFuture[T], done: AppendFuture[Any], go_on: Callable[[T], object]) -> None:
    """Go on with the result of an AppendFuture; its error, or one that is raised, is the error of `done`."""

    def came(_: AppendFuture[T]) -> None:
        error = future.exception()
        if error is None:
            try:
                go_on(future.result())
            except Exception as raised:
                error = raised
        if error is not None:
            done.fail(error)

    future.add_done_callback(came)


def done_ack() -> AppendFuture[None]:
    """One of something that needs no waiting."""
    future: AppendFuture[None] = AppendFuture()
    future.complete(None)
    return future


def after_all(futures: Sequence[AppendFuture[Any]], call: Callable[[], object]) -> None:
    """Call when all of them are done, whatever they give; at once, if they are."""
    left, lock = len(futures), threading.Lock()

    def came(_: AppendFuture[Any] | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left < 0
        if is_last:
            call()

    for future in futures:
        future.add_done_callback(came)
    came(None)


def all_done(futures: Sequence[AppendFuture[Any]]) -> AppendFuture[None]:
    """Done when all of them are; it fails with the error of the first in order that failed."""
    done: AppendFuture[None] = AppendFuture()

    def settle() -> None:
        error = next((error for future in futures if (error := future.exception()) is not None), None)
        if error is None:
            done.complete(None)
        else:
            done.fail(error)

    after_all(futures, settle)
    return done
