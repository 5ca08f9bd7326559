"""Entries of the ledgers of a topic: of closed ones through readers that are kept for a while, of the open one through
its writer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.owner.managed.ledgermaker import LedgerMaker

READERS_MAX = 16


class EntryReader:
    """Any thread. open_ledger: the ledger that is written now, if one is."""

    def __init__(self, maker: LedgerMaker, runtime: Runtime, open_ledger: Callable[[], Ledger | None]) -> None:
        self._maker, self._runtime, self._open_ledger = maker, runtime, open_ledger
        self._lock = threading.Lock()
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        """Entries [start, end), at least one, and no more than have about `bytes_max` bytes; errors are the
        AppendFuture's: those of `LedgerReader.read_range`, NoSuchLedgerError, and those of the metadata store."""
        try:
            there: Ledger | LedgerReader | None = self._open_ledger()
            if there is None or there.id != ledger:
                there = self._find(ledger)
            if there is not None:
                return there.read_range(start, end, bytes_max=bytes_max)
        except ClosedError:  # it was replaced, or put away, in this moment
            pass
        except ReplogError as error:
            failed: AppendFuture[RecordBatch] = AppendFuture()
            failed.fail(error)
            return failed
        done: AppendFuture[RecordBatch] = AppendFuture()
        self._runtime.expect(done)
        self._runtime.work(lambda: self._open_and_read(ledger, start, end, bytes_max, done))
        return done

    def _find(self, ledger: int) -> LedgerReader | None:
        with self._lock:
            found = self._readers.get(ledger)
            if found is not None:
                self._readers.move_to_end(ledger)
            return found

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
        for one in over:
            one.close()
        return stays

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            readers, self._readers = list(self._readers.values()), OrderedDict()
        for reader in readers:
            reader.close()


def _pass_on(read: AppendFuture[RecordBatch], done: AppendFuture[RecordBatch]) -> None:
    error = read.exception()
    if error is not None:
        done.fail(error)
    else:
        done.complete(read.result())
