"""The handle of something submitted, whose outcome comes later.

One object serves threads and asyncio. Most futures live for a fraction of a millisecond and are awaited once or
never, so an AppendFuture holds no lock, condition or event; a thread that really blocks brings its own lock, an
awaiting task a `Wait`, and both are entries of the future's list of waiters.

Why that is correct without a lock, under the GIL (`_native/log/future.pyx`, left only where it calls Python code):

- *One winner.* Looking whether the future is settled and publishing the outcome is one step: among any number of
  completers exactly one gets past it, and neither a signal handler nor another thread runs in between.
- *Publish, then wake; register, then look again.* The winner publishes, and then takes waiters off the list. A waiter
  appends itself and then looks. Whichever of the two comes first, either the waiter sees that the future is settled, or
  the winner finds the waiter on the list.
- *Each waiter is woken once.* Waiters are taken off one by one, each in one step: two threads never get the same
  entry. A waiter that gives up removes its own entry, and does not mind when it is gone.

A reentrant call (from a finalizer or a signal handler) finds no lock held.

Callers of `submit` only look at a future. Those who carry out the append settle it, with functions of this module:
`set_result`, `set_exception` and `settle_all`; `set_expected` stores a result before the outcome is known. `transform`,
`then`, `after_all` and `all_done` make futures of others, as Guava's `Futures` do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pyreplog._native.log.future import (
    AppendFuture,
    as_timeout,
    expected_result,
    set_exception,
    set_expected,
    set_result,
    settle_all,
)

__all__ = [
    "AppendFuture",
    "Outcome",
    "after_all",
    "all_done",
    "as_timeout",
    "completed_future",
    "expected_result",
    "set_exception",
    "set_expected",
    "set_result",
    "settle_all",
    "then",
    "transform",
]

Outcome: TypeAlias = tuple[AppendFuture[Any], BaseException | None]
"""A future, and what it fails with or None: for `settle_all`."""

T = TypeVar("T")
R = TypeVar("R")


def transform(future: AppendFuture[T], step: Callable[[T], AppendFuture[R] | R]) -> AppendFuture[R]:
    """Return a future of what `step` makes of another future's result: a value, or a further future.

    An error of either future, or of `step`, becomes its error.
    """
    outcome = AppendFuture[R]()

    def take(result: T) -> None:
        following = step(result)
        if isinstance(following, AppendFuture):
            then(following, outcome, partial(set_result, outcome))
        else:
            set_result(outcome, following)

    then(future, outcome, take)
    return outcome


def then(future: AppendFuture[T], done: AppendFuture[Any], go_on: Callable[[T], object]) -> None:
    """Call `go_on` with the result of a future; an error of the future, or of `go_on`, becomes the error of `done`."""

    def came(_: AppendFuture[T]) -> None:
        error = future.exception()
        if error is None:
            try:
                go_on(future.result())
            except Exception as raised:
                error = raised
        if error is not None:
            set_exception(done, error)

    future.add_done_callback(came)


def completed_future() -> AppendFuture[None]:
    """Return a future that is done."""
    future: AppendFuture[None] = AppendFuture()
    set_result(future, None)
    return future


def after_all(futures: Sequence[AppendFuture[Any]], call: Callable[[], object]) -> None:
    """Call `call` when all futures are done, whatever their outcomes; now, if they are done."""
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
    """Return a future that is done when all are; it fails with the error of the first one, in order, that failed."""
    done: AppendFuture[None] = AppendFuture()

    def settle() -> None:
        error = next((error for future in futures if (error := future.exception()) is not None), None)
        if error is None:
            set_result(done, None)
        else:
            set_exception(done, error)

    after_all(futures, settle)
    return done
