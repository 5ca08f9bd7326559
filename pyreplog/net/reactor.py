"""A small reactor: epoll, timers, and calls from other threads.

Blocking sockets answer in half the time of an asyncio round trip, and a thread that waits for a reply may drive this
loop itself (`drive`), so that no other thread has to wake it. Callbacks run in the thread that drives, one at a time:
they need no locks among themselves, and must not block.
"""

from __future__ import annotations

import select
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

from pyreplog._native.net.reactor_base import ReactorBase, drive_until_wanted
from pyreplog._native.system.polling import Epoll
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import ForkedError, InvalidArgumentError, MonkeyPatchedError
from pyreplog.handles import Handle
from pyreplog.net.driver_lock import DRIVER, REST_S, DriverLock
from pyreplog.net.timers import Timer, Timers
from pyreplog.net.wakeup import Wakeup

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
BROKEN = select.EPOLLERR | select.EPOLLHUP
HALF_CLOSED = select.EPOLLRDHUP
"""The peer sends nothing more; what it sent before may not have been read yet."""

_FOREVER_S = 3600.0
_PATCHERS = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
_NEEDED = ("thread", "select", "socket", "queue")

Callback = Callable[[int], object]
Call = Callable[[], object]


class Reactor(Handle, ReactorBase):
    """Calls back when descriptors are ready, when time has passed, and as soon as possible. Any thread may use any
    method.

    It runs while a thread drives it: its own (`start`), the caller's (`run`), or one that waits for an outcome
    (`drive`).

    Args:
        clock: clock of the timers.
        busy_poll_us: microseconds to look for events without sleeping; this saves the wake-up of a core, and keeps the
            core busy.

    Raises:
        MonkeyPatchedError: a library has replaced threads, sockets or epoll.
        InvalidArgumentError: `busy_poll_us` is out of range.
    """

    clock: Clock
    _timers: Timers
    _driver_lock: DriverLock
    _wakeup: Wakeup | None

    def __init__(self, *, clock: Clock | None = None, busy_poll_us: int = 0) -> None:
        if not 0 <= busy_poll_us <= 1_000_000:
            raise InvalidArgumentError(f"busy_poll_us: expected 0 to 1000000, found {busy_poll_us}")
        check_not_patched()
        self.clock = SystemClock() if clock is None else clock
        self._busy_poll_us = busy_poll_us
        self.call_behind: Callable[[Iterable[Call]], None] = self._soon.extend
        """Adds calls from a callback; they are made after the other calls of this turn."""
        self._timers = Timers(self.clock)
        self._driver_lock = DriverLock()
        self._running = False
        self._thread: threading.Thread | None = None
        self._epoll = Epoll()
        self._wakeup = Wakeup()
        self._bell_fd = self._wakeup.fd
        self._epoll.register(self._bell_fd, READ)
        super().__init__("reactor")

    # ---- events, calls and timers ---------------------------------------------------------------------------

    def register(self, fd: int, callback: Callback, events: int) -> None:
        """Have `callback(events)` called while `fd` is ready.

        Level-triggered. events: READ, WRITE; BROKEN is always reported.
        """
        self._check_open()
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def modify(self, fd: int, events: int) -> None:
        """Change the events of a registered `fd`. Does nothing after the reactor was closed."""
        try:
            self._epoll.modify(fd, events)
        except ValueError:
            if self._error is None:
                raise

    def replace(self, fd: int, callback: Callback) -> None:
        """Replace the callback of a registered `fd`. Called by a callback."""
        if fd in self._callbacks:
            self._callbacks[fd] = callback

    def unregister(self, fd: int) -> None:
        """Stop calling back for `fd`; call it before `fd` is closed. An fd that is not registered is ignored."""
        if self._callbacks.pop(fd, None) is not None and self._error is None:
            self._epoll.unregister(fd)

    def call_soon(self, call: Call) -> None:
        """Have `call()` called by the driver, after earlier calls. It is called again if Ctrl-C interrupts it."""
        if self._error is not None:
            raise self._error
        self._soon.append(call)
        if self._asleep:
            self._wake()

    def call_later(self, delay_s: float, call: Call) -> Timer:
        """Have `call()` called by the driver in `delay_s` seconds, or up to 2 ms later."""
        if self._error is not None:
            raise self._error
        timer, first = self._timers.add(delay_s, call)
        if first and self._asleep:
            self._wake()
        return timer

    # ---- driving --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Drive in a daemon thread, until `stop` or `close`."""
        self._check_open()
        if self._running:
            raise InvalidArgumentError("the reactor is running already")
        self._running = True
        ready = threading.Event()
        self._thread = threading.Thread(
            target=_run,
            args=(weakref.ref(self), self._driver_lock, self._epoll, ready),
            name="pyreplog-net",
            daemon=True,
        )
        self._thread.start()
        ready.wait()

    def run(self) -> None:
        """Drive in this thread, until `stop` or `close`. Ctrl-C ends it with KeyboardInterrupt."""
        self._check_open()
        if self._running:
            raise InvalidArgumentError("the reactor is running already")
        self._running = True
        try:
            _run(weakref.ref(self), self._driver_lock, self._epoll, None)
        finally:
            self._running = False

    def stop(self) -> None:
        """Stop driving in the thread of `start`, or in `run`. Wait for that thread, unless it is the caller."""
        self._running = False
        self._wake()
        self._driver_lock.ring()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.ring()

    # ---- the end --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        self.stop()
        self._driver_lock.wake_all()
        if self._driver_lock.is_owned():  # a callback closes its reactor: the driver finishes after the callback
            return
        while not self._driver_lock.take():
            self._wake()
            self._driver_lock.wait(lambda: False, REST_S, self._wake)
        self._finish()
        del self._driver_lock.holder[DRIVER]
        self._driver_lock.wake_all()  # threads that began to wait meanwhile

    def _finish(self) -> None:
        """Make the remaining calls, and close the descriptors. Called by the thread that holds the driver lock."""
        if self._wakeup is None:  # another thread has finished already
            return
        self._call_those_handed_over()
        self._callbacks.clear()
        self._epoll.close()
        self._wakeup = None

    def _driver_left(self) -> None:
        """Finish, if the reactor was closed while this thread drove. Called after a thread has stopped driving."""
        if self._error is not None and self._wakeup is not None and self._driver_lock.take():
            self._finish()
            del self._driver_lock.holder[DRIVER]
        self._driver_lock.given_back()

    def _after_fork(self) -> None:
        self._error = ForkedError(f"the reactor was created by process {self._pid}; create another one in this process")
        self._epoll.close()
        self._wakeup = None


def check_not_patched() -> None:
    """Raise MonkeyPatchedError if a library has replaced threads, sockets or epoll.

    The reactor's thread sleeps in epoll, and other threads wait for it by locks. If all of them were greenlets of one
    thread, the first one that slept would block all others.
    """
    for patcher, probe in _PATCHERS.items():
        library = sys.modules.get(patcher)
        patched = [] if library is None else [name for name in _NEEDED if getattr(library, probe)(name)]
        if patched:
            raise MonkeyPatchedError(_patched(patcher.partition(".")[0], ", ".join(patched)))
    if not hasattr(select, "epoll"):
        raise MonkeyPatchedError(_patched("a library", "select.epoll"))


def _patched(library: str, patched: str) -> str:
    return (
        f"expected the threads, sockets and epoll of Python, found that {library} has replaced {patched}: use "
        "clusters, topics and replica groups in a process without monkey patching (with gunicorn, worker class "
        f"gthread), or leave {', '.join(_NEEDED)} as they are"
    )


def _run(ref: weakref.ref[Reactor], driver_lock: DriverLock, epoll: Epoll, ready: threading.Event | None) -> None:
    """Drive until the reactor is stopped, whenever no other thread does."""
    driver_lock.owner = me = threading.get_ident()
    if ready is not None:
        ready.set()
    wanted = True
    while (reactor := ref()) is not None and reactor._running:
        try:
            if wanted and driver_lock.take():
                del reactor
                drive_until_wanted(ref, driver_lock, epoll, _FOREVER_S)
        finally:
            if DRIVER in driver_lock.holder and driver_lock.holder[DRIVER] == me:
                del driver_lock.holder[DRIVER]
            if (reactor := ref()) is not None:
                reactor._driver_left()
        del reactor
        wanted = driver_lock.rest()
