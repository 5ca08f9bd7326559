"""Append times of single messages of a topic. Each one costs reading an entry or two."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyreplog.errors import (
    InvalidEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OutOfRangeError,
    UnreadableError,
)
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.tables.cluster.topics import KEY, PlannedTopic, search_in, since
from pyreplog.topic.model.chain import ChainLedger
from pyreplog.topic.model.positions import EntryPosition, OffsetSearch

logger = logging.getLogger(__name__)

_LOST = (NoSuchLedgerError, NoSuchEntryError, UnreadableError, InvalidEntryError, OutOfRangeError)
"""Errors of entries that were removed meanwhile, or are damaged."""


class _TimeSearch(OffsetSearch):
    time_us: int | None = None

    def observe(self, place: EntryPosition, time_us: int) -> None:
        super().observe(place, time_us)
        if self.found is not None:
            self.time_us = time_us


def appended(survey: ClusterSnapshot, topic: PlannedTopic, offsets: Iterable[int]) -> dict[int, int]:
    """Return the append times of messages by offset, microseconds since 1970, without messages that cannot be read.

    Raises the errors of the metadata store.
    """
    wanted, times = sorted(set(offsets)), dict[int, int]()
    for item, entries, end in topic.ledgers:
        held = [offset for offset in wanted if item.start.offset <= offset < end.offset]
        if held:
            times |= _of_ledger(survey, item, entries, end.offset, held)
    return times


def first_since(survey: ClusterSnapshot, topic: PlannedTopic, time_us: int) -> int | None:
    """Return the offset of the first message that was appended at a time or later, or the end; None: it is unknown.

    Args:
        survey: the cluster.
        topic: the topic.
        time_us: microseconds since 1970.

    Raises:
        ReplogError: errors of the metadata store.
    """
    for item, entries, _ in topic.ledgers:
        if not entries or (item.is_closed and item.last_us < time_us):
            continue
        search = since(time_us, entries)
        try:
            with LedgerReader(
                load_ledger(survey.runtime.metadata, item.ledger).metadata, KEY, survey.runtime
            ) as reader:
                search_in(reader, item, search)
        except _LOST as error:
            logger.warning("append times of messages in ledger %d are unknown: %s", item.ledger, error)
            return None
        if search.found is not None:
            return search.found.first
    return topic.end


def _of_ledger(
    survey: ClusterSnapshot, item: ChainLedger, entries: int, end: int, offsets: list[int]
) -> dict[int, int]:
    times: dict[int, int] = {}
    try:
        with LedgerReader(load_ledger(survey.runtime.metadata, item.ledger).metadata, KEY, survey.runtime) as reader:
            for offset in offsets:
                search = _TimeSearch(offset, entries, item.start.offset, end)
                search_in(reader, item, search)
                if search.time_us is not None:
                    times[offset] = search.time_us
    except _LOST as error:
        logger.warning("append times of messages in ledger %d are unknown: %s", item.ledger, error)
    return times
