"""The handle of something submitted, whose outcome comes later.

One object serves threads and asyncio. Most acks live for a fraction of a millisecond and are awaited once or
never, so an Ack holds no lock, condition or event; a thread that really blocks brings its own lock, an
awaiting task its own future, and both are entries of the ack's list of waiters.

Why that is correct without a lock, under the GIL:

- *One winner.* `del self._open` removes a slot's value in one C call, and raises AttributeError when it is
  gone. So among any number of completers exactly one gets past it. (It is a statement, not a call, so neither
  a signal handler nor another thread runs between it and the assignments that publish the outcome.)
- *Publish, then wake; register, then look again.* The winner stores the outcome, sets `_done`, and then takes
  waiters off the list. A waiter appends itself and then reads `_done`. Whichever of "set `_done`" and
  "append" comes first, either the waiter sees `_done`, or the winner finds the waiter on the list.
- *Each waiter is woken once.* Waiters are taken off with `list.pop`, which is one C call: two threads never
  get the same entry. A waiter that gives up removes its own entry, and does not mind when it is gone.

A reentrant call (from a finalizer or a signal handler) finds no lock held.
"""

from __future__ import annotations

import logging
from _thread import allocate_lock
from asyncio import AbstractEventLoop, Future, _get_running_loop, get_running_loop
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from math import isnan
from threading import TIMEOUT_MAX
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, WrongTypeError

T = TypeVar("T")
_UNCHANGED: Any = object()
_NOTHING: Any = None
_log = logging.getLogger(__name__)


class Ack(Generic[T]):
    """The outcome of one submitted append: an entry number, a range of them, or an exception.

    Threads call `result`, coroutines `await` the ack (in any event loop, several in several loops); both may
    be done any number of times. Awaiting an ack that is done returns at once, without a turn of the event
    loop.

    The one who submitted the append settles it, exactly once, with `complete`, `fail` or `settle_all`.
    """

    __slots__ = ("_done", "_exception", "_open", "_result", "_waiters")

    def __init__(self, result: T = _NOTHING) -> None:
        """`result`: what `complete()` without an argument completes the ack with."""
        self._result = result
        self._exception: BaseException | None = None
        self._done = False
        self._waiters: list[_Waiter] = []
        self._open = True

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """The result, waited for at most `timeout` seconds (None: as long as it takes); for threads.

        Raises the exception that the ack failed with, or OutcomeUnknownError when the time ran out: the
        append may still become durable, and this ack still tells. Ctrl-C interrupts the wait. In a coroutine
        use `await`: this call would block its event loop. WrongTypeError, InvalidArgumentError: no such time.
        """
        if not self._done:
            self._block(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that the ack failed with, None if it was completed. Waits as `result` does."""
        if not self._done:
            self._block(timeout)
        return self._exception

    def add_done_callback(self, callback: Callable[[Ack[T]], object]) -> None:
        """Has `callback(ack)` called once: by the thread that settles the ack, or now if it is settled.

        Callbacks are called in the order they were added. They must not block. Their exceptions are logged.
        """
        self._waiters.append(callback)
        if self._done:
            _wake((self,))

    def expect(self, result: T) -> None:
        """What `complete()` and `settle_all` complete the ack with, in place of the value given at creation."""
        self._result = result

    def complete(self, result: T = _UNCHANGED) -> bool:
        """Completes with `result`, else with the value given at creation. False: it was settled before."""
        if not self._publish(result, None):
            return False
        if self._waiters:
            _wake((self,))
        return True

    def fail(self, exception: BaseException) -> bool:
        """Fails with `exception`, which every waiter will see raised. False: it was settled before."""
        if not self._publish(_UNCHANGED, exception):
            return False
        if self._waiters:
            _wake((self,))
        return True

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            future: Future[None] = Future(loop=get_running_loop())
            self._waiters.append(future)
            if not self._done:
                try:
                    yield from future
                except BaseException:  # this awaiter was cancelled or closed; the others wait on
                    self._forget(future)
                    raise
        return self._outcome()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Ack belongs to the process that submitted, it cannot be pickled or copied")

    def _publish(self, result: T, exception: BaseException | None) -> bool:
        try:
            del self._open
        except AttributeError:
            return False
        if result is not _UNCHANGED:
            self._result = result
        self._exception = exception
        self._done = True
        return True

    def _outcome(self) -> T:
        if self._exception is not None:
            # Thousands of waiters may raise it: the traceback of one must not grow by those of the others.
            raise self._exception.with_traceback(None)
        return self._result

    def _block(self, timeout: float | None) -> None:
        seconds = as_timeout(timeout)
        woken = allocate_lock()
        woken.acquire()

        def wake(_: Ack[T]) -> None:
            woken.release()

        self._waiters.append(wake)
        try:
            if not self._done:
                woken.acquire(timeout=-1 if seconds is None else seconds)
        finally:
            self._forget(wake)
        if not self._done:
            raise OutcomeUnknownError(f"no outcome within {timeout} s: the append may still become durable")

    def _forget(self, waiter: _Waiter) -> None:
        with suppress(ValueError):
            self._waiters.remove(waiter)

    def _take_waiters(self, futures: list[Future[None]]) -> None:
        """Calls the callbacks; hands the futures over, to be resolved together with those of other acks."""
        while self._waiters:
            try:
                waiter = self._waiters.pop(0)
            except IndexError:  # another thread took the last one
                return
            if isinstance(waiter, Future):
                futures.append(waiter)
                continue
            try:
                waiter(self)
            except Exception:
                _log.exception("a callback of an Ack raised")


_Waiter: TypeAlias = Future[None] | Callable[[Ack[Any]], object]
Outcome: TypeAlias = tuple[Ack[Any], BaseException | None]


def as_timeout(timeout: float | None) -> float | None:
    """How long a caller wants to wait, in seconds: None for ever, which what no clock can count is too; 0 for less.

    Errors: WrongTypeError; InvalidArgumentError, not a number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise WrongTypeError(f"timeout: expected a number of seconds, found {type(timeout).__name__}")
    if timeout > TIMEOUT_MAX:
        return None
    if timeout <= 0:
        return 0.0
    if isnan(timeout):
        raise InvalidArgumentError("timeout: expected a number of seconds, found nan")
    return float(timeout)


def settle_all(outcomes: Collection[Outcome]) -> None:
    """Settles many acks: each completes with the value of its creation (None), or fails with its exception.

    Acks that were settled before keep their outcome. All are settled before the first waiter is woken. An
    event loop is woken once for the whole group, and not at all when this is its own thread. Ctrl-C in the
    middle, or a callback that raises what is no Exception, is raised after the others were woken.
    """
    awaited: list[Ack[Any]] = []
    try:
        _publish_all(outcomes, awaited)
    except BaseException:
        _publish_all(outcomes, awaited)
        raise
    finally:
        if awaited:
            _wake(awaited)


def _publish_all(outcomes: Collection[Outcome], awaited: list[Ack[Any]]) -> None:
    for ack, exception in outcomes:
        try:
            del ack._open
        except AttributeError:
            continue
        ack._exception = exception
        ack._done = True
        if ack._waiters:
            awaited.append(ack)


def _wake(acks: Collection[Ack[Any]]) -> None:
    futures: list[Future[None]] = []
    try:
        for ack in acks:
            ack._take_waiters(futures)
    except BaseException:
        _wake(acks)
        raise
    finally:
        if futures:
            _resolve(futures)


def _resolve(futures: list[Future[None]]) -> None:
    groups: defaultdict[AbstractEventLoop, list[Future[None]]] = defaultdict(list)
    for future in futures:
        groups[future.get_loop()].append(future)
    running = _get_running_loop()
    for loop, group in groups.items():
        if loop is running:
            _set_results(group)
            continue
        try:
            loop.call_soon_threadsafe(_set_results, group)
        except RuntimeError:
            if not loop.is_closed():
                raise  # tasks of a closed loop can never run again: there is nobody to wake


def _set_results(futures: list[Future[None]]) -> None:
    for future in futures:
        if not future.done():  # else its task was cancelled meanwhile
            future.set_result(None)
