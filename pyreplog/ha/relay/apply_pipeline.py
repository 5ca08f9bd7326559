"""ApplyPipeline: the steps of an applier, without threads. Take a group, apply it, store the position, trim the log."""

from __future__ import annotations

import logging
from typing import NamedTuple

from pyreplog.ha.relay.applier_machine import ApplierMachine, StopBefore
from pyreplog.ha.relay.apply_task import Apply, ApplyTask, keep
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.ha.relay.position import Advance, Applied, PositionStore
from pyreplog.ha.relay.relay_log_reader import RelayLogReader
from pyreplog.ha.relay.space_limit import SpaceLimit
from pyreplog.log.log_cursor import LogCursor
from pyreplog.log.reader import LogReader

logger = logging.getLogger(__name__)


class NothingToApply(NamedTuple):
    """No group can be taken now. data: try again when the log grows. us: try again after so many microseconds. Neither:
    try again when a group has ended."""

    data: bool = False
    us: int | None = None


class ApplyPipeline:
    """The steps that the threads of an applier take.

    Methods marked *locked* are fast, and are called under the applier's lock. The others run the callback or wait for
    the disk, and are called without it.
    """

    def __init__(
        self,
        source: RelayLogReader,
        apply: Apply,
        store: PositionStore,
        space: SpaceLimit,
        config: ApplierConfig,
        first: int | None,
        cursor: str | None,
    ) -> None:
        """cursor: name of a cursor of the log that protects entries not applied from retention; None: no cursor."""
        self.source, self.store, self.space = source, store, space
        self._cursor: LogCursor | None = None
        self._apply, self._config = apply, config
        self._proven = False  # whether the callback was seen to store its position
        self.machine = ApplierMachine(
            self._load(first), workers=config.workers, batch_entries=config.batch_entries,
            delay_us=config.delay_ms * 1000,
        )  # fmt: skip
        try:
            if cursor is not None:
                self._cursor = self._open_cursor(cursor, self.machine.applied)
            self.purge(self.machine.applied)
        except BaseException:
            self.close()
            raise

    def _open_cursor(self, name: str, applied: Applied) -> LogCursor:
        relay = self.source.relay
        cursor = relay.cursor(name, min(max(applied.entry, relay.start), relay.end))
        try:
            if cursor.entry > applied.entry:  # the store of the position was restored to an earlier state
                cursor.seek(max(applied.entry, relay.start))
        except BaseException:
            cursor.close()
            raise
        return cursor

    def close(self) -> None:
        """Close the cursor without deleting it."""
        if self._cursor is not None:
            self._cursor.close()

    def _load(self, first: int | None) -> Applied:
        applied = self.store.load()
        if applied is None:
            applied = self.source.first(first)
            self.store.begin(applied)
        self.source.check_log(applied)
        return applied

    def start(self, until: StopBefore) -> None:
        """Start behind the stored position, with no group in flight; locked. Raises errors of the store."""
        self._proven = False
        self.machine.start(self._load(None), until)

    def take(self, now_us: int) -> ApplyTask | NothingToApply:
        """Return the next group, or what to wait for; locked. Raises errors of `RelayLogReader.read`."""
        machine = self.machine
        limit = machine.limit() if machine.has_room else 0
        if not limit:
            return NothingToApply()
        batch = self.source.read(machine.next, limit)
        if batch is None:
            return NothingToApply(data=True)
        allowed = machine.allow(batch.timestamp, now_us)
        if not allowed.records:
            return NothingToApply(us=allowed.wait_us)
        if allowed.records < len(batch):
            batch = self.source.read(machine.next, allowed.records)
            if batch is None:  # truncated just now
                return NothingToApply(data=True)
        keys = frozenset(batch.keys()) if self._config.workers > 1 else frozenset()
        if machine.conflicts(keys):
            return NothingToApply()
        return ApplyTask(machine.take(self.source.behind(batch[-1]), keys), batch, self._apply)

    def commit(self, task: ApplyTask) -> None:
        """Commit a group in its turn, then store the position. Raises errors of the callback, and PositionError or
        others of the store."""
        task.commit()
        keep(self.store, task.group.advance, prove=not self._proven)
        self._proven = True

    def has_committed(self, task: ApplyTask) -> bool:
        """Return whether a callback that raised has committed its transaction anyway. Raises errors of the store."""
        return self.store.transactional and self.store.load() == task.group.advance.after

    def purge(self, applied: Applied) -> None:
        """Trim segments whose entries are all applied, set the retention floor, and check the space limit.

        Raises errors of `CommitLog.trim`.
        """
        relay, cursor = self.source.relay, self._cursor
        if cursor is not None and applied.position // relay.segment_bytes > cursor.position // relay.segment_bytes:
            cursor.advance(min(applied.entry, relay.end))  # once for each segment, since retention removes segments
        if self._config.purge and not isinstance(relay, LogReader):
            relay.retention_floor = applied.position
            relay.trim(applied.entry)
        self.space.applied(relay.start_position, applied.entry, relay.end)

    def skip(self, entry: int) -> None:
        """Count the next entry as applied, durably; locked. Raises InvalidArgumentError, errors of the store and of the
        log."""
        machine = self.machine
        machine.check_skip(entry)
        after = self.source.behind(self.source.relay.get(entry))
        self.store.save(Advance(machine.applied, after))
        machine.skipped(after)
        self.purge(after)
        logger.warning("%s: entry %d was skipped", self.source.relay.path, entry)
