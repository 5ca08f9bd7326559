"""A small reactor: epoll, timers, and calls handed over from other threads.

Blocking sockets answer in half the time that asyncio takes for a round trip, and a thread that waits for a reply may
drive this loop itself (`drive`), so that nobody has to wake it. Callbacks run in whichever thread drives, one at a
time: they need no locks among themselves, and must not block.
"""

from __future__ import annotations

import select
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

from pyreplog._native.net.reactor_base import ReactorBase
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
"""The peer sends nothing more; what it sent before may not have been read."""

_FOREVER_S = 3600.0
_PATCHERS = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
_NEEDED = ("thread", "select", "socket", "queue")

Callback = Callable[[int], object]
Call = Callable[[], object]


class Reactor(Handle, ReactorBase):
    """Calls back when descriptors are ready, when time has passed, and soon.

    Any thread may use any method. It runs once somebody drives it: a thread of its own (`start`), the caller's
    (`run`), or one that waits for something (`drive`).

    clock: for timers. busy_poll_us: look for events this long, without sleeping, before going to sleep: saves the
    wake-up of a core, costs the core. Errors: MonkeyPatchedError; InvalidArgumentError.
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
        """`call_soon` of some, by a callback: they are called behind the others of this turn, whatever comes."""
        self._timers = Timers(self.clock)
        self._driver_lock = DriverLock()
        self._running = False
        self._thread: threading.Thread | None = None
        self._epoll = Epoll()
        self._wakeup = Wakeup()
        self._bell_fd = self._wakeup.fd
        self._epoll.register(self._bell_fd, READ)
        super().__init__("reactor")

    # ---- what to call back for ------------------------------------------------------------------------------

    def register(self, fd: int, callback: Callback, events: int) -> None:
        """Have `callback(events)` called while `fd` is ready (level-triggered; READ, WRITE; BROKEN is always told)."""
        self._check_open()
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def modify(self, fd: int, events: int) -> None:
        """Other events for a registered `fd`. After the reactor was closed there are none."""
        try:
            self._epoll.modify(fd, events)
        except ValueError:
            if self._error is None:
                raise

    def replace(self, fd: int, callback: Callback) -> None:
        """Another callback for a registered `fd`. By a callback."""
        if fd in self._callbacks:
            self._callbacks[fd] = callback

    def unregister(self, fd: int) -> None:
        """No more calls; before `fd` is closed. An fd that is not registered is fine."""
        if self._callbacks.pop(fd, None) is not None and self._error is None:
            self._epoll.unregister(fd)

    def call_soon(self, call: Call) -> None:
        """Have `call()` called by the driver, after those handed over before.

        When Ctrl-C interrupts it, it is called again.
        """
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

    # ---- who drives -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Drive from a daemon thread, until `stop` or `close`."""
        self._check_open()
        if self._running:
            raise InvalidArgumentError("this reactor is running")
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
        """Drive from this thread, until `stop` or `close`. Ctrl-C ends it with KeyboardInterrupt."""
        self._check_open()
        if self._running:
            raise InvalidArgumentError("this reactor is running")
        self._running = True
        try:
            _run(weakref.ref(self), self._driver_lock, self._epoll, None)
        finally:
            self._running = False

    def stop(self) -> None:
        """Have `start`'s thread or `run` end; waits for the thread, unless this is it."""
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

    def in_driver(self) -> bool:
        """Whether this thread drives: it is in a callback."""
        return self._driver_lock.mine()

    def _let_go(self) -> None:
        self.stop()
        self._driver_lock.wake_all()
        if self._driver_lock.mine():  # a callback closes its reactor: whoever drives finishes behind it
            return
        while not self._driver_lock.take():
            self._wake()
            self._driver_lock.wait(lambda: False, REST_S, self._wake)
        self._finish()
        del self._driver_lock.holder[DRIVER]
        self._driver_lock.wake_all()  # who has begun to wait meanwhile

    def _finish(self) -> None:
        """What was handed over is still called; then the descriptors go. For the one who holds the driver lock."""
        if self._wakeup is None:  # another one was quicker
            return
        self._call_those_handed_over()
        self._callbacks.clear()
        self._epoll.close()
        self._wakeup = None

    def _left(self) -> None:
        """Behind the last statement of a driver."""
        if self._error is not None and self._wakeup is not None and self._driver_lock.take():
            self._finish()
            del self._driver_lock.holder[DRIVER]
        self._driver_lock.given_back()

    def _forked(self) -> None:
        self._error = ForkedError(f"the reactor was made by process {self._pid}; make one in this process")
        self._epoll.close()
        self._wakeup = None


def check_not_patched() -> None:
    """The reactor's thread sleeps in epoll, and others wait for it by locks: where all these are greenlets of one
    thread, the first that slept would stop them all. Errors: MonkeyPatchedError."""
    for patcher, probe in _PATCHERS.items():
        library = sys.modules.get(patcher)
        found = [] if library is None else [name for name in _NEEDED if getattr(library, probe)(name)]
        if found:
            raise MonkeyPatchedError(_patched(patcher.partition(".")[0], ", ".join(found)))
    if not hasattr(select, "epoll"):
        raise MonkeyPatchedError(_patched("a library", "select.epoll"))


def _patched(library: str, found: str) -> str:
    return (
        f"expected the threads, sockets and epoll of Python, found that {library} has replaced {found}: use clusters, "
        "topics and replica groups in a process without monkey patching (with gunicorn, worker class gthread), or "
        f"leave {', '.join(_NEEDED)} as they are"
    )


def _run(ref: weakref.ref[Reactor], driver_lock: DriverLock, epoll: Epoll, ready: threading.Event | None) -> None:
    """Drive until stopped, whenever nobody else does."""
    driver_lock.owner = me = threading.get_ident()
    if ready is not None:
        ready.set()
    wanted = True
    while (reactor := ref()) is not None and reactor._running:
        try:
            if wanted and driver_lock.take():
                del reactor
                _lead(ref, driver_lock, epoll)
        finally:
            if DRIVER in driver_lock.holder and driver_lock.holder[DRIVER] == me:
                del driver_lock.holder[DRIVER]
            if (reactor := ref()) is not None:
                reactor._left()
        del reactor
        wanted = driver_lock.rest()


def _lead(ref: weakref.ref[Reactor], driver_lock: DriverLock, epoll: Epoll) -> None:
    """Drive until somebody wants to borrow. While it sleeps it holds no reference: a forgotten reactor is met."""
    while (reactor := ref()) is not None and reactor._running and not driver_lock.waiting:
        timeout_s, busy_poll_us = reactor._before(_FOREVER_S), reactor._busy_poll_us
        del reactor
        events = epoll.poll(timeout_s, busy_poll_us)
        if (reactor := ref()) is None:
            return
        reactor._asleep = False
        reactor._after(events)
