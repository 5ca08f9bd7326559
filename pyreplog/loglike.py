"""LogLike: reading and following a sequence of numbered entries, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, SupportsIndex, overload

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record


class LogLike(Protocol):
    """What reads and follows a log: a commit log, a ledger, or the log of a replica group.

    It is a CommitLog, a LogReader, the `log` of a node of a replica group, a GroupClient, or a LedgerReader.

    Write functions that only read against this type; tests may pass `Mock(spec=LogLike)`:

        def newest(log: pyreplog.LogLike) -> bytes:
            return log[-1]

    Entries are numbered densely. Ranges are half-open. Guides: docs/log.md, docs/ledgers.md.
    """

    def __len__(self) -> int:
        """Return how many entries can be read."""
        ...

    @overload
    def __getitem__(self, item: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[bytes]: ...
    def __getitem__(self, item: SupportsIndex | slice, /) -> bytes | list[bytes]:
        """Return the value of an entry, from the end if the number is negative; of a slice a list of values."""
        ...

    def get(self, entry: SupportsIndex) -> Record:
        """Return the record of one entry, verified.

        Args:
            entry: number of the entry.

        Raises:
            OutOfRangeError: there is no such entry, or not yet.
            TrimmedError: the entry was removed.
            CorruptionError, UnreadableError: the record is damaged; no copy can be read now.
            ClosedError: the log was closed.
        """
        ...

    def read(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, from one entry to before another.

        Args:
            start: number of the first entry; None: the first entry there is.
            end: number of the entry to stop before; None: the end of what can be read.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[Record]:
        """Iterate over records one by one, and wait for more at the end of the log.

        Args:
            start: number of the first entry; None: the entries that come from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, and wait for more at the end of the log.

        Args:
            start: number of the first entry; None: the entries that come from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Raises:
            ReplogError: as `get`.
        """
        ...

    def close(self) -> None:
        """Close the handle. Calls that wait for entries end with ClosedError."""
        ...
