"""AppendFuture, and the object that a task awaits. `pyreplog.future` explains why no lock is needed.

"In one step" means that no Python code runs, so that no finalizer, signal handler or other thread comes in between: the
code makes no object that the garbage collector tracks, and drops no last reference.
"""

import logging
import threading
from _thread import LockType, allocate_lock, get_ident
from asyncio import CancelledError, InvalidStateError, _get_running_loop, get_running_loop
from math import isnan
from types import GenericAlias

cimport cython

from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, WrongTypeError

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1

cdef enum Stage:
    WAITING
    RESUMED
    CANCELLED

cdef object UNCHANGED = object()
cdef object logger = logging.getLogger("pyreplog.future")


# ---- waiters of tasks --------------------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
cdef class FutureWaiter:
    """The part of a Future that a Task needs of what it awaits; for one task, in the thread of its loop.

    For a Future the loop makes and schedules a handle for its task. Tasks that wait for futures that are settled
    together are resumed in one call of their loop, one after the other (`go_on`).
    """

    cdef public bint _asyncio_future_blocking
    cdef object loop, callback, context, message
    cdef Stage stage

    def get_loop(self):
        return self.loop

    def done(self):
        return self.stage != WAITING

    def cancelled(self):
        return self.stage == CANCELLED

    def result(self):
        if self.stage == WAITING:
            raise InvalidStateError("Result is not set.")
        if self.stage == CANCELLED:
            raise CancelledError() if self.message is None else CancelledError(self.message)

    def add_done_callback(self, callback, *, context=None):
        """Set the callback of the task; a FutureWaiter has one."""
        if self.callback is not None:
            raise RuntimeError("only the task that awaits an AppendFuture can wait for this")
        self.context = PyContext_CopyCurrent() if context is None else context
        self.callback = callback
        if self.stage != WAITING:
            self.loop.call_soon(callback, self, context=self.context)

    def cancel(self, msg=None):
        if self.stage != WAITING:
            return False
        self.stage, self.message = CANCELLED, msg
        if self.callback is not None:
            self.loop.call_soon(self.callback, self, context=self.context)
        return True

    cdef int resume(self) except -1:
        if self.stage != WAITING:  # cancelled meanwhile
            return 0
        self.stage = RESUMED
        if self.callback is not None:
            PyContext_Enter(self.context)
            try:
                self.callback(self)
            finally:
                PyContext_Exit(self.context)
        return 0


def go_on(list waits):
    """Resume waiting tasks. Their loop calls this in its thread.

    An exception that leaves a task (Ctrl-C) is raised after the other tasks were scheduled again.
    """
    cdef Py_ssize_t count = 0
    cdef FutureWaiter wait
    try:
        for wait in waits:
            count += 1
            wait.resume()
    except BaseException:
        if count < len(waits):
            get_running_loop().call_soon(go_on, waits[count:])
        raise


cdef int schedule(list waits) except -1:
    """Have waiting tasks resumed. Each loop is notified once, and not woken by its own thread."""
    cdef dict groups = {}
    cdef list group = None
    cdef object loop = None, error = None
    cdef FutureWaiter wait
    for wait in waits:
        if wait.loop is not loop:
            loop = wait.loop
            group = groups.setdefault(loop, [])
        group.append(wait)
    for loop, group in groups.items():
        try:
            post(loop, group)
        except BaseException as raised:  # Ctrl-C half way: a task that was resumed is not resumed again
            error = raised
            post(loop, group)
    if error is not None:
        raise error
    return 0


cdef int post(object loop, list group) except -1:
    if loop is _get_running_loop():
        loop.call_soon(go_on, group)
        return 0
    try:
        loop.call_soon_threadsafe(go_on, group)
    except RuntimeError:
        if not loop.is_closed():
            raise  # tasks of a closed loop never run again
    return 0


# ---- the future --------------------------------------------------------------------------------------------------

@cython.freelist(256)
cdef class AppendFuture:
    """The outcome of one append: an entry number, a range of entry numbers, or an exception; made by `submit`.

    Threads call `result`, coroutines `await` the future. Both may be done any number of times, by several threads and
    in several event loops. Awaiting a future that is done returns at once, without a turn of the event loop.

    Example:
        ```python
        future = log.submit(b"value")
        future.result(timeout=5.0)  # in a thread
        await future  # in a coroutine
        ```

    The code that carries out the append settles the future, exactly once; callers only look. See docs/log.md.
    """

    def __init__(self, result=None):
        """`result`: what the future gives if it is completed without another result."""
        self.value = result

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    def done(self):
        """Return whether the outcome is known. Does not block."""
        return self.settled

    def result(self, timeout=None):
        """Return the result, or raise the exception that the append failed with.

        For threads: in a coroutine use `await`, since this call blocks the event loop. Ctrl-C interrupts the wait.

        Args:
            timeout: seconds to wait; None: without a limit.

        Raises:
            OutcomeUnknownError: the time ran out. The append may still become durable, and the future still tells.
            WrongTypeError: `timeout` is not a number.
            InvalidArgumentError: `timeout` is NaN.
        """
        if not self.settled:
            self.block(timeout)
        return self.outcome()

    def exception(self, timeout=None):
        """Return the exception that the append failed with, or None if it succeeded.

        Args:
            timeout: seconds to wait; None: without a limit.

        Raises:
            OutcomeUnknownError: the time ran out. The append may still become durable, and the future still tells.
            WrongTypeError: `timeout` is not a number.
            InvalidArgumentError: `timeout` is NaN.
        """
        if not self.settled:
            self.block(timeout)
        return self.error

    def add_done_callback(self, callback):
        """Call `callback(future)` once: from the thread that settles the future, or now if it is settled.

        Callbacks are called in the order in which they were added. Their exceptions are logged. KeyboardInterrupt and
        SystemExit leave the call of the main thread that settled the future, after the other callbacks were called.

        Args:
            callback: must not block.
        """
        self.enlist(callback)
        if self.settled:
            wake([self])

    def __await__(self):
        cdef FutureWaiter wait
        if not self.settled:
            wait = FutureWaiter.__new__(FutureWaiter)
            wait.loop = get_running_loop()
            wait._asyncio_future_blocking = True
            self.enlist(wait)
            if not self.settled:
                try:
                    yield wait
                    if not self.settled:
                        raise RuntimeError("await wasn't used with an event loop")
                except BaseException:  # this task was cancelled or closed; the others go on waiting
                    self.forget(wait)
                    raise
        return self.outcome()

    def __reduce__(self):
        raise TypeError(
            "an AppendFuture belongs to the process that submitted the append, and cannot be pickled or copied"
        )

    @property
    def waiting(self):
        """Number of threads, tasks and callbacks that wait for the outcome. For tests and operators."""
        return 0 if self.waiters is None else len(self.waiters)

    cdef bint publish(self, object value, object error) noexcept:
        """Settle in one step; the caller holds the former value. Return False if the future was settled before."""
        if self.settled:
            return False
        self.value, self.error, self.settled = value, error, True
        return True

    cdef object outcome(self):
        if self.error is not None:
            # Thousands of waiters may raise it: the traceback of one must not include those of the others.
            raise self.error.with_traceback(None)
        return self.value

    cdef int block(self, object timeout) except -1:
        seconds = as_timeout(timeout)
        woken = allocate_lock()
        woken.acquire()
        self.enlist(woken)
        try:
            if not self.settled:
                woken.acquire(timeout=-1 if seconds is None else seconds)
        finally:
            self.forget(woken)
        if not self.settled:
            raise OutcomeUnknownError(f"no outcome within {timeout} s: the append may still become durable")
        return 0

    cdef int enlist(self, object waiter) except -1:
        cdef list alone = [waiter]  # made first, so that the rest is one step
        if self.waiters is None:
            self.waiters = alone
        else:
            self.waiters.append(waiter)
        return 0

    cdef int forget(self, object waiter) except -1:
        """Remove a waiter by identity: a comparison would run Python code during a walk over the list."""
        cdef Py_ssize_t place = 0
        while self.waiters is not None and place < len(self.waiters):
            if self.waiters[place] is waiter:
                self.waiters.pop(place)
                return 0
            place += 1
        return 0

    cdef int tell(self, list waits) except -1:
        """Call callbacks and wake threads; append tasks to `waits`, which the caller resumes together."""
        while self.waiters:
            waiter = self.waiters.pop(0)
            if type(waiter) is FutureWaiter:
                waits.append(waiter)
            elif type(waiter) is LockType:
                waiter.release()
            else:
                try:
                    waiter(self)
                except BaseException as error:
                    if is_for_main_thread(error):
                        raise
                    logger.exception("a callback of an AppendFuture raised an exception")
        return 0


cdef bint is_for_main_thread(error) except -1:
    """Whether an exception may end the main thread. Any other thread would be ended by it, such as one that commits.

    asyncio's CancelledError is no Exception either, and has no meaning here.
    """
    return isinstance(error, (KeyboardInterrupt, SystemExit)) and get_ident() == threading.main_thread().ident


def as_timeout(timeout):
    """Return a timeout in seconds: None: without limit, also if it is too large for a clock; 0 if it is negative.

    Raises WrongTypeError, and InvalidArgumentError for NaN.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise WrongTypeError(f"timeout: expected a number of seconds, found {type(timeout).__name__}")
    if timeout > threading.TIMEOUT_MAX:
        return None
    if timeout <= 0:
        return 0.0
    if isnan(timeout):
        raise InvalidArgumentError("timeout: expected a number of seconds, found nan")
    return float(timeout)


# ---- the completing side -----------------------------------------------------------------------------------------
#
# Functions, not methods: callers of `submit` get a future that shows only what callers do, and settling one costs no
# second object.


def set_result(AppendFuture future not None, result=UNCHANGED):
    """Complete a future with `result`, or with its expected result.

    Return False if the future was settled before.
    """
    before = future.value  # kept alive until the new one is stored
    if not future.publish(before if result is UNCHANGED else result, None):
        return False
    if future.waiters:
        wake([future])
    return True


def set_exception(AppendFuture future not None, exception):
    """Fail a future with `exception`, which all waiters raise. Return False if the future was settled before."""
    if not future.publish(future.value, exception):
        return False
    if future.waiters:
        wake([future])
    return True


def set_expected(AppendFuture future not None, result):
    """Set the result that `set_result` and `settle_all` complete a future with, in place of the value given at
    creation."""
    before = future.value  # kept alive until the new one is stored
    future.value = result


def expected_result(AppendFuture future not None):
    """Return the result that `set_result` completes a future with; after completion, its result."""
    return future.value


# ---- many futures ------------------------------------------------------------------------------------------------

def settle_all(outcomes):
    """Settle many futures: each completes with its expected result (None), or fails with its exception.

    Futures that were settled before keep their outcome. All are settled before the first waiter is woken. An event loop
    is woken once for the whole group, and not at all in its own thread. Ctrl-C during the call, or in a callback, is
    raised after the other waiters were woken.
    """
    settle_each(outcomes)


cdef int settle_each(object outcomes) except -1:
    cdef list awaited = []
    try:
        publish_all(outcomes, awaited)
    except BaseException:
        publish_all(outcomes, awaited)
        raise
    finally:
        if awaited:
            wake(awaited)
    return 0


@cython.nonecheck(True)
cdef int publish_all(object outcomes, list awaited) except -1:
    cdef AppendFuture future
    for future, error in outcomes:
        if future.publish(future.value, error) and future.waiters:
            awaited.append(future)
    return 0


cdef int settle(list futures, object error) except -1:
    cdef list awaited = []
    cdef AppendFuture future
    for future in futures:
        if future.publish(future.value, error) and future.waiters:
            awaited.append(future)
    if awaited:
        wake(awaited)
    return 0


cdef int wake(list futures) except -1:
    """Wake the waiters of futures. Ctrl-C that leaves a callback is raised after the others were notified."""
    cdef list waits = []
    cdef AppendFuture future
    cdef object error = None
    for future in futures:
        while future.waiters:
            try:
                future.tell(waits)
            except BaseException as raised:
                error = raised
    if waits:
        schedule(waits)
    if error is not None:
        raise error
    return 0
