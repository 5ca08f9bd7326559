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
`set_result`, `set_exception` and `settle_all`; `set_expected` stores a result before the outcome is known.
"""

from __future__ import annotations

from typing import Any, TypeAlias

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
    "as_timeout",
    "expected_result",
    "set_exception",
    "set_expected",
    "set_result",
    "settle_all",
]

Outcome: TypeAlias = tuple[AppendFuture[Any], BaseException | None]
"""A future, and what it fails with or None: for `settle_all`."""
