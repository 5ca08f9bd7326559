"""Reads a range of entries without waiting; retries once if the fragments of the ledger changed (BookKeeper #4613)."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import NoSuchEntryError, NoSuchLedgerError, OutOfRangeError, ReplogError, UnreadableError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.driver import Driver, Runtime
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


def check_range(ledger: int, start: int, end: int, lac: int, *, is_closed: bool = False) -> None:
    """Check that [start, end) is not empty and that all of its entries are confirmed.

    Raises:
        NoSuchEntryError: the ledger is closed, and the range reaches beyond its end.
        OutOfRangeError: the range is empty, begins below 0, or reaches beyond the last confirmed entry.
    """
    if not 0 <= start < end <= lac + 1:
        kind = NoSuchEntryError if is_closed and 0 <= start < end else OutOfRangeError
        raise kind(f"ledger {ledger}: entries [0, {lac + 1}) are confirmed, found [{start}, {end})")


class RangeRead:
    """Reads entries [start, end) into one batch of at least one entry and about `bytes_max` bytes.

    adopt: called with the metadata of the ledger when they were loaded anew.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        key: bytes,
        runtime: Runtime,
        start: int,
        end: int,
        *,
        bytes_max: int,
        adopt: Callable[[LedgerMetadata], None] | None = None,
    ) -> None:
        self._metadata, self._key, self._runtime, self._adopt = metadata, key, runtime, adopt
        self._first, self._end, self._bytes_max = start, end, bytes_max
        self._done: AppendFuture[RecordBatch] = AppendFuture()

    def start(self) -> AppendFuture[RecordBatch]:
        """Begin to read; the AppendFuture gives the batch, or fails as `LedgerReadOp` and `load_ledger` do."""
        self._read().add_done_callback(self._on_read)
        return self._done

    def _read(self) -> AppendFuture[RecordBatch]:
        reading = LedgerReadOp(self._metadata, self._key, self._first, self._end, bytes_max=self._bytes_max)
        driver = Driver(self._metadata.ledger, reading, self._runtime)
        driver.post(reading.start)
        return driver.done

    def _on_read(self, read: AppendFuture[RecordBatch]) -> None:
        error = read.exception()
        if isinstance(error, UnreadableError | NoSuchEntryError):
            self._runtime.expect(self._done)  # a closed runtime fails the driver's future, not the job
            self._runtime.work(lambda: self._retry(error))
        else:
            self._settle(read)

    def _retry(self, error: ReplogError) -> None:
        """Load the metadata and read once more if the fragments changed; else fail with the first error."""
        fragments = self._metadata.fragments
        try:
            self._metadata = load_ledger(self._runtime.metadata, self._metadata.ledger).metadata
        except NoSuchLedgerError as deleted:
            set_exception(self._done, deleted)
            return
        except ReplogError:
            set_exception(self._done, error)
            return
        if self._adopt is not None:
            self._adopt(self._metadata)
        if self._metadata.fragments == fragments:
            set_exception(self._done, error)
        else:
            self._read().add_done_callback(self._settle)

    def _settle(self, read: AppendFuture[RecordBatch]) -> None:
        error = read.exception()
        if error is not None:
            set_exception(self._done, error)
        else:
            set_result(self._done, read.result())
