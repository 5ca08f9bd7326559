"""LedgerReader: the handle with which user code reads a ledger."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar, overload

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog.arguments import as_int
from pyreplog.coroutines import check_may_block, in_thread, iterating
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    OutOfRangeError,
    UnreadableError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, as_timeout, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.ledger.driver import Driver, Runtime, run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, metadata_key
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.protocol.lac import LacQuery
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp
from pyreplog.ledger.range_read import RangeRead, check_range
from pyreplog.ledger.readahead import RANGE_BYTES_MAX, read_ahead
from pyreplog.metadata.watching import Watch
from pyreplog.net.sockets import weak_callback

_GUESS_BYTES = 16 << 10
"""Assumed size of a record of an open ledger before the first one is read."""

_HEADER_BYTES = 64
"""Assumed size of a record of a closed ledger beside its value, whose mean size is known."""

POLL_MS = 5000
"""Time for which a bookie may wait for a new LAC before it answers, milliseconds."""

PAUSE_S = 0.02
"""Shortest interval between two long polls without a new LAC, even if a bookie answers at once, seconds."""

T = TypeVar("T")


class LedgerFollower(Iterator[Record]):
    """Iterator and asynchronous iterator over the records of a ledger; made by `LedgerReader.follow`.

    Use one of the two at a time.
    """

    def __init__(
        self,
        batches: Iterator[RecordBatch],
        batches_async: Callable[[int], AsyncIterator[RecordBatch]],
        entry: int,
    ) -> None:
        self._records = (record for batch in batches for record in batch)
        self._batches_async = batches_async
        self._entry = entry  # the next one of an asynchronous iteration

    def __iter__(self) -> Iterator[Record]:
        """Iterate in a thread. A new iteration continues behind the last record of the previous one."""
        return self._records

    def __next__(self) -> Record:
        """Return the next record; waits for it."""
        return next(self._records)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate in a coroutine. A new iteration continues behind the last record of the previous one."""
        async for batch in self._batches_async(self._entry):
            for record in batch:
                self._entry = record.entry + 1
                yield record


class LedgerReader(Handle):
    """A ledger that is open for reading; made by `Cluster.open_ledger`.

    Any thread may use the handle, and several reads may run at once. Of a ledger that is still written (opened with
    `recover=False`), the confirmed entries can be read, and `follow` waits for more. `close` ends the waits of other
    threads with ClosedError.

    Attributes:
        id: number of the ledger.
        metadata: metadata of the ledger as this handle loaded them last.

    Example:
        ```python
        with cluster.open_ledger(ledger_id, recover=False) as reader:
            for record in reader.follow(start=0, timeout=5.0):
                print(record.entry, record.value)
        ```

    See docs/ledgers.md.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes, runtime: Runtime) -> None:
        self.id = metadata.ledger
        self.metadata = metadata
        self._key, self._runtime = key, runtime
        self._lac = metadata.last_entry if self.is_closed else metadata.last_fragment.first - 1
        self._lock = threading.Lock()
        self._waited_for: set[AppendFuture[RecordBatch]] = set()
        self._polls: set[AppendFuture[int]] = set()
        self._changes_read: set[AppendFuture[int]] = set()  # awaited by coroutines
        self._changes = 0  # of the metadata, as counted by the watch
        self._watch: Watch | None = None
        super().__init__(f"ledger {self.id}")

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its last entry is fixed."""
        return self.metadata.state is State.CLOSED

    @property
    def properties(self) -> Mapping[str, str]:
        """Names and values that `create_ledger` was given, a copy."""
        return dict(self.metadata.custom)

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry that this handle knows to be confirmed, of a closed ledger its last one; -1: none.

        `refresh` asks the bookies for a newer one.
        """
        return self._lac

    def __len__(self) -> int:
        """Number of entries that can be read."""
        return self._lac + 1

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Read a range of confirmed entries in verified batches; reads ahead.

        Args:
            start: number of the first entry; None: the first entry of the ledger.
            end: number of the entry to stop before; None: behind the last confirmed entry. Not greater than `start`:
                nothing is read.

        Returns:
            An iterator of `RecordBatch`. It waits for bookies.

        Raises:
            OutOfRangeError: the range reaches beyond the confirmed entries.
            NoSuchEntryError: the range reaches beyond the end of a closed ledger.
            UnreadableError: no bookie gives an intact copy of an entry.
            UnauthorizedError: a bookie refuses the password.
            ClosedError: the reader was closed.
            ForkedError: this process is a fork of the one that opened the reader.
        """
        check_may_block("read")
        self._check_open()
        start = 0 if start is None else as_int("start", start)
        end = self._lac + 1 if end is None else as_int("end", end)
        if start < 0 or end > self._lac + 1:
            check_range(self.id, start, end, self._lac, is_closed=self.is_closed)
        return self._batches(start, end)

    def read_unconfirmed(self, start: int, end: int) -> Iterator[RecordBatch]:
        """Read a range of entries as bookies hold them, confirmed or not.

        Recovery may drop entries that are not confirmed.

        Args:
            start: number of the first entry.
            end: number of the entry to stop before; greater than `start`.

        Returns:
            An iterator of `RecordBatch`. It waits for bookies.

        Raises:
            InvalidArgumentError: the range is empty or begins below 0.
            NoSuchEntryError: enough bookies say that they do not have an entry.
            ReplogError: as `read`.
        """
        check_may_block("read_unconfirmed")
        self._check_open()
        start, end = as_int("start", start), as_int("end", end)
        if not 0 <= start < end:
            raise InvalidArgumentError(
                f"ledger {self.id}: expected 0 <= start < end, found start {start} and end {end}"
            )
        return self._batches(start, end)

    def get(self, entry: SupportsIndex) -> Record:
        """Return the record of one entry. Waits for a bookie.

        Args:
            entry: number of the entry.

        Raises:
            ReplogError: as `read`.
        """
        check_may_block("get")
        number = as_int("entry", entry)
        return next(self.read(number, number + 1))[0]

    @overload
    def __getitem__(self, item: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[bytes]: ...
    def __getitem__(self, item: SupportsIndex | slice, /) -> bytes | list[bytes]:
        """Return the value of an entry, `reader[n]`, or the values of a slice of entries, `reader[a:b]`.

        Negative numbers count from the last confirmed entry. Raises as `read`.
        """
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

    def read_range(self, start: int, end: int, *, bytes_max: int = RANGE_BYTES_MAX) -> AppendFuture[RecordBatch]:
        """Read a range of confirmed entries without waiting, as one verified batch. May be called in callbacks.

        Args:
            start: number of the first entry.
            end: number of the entry to stop before; greater than `start`.
            bytes_max: about the greatest size of the batch, bytes. The batch has at least one entry.

        Returns:
            An AppendFuture that gives the entries from `start` on, or fails as `read` does; with NoSuchLedgerError if
            the ledger was deleted meanwhile.

        Raises:
            OutOfRangeError: the range is empty, or not all of its entries are confirmed.
            NoSuchEntryError: the range reaches beyond the end of a closed ledger.
            ClosedError: the reader was closed.
        """
        self._check_open()
        start, end, bytes_max = as_int("start", start), as_int("end", end), as_int("bytes_max", bytes_max)
        check_range(self.id, start, end, self._lac, is_closed=self.is_closed)
        return RangeRead(
            self.metadata, self._key, self._runtime, start, end, bytes_max=bytes_max, adopt=self._adopt
        ).start()

    get_async = in_thread(get)
    read_async = iterating(read)
    read_unconfirmed_async = iterating(read_unconfirmed)

    def _batches(self, start: int, end: int) -> Iterator[RecordBatch]:
        meta = self.metadata
        guess = meta.length // max(meta.last_entry + 1, 1) + _HEADER_BYTES if self.is_closed else _GUESS_BYTES
        for batch in read_ahead(start, end, meta.ensemble_size, meta.write_quorum, guess, self._start, self._result):
            yield batch
            self._check_open()

    def _start(self, start: int, end: int) -> AppendFuture[RecordBatch]:
        """Begin to read a range. If the iterator is dropped, the read ends by itself and its result is dropped."""
        machine = LedgerReadOp(self.metadata, self._key, start, end, bytes_max=RANGE_BYTES_MAX)
        return run_machine(self.id, machine, self._runtime)

    def _result(self, future: AppendFuture[RecordBatch], start: int, end: int) -> RecordBatch:
        """Wait for a batch; read once more if the fragments of the ledger have changed (BookKeeper #4613)."""
        try:
            return self._wait(future, self._waited_for)
        except (UnreadableError, NoSuchEntryError) as error:
            fragments = self.metadata.fragments
            try:
                self._reload()
            except MetadataUnavailableError:
                raise error from None
            if self.metadata.fragments == fragments:
                raise
            return self._wait(self._start(start, end), self._waited_for)

    def _wait(self, future: AppendFuture[T], among: set[AppendFuture[T]]) -> T:
        """Wait for the result of a future of `among`; `close` ends the wait."""
        among.add(future)
        try:
            self._check_open()
            return self._runtime.wait(future)
        finally:
            among.discard(future)

    # ---- the last add confirmed -----------------------------------------------------------------------------

    def refresh(self) -> int:
        """Ask the bookies how far the ledger is confirmed now.

        Returns:
            The new `last_add_confirmed`.

        Raises:
            UnreadableError: too few bookies answer.
            UnauthorizedError: a bookie refuses the password.
            NoSuchLedgerError: the ledger was deleted.
            MetadataUnavailableError: the metadata store does not answer.
            ClosedError: the reader was closed.
        """
        check_may_block("refresh")
        return self._poll(0)

    refresh_async = in_thread(refresh)

    def wait_beyond(self, entry: int, timeout: float | None = None) -> bool:
        """Wait until an entry above `entry` is confirmed, or the ledger is closed.

        Args:
            entry: number of an entry; -1 waits for the first one.
            timeout: seconds; None: as long as it takes.

        Returns:
            Whether an entry above `entry` is confirmed.

        Raises:
            ReplogError: as `refresh`.
        """
        check_may_block("wait_beyond")
        self._check_open()
        seconds, entry = as_timeout(timeout), as_int("entry", entry)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._lac <= entry and not self.is_closed:
            began = time.monotonic()
            left_ms = POLL_MS if deadline is None else min(POLL_MS, int((deadline - began) * 1000))
            if left_ms <= 0:
                break
            lac = self._lac
            if self._poll(left_ms) == lac and not self.is_closed:
                time.sleep(max(0.0, min(PAUSE_S, left_ms / 1000) - (time.monotonic() - began)))
        return self._lac > entry

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of confirmed entries, and wait for more.

        The iteration ends behind the last entry of a closed ledger. `close` ends the wait with ClosedError.

        Args:
            start: number of the first entry; None: the entries that are confirmed from now on.
            timeout: seconds without a new entry after which the iteration ends; None: as long as it takes.

        Returns:
            An iterator of `RecordBatch`.

        Raises:
            OutOfRangeError: `start` is negative.
            ReplogError: as `read` and `refresh`.
        """
        return self._follow_batches(*self._follow_arguments(start, timeout))

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> LedgerFollower:
        """Iterate over the records of confirmed entries, and wait for more, as `follow_batches` does.

        Iterate in a thread with `for`, in a coroutine with `async for`.

        Args:
            start: number of the first entry; None: the entries that are confirmed from now on.
            timeout: seconds without a new entry after which the iteration ends; None: as long as it takes.

        Returns:
            A `LedgerFollower`, which gives `Record`s.

        Raises:
            OutOfRangeError: `start` is negative.
            ReplogError: as `read` and `refresh`.
        """
        first, seconds = self._follow_arguments(start, timeout)
        batches = self._follow_batches(first, seconds)
        return LedgerFollower(batches, lambda entry: self._follow_batches_async(entry, seconds), first)

    def _follow_arguments(self, start: int | None, timeout: float | None) -> tuple[int, float | None]:
        self._check_open()
        seconds = as_timeout(timeout)
        first = len(self) if start is None else as_int("start", start)
        if first < 0:
            raise OutOfRangeError(f"ledger {self.id}: start: expected an entry number of 0 or more, found {first}")
        return first, seconds

    def _follow_batches(self, start: int, timeout: float | None) -> Iterator[RecordBatch]:
        while self.wait_beyond(start - 1, timeout):
            for batch in self.read(start):
                start = batch[-1].entry + 1
                yield batch

    def _poll(self, wait_ms: int) -> int:
        self._check_open()
        if wait_ms:
            self._watch_metadata()
        changes = self._changes
        if not self.is_closed:
            self._reload()
        if not self.is_closed:
            self._raise_lac(self._wait(self._begin_poll(wait_ms, changes), self._polls))
        return self._lac

    def _begin_poll(self, wait_ms: int, changes: int) -> AppendFuture[int]:
        """Ask for the LAC. changes: of the metadata, as counted before they were loaded."""
        query = LacQuery(self.metadata, self._key, self._lac, wait_ms=wait_ms)
        driver = Driver(self.id, query, self._runtime)
        self._polls.add(driver.done)
        if self._changes == changes:
            driver.post(query.start)
        else:  # the watch fired before this poll was added to those that it ends
            set_result(driver.done, self._lac)
        return driver.done

    # ---- following, in coroutines -----------------------------------------------------------------------------

    async def _follow_batches_async(self, start: int, timeout: float | None) -> AsyncIterator[RecordBatch]:
        while await self.wait_beyond_async(start - 1, timeout):
            batch = await self._result_async(self.read_range(start, self._lac + 1), self._waited_for)
            start = batch[-1].entry + 1
            yield batch

    async def wait_beyond_async(self, entry: int, timeout: float | None = None) -> bool:
        """Do what `wait_beyond` does, in a coroutine.

        Args:
            entry: number of an entry; -1 waits for the first one.
            timeout: seconds; None: as long as it takes.
        """
        self._check_open()
        seconds, entry = as_timeout(timeout), as_int("entry", entry)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._lac <= entry and not self.is_closed:
            began = time.monotonic()
            left_ms = POLL_MS if deadline is None else min(POLL_MS, int((deadline - began) * 1000))
            if left_ms <= 0:
                break
            lac = self._lac
            if await self._poll_async(left_ms) == lac and not self.is_closed:
                await asyncio.sleep(max(0.0, min(PAUSE_S, left_ms / 1000) - (time.monotonic() - began)))
        return self._lac > entry

    async def _poll_async(self, wait_ms: int) -> int:
        """Do as `_poll` does: calls of the metadata store run on a worker thread, replies of bookies are awaited."""
        changes = await self._result_async(self._work(self._prepare_poll), self._changes_read)
        if not self.is_closed:
            poll = self._begin_poll(wait_ms, changes)
            self._raise_lac(await self._result_async(poll, self._polls))
        return self._lac

    def _prepare_poll(self) -> int:
        """Watch and load the metadata; return the number of changes counted before that. May block."""
        self._watch_metadata()
        changes = self._changes
        if not self.is_closed:
            self._reload()
        return changes

    def _work(self, job: Callable[[], T]) -> AppendFuture[T]:
        """Run a job that blocks on a worker thread."""
        future: AppendFuture[T] = AppendFuture()
        self._runtime.expect(future)

        def run() -> None:
            try:
                set_result(future, job())
            except Exception as error:
                set_exception(future, error)

        self._runtime.work(run)
        return future

    async def _result_async(self, future: AppendFuture[T], among: set[AppendFuture[T]]) -> T:
        """Await a future of `among`; `close` ends the wait."""
        among.add(future)
        try:
            self._check_open()
            return await future
        finally:
            among.discard(future)

    # ---- state ----------------------------------------------------------------------------------------------

    def _raise_lac(self, lac: int) -> None:
        with self._lock:
            if not self.is_closed:
                self._lac = max(self._lac, lac)

    def _reload(self) -> None:
        """Load the metadata of the ledger anew."""
        self._adopt(load_ledger(self._runtime.metadata, self.id).metadata)

    def _adopt(self, metadata: LedgerMetadata) -> None:
        with self._lock:
            if not self.is_closed or metadata.state is State.CLOSED:
                self.metadata = metadata
            if self.is_closed:
                self._lac = self.metadata.last_entry

    def _watch_metadata(self) -> None:
        """Watch the metadata: only they show that the ledger was closed, or has a new fragment."""
        with self._lock:
            if self._watch is None and self._error is None:
                self._watch = self._runtime.metadata.watch(metadata_key(self.id), weak_callback(self._changed))

    def _changed(self, key: str) -> None:
        self._changes += 1
        for poll in list(self._polls):
            set_result(poll, self._lac)

    def _do_close(self) -> None:
        """Fail the futures that threads wait for. Reads that are on their way end by themselves."""
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        futures: list[AppendFuture[Any]] = [*self._waited_for, *self._polls, *self._changes_read]
        for future in futures:
            set_exception(future, ClosedError(f"the {self._label} was closed"))
