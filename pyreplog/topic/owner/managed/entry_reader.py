"""EntryReader: whole entries of a topic, undecoded, to be stored elsewhere as they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import InvalidEntryError
from pyreplog.future import AppendFuture
from pyreplog.origins.attribute import TAG_ORIGIN
from pyreplog.origins.replicate_to import TAG_REPLICATE_TO
from pyreplog.topic.model.chain import ChainLedger
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.chain_reader import ChainReader

_COUNT = struct.Struct("<8xI")  # of an entry: its number of messages


class StoredEntry(NamedTuple):
    """One entry.

    Attributes:
        value: the encoded messages.
        first: offset of the first one.
        messages: their number.
        time_us: when it was appended, microseconds since 1970.
        origin: its origin attribute, without tag and length; None: it was published here.
        replicate_to: its replicate-to attribute, likewise; None: it has none.
    """

    value: bytes
    first: int
    messages: int
    time_us: int
    origin: bytes | None
    replicate_to: bytes | None = None


class EntryBatch(NamedTuple):
    """Entries of one ledger, in order.

    Attributes:
        entries: the entries.
        end: offset behind the last message.
        ledger: the ledger; -1: there are no entries.
        last_entry: id of the last entry; -1 likewise.
    """

    entries: list[StoredEntry]
    end: int
    ledger: int
    last_entry: int


class EntryReader:
    """Reads confirmed entries of a topic. Any thread; nothing waits, and no message is decoded.

    Args:
        reader: the reader of the chain.
        check_open: raises an error if the topic cannot be read any more.
    """

    def __init__(self, reader: ChainReader, check_open: Callable[[], object]) -> None:
        self._reader, self._check_open = reader, check_open

    def read(self, offset: int, *, bytes_max: int, end: int | None = None) -> AppendFuture[EntryBatch]:
        """Read entries from the one that holds `offset` on, as `ManagedLedger.read` does.

        Args:
            offset: where to begin; the first entry may begin before it.
            bytes_max: about so many bytes at most, but one entry at least.
            end: no entry begins here or behind it; None: the confirmed end.

        Returns:
            A future of the entries; there are none at the end. It fails as that of `ManagedLedger.read`.

        Raises:
            ClosedError: the topic was closed.
            TopicFencedError: another process owns it.
        """
        self._check_open()
        return self._reader.read_with(offset, bytes_max, end, _entries, _no_entries)


def _no_entries(end: TopicPosition) -> EntryBatch:
    return EntryBatch([], end.offset, -1, -1)


def _entries(item: ChainLedger, records: RecordBatch) -> EntryBatch:
    entries = []
    start, last_entry = item.start.offset, -1
    for record, value, time_us in zip(records, records.values(), records.timestamp.tolist(), strict=True):
        if len(value) < _COUNT.size:
            raise InvalidEntryError(
                f"entry {record.entry} of ledger {item.ledger}: {len(value)} bytes hold no messages"
            )
        messages, last_entry = _COUNT.unpack_from(value)[0], record.entry
        attributes = dict(reversed(record.attributes))  # of two with one tag the first counts, as in native code
        entries.append(
            StoredEntry(
                value, start + record.ledger_messages - messages, messages, time_us,
                attributes.get(TAG_ORIGIN), attributes.get(TAG_REPLICATE_TO),
            )
        )  # fmt: skip
    return EntryBatch(entries, entries[-1].first + entries[-1].messages, item.ledger, last_entry)
