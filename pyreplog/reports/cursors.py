"""Positions of subscriptions, now and in the past, from cursor ledgers and the metadata store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from pyreplog._native.topic.ack_set import AckSet
from pyreplog.cursors.cursor_pages import Key, parse_page
from pyreplog.cursors.cursor_record import CursorRecord
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, list_subscriptions, load_subscription
from pyreplog.errors import InvalidMetadataError, InvalidRecordsError, NoSuchSubscriptionError, UnreadableError
from pyreplog.reports.snapshot import Ranges, SubscriptionSnapshot, TopicSnapshot, UnknownState
from pyreplog.tables.cluster.backlogs import OnEntry, cursor_of, stored_records
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import ORIGIN
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord, stored_mark

logger = logging.getLogger(__name__)


def subscription_snapshots(
    survey: ClusterSnapshot, topics: Sequence[TopicSnapshot], since_us: int
) -> tuple[list[SubscriptionSnapshot], list[UnknownState]]:
    """Return snapshots of the durable subscriptions of topics; and those whose cursor ledger cannot be read.

    since_us: the snapshots reach back to this time. Raises InvalidMetadataError if a stored cursor cannot be decoded,
    and the errors of the metadata store.
    """
    store = survey.runtime.metadata
    names = each(survey, lambda topic: list_subscriptions(store, topic.name), topics)
    pairs = [(topic, name) for topic, listed in zip(topics, names, strict=True) for name in listed]
    loaded = each(survey, lambda pair: _load(survey, pair[0].name, pair[1]), pairs)
    subscriptions = [(topic, name, metadata) for (topic, name), metadata in zip(pairs, loaded, strict=True) if metadata]
    keys = [(topic.name, name) for topic, name, _ in subscriptions]
    histories = {key: CursorHistory(metadata) for key, (_, _, metadata) in zip(keys, subscriptions, strict=True)}
    unread: dict[int, UnreadableError] = {}
    records = stored_records(
        survey, keys, [metadata for _, _, metadata in subscriptions], partial(_recorder, histories), unread
    )
    snapshot, unknown = list[SubscriptionSnapshot](), list[UnknownState]()
    for (topic, name, metadata), stored in zip(subscriptions, records, strict=True):
        error = unread.get(metadata.cursor_ledger)
        if error is None:
            snapshot.append(_snapshot(topic, (topic.name, name), stored, histories[topic.name, name], since_us))
        else:
            unknown.append(UnknownState(topic.name, name, str(error)))
    return snapshot, unknown


def _load(survey: ClusterSnapshot, topic: str, name: str) -> SubscriptionMetadata | None:
    """Return the metadata of a subscription; None: it was deleted meanwhile."""
    try:
        return load_subscription(survey.runtime.metadata, topic, name)
    except NoSuchSubscriptionError:
        return None


def _snapshot(
    topic: TopicSnapshot, key: Key, records: list[bytes], history: CursorHistory, since_us: int
) -> SubscriptionSnapshot:
    system = is_system(key[1])
    cursor = _system_cursor(topic, key[1], records, history) if system else cursor_of(key, records)
    cursor.advance(topic.start, 0)  # trimmed messages do not count as backlog
    reached = max(topic.end, cursor.mark)
    starts, stops = cursor.acks.acked(cursor.mark.offset, reached.offset)
    return SubscriptionSnapshot(
        on=topic.name, topic=topic.topic, partition=topic.partition, name=key[1], mark=cursor.mark,
        end=reached.offset, acked=np.stack((starts, stops), axis=1),
        backlog_messages=reached.offset - cursor.mark.offset - int((stops - starts).sum()),
        backlog_bytes=max(cursor.backlog(reached).size, 0), moved_us=history.moved_us,
        marks=history.since(since_us, cursor.mark.offset), is_system=system,
        state=_system_state(key[1], records) if system else b"",
    )  # fmt: skip


def _system_cursor(topic: TopicSnapshot, name: str, records: list[bytes], history: CursorHistory) -> Cursor:
    """Return a system cursor. If no stored mark is known, it is at the start of the topic, because owners keep all
    messages."""
    stored = stored_mark(name, [records[-1], history.metadata.snapshot])
    if stored.problem:
        logger.warning("topic %s: the stored cursor %s cannot be read: %s", topic.name, name, stored.problem)
    return Cursor(name, topic.start if stored.mark is None else stored.mark)


def _system_state(name: str, records: list[bytes]) -> bytes:
    try:
        return SystemCursorRecord.from_bytes(name, records[-1]).state
    except InvalidMetadataError:  # as `_system_cursor` has logged
        return b""


# ---- earlier positions -----------------------------------------------------------------------------------------


class CursorHistory:
    """The times at which a cursor's mark moved, from the records in its current cursor ledger."""

    def __init__(self, metadata: SubscriptionMetadata) -> None:
        self.metadata = metadata
        self.moved_us = metadata.moved_us or None
        self._marks: list[tuple[int, int]] = []
        self._parts: list[bytes] = []
        self._acks: AckSet | None = None
        self._sequence = 0

    def add(self, data: bytes, *, is_first: bool, is_last: bool, time_us: int) -> None:
        """Add a part of a record. Parts whose record begins earlier are ignored. time_us: when the part was stored."""
        if is_first:
            self._parts = []
        elif not self._parts:
            return
        self._parts.append(data)
        if is_last:
            self._apply(b"".join(self._parts), time_us)
            self._parts = []

    def _apply(self, data: bytes, time_us: int) -> None:
        try:
            record = CursorRecord.from_bytes(data)
            if record.is_snapshot:
                self._acks = AckSet(ORIGIN)
            elif self._acks is None or record.sequence != self._sequence + 1:
                self._acks = None  # a record is missing: nothing is known until the next snapshot
                return
            self._acks.apply(record.acks)
        except InvalidRecordsError:
            self._acks = None
            return
        self._sequence = record.sequence
        self._add_mark(self._acks.mark_offset, time_us)

    def _add_mark(self, mark: int, time_us: int) -> None:
        if not self._marks:
            self._marks.append((self.moved_us or time_us, mark))
        elif mark != self._marks[-1][1]:
            self.moved_us = max(time_us, self._marks[-1][0])  # the clocks of two owners may differ
            self._marks.append((self.moved_us, mark))

    def since(self, time_us: int, mark: int) -> Ranges:
        """Return (time, mark) of the position at a time, and of each move since.

        mark: the position, if no record has it.
        """
        if not self._marks and self.moved_us is not None:
            self._marks.append((self.moved_us, mark))
        marks = np.array(self._marks, np.int64).reshape(-1, 2)
        first = int(np.searchsorted(marks[:, 0], time_us, side="right")) - 1
        return marks[max(first, 0) :]


def _recorder(histories: Mapping[Key, CursorHistory], ledger: int) -> OnEntry:
    """Return a function that adds the parts in an entry of a cursor ledger to the histories."""

    def record(page: bytes, entry: int, time_us: int) -> None:
        for part in parse_page(page, ledger, entry):
            history = histories.get(part.key)
            if history is not None and history.metadata.cursor_ledger == ledger and not is_system(part.key[1]):
                is_first = part.is_first and entry >= history.metadata.cursor_from
                history.add(part.data, is_first=is_first, is_last=part.is_last, time_us=time_us)

    return record
