"""A durable cursor as a `CursorSource`: what a CursorLog takes from it, under the subscription's lock."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from pyreplog.errors import ReplogError
from pyreplog.topic.model.cursor import Cursor


class StoredCursor:
    """lost: called when nothing more can be stored; more: when one record could not hold all that has changed; stored:
    when one is."""

    def __init__(
        self,
        cursor: Cursor,
        lock: Lock,
        *,
        lost: Callable[[ReplogError], object],
        more: Callable[[], object],
        stored: Callable[[], object],
    ) -> None:
        self._cursor, self._lock, self._lost, self._more, self._stored = cursor, lock, lost, more, stored
        self.records = 0
        """That are known to be stored."""

    def take_changes(self) -> tuple[int, bytes] | None:
        with self._lock:
            return self._cursor.take_changes()

    def snapshot_record(self) -> tuple[int, bytes]:
        with self._lock:
            return self._cursor.snapshot_record()

    def persisted(self, sequence: int) -> None:
        self.records += 1
        with self._lock:
            self._cursor.persisted(sequence)
            has_more = self._cursor.has_changes
        self._stored()
        if has_more:
            self._more()

    def lost(self, error: ReplogError) -> None:
        self._lost(error)
