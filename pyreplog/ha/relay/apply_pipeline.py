"""The steps of an applier, without its threads: take a group, apply it, keep how far, make room."""

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
    """Nothing may be taken now. data: there may be when the log grows; us: after so long; else when a group is done."""

    data: bool = False
    us: int | None = None


class ApplyPipeline:
    """What the threads of an applier do.

    Those marked *locked* are quick, and made under the applier's lock; the others run the callback, or the disk, and
    are made without it.
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
        """cursor: the name of a cursor of the log, which keeps what is not applied; None: there is none."""
        self.source, self.store, self.space = source, store, space
        self._cursor: LogCursor | None = None
        self._apply, self._config = apply, config
        self._proven = False  # that the callback stores its position
        self.machine = ApplierMachine(
            self._load(first), workers=config.workers, batch_entries=config.batch_entries,
            delay_us=config.delay_ms * 1000,
        )  # fmt: skip
        try:
            if cursor is not None:
                self._cursor = self._hold(cursor, self.machine.applied)
            self.purge(self.machine.applied)
        except BaseException:
            self.close()
            raise

    def _hold(self, name: str, applied: Applied) -> LogCursor:
        relay = self.source.relay
        cursor = relay.cursor(name, min(max(applied.entry, relay.start), relay.end))
        try:
            if cursor.entry > applied.entry:  # the store was put back
                cursor.seek(max(applied.entry, relay.start))
        except BaseException:
            cursor.close()
            raise
        return cursor

    def close(self) -> None:
        """Let go of the cursor, which stays."""
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
        """Locked. Go on behind what is stored; nothing is in flight. Errors: the store's."""
        self._proven = False
        self.machine.start(self._load(None), until)

    def take(self, now_us: int) -> ApplyTask | NothingToApply:
        """Locked. The next group to be applied, or what to wait for. Errors: as Source.read."""
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
            if batch is None:  # cut this moment
                return NothingToApply(data=True)
        keys = frozenset(batch.keys()) if self._config.workers > 1 else frozenset()
        if machine.conflicts(keys):
            return NothingToApply()
        return ApplyTask(machine.take(self.source.behind(batch[-1]), keys), batch, self._apply)

    def commit(self, task: ApplyTask) -> None:
        """In its turn: the callback's commit, then the position. Errors: the callback's; PositionError, the store's."""
        task.commit()
        keep(self.store, task.group.advance, prove=not self._proven)
        self._proven = True

    def has_committed(self, task: ApplyTask) -> bool:
        """After the callback raised: whether its transaction had committed all the same. Errors: the store's."""
        return self.store.transactional and self.store.load() == task.group.advance.after

    def purge(self, applied: Applied) -> None:
        """Remove the segments whose entries are all applied, keep retention from the others, and judge the space.

        Errors: those of CommitLog.trim.
        """
        relay, cursor = self.source.relay, self._cursor
        if cursor is not None and applied.position // relay.segment_bytes > cursor.position // relay.segment_bytes:
            cursor.advance(min(applied.entry, relay.end))  # whole segments go, so it needs no more syncs than they are
        if self._config.purge and not isinstance(relay, LogReader):
            relay.retention_floor = applied.position
            relay.trim(applied.entry)
        self.space.applied(relay.start_position, applied.entry, relay.end)

    def skip(self, entry: int) -> None:
        """Locked. Count the next entry as applied, durably. Errors: InvalidArgumentError; the store's; the log's."""
        machine = self.machine
        machine.check_skip(entry)
        after = self.source.behind(self.source.relay.get(entry))
        self.store.save(Advance(machine.applied, after))
        machine.skipped(after)
        self.purge(after)
        logger.warning("%s: entry %d was skipped", self.source.relay.path, entry)
