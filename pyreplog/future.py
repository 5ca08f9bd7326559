"""AppendFuture: the future outcome of a submitted entry, for threads and asyncio.

Most futures live for a fraction of a millisecond and are awaited once or never. So an AppendFuture holds no lock,
condition or event: a thread that blocks brings its own lock, a task that awaits brings a `Wait`, and both are entries
of the future's list of waiters.

It is correct without a lock under the GIL (`_native/log/future.pyx`, which releases it only where it calls Python
code):

- *One completer wins.* The check that the future is not settled, and the store of the outcome, are one step: of several
  completers exactly one passes it, and neither a signal handler nor another thread runs in between.
- *Store, then wake; register, then check again.* The winner stores the outcome, and then takes waiters off the list. A
  waiter appends itself and then checks the future. In either order, the waiter sees that the future is settled, or the
  winner finds the waiter on the list.
- *Each waiter is woken once.* A waiter is taken off the list in one step, so two threads never get the same entry. A
  waiter that times out removes its own entry, if it is still there.

A reentrant call (from a finalizer or a signal handler) finds no lock held.

Callers of `submit` only read a future. The code that carries out the append settles it, with functions of this module:
`set_result`, `set_exception` and `settle_all`; `set_expected` stores a result before the outcome is known. `transform`,
`then`, `after_all` and `all_done` combine futures, as Guava's `Futures` do.
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
"""A future, and the error that it fails with, or None; for `settle_all`."""

T = TypeVar("T")
R = TypeVar("R")


def transform(future: AppendFuture[T], step: Callable[[T], AppendFuture[R] | R]) -> AppendFuture[R]:
    """Return a future of `step(result)`, where `result` is that of another future. `step` may return a future itself.

    An error of either future, or of `step`, becomes the error of the returned future.
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


def then(future: AppendFuture[T], done: AppendFuture[Any], next_step: Callable[[T], object]) -> None:
    """Call `next_step` with the result of a future; an error of the future or of `next_step` becomes that of `done`."""

    def on_done(_: AppendFuture[T]) -> None:
        error = future.exception()
        if error is None:
            try:
                next_step(future.result())
            except Exception as raised:
                error = raised
        if error is not None:
            set_exception(done, error)

    future.add_done_callback(on_done)


def completed_future() -> AppendFuture[None]:
    """Return a future that is done."""
    future: AppendFuture[None] = AppendFuture()
    set_result(future, None)
    return future


def after_all(futures: Sequence[AppendFuture[Any]], call: Callable[[], object]) -> None:
    """Call a function when all futures are done, with any outcomes; at once, if they are done already."""
    left, lock = len(futures), threading.Lock()

    def on_done(_: AppendFuture[Any] | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left < 0
        if is_last:
            call()

    for future in futures:
        future.add_done_callback(on_done)
    on_done(None)


def all_done(futures: Sequence[AppendFuture[Any]]) -> AppendFuture[None]:
    """Return a future that is done when all futures are. It fails with the error of the first in order that failed."""
    done: AppendFuture[None] = AppendFuture()

    def settle() -> None:
        error = next((error for future in futures if (error := future.exception()) is not None), None)
        if error is None:
            set_result(done, None)
        else:
            set_exception(done, error)

    after_all(futures, settle)
    return done
