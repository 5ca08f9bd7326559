"""LogLike and AppenderLike: Protocols of logs, ledgers and topics for reading numbered entries, and for appending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog.future import AppendFuture
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LogLike(Protocol):
    """A handle that reads and follows a log: a commit log, a ledger, or the log of a replica group.

    CommitLog, LogReader, the `log` of a node of a replica group, GroupClient and LedgerReader implement it.

    Functions that only read can take this type; tests may pass `Mock(spec=LogLike)`:

        def newest(log: pyreplog.LogLike) -> bytes:
            return log[-1]

    Entries are numbered densely. Ranges are half-open. Guides: docs/log.md, docs/ledgers.md.
    """

    def __len__(self) -> int:
        """Return the number of entries that can be read."""
        ...

    @overload
    def __getitem__(self, item: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[bytes]: ...
    def __getitem__(self, item: SupportsIndex | slice, /) -> bytes | list[bytes]:
        """Return the value of an entry, counted from the end if the number is negative; for a slice, a list of them."""
        ...

    def get(self, entry: SupportsIndex) -> Record:
        """Return the record of one entry, verified.

        Args:
            entry: number of the entry.

        Raises:
            OutOfRangeError: the entry does not exist, or not yet.
            TrimmedError: the entry was removed.
            CorruptionError, UnreadableError: the record is damaged; no copy can be read now.
            ClosedError: the log was closed.
        """
        ...

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, from one entry to before another.

        Args:
            start: number of the first entry; None: the first entry of the log.
            end: number of the entry to stop before; None: the end of the entries that can be read.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[Record]:
        """Iterate over records one by one, and wait for more at the end of the log.

        Args:
            start: number of the first entry; None: the entries that are appended from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, and wait for more at the end of the log.

        Args:
            start: number of the first entry; None: the entries that are appended from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def close(self) -> None:
        """Close the handle. Calls that wait for entries end with ClosedError."""
        ...


class AppenderLike(Protocol):
    """A handle that appends without waiting: to a commit log, a ledger, a replica group or a topic.

    CommitLog, Ledger, GroupClient, and Producer of a topic without partitions implement it. Blocking calls have other
    names for logs (`append`) than for topics (`publish`), and are not part of it.

    Functions that only append can take this type; tests may pass `Mock(spec=AppenderLike)`:

        def copy(values: list[bytes], log: pyreplog.AppenderLike) -> None:
            for value in values:
                log.submit(value)
            log.flush()

    Threads wait for room in the window. Coroutines never wait in `submit`: they await `room()` before. Guides:
    docs/log.md, docs/ledgers.md, docs/ha.md, docs/topics.md.
    """

    def submit(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, *, event_time: Time | None = None
    ) -> AppendFuture[int]:
        """Append one entry without waiting for its outcome; return the future of its number.

        Args:
            value: bytes-like.
            key: bytes-like; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.

        Raises:
            WindowFullError: there is no room, and the caller is an event loop: await `room()` before. Nothing was
                appended.
            WrongTypeError, InvalidArgumentError, RecordTooLargeError: nothing was appended.
            ClosedError: the handle was closed.
        """
        ...

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        *,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[Any]:
        """Append several entries without waiting for their outcome; return the future of their numbers, a sequence.

        Args:
            values: bytes-like values.
            keys: a key for each value, bytes-like or None; None: no keys.
            event_times: a time for each value, as `event_time` of `submit`, or None; None: no event times.

        Raises:
            ReplogError: as `submit`.
        """
        ...

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room: await it before `submit` in a coroutine.

        Raises:
            ClosedError: the handle was closed.
        """
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every entry submitted so far has an outcome; the future of each entry gives it.

        Args:
            timeout: seconds; None: the default of the handle, or without a limit.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: the time ran out; the entries may still be appended.
            ClosedError: the handle was closed.
        """
        ...

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every entry submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the handle was closed.
        """
        ...

    def close(self) -> None:
        """Close the handle. It accepts no more entries."""
        ...

    async def close_async(self) -> None:
        """Close the handle in a thread, for coroutines; `async with` does it, too."""
        ...
