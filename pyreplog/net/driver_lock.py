"""DriverLock: decides which thread drives a reactor, its own one or one that waits for an outcome.

This is the Leader/Followers pattern (Schmidt, Stal, Rohnert, Buschmann: POSA 2): one thread waits for events, and the
others sleep until it leaves. A thread that waits for a reply and is the driver itself receives that reply without being
woken by another thread, which costs 25 to 40 us on a sleeping core.

Ctrl-C may come between any two bytecodes that call something. So the holder is one dict item: it is taken by one C call
that cannot half succeed (`setdefault`), and released by statements without a call. An interrupted thread can fail only
to wake others; therefore no thread sleeps longer than REST_S without checking.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable

from pyreplog._native.net.reactor_base import DRIVER, DriverLockBase

__all__ = ["DRIVER", "DriverLock", "Waiter"]

QUIET_S = 0.002
"""The reactor's own thread drives again when no other thread has borrowed the driver lock for this long."""

REST_S = 0.1
"""Longest sleep of a thread that waits while another one drives."""


class Waiter:
    """A thread that sleeps until its outcome is known, or until it may drive."""

    __slots__ = ("done", "lock")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.lock = allocate_lock()
        self.lock.acquire()


class DriverLock(DriverLockBase):
    """Held by the thread that drives. The reactor's own thread lends it to threads that wait for an outcome."""

    __slots__ = ("_wakeup", "owner")

    waiting: dict[Waiter, None]

    def __init__(self) -> None:
        super().__init__()
        self.owner: int | None = None  # ident of the thread that drives when no other thread does
        self._wakeup = allocate_lock()  # released to wake the owner early
        self._wakeup.acquire()

    def take(self) -> bool:
        """Take the lock if it is free; return whether this thread holds it now."""
        me = get_ident()
        return self.holder.setdefault(DRIVER, me) == me

    def is_owned(self) -> bool:
        """Return whether this thread holds the lock."""
        return self.holder.get(DRIVER) == get_ident()

    def is_lent(self) -> bool:
        """Return whether another thread than the owner drives."""
        return self.holder.get(DRIVER) != self.owner

    def wait(self, done: Callable[[], bool], timeout_s: float, call_off: Callable[[], object]) -> None:
        """Sleep until `done()` may be true or no thread drives, for at most REST_S.

        Args:
            done: whether the outcome of this thread is known.
            timeout_s: longest sleep, seconds.
            call_off: makes the owner stop driving.
        """
        waiter = Waiter(done)
        self._borrowed = True
        self.waiting[waiter] = None
        try:
            if not self.take():
                if not self.is_lent():
                    call_off()
                waiter.lock.acquire(timeout=min(timeout_s, REST_S))
        finally:
            self.waiting.pop(waiter, None)

    def wake_done(self) -> None:
        """Wake the threads whose outcome is known; the driver calls it after every round of events."""
        for waiter in list(self.waiting):
            try:
                over = waiter.done()
            except Exception:  # the waiting thread calls `done` itself, and gets the exception
                over = True
            if over:
                self._release(waiter)

    def wake_all(self) -> None:
        """Wake all waiting threads."""
        self._wake(len(self.waiting))

    def ring(self) -> None:
        """Wake the owner from its rest."""
        if self._wakeup.locked():
            try:
                self._wakeup.release()
            except RuntimeError:  # another thread has released it
                return

    def rest(self) -> bool:
        """Sleep, as the owner; return whether it should drive now, because no thread drove or waited for QUIET_S.

        The owner sleeps while the lock is lent for long; the thread that returns the lock wakes it by `ring`.
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
        """Wake a waiter.

        Only the thread that removes a waiter from the dict releases the waiter's lock, so it is released once.
        """
        if self.waiting.pop(waiter, self) is None:
            waiter.lock.release()
