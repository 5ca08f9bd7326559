"""One read of a few entries, which nobody waits for; once more when the ledger's bookies are others now (#4613)."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import NoSuchEntryError, NoSuchLedgerError, OutOfRangeError, ReplogError, UnreadableError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import Driver, Runtime
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


def check_range(ledger: int, start: int, end: int, lac: int, *, is_closed: bool = False) -> None:
    """Check that entries [start, end) are confirmed, and at least one.

    Raises: NoSuchEntryError, the ledger is closed and ends before; OutOfRangeError, anything else.
    """
    if not 0 <= start < end <= lac + 1:
        kind = NoSuchEntryError if is_closed and 0 <= start < end else OutOfRangeError
        raise kind(f"ledger {ledger}: entries [0, {lac + 1}) are confirmed, not [{start}, {end})")


class RangeRead:
    """Reads entries [start, end), at least one, and no more than have about `bytes_max` bytes.

    adopt: told the ledger's metadata, when they were loaded anew.
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
        """Begin; the AppendFuture gives the entries, or fails with what `LedgerReadOp` and `load_ledger` raise."""
        self._read().add_done_callback(self._came)
        return self._done

    def _read(self) -> AppendFuture[RecordBatch]:
        reading = LedgerReadOp(self._metadata, self._key, self._first, self._end, bytes_max=self._bytes_max)
        driver = Driver(self._metadata.ledger, reading, self._runtime)
        driver.post(reading.start)
        return driver.done

    def _came(self, read: AppendFuture[RecordBatch]) -> None:
        error = read.exception()
        if isinstance(error, UnreadableError | NoSuchEntryError):
            self._runtime.expect(self._done)  # before, that of the reading's driver fails it
            self._runtime.work(lambda: self._again(error))
        else:
            self._settle(read)

    def _again(self, error: ReplogError) -> None:
        """Where the entries are said to be now; the first error stays when that is known no better."""
        before = self._metadata.fragments
        try:
            self._metadata = load_ledger(self._runtime.metadata, self._metadata.ledger).metadata
        except NoSuchLedgerError as gone:
            self._done.fail(gone)
            return
        except ReplogError:
            self._done.fail(error)
            return
        if self._adopt is not None:
            self._adopt(self._metadata)
        if self._metadata.fragments == before:
            self._done.fail(error)
        else:
            self._read().add_done_callback(self._settle)

    def _settle(self, read: AppendFuture[RecordBatch]) -> None:
        error = read.exception()
        if error is not None:
            self._done.fail(error)
        else:
            self._done.complete(read.result())
