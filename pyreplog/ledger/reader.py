"""LedgerReader: what user code reads a ledger with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, SupportsIndex, TypeVar, overload

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog.arguments import as_int
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    OutOfRangeError,
    UnreadableError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle
from pyreplog.ledger.driver import Driver, Runtime
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State, metadata_key
from pyreplog.ledger.protocol.lac import LacQuery
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp
from pyreplog.ledger.range_read import RangeRead, check_range
from pyreplog.ledger.readahead import STRETCH_BYTES_MAX, read_ahead
from pyreplog.metadata.watching import Watch
from pyreplog.net.sockets import weak_callback

_GUESS_BYTES = 16 << 10
_HEADER_BYTES = 64
"""How large a record is before one was seen; of a closed ledger, the mean size of values is known."""

POLL_MS = 5000
"""How long a bookie is asked to wait for a new LAC."""

PAUSE_S = 0.02
"""At least so long passes between two questions that bring nothing new, whoever answers at once."""

T = TypeVar("T")


class LedgerReader(Handle):
    """A ledger open for reading; made by `Cluster.open_ledger`. Any thread may call anything; several reads at once.

    Of a ledger that is not closed (opened with recover=False), what is confirmed can be read, and more comes. Closing
    it ends what others wait for in it, with ClosedError.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes, runtime: Runtime) -> None:
        self.id = metadata.ledger
        self.metadata = metadata
        self._key, self._runtime = key, runtime
        self._lac = metadata.last_entry if self.is_closed else metadata.last_fragment.first - 1
        self._lock = threading.Lock()
        self._waited_for: set[AppendFuture[RecordBatch]] = set()
        self._polls: set[AppendFuture[int]] = set()
        self._changes = 0  # of the metadata, that the watch has told of
        self._watch: Watch | None = None
        super().__init__(f"ledger {self.id}")

    @property
    def is_closed(self) -> bool:
        """Whether the ledger has its end."""
        return self.metadata.state is State.CLOSED

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry known to be confirmed (of a closed ledger: its last one); -1: none. See `refresh`."""
        return self._lac

    def __len__(self) -> int:
        """How many entries can be read."""
        return self._lac + 1

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Read entries [start, end), verified, in batches; reads ahead.

        start: None, the first entry. end: None, all that is confirmed. None come if `end` is not above `start`.
        Raises: OutOfRangeError, beyond what is confirmed; NoSuchEntryError, behind the end of a closed ledger;
        UnreadableError; UnauthorizedError; ClosedError, ForkedError.
        """
        self._check_open()
        start = 0 if start is None else as_int("start", start)
        end = self._lac + 1 if end is None else as_int("end", end)
        if start < 0 or end > self._lac + 1:
            check_range(self.id, start, end, self._lac, is_closed=self.is_closed)
        return self._batches(start, end)

    def read_unconfirmed(self, start: int, end: int) -> Iterator[RecordBatch]:
        """Read entries [start, end), at least one, as bookies hold them: also those that are not confirmed, and may
        not stay.

        Raises: as read; NoSuchEntryError, too, when enough bookies say that they do not have one; InvalidArgumentError,
        there are no such entries.
        """
        self._check_open()
        start, end = as_int("start", start), as_int("end", end)
        if not 0 <= start < end:
            raise InvalidArgumentError(f"expected at least one entry from 0 on, found [{start}, {end})")
        return self._batches(start, end)

    def get(self, entry: SupportsIndex) -> Record:
        """Return the record of one entry. Raises: as read."""
        number = as_int("entry", entry)
        return next(self.read(number, number + 1))[0]

    @overload
    def __getitem__(self, item: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[bytes]: ...
    def __getitem__(self, item: SupportsIndex | slice, /) -> bytes | list[bytes]:
        """`reader[n]`: the value of an entry, from the confirmed end if negative; `reader[a:b]`: a list of values."""
        if not isinstance(item, slice):
            entry = as_int("entry", item)
            return self.get(entry + len(self) if entry < 0 else entry).value
        try:
            start, end, step = item.indices(len(self))
        except TypeError as error:
            raise WrongTypeError(f"expected integers in a slice, found {item!r}") from error
        except ValueError as error:
            raise InvalidArgumentError(f"{item!r}: {error}") from error
        if step != 1:
            return [self.get(entry).value for entry in range(start, end, step)]
        return [value for batch in self.read(start, end) for value in batch.values()]

    def read_range(self, start: int, end: int, *, bytes_max: int = STRETCH_BYTES_MAX) -> AppendFuture[RecordBatch]:
        """Read entries [start, end), at least one, and no more than have about `bytes_max` bytes; verified.

        Waits for nothing, in callbacks too: the AppendFuture gives the batch. Raises: OutOfRangeError and the errors of
        the handle are raised here, the others of `read` are the AppendFuture's; NoSuchLedgerError, it was deleted
        meanwhile.
        """
        self._check_open()
        start, end, bytes_max = as_int("start", start), as_int("end", end), as_int("bytes_max", bytes_max)
        check_range(self.id, start, end, self._lac, is_closed=self.is_closed)
        return RangeRead(
            self.metadata, self._key, self._runtime, start, end, bytes_max=bytes_max, adopt=self._adopt
        ).start()

    def _batches(self, start: int, end: int) -> Iterator[RecordBatch]:
        meta = self.metadata
        guess = meta.length // max(meta.last_entry + 1, 1) + _HEADER_BYTES if self.is_closed else _GUESS_BYTES
        for batch in read_ahead(start, end, meta.ensemble_size, meta.write_quorum, guess, self._start, self._result):
            yield batch
            self._check_open()

    def _start(self, start: int, end: int) -> AppendFuture[RecordBatch]:
        """An iterator that is dropped leaves this one behind: it is done by itself, and forgotten."""
        machine = LedgerReadOp(self.metadata, self._key, start, end, bytes_max=STRETCH_BYTES_MAX)
        driver = Driver(self.id, machine, self._runtime)
        driver.post(machine.start)
        return driver.done

    def _result(self, coming: AppendFuture[RecordBatch], start: int, end: int) -> RecordBatch:
        """Wait for a batch; once more when the ledger's bookies are others now (#4613)."""
        try:
            return self._wait(coming, self._waited_for)
        except (UnreadableError, NoSuchEntryError) as error:
            before = self.metadata.fragments
            try:
                self._reload()
            except MetadataUnavailableError:
                raise error from None
            if self.metadata.fragments == before:
                raise
            return self._wait(self._start(start, end), self._waited_for)

    def _wait(self, future: AppendFuture[T], among: set[AppendFuture[T]]) -> T:
        """Its result; whoever closes this handle ends the wait."""
        among.add(future)
        try:
            self._check_open()
            return self._runtime.wait(future)
        finally:
            among.discard(future)

    # ---- how far it goes ------------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Look how far the ledger is confirmed now; returns `last_add_confirmed`. Errors as read, NoSuchLedgerError,
        and those of the metadata store."""
        return self._look(0)

    def wait_beyond(self, entry: int, timeout: float | None = None) -> bool:
        """Wait until more than `entry` is confirmed, or the ledger is closed; whether more is.

        timeout: seconds, None: as long as it takes. Errors as refresh.
        """
        self._check_open()
        seconds, entry = as_timeout(timeout), as_int("entry", entry)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._lac <= entry and not self.is_closed:
            began = time.monotonic()
            left_ms = POLL_MS if deadline is None else min(POLL_MS, int((deadline - began) * 1000))
            if left_ms <= 0:
                break
            before = self._lac
            if self._look(left_ms) == before and not self.is_closed:
                time.sleep(max(0.0, min(PAUSE_S, left_ms / 1000) - (time.monotonic() - began)))
        return self._lac > entry

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Read batches from entry `start` on, and then wait for more; ends with the ledger, or when nothing came for
        `timeout` seconds (None: never).

        start: None, entries that are confirmed from now on.
        Raises: as refresh; OutOfRangeError, `start` is below 0.
        """
        self._check_open()
        seconds = as_timeout(timeout)
        first = len(self) if start is None else as_int("start", start)
        if first < 0:
            raise OutOfRangeError(f"ledger {self.id}: entries are numbered from 0 on, there is no {first}")
        return self._follow_batches(first, seconds)

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[Record]:
        """Return the records from entry `start` on one by one, and then wait for more. Otherwise as follow_batches."""
        return (record for batch in self.follow_batches(start, timeout=timeout) for record in batch)

    def _follow_batches(self, start: int, timeout: float | None) -> Iterator[RecordBatch]:
        while self.wait_beyond(start - 1, timeout):
            for batch in self.read(start):
                start = batch[-1].entry + 1
                yield batch

    def _look(self, wait_ms: int) -> int:
        self._check_open()
        if wait_ms:
            self._watch_metadata()
        before = self._changes
        if not self.is_closed:
            self._reload()
        if not self.is_closed:
            query = LacQuery(self.metadata, self._key, self._lac, wait_ms=wait_ms)
            driver = Driver(self.id, query, self._runtime)
            self._polls.add(driver.done)
            if self._changes == before:
                driver.post(query.start)
            else:  # told before there was a poll to end
                driver.done.complete(self._lac)
            self._raise_lac(self._wait(driver.done, self._polls))
        return self._lac

    def _raise_lac(self, lac: int) -> None:
        with self._lock:
            if not self.is_closed:
                self._lac = max(self._lac, lac)

    def _reload(self) -> None:
        """The ledger's metadata as they are now."""
        self._adopt(load_ledger(self._runtime.metadata, self.id).metadata)

    def _adopt(self, metadata: LedgerMetadata) -> None:
        with self._lock:
            if not self.is_closed or metadata.state is State.CLOSED:
                self.metadata = metadata
            if self.is_closed:
                self._lac = self.metadata.last_entry

    def _watch_metadata(self) -> None:
        """Bookies do not say that the ledger was closed, or lies elsewhere now: the metadata do."""
        with self._lock:
            if self._watch is None and self._error is None:
                self._watch = self._runtime.metadata.watch(metadata_key(self.id), weak_callback(self._changed))

    def _changed(self, key: str) -> None:
        self._changes += 1
        for poll in list(self._polls):
            poll.complete(self._lac)

    def _let_go(self) -> None:
        """Whoever waits is told. Reads that are on their way end by themselves."""
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        futures: list[AppendFuture[Any]] = [*self._waited_for, *self._polls]
        for future in futures:
            future.fail(ClosedError(f"the {self._what} was closed"))
