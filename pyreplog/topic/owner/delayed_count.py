"""Counts the delayed messages of a subscription without consumers, by reading its backlog, where that is short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog.future import AppendFuture
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.owner.managed.managedledger import ManagedLedger

BYTES_MAX = 1 << 20
MESSAGES_MAX = 1 << 16
"""A longer backlog is not read: statistics are asked for often, and of many subscriptions."""

_READ_BYTES_MIN = 16 << 10
"""A read counts as at least so many bytes: between acknowledged ranges, reads may be many and short."""


class _Scan(NamedTuple):
    """What was found below `reached`, while the acknowledgements had this version. deliver_at: of messages that have
    one."""

    version: int
    reached: int
    deliver_at: NDArray[np.int64]


_NOTHING = _Scan(-1, 0, np.empty(0, np.int64))


class DelayedCount:
    """lock: of the cursor. wait: for an AppendFuture, until it is done.

    Messages are read once, for as long as nothing is acknowledged. Any thread; two at a time may read the same.
    """

    def __init__(
        self,
        managed: ManagedLedger,
        cursor: Cursor,
        lock: AbstractContextManager[Any],
        wait: Callable[[AppendFuture[Any]], Any],
    ) -> None:
        self._managed, self._cursor, self._lock, self._wait = managed, cursor, lock, wait
        self._scan = _NOTHING

    def count(self, now_us: int) -> int | None:
        """Messages of the backlog whose time has not come; None: the backlog is too long to be read for that. Waits.

        Errors: those of `ManagedLedger.read`.
        """
        with self._lock:
            end, mark = self._managed.end, self._cursor.mark
            if end.offset <= mark.offset:
                return 0
            backlog, version = self._cursor.backlog(end), self._cursor.acks.version
        if backlog.messages > MESSAGES_MAX or backlog.size > BYTES_MAX:
            self._scan = _NOTHING
            return None
        scan = self._scan
        if scan.version != version or scan.reached > end.offset:
            scan = _Scan(version, max(mark.offset, self._managed.start.offset), _NOTHING.deliver_at)
        longer = self._go_on(scan, end.offset)
        if longer is None:
            return None
        self._scan = longer
        return int(np.count_nonzero(longer.deliver_at > now_us))

    def _go_on(self, scan: _Scan, end: int) -> _Scan | None:
        """Read up to `end`; None: there is too much in between."""
        at, times, left = scan.reached, [scan.deliver_at], 2 * BYTES_MAX
        while at < end:
            if left <= 0:
                return None
            batch = wait_wanted(self._wait, self._managed.read(at, bytes_max=left, end=end))
            offsets, deliver_at = batch.offset, batch.deliver_at
            with self._lock:
                wanted = (offsets >= at) & (offsets < end) & (deliver_at > 0) & ~self._cursor.mask(offsets)
                at = min(self._cursor.next_unacked(batch.end), end)
            times.append(deliver_at[wanted])
            left -= max(batch.stored_bytes, _READ_BYTES_MIN)
        return _Scan(scan.version, at, np.concatenate(times))
