"""Counts the delayed messages of a subscription without consumers, by reading its backlog if that is short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog.future import AppendFuture
from pyreplog.net.fair_executor import wait_while_connected
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger

BYTES_MAX = 1 << 20
MESSAGES_MAX = 1 << 16
"""A longer backlog is not read, because statistics are requested often and for many subscriptions."""

_READ_BYTES_MIN = 16 << 10
"""A read counts as at least so many bytes, because there may be many short reads between acknowledged ranges."""


class _Scan(NamedTuple):
    """The result of reading a backlog.

    Attributes:
        version: version of the acknowledgements.
        reached: offset up to which the backlog was read.
        deliver_at: due times of unacknowledged messages that have one.
    """

    version: int
    reached: int
    deliver_at: NDArray[np.int64]


_EMPTY_SCAN = _Scan(-1, 0, np.empty(0, np.int64))


class DelayedCount:
    """Counts delayed messages. Any thread; two threads may read the same messages.

    Messages are read once, as long as nothing is acknowledged. lock: of the cursor. wait: waits for a future.
    """

    def __init__(
        self,
        managed: ManagedLedger,
        cursor: Cursor,
        lock: AbstractContextManager[Any],
        wait: Callable[[AppendFuture[Any]], Any],
    ) -> None:
        self._managed, self._cursor, self._lock, self._wait = managed, cursor, lock, wait
        self._scan = _EMPTY_SCAN

    def count(self, now_us: int) -> int | None:
        """Return the number of messages that are not due; None: the backlog is too long to be read. Blocks.

        Raises the errors of `ManagedLedger.read`.
        """
        with self._lock:
            end, mark = self._managed.end, self._cursor.mark
            if end.offset <= mark.offset:
                return 0
            backlog, version = self._cursor.backlog(end), self._cursor.acks.version
        if backlog.messages > MESSAGES_MAX or backlog.size > BYTES_MAX:
            self._scan = _EMPTY_SCAN
            return None
        scan = self._scan
        if scan.version != version or scan.reached > end.offset:
            scan = _Scan(version, max(mark.offset, self._managed.start.offset), _EMPTY_SCAN.deliver_at)
        extended = self._extend(scan, end.offset)
        if extended is None:
            return None
        self._scan = extended
        return int(np.count_nonzero(extended.deliver_at > now_us))

    def _extend(self, scan: _Scan, end: int) -> _Scan | None:
        """Read up to `end`; None: there is too much to read."""
        at, times, left = scan.reached, [scan.deliver_at], 2 * BYTES_MAX
        while at < end:
            if left <= 0:
                return None
            batch = wait_while_connected(self._wait, self._managed.read(at, bytes_max=left, end=end))
            offsets, deliver_at = batch.offset, batch.deliver_at
            with self._lock:
                wanted = (offsets >= at) & (offsets < end) & (deliver_at > 0) & ~self._cursor.mask(offsets)
                at = min(self._cursor.next_unacked(batch.end), end)
            times.append(deliver_at[wanted])
            left -= max(batch.stored_bytes, _READ_BYTES_MIN)
        return _Scan(scan.version, at, np.concatenate(times))
