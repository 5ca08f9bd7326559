"""Readers of the closed ledgers of a topic: one for each ledger in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result, then
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.owner.managed.ledgers import LedgerMaker

READERS_MAX = 16


class ClosedLedgerReaders:
    """Reads entries of closed ledgers, and caches the readers. Any thread."""

    def __init__(self, maker: LedgerMaker, runtime: Runtime) -> None:
        self._maker, self._runtime = maker, runtime
        self._lock = threading.Lock()
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        """Read entries of [start, end): at least one, about `bytes_max` bytes at most.

        The future fails with the errors of `LedgerReader.read_range`, NoSuchLedgerError, and those of the metadata
        store.
        """
        reader = self._find(ledger)
        if reader is not None:
            try:
                return reader.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # the cache has just closed it
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
            set_exception(done, error)
            return
        then(read, done, partial(set_result, done))

    def _read_closed(self, ledger: int, start: int, end: int, bytes_max: int) -> AppendFuture[RecordBatch]:
        while True:
            reader = self._find(ledger) or self._keep(self._maker.open_reader(ledger))
            try:
                return reader.read_range(start, end, bytes_max=bytes_max)
            except ClosedError:  # the cache has just closed it
                if self._is_closed:
                    raise

    def ended(self, metadata: LedgerMetadata) -> None:
        """Keep a reader of the ledger that was just closed, whose metadata are known."""
        self._keep(self._maker.reader(metadata))

    def forget(self, ledger: int) -> None:
        """Close the reader of a ledger that is deleted."""
        with self._lock:
            reader = self._readers.pop(ledger, None)
        if reader is not None:
            reader.close()

    def _keep(self, reader: LedgerReader) -> LedgerReader:
        """Cache a reader, and return the cached one of its ledger.

        Other readers of the ledger, and the oldest ones, are closed; their pending reads go on.
        """
        with self._lock:
            kept = self._readers.setdefault(reader.id, reader)
            self._readers.move_to_end(reader.id)
            surplus = [] if kept is reader else [reader]
            while len(self._readers) > (0 if self._is_closed else READERS_MAX):
                surplus.append(self._readers.popitem(last=False)[1])
        for other in surplus:
            other.close()
        return kept

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            readers, self._readers = list(self._readers.values()), OrderedDict()
        for reader in readers:
            reader.close()


def failed_read(error: ReplogError) -> AppendFuture[RecordBatch]:
    """Return the future of a read that could not begin."""
    failed: AppendFuture[RecordBatch] = AppendFuture()
    set_exception(failed, error)
    return failed
