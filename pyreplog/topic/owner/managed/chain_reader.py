"""Reads messages of a chain of ledgers from an offset on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.errors import ClosedError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.compression import RAW_BYTES_MAX, decompress
from pyreplog.topic.model.positions import EntryPosition, FirstSearch, OffsetSearch, TopicPosition
from pyreplog.topic.owner.managed.closed_ledger_readers import ClosedLedgerReaders, failed_read

HINTS_MAX = 256
"""Positions where reads ended that are remembered, so that the next read needs no search."""


class ChainView(NamedTuple):
    """A chain, and the confirmed end of the topic at the same moment."""

    chain: LedgerChain
    end: TopicPosition


class Search(Protocol):
    """A search for an entry of a ledger; see `ChainReader._search`."""

    found: EntryPosition | None

    def next(self) -> int | None: ...
    def observe(self, place: EntryPosition, time_us: int) -> None: ...


class EntriesRead(Protocol):
    """What a read returns: `end` is the offset behind it."""

    @property
    def end(self) -> int: ...
    @property
    def ledger(self) -> int: ...
    @property
    def last_entry(self) -> int: ...


R = TypeVar("R", bound=EntriesRead)


class _LedgerRange(NamedTuple):
    """A ledger, and its confirmed part."""

    item: ChainLedger
    entries: int
    end: TopicPosition


class ChainReader:
    """Reads messages and locates entries. Any thread; nothing waits.

    Entries of the open ledger are read by its writer, all others through `entries`. The futures fail with TrimmedError
    if the messages are not kept any more, with the errors of `LedgerReader.read` and `decode_messages`, and with those
    of the metadata store.

    Args:
        name: name of the topic.
        entries: reads entries of closed ledgers.
        view: returns the chain and the end of the topic.
        open_ledger: returns the ledger that is being written, or None.
    """

    def __init__(
        self,
        name: str,
        entries: ClosedLedgerReaders,
        view: Callable[[], ChainView],
        open_ledger: Callable[[], Ledger | None],
    ) -> None:
        self._name, self._entries, self._view, self._open_ledger = name, entries, view, open_ledger
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()  # offset -> (ledger, entry that begins there)

    # ---- messages -------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, end: int | None) -> AppendFuture[MessageBatch]:
        """Read whole entries of one ledger, from the one with `offset` on; none that begins at `end` or behind it."""
        return self.read_with(offset, bytes_max, end, _decode, _empty_batch)

    def read_with(
        self, offset: int, bytes_max: int, end: int | None, make: Callable[[ChainLedger, RecordBatch], R],
        empty: Callable[[TopicPosition], R],
    ) -> AppendFuture[R]:  # fmt: skip
        """Read entries like `read`. make: returns the result. empty: returns it at the end of the topic."""
        done: AppendFuture[R] = AppendFuture()
        view = self._view()
        limit = view.end.offset if end is None else min(end, view.end.offset)
        if offset < view.chain.start.offset and self._refuse(offset, view, done):
            return done
        if offset >= limit:
            set_result(done, empty(view.end))
            return done
        part = _part(view, offset)
        entry = self._hint(part, offset)
        if entry is not None:
            self._read(part, entry, bytes_max, limit, done, make)
            return done

        def located(place: EntryPosition) -> None:
            self._read(part, place.entry, bytes_max, limit, done, make)

        self._search(
            part,
            _offset_search(part, offset),
            lambda place: located(_require(place, offset)),
            partial(set_exception, done),
        )
        return done

    def _refuse(self, offset: int, view: ChainView, done: AppendFuture[Any]) -> bool:
        if offset < 0:
            return set_exception(done, OutOfRangeError(f"topic {self._name}: offsets begin at 0, there is no {offset}"))
        return offset < view.chain.start.offset and set_exception(done, self._trimmed(offset))

    def _trimmed(self, offset: int) -> TrimmedError:
        start = self._view().chain.start.offset
        return TrimmedError(f"topic {self._name}: messages are kept from offset {start} on, {offset} was trimmed")

    def _hint(self, part: _LedgerRange, offset: int) -> int | None:
        if offset == part.item.start.offset:
            return 0
        ledger, entry = self._hints.get(offset, (-1, -1))
        return entry if ledger == part.item.ledger else None

    def _keep_hint(self, batch: EntriesRead) -> None:
        self._hints.pop(batch.end, None)  # a hint that is used again becomes the newest
        self._hints[batch.end] = (batch.ledger, batch.last_entry + 1)
        while len(self._hints) > HINTS_MAX:
            try:
                self._hints.popitem(last=False)
            except KeyError:  # another thread took the last one
                return

    def _read(
        self, part: _LedgerRange, entry: int, bytes_max: int, limit: int, done: AppendFuture[R],
        make: Callable[[ChainLedger, RecordBatch], R],
    ) -> None:  # fmt: skip
        read = self._read_entries(part.item.ledger, entry, part.entries, bytes_max)

        def on_read(_: AppendFuture[RecordBatch]) -> None:
            try:
                records = read.result()
                batch = make(part.item, _before(records, part.item.start.offset, limit))
                self._keep_hint(batch)
            except Exception as error:
                set_exception(done, self._explain(error, part.item))
            else:
                set_result(done, batch)

        read.add_done_callback(on_read)

    def _read_entries(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        """Read entries, see `ClosedLedgerReaders.read`."""
        written = self._open_ledger()
        if written is not None and written.id == ledger:
            try:
                return written.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # it has just been replaced
                pass
            except ReplogError as error:
                return failed_read(error)
        return self._entries.read(ledger, start, end, bytes_max)

    def _explain(self, error: Exception, item: ChainLedger) -> Exception:
        """Return TrimmedError for a ledger that was trimmed meanwhile, otherwise `error`."""
        return self._trimmed(item.start.offset) if item.ledger not in self._view().chain.ids else error

    # ---- positions ---------------------------------------------------------------------------------------------

    def locate(self, offset: int) -> AppendFuture[EntryPosition]:
        """Find the entry that holds an offset; OutOfRangeError at the confirmed end, or beyond."""
        done: AppendFuture[EntryPosition] = AppendFuture()
        view = self._view()
        if self._refuse(offset, view, done):
            return done
        if offset >= view.end.offset:
            set_exception(
                done, OutOfRangeError(f"topic {self._name}: it ends at offset {view.end.offset}, there is no {offset}")
            )
            return done
        part = _part(view, offset)
        self._search(
            part,
            _offset_search(part, offset),
            lambda place: set_result(done, _require(place, offset)),
            partial(set_exception, done),
        )
        return done

    def offset_at_time(self, time_us: int) -> AppendFuture[int]:
        """Find the first message of the first entry that was appended at a time or later; if there is none, the end of
        the topic.

        The times when ledgers were created and closed are not used: clocks are set back, and other owners have other
        clocks.
        """
        done: AppendFuture[int] = AppendFuture()
        view = self._view()
        ledgers = (item for item in view.chain.ledgers if not item.is_closed or item.last_us >= time_us)

        def search_on() -> None:
            item = next(ledgers, None)
            part = None if item is None else _bounded(item, view)
            if item is None or part is None or not part.entries:
                set_result(done, view.end.offset)
                return
            guess = 0 if item.created_us >= time_us else None
            search = FirstSearch(part.entries, lambda _, at_us: at_us >= time_us, guess=guess)
            self._search(part, search, on_found, partial(set_exception, done))

        def on_found(place: EntryPosition | None) -> None:
            if place is None:  # the ledger does not contain its last entries
                search_on()
            else:
                set_result(done, place.first)

        search_on()
        return done

    def offset_at_size(self, size: int) -> AppendFuture[int]:
        """Find the first message of the first entry with at least `size` bytes of the topic before it; if none, the
        topic's end.
        """
        done: AppendFuture[int] = AppendFuture()
        view = self._view()
        item = next((ledger for ledger in view.chain.ledgers if not ledger.is_closed or ledger.end.size >= size), None)
        part = None if item is None else _bounded(item, view)
        if part is None or not part.entries:
            set_result(done, view.end.offset)
        elif part.item.start.size >= size:
            set_result(done, part.item.start.offset)
        else:
            end, search = part.end.offset, FirstSearch(part.entries, lambda place, _: place.bytes_before >= size)
            self._search(
                part,
                search,
                lambda entry: set_result(done, end if entry is None else entry.first),
                partial(set_exception, done),
            )
        return done

    def _search(
        self,
        part: _LedgerRange,
        search: Search,
        on_found: Callable[[EntryPosition | None], object],
        fail: Callable[[BaseException], object],
    ) -> None:
        """Read one entry after the other, as `search` asks."""

        def observe(read: AppendFuture[RecordBatch]) -> bool:
            try:
                records = read.result()
                batch = _decode(part.item, records)
                search.observe(_place(batch), int(records.timestamp[0]))
            except Exception as error:
                fail(self._explain(error, part.item))
                return False
            return True

        def on_read(read: AppendFuture[RecordBatch]) -> None:
            if observe(read):
                search_on()

        def search_on() -> None:
            try:
                while (entry := search.next()) is not None:
                    read = self._read_entries(part.item.ledger, entry, entry + 1, 1)
                    if not read.done():
                        read.add_done_callback(on_read)
                        return
                    if not observe(read):
                        return
                on_found(search.found)
            except ReplogError as error:
                fail(error)

        search_on()


def _part(view: ChainView, offset: int) -> _LedgerRange:
    return _bounded(view.chain.ledgers[view.chain.index_of(offset)], view)


def _bounded(item: ChainLedger, view: ChainView) -> _LedgerRange:
    if item.is_closed:
        return make_named(_LedgerRange, item, item.entries, item.end)
    return make_named(_LedgerRange, item, view.end.entries - item.start.entries, view.end)


def _offset_search(part: _LedgerRange, offset: int) -> OffsetSearch:
    return OffsetSearch(offset, part.entries, part.item.start.offset, part.end.offset)


def _require(place: EntryPosition | None, offset: int) -> EntryPosition:
    if place is None:
        raise OutOfRangeError(f"no entry holds offset {offset}: the entries contradict each other")
    return place


def _decode(item: ChainLedger, records: RecordBatch) -> MessageBatch:
    start = item.start
    return decode_messages(
        records,
        offset=start.offset,
        entries=start.entries,
        size=start.size,
        decompress=decompress,
        raw_max=RAW_BYTES_MAX,
    )


def _before(records: RecordBatch, start: int, limit: int) -> RecordBatch:
    """Remove the entries that begin at `limit` or behind it."""
    low, high = 1, len(records)  # the first entry begins before `limit`
    if start + records[high - 1].ledger_messages <= limit:
        return records
    while low < high:
        middle = (low + high) // 2
        if start + records[middle - 1].ledger_messages < limit:
            low = middle + 1
        else:
            high = middle
    return records if low == len(records) else records.select(np.arange(low))


def _place(batch: MessageBatch) -> EntryPosition:
    """Return the position of the first entry of a batch."""
    return EntryPosition(
        batch.ledger, int(batch.entry_id[0]), int(batch.entry_first[0]), int(batch.entry_count[0]),
        int(batch.entry_size[0]), int(batch.entries_before[0]), int(batch.bytes_before[0]),
    )  # fmt: skip


def _empty_batch(end: TopicPosition) -> MessageBatch:
    """Return a batch without messages at the end of the topic."""
    records = parse_entries(b"", ledger=0, first=0, last=0)
    return decode_messages(records, offset=end.offset, entries=end.entries, size=end.size)
