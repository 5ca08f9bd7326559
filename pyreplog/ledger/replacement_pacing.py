"""Has the writers of a client replace members that are lost, draining or retired, a few ledgers at a time."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pyreplog.ledger.driver import TimerLike
from pyreplog.ledger.ledger_handle import Ledger

AT_ONCE = 16
"""About so many ledgers change their ensembles at a time. A ledger confirms no entry until its change is stored: if all
of many ledgers began at once, the last one would wait for the changes of all others."""
POLL_S = 0.02
"""Interval at which it is checked which changes were stored, while other ledgers wait, seconds."""


class ReplacementRuntime(Protocol):
    """The part of a cluster's runtime that `MemberReplacement` uses."""

    def leaving_bookies(self) -> list[str]: ...
    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None: ...


class MemberReplacement:
    """Lets the open ledgers replace members of their ensembles, a few ledgers at a time. Any thread. Never blocks.

    Args:
        ledgers: gives the ledgers that are open for appending, at each iteration.
        runtime: runtime of the cluster.
    """

    def __init__(self, ledgers: Iterable[Ledger], runtime: ReplacementRuntime) -> None:
        self._ledgers, self._runtime = ledgers, runtime
        self._lock = threading.Lock()
        self._leaving: Sequence[str] = ()
        self._waiting: deque[weakref.ref[Ledger]] = deque()
        self._changing: list[weakref.ref[Ledger]] = []
        self._is_timer_set = False

    def begin(self) -> None:
        """Begin with all ledgers that have members to be replaced. This list replaces that of an earlier call."""
        leaving = self._runtime.leaving_bookies()
        concerned = [ledger for ledger in self._ledgers if _has_any(ledger, leaving)] if leaving else []
        concerned.sort(key=lambda ledger: ledger.is_storing)  # ledgers that are changing already come last
        with self._lock:
            self._leaving, self._waiting = leaving, deque(map(weakref.ref, concerned))
        if concerned:
            self._start_next()

    def _start_next(self) -> None:
        notified: list[Ledger] = []
        with self._lock:
            leaving = self._leaving
            self._changing = [ref for ref in self._changing if (ledger := ref()) is not None and ledger.is_storing]
            while self._waiting and len(self._changing) < AT_ONCE:
                ref = self._waiting.popleft()
                ledger = ref()
                if ledger is not None and _has_any(ledger, leaving):
                    notified.append(ledger)
                    self._changing.append(ref)
            sets_timer = bool(self._waiting) and not self._is_timer_set
            self._is_timer_set = self._is_timer_set or sets_timer
        for ledger in notified:
            ledger.replace_members(leaving)
        if sets_timer:
            self._runtime.wake_after(POLL_S, self._on_timer)

    def _on_timer(self) -> None:
        with self._lock:
            self._is_timer_set = False
        self._start_next()


def _has_any(ledger: Ledger, bookies: Sequence[str]) -> bool:
    """Return whether any of the bookies is a member of the last fragment."""
    return not set(bookies).isdisjoint(ledger.metadata.last_fragment.ensemble)
