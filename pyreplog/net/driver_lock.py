"""Which thread drives a reactor: its own, or one that waits for an outcome and drives meanwhile.

The Leader/Followers pattern (Schmidt, Stal, Rohnert, Buschmann: POSA 2): one thread waits for events, the others
sleep until it leaves. A thread that waits for a reply and is the driver itself receives that reply without another
thread having to wake it, which costs 25 to 40 us on a sleeping core.

Ctrl-C may come between any two bytecodes that call something. So the holder is one dict item: it is taken by one C
call that cannot half succeed (`setdefault`), and given up by statements without a call. What an interrupted thread
leaves undone behind that is only waking others; therefore nobody sleeps for longer than REST_S without looking.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable

from pyreplog._native.net.reactor_base import DRIVER, DriverLockBase

__all__ = ["DRIVER", "DriverLock", "Waiter"]

QUIET_S = 0.002
"""The reactor's own thread drives again when nobody has borrowed the driver lock for this long."""

REST_S = 0.1
"""Longest sleep of a thread that waits while another one drives."""


class Waiter:
    """A thread that sleeps until its outcome is there, or until it may drive."""

    __slots__ = ("done", "lock")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.lock = allocate_lock()
        self.lock.acquire()


class DriverLock(DriverLockBase):
    """Held by the thread that drives; lent by the reactor's own thread to those that wait for something."""

    __slots__ = ("_wakeup", "owner")

    waiting: dict[Waiter, None]

    def __init__(self) -> None:
        super().__init__()
        self.owner: int | None = None  # ident of the thread that drives when nobody else does
        self._wakeup = allocate_lock()  # released to wake the owner early
        self._wakeup.acquire()

    def take(self) -> bool:
        """Whether this thread holds the driver lock now."""
        me = get_ident()
        return self.holder.setdefault(DRIVER, me) == me

    def mine(self) -> bool:
        return self.holder.get(DRIVER) == get_ident()

    def lent(self) -> bool:
        """Whether the one who drives is not the owner."""
        return self.holder.get(DRIVER) != self.owner

    def wait(self, done: Callable[[], bool], timeout_s: float, call_off: Callable[[], object]) -> None:
        """Sleep until `done()` may be true or nobody drives, for at most REST_S. `call_off` makes the owner leave."""
        waiter = Waiter(done)
        self._borrowed = True
        self.waiting[waiter] = None
        try:
            if not self.take():
                if not self.lent():
                    call_off()
                waiter.lock.acquire(timeout=min(timeout_s, REST_S))
        finally:
            self.waiting.pop(waiter, None)

    def wake_done(self) -> None:
        """Wake those whose outcome is there; the driver calls it after every round of events."""
        for waiter in list(self.waiting):
            try:
                over = waiter.done()
            except Exception:  # its own thread will meet it
                over = True
            if over:
                self._release(waiter)

    def wake_all(self) -> None:
        self._wake(len(self.waiting))

    def ring(self) -> None:
        """Wake the owner from its rest."""
        if self._wakeup.locked():
            try:
                self._wakeup.release()
            except RuntimeError:  # another thread rang in between
                return

    def rest(self) -> bool:
        """The owner's sleep; whether it should drive now: nobody has driven or waited for QUIET_S.

        A long borrowing is slept through; the one who gives the driver lock back rings.
        """
        self._borrowed = False
        self._wakeup.acquire(timeout=QUIET_S)
        if self._borrowed:
            return False
        if DRIVER not in self.holder:
            return True
        self._resting = True
        if DRIVER in self.holder:
            self._wakeup.acquire(timeout=REST_S)
        self._resting = False
        return False

    def _wake(self, count: int) -> None:
        for waiter in list(self.waiting)[:count]:
            self._release(waiter)

    def _release(self, waiter: Waiter) -> None:
        """Only who takes a waiter out of the dict releases its lock: never twice."""
        if self.waiting.pop(waiter, self) is None:
            waiter.lock.release()
