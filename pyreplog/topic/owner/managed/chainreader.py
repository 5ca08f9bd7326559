"""Reads messages of a chain of ledgers from an offset on, with a reader for each closed ledger in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.errors import ClosedError, OutOfRangeError, ReplogError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.positions import EntryPosition, FirstSearch, OffsetSearch, TopicPosition
from pyreplog.topic.owner.managed.ledgers import LedgerMaker

READERS_MAX = 16


class EntryReader:
    """Any thread."""

    def __init__(self, maker: LedgerMaker, runtime: Runtime) -> None:
        self._maker, self._runtime = maker, runtime
        self._lock = threading.Lock()
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        """Entries [start, end), at least one, and no more than have about `bytes_max` bytes; errors are the
        AppendFuture's: those of `LedgerReader.read_range`, NoSuchLedgerError, and those of the metadata store."""
        reader = self._find(ledger)
        if reader is not None:
            try:
                return reader.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # it was put away in this moment
                pass
            except ReplogError as error:
                return failed_read(error)
        done: AppendFuture[RecordBatch] = AppendFuture()
        self._runtime.expect(done)
        self._runtime.work(lambda: self._open_and_read(ledger, start, end, bytes_max, done))
        return done

    def _find(self, ledger: int) -> LedgerReader | None:
        with self._lock:
            reader = self._readers.get(ledger)
            if reader is not None:
                self._readers.move_to_end(ledger)
            return reader

    def _open_and_read(
        self, ledger: int, start: int, end: int, bytes_max: int, done: AppendFuture[RecordBatch]
    ) -> None:
        try:
            read = self._read_closed(ledger, start, end, bytes_max)
        except Exception as error:
            done.fail(error)
            return
        read.add_done_callback(lambda _: _pass_on(read, done))

    def _read_closed(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        while True:
            reader = self._find(ledger) or self._keep(self._maker.open_reader(ledger))
            try:
                return reader.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # others have driven it out in this moment
                if self._is_closed:
                    raise

    def ended(self, metadata: LedgerMetadata) -> None:
        """The open ledger is closed; its metadata need not be asked for."""
        self._keep(self._maker.reader(metadata))

    def forget(self, ledger: int) -> None:
        """It is deleted."""
        with self._lock:
            reader = self._readers.pop(ledger, None)
        if reader is not None:
            reader.close()

    def _keep(self, reader: LedgerReader) -> LedgerReader:
        """The one of its ledger that stays; others, and the oldest, are closed: reads that are on their way go on."""
        with self._lock:
            stays = self._readers.setdefault(reader.id, reader)
            self._readers.move_to_end(reader.id)
            over = [] if stays is reader else [reader]
            while len(self._readers) > (0 if self._is_closed else READERS_MAX):
                over.append(self._readers.popitem(last=False)[1])
        for other in over:
            other.close()
        return stays

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            readers, self._readers = list(self._readers.values()), OrderedDict()
        for reader in readers:
            reader.close()


def failed_read(error: ReplogError) -> AppendFuture[RecordBatch]:
    """A read that could not be begun."""
    failed: AppendFuture[RecordBatch] = AppendFuture()
    failed.fail(error)
    return failed


def _pass_on(read: AppendFuture[RecordBatch], done: AppendFuture[RecordBatch]) -> None:
    error = read.exception()
    if error is not None:
        done.fail(error)
    else:
        done.complete(read.result())


HINTS_MAX = 256
"""Places where reads ended are kept in mind: whoever reads on from there needs no search."""


class View(NamedTuple):
    """A chain, and the confirmed end of the topic at that moment."""

    chain: LedgerChain
    end: TopicPosition


class Search(Protocol):
    """See `locating`."""

    found: EntryPosition | None

    def next(self) -> int | None: ...
    def saw(self, place: EntryPosition, time_us: int) -> None: ...


class _LedgerRange(NamedTuple):
    """A ledger, and how much of it is confirmed."""

    item: ChainLedger
    entries: int
    end: TopicPosition


class ChainReader:
    """Any thread; nothing waits. Entries of the open ledger come from its writer, all others through `entries`.

    view: how the topic stands now. open_ledger: the ledger that is written now, if one is.

    Errors are those of the futures: TrimmedError, the messages are not kept any more; what `LedgerReader.read` and
    `decode_messages` raise; those of the metadata store.
    """

    def __init__(
        self, name: str, entries: EntryReader, view: Callable[[], View], open_ledger: Callable[[], Ledger | None]
    ) -> None:
        self._name, self._entries, self._view, self._open_ledger = name, entries, view, open_ledger
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()  # offset -> (ledger, entry that begins with it)

    # ---- messages -------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, end: int | None) -> AppendFuture[MessageBatch]:
        """Whole entries from the one with `offset` on, of one ledger, none that begins at `end` or behind it."""
        done: AppendFuture[MessageBatch] = AppendFuture()
        view = self._view()
        limit = view.end.offset if end is None else min(end, view.end.offset)
        if offset < view.chain.start.offset and self._refuse(offset, view, done):
            return done
        if offset >= limit:
            done.complete(_nothing(view.end))
            return done
        stretch = _stretch(view, offset)
        entry = self._hint(stretch, offset)
        if entry is not None:
            self._read(stretch, entry, bytes_max, limit, done)
            return done

        def located(place: EntryPosition) -> None:
            self._read(stretch, place.entry, bytes_max, limit, done)

        self._hunt(stretch, _offset_search(stretch, offset), lambda found: located(_sure(found, offset)), done.fail)
        return done

    def _refuse(self, offset: int, view: View, done: AppendFuture[MessageBatch] | AppendFuture[EntryPosition]) -> bool:
        if offset < 0:
            return done.fail(OutOfRangeError(f"topic {self._name}: offsets begin at 0, there is no {offset}"))
        return offset < view.chain.start.offset and done.fail(self._trimmed(offset))

    def _trimmed(self, offset: int) -> TrimmedError:
        start = self._view().chain.start.offset
        return TrimmedError(f"topic {self._name}: messages are kept from offset {start} on, {offset} was trimmed")

    def _hint(self, stretch: _LedgerRange, offset: int) -> int | None:
        if offset == stretch.item.start.offset:
            return 0
        ledger, entry = self._hints.get(offset, (-1, -1))
        return entry if ledger == stretch.item.ledger else None

    def _keep_hint(self, batch: MessageBatch) -> None:
        self._hints.pop(batch.end, None)  # what is of use again goes behind the others
        self._hints[batch.end] = (batch.ledger, batch.last_entry + 1)
        while len(self._hints) > HINTS_MAX:
            try:
                self._hints.popitem(last=False)
            except KeyError:  # another thread took the last one
                return

    def _read(
        self, stretch: _LedgerRange, entry: int, bytes_max: int, limit: int, done: AppendFuture[MessageBatch]
    ) -> None:
        read = self._read_entries(stretch.item.ledger, entry, stretch.entries, bytes_max)

        def came(_: AppendFuture[RecordBatch]) -> None:
            try:
                records = read.result()
                batch = _decode(stretch.item, _before(records, stretch.item.start.offset, limit))
                self._keep_hint(batch)
            except Exception as error:
                done.fail(self._explained(error, stretch.item))
            else:
                done.complete(batch)

        read.add_done_callback(came)

    def _read_entries(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        """See `EntryReader.read`."""
        written = self._open_ledger()
        if written is not None and written.id == ledger:
            try:
                return written.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # it was replaced in this moment
                pass
            except ReplogError as error:
                return failed_read(error)
        return self._entries.read(ledger, start, end, bytes_max)

    def _explained(self, error: Exception, item: ChainLedger) -> Exception:
        """What was trimmed meanwhile is not unreadable."""
        return self._trimmed(item.start.offset) if item.ledger not in self._view().chain.ids else error

    # ---- places ---------------------------------------------------------------------------------------------

    def locate(self, offset: int) -> AppendFuture[EntryPosition]:
        """The entry that holds an offset. OutOfRangeError, too: at the confirmed end, or beyond."""
        done: AppendFuture[EntryPosition] = AppendFuture()
        view = self._view()
        if self._refuse(offset, view, done):
            return done
        if offset >= view.end.offset:
            done.fail(OutOfRangeError(f"topic {self._name}: it ends at offset {view.end.offset}, there is no {offset}"))
            return done
        stretch = _stretch(view, offset)
        self._hunt(
            stretch, _offset_search(stretch, offset), lambda found: done.complete(_sure(found, offset)), done.fail
        )
        return done

    def offset_at_time(self, time_us: int) -> AppendFuture[int]:
        """Of the first message of the first entry appended then or later; the end of the topic, if there is none. When
        ledgers were begun and ended says nothing: clocks are set back, and another owner has another one."""
        done: AppendFuture[int] = AppendFuture()
        view = self._view()
        ledgers = (one for one in view.chain.ledgers if not one.is_closed or one.last_us >= time_us)

        def go_on() -> None:
            item = next(ledgers, None)
            stretch = None if item is None else _bounded(item, view)
            if item is None or stretch is None or not stretch.entries:
                done.complete(view.end.offset)
                return
            guess = 0 if item.created_us >= time_us else None
            search = FirstSearch(stretch.entries, lambda _, at_us: at_us >= time_us, guess=guess)
            self._hunt(stretch, search, found, done.fail)

        def found(place: EntryPosition | None) -> None:
            if place is None:  # the last entries that it was given are not in it
                go_on()
            else:
                done.complete(place.first)

        go_on()
        return done

    def offset_at_size(self, size: int) -> AppendFuture[int]:
        """Of the first message of the first entry that so many bytes of the topic lie before, or more; else its end."""
        done: AppendFuture[int] = AppendFuture()
        view = self._view()
        item = next((one for one in view.chain.ledgers if not one.is_closed or one.end.size >= size), None)
        stretch = None if item is None else _bounded(item, view)
        if stretch is None or not stretch.entries:
            done.complete(view.end.offset)
        elif stretch.item.start.size >= size:
            done.complete(stretch.item.start.offset)
        else:
            end, search = stretch.end.offset, FirstSearch(stretch.entries, lambda place, _: place.bytes_before >= size)
            self._hunt(stretch, search, lambda found: done.complete(end if found is None else found.first), done.fail)
        return done

    def _hunt(
        self,
        stretch: _LedgerRange,
        search: Search,
        found: Callable[[EntryPosition | None], object],
        fail: Callable[[BaseException], object],
    ) -> None:
        """Look at entry after entry, as `search` says."""

        def saw(read: AppendFuture[RecordBatch]) -> bool:
            try:
                records = read.result()
                batch = _decode(stretch.item, records)
                search.saw(_place(batch), int(records.timestamp[0]))
            except Exception as error:
                fail(self._explained(error, stretch.item))
                return False
            return True

        def came(read: AppendFuture[RecordBatch]) -> None:
            if saw(read):
                go_on()

        def go_on() -> None:
            try:
                while (entry := search.next()) is not None:
                    read = self._read_entries(stretch.item.ledger, entry, entry + 1, 1)
                    if not read.done():
                        read.add_done_callback(came)
                        return
                    if not saw(read):
                        return
                found(search.found)
            except ReplogError as error:
                fail(error)

        go_on()


def _stretch(view: View, offset: int) -> _LedgerRange:
    return _bounded(view.chain.ledgers[view.chain.index_of(offset)], view)


def _bounded(item: ChainLedger, view: View) -> _LedgerRange:
    if item.is_closed:
        return _LedgerRange(item, item.entries, item.end)
    return _LedgerRange(item, view.end.entries - item.start.entries, view.end)


def _offset_search(stretch: _LedgerRange, offset: int) -> OffsetSearch:
    return OffsetSearch(offset, stretch.entries, stretch.item.start.offset, stretch.end.offset)


def _sure(found: EntryPosition | None, offset: int) -> EntryPosition:
    if found is None:
        raise OutOfRangeError(f"no entry holds offset {offset}: what the entries say of themselves contradicts itself")
    return found


def _decode(item: ChainLedger, records: RecordBatch) -> MessageBatch:
    start = item.start
    return decode_messages(records, offset=start.offset, entries=start.entries, size=start.size, decompress=decompress)


def _before(records: RecordBatch, start: int, limit: int) -> RecordBatch:
    """Without the entries that begin at `limit` or behind it."""
    low, high = 1, len(records)  # the first one begins before it
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
    """Of its first entry."""
    return EntryPosition(
        batch.ledger, int(batch.entry_id[0]), int(batch.entry_first[0]), int(batch.entry_count[0]),
        int(batch.entry_size[0]), int(batch.entries_before[0]), int(batch.bytes_before[0]),
    )  # fmt: skip


def _nothing(end: TopicPosition) -> MessageBatch:
    """No messages; its end is the topic's."""
    none = parse_entries(b"", ledger=0, first=0, last=0)
    return decode_messages(none, offset=end.offset, entries=end.entries, size=end.size)
