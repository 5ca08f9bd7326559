"""RawLog: a commit log of RocketMQ, in raw segment files with records in RocketMQ's layout."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pyreplog.errors import (
    DiskError,
    InvalidArgumentError,
    InvalidRecordsError,
    OutOfRangeError,
    PoisonedError,
    RecordTooLargeError,
    ReplogError,
    TrimmedError,
)
from pyreplog.handles import Handle
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.lock import WriterLock
from pyreplog.rocketmq import raw_file, raw_log_recovery, synced_position
from pyreplog.rocketmq.raw_file import RawFile
from pyreplog.rocketmq.records import BLANK_BYTES, RecordFault, RocketMQMessage, blank, encode, walk
from pyreplog.rocketmq.synced_position import SyncedPosition

FILE_BYTES = 1 << 30
"""Default of RocketMQ's `mappedFileSizeCommitLog`."""

_FILE_BYTES_MIN, _FILE_BYTES_MAX = 4096, (1 << 31) - 1
_MAPPED_MAX = 16


class RawLog(Handle):
    """A commit log in the layout of a RocketMQ broker's store: `directory/commitlog/<20 digits>`.

    One thread appends bytes or messages; any thread may read, `sync` and `trim`. While the log is open no other
    process, a broker included, can open the directory for writing: both lock `directory/lock`.

    Bytes of a master are verified record by record: size, magic, position and CRC of the body. That also detects a
    master from which this log was not copied. RocketMQ itself would continue with the wrong bytes.

    Args:
        directory: the broker's store directory.
        file_bytes: size of each segment file, the broker's `mappedFileSizeCommitLog`; None: that of the existing
            files, else 1 GiB.
        files: access to the disk, which tests replace; None: the disk.

    Raises:
        LockedError: another process has the log open.
        NotALogError: the directory holds other files.
        InvalidArgumentError: the existing files have another size than `file_bytes`.
        CorruptionError: the log is damaged.
        FormatVersionError: a newer version wrote the synced position.
        DiskFullError: there is no room.

    Example:
        ```python
        with RawLog("store", file_bytes=1 << 20) as log:
            position = log.put(RocketMQMessage(topic="orders", body=b"order 1"))
            log.sync()
        ```

    See docs/rocketmq.md.
    """

    def __init__(self, directory: Path | str, *, file_bytes: int | None = None, files: Files | None = None) -> None:
        self.directory = Path(directory)
        self._files: Files = RealFiles() if files is None else files
        self._files.make_directory(self.directory / raw_file.FOLDER, mode=0o777)
        self._lock = WriterLock(self.directory)
        self._writing: RawFile | None = None
        self._mapped: dict[int, RawFile] = {}
        self._syncing = threading.RLock()  # guards the list of files and the stored position; held during syncs
        self._mapping = threading.Lock()  # guards _mapped; not held during syncs, so that readers do not wait for them
        try:
            self._open(file_bytes)
        except BaseException:
            self._do_close()
            raise
        super().__init__(f"RocketMQ log {self.directory}")

    def _open(self, file_bytes: int | None) -> None:
        self._files.sync_directory(self.directory / raw_file.FOLDER)  # a killed process may not have done it
        self._stored_synced = synced_position.load(self.directory)
        bases = raw_file.listed(self.directory)
        stored_bytes = self._stored_synced.file_bytes if self._stored_synced else _size_of_first(self.directory, bases)
        self.file_bytes = _checked_size(file_bytes, stored_bytes)
        raw_file.check_sizes(self.directory, bases, self.file_bytes)
        end = 0
        if bases:
            end = raw_log_recovery.find_end(self.directory, bases, self._stored_synced, self._files)
            bases = raw_log_recovery.cut(self.directory, bases, end, self._files)
        if bases:
            self._writing = RawFile(raw_file.path_of(self.directory, bases[-1]), self._files, writable=True)
        self._end = self._complete_end = self._synced = end
        self._bases = bases
        self._store_synced(end)

    # ---- positions ------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Position of the first byte in the log; 0: the log is empty."""
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        """Position behind the last byte. The last record may be incomplete."""
        return self._end

    @property
    def whole(self) -> int:
        """Position behind the last complete record."""
        return self._complete_end

    @property
    def synced(self) -> int:
        """Position up to which the log is on disk."""
        return self._synced

    @property
    def empty(self) -> bool:
        """Whether the log has no bytes. The first ones may be appended at the start of any file."""
        return not self._bases

    # ---- writing --------------------------------------------------------------------------------------------

    def append_replicated(self, position: int, data: bytes | memoryview) -> None:
        """Append bytes of a master's log, which may begin and end within a record.

        Args:
            position: position of the bytes: the end of the log; of an empty log, the start of any file.
            data: bytes, all in one file.

        Raises:
            InvalidArgumentError: another position, or bytes of two files.
            InvalidRecordsError: the bytes are not records. The log then ends behind the last complete record.
            DiskError: the disk failed. Nothing was written.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
        """
        self._check_open()
        self._check_position(position, len(data))
        if not len(data):
            return
        try:
            file = self._file_for(position)
            self._files.write(file.fd, data, position - file.base)
        except ReplogError:
            raise
        except OSError as error:
            raise DiskError(error.errno, f"{self.directory}: {len(data)} bytes cannot be written: {error}") from error
        end = position + len(data)
        reached, fault = walk(file.view, self._complete_end - file.base, end - file.base, file.base)
        if fault is not None:
            self._end = self._complete_end = file.base + reached
            file.zero(self._files, reached, end - file.base)
            raise InvalidRecordsError(self._end, fault.expected, fault.found)
        self._end, self._complete_end = end, file.base + reached

    def put(self, message: RocketMQMessage) -> int:
        """Append a message as a broker does.

        Args:
            message: the message.

        Returns:
            The position of its record.

        Raises:
            RecordTooLargeError: the record does not fit into a file.
            InvalidArgumentError: a field of the message is over its limit, or the log ends within a record.
            DiskFullError: there is no room for another file.
        """
        if self._end != self._complete_end:
            raise InvalidArgumentError(
                f"the log ends within a record, at {self._end}: this copy is incomplete; continue it from its master"
            )
        record = encode(message, self._end)
        if len(record) + BLANK_BYTES > self.file_bytes:
            raise RecordTooLargeError(
                f"message: expected a record of at most {self.file_bytes - BLANK_BYTES} bytes, found {len(record)}"
            )
        room = self.file_bytes - self._end % self.file_bytes
        if len(record) + BLANK_BYTES > room:
            self.append_replicated(self._end, blank(room).ljust(room, b"\0"))
            record = encode(message, self._end)
        position = self._end
        self.append_replicated(position, record)
        return position

    def _check_position(self, position: int, size: int) -> None:
        if position != self._end and not (self.empty and position >= 0 and position % self.file_bytes == 0):
            raise InvalidArgumentError(f"position: expected {self._end}, where the log ends, found {position}")
        if position % self.file_bytes + size > self.file_bytes:
            raise InvalidArgumentError(
                f"data: expected bytes that lie in one file of {self.file_bytes} bytes, found {size} bytes at "
                f"position {position}"
            )

    def _file_for(self, position: int) -> RawFile:
        """Return the file to write to. A new one is created after the log before it was synced."""
        file = self._writing
        if file is not None and position < file.end:
            return file
        with self._syncing:
            if file is not None:
                self.sync()
            created = raw_file.create(self.directory, position, self.file_bytes, self._files)
            if file is None:
                self._complete_end = self._end = position
            else:
                file.close()
            self._writing = created
            self._bases = [*self._bases, position]
        return created

    def sync(self) -> int:
        """Sync the log: all bytes appended before the call are on disk when it returns.

        Returns:
            The position up to which the log is on disk.

        Raises:
            PoisonedError: this sync failed, or an earlier one.
            ClosedError: the log was closed.
        """
        self._check_open()
        with self._syncing:
            end, whole = self._end, self._complete_end
            if self._writing is None or end == self._synced:
                return self._synced
            try:
                self._files.sync(self._writing.fd)
                self._store_synced(whole)
            except OSError as error:
                self._error = PoisonedError(f"{self.directory}: a sync failed, what is on disk is unknown: {error}")
                raise self._error from error
            self._synced = end
            return end

    def _store_synced(self, position: int) -> None:
        proven = SyncedPosition(self.file_bytes, position)
        if proven != self._stored_synced:
            synced_position.store(self.directory, proven, self._files)
            self._stored_synced = proven

    def trim(self, position: int) -> int:
        """Remove the files that end at or before a position, but never the last file. Views stay readable.

        Args:
            position: bytes from the beginning of the log.

        Returns:
            The new start of the log.

        Raises:
            ClosedError: the log was closed.
        """
        self._check_open()
        with self._syncing:
            kept = [base for base in self._bases if base + self.file_bytes > position] or self._bases[-1:]
            removed = self._bases[: len(self._bases) - len(kept)]
            self._bases = kept
            for base in removed:  # in order, each durably, so that a crash leaves no gap
                with self._mapping:
                    self._mapped.pop(base, None)
                raw_file.remove(self.directory, base, self._files)
            return self.start

    # ---- reading --------------------------------------------------------------------------------------------

    def view(self, position: int, limit: int) -> memoryview:
        """Return bytes of the log, not copied; they lie in one file.

        Args:
            position: bytes from the beginning of the log.
            limit: most bytes to return.

        Returns:
            A view; empty at the end of the log.

        Raises:
            TrimmedError: `position` lies before the start of the log.
            OutOfRangeError: `position` lies behind the end of the log.
        """
        end = self._end
        if not self.start <= position <= end:
            kind = TrimmedError if position < self.start else OutOfRangeError
            raise kind(f"{self.directory}: expected a position of {self.start} to {end}, found {position}")
        if position == end:
            return memoryview(b"")
        file = self._file_at(position)
        stop = min(position + limit, end, file.end)
        return file.view[position - file.base : stop - file.base]

    def _file_at(self, position: int) -> RawFile:
        writing = self._writing
        if writing is not None and writing.base <= position:
            return writing
        base = position - position % self.file_bytes
        with self._mapping:
            file = self._mapped.pop(base, None)
            if file is None:
                try:
                    file = RawFile(raw_file.path_of(self.directory, base), self._files, writable=False)
                except FileNotFoundError:
                    raise TrimmedError(f"{self.directory}: position {position} was removed") from None
                file.close()
            self._mapped[base] = file  # least recently used first
            if len(self._mapped) > _MAPPED_MAX:
                del self._mapped[next(iter(self._mapped))]
            return file

    def records(self, position: int | None = None) -> Iterator[tuple[int, memoryview]]:
        """Iterate over the complete records, without blanks.

        Args:
            position: where to begin, bytes from the beginning of the log; None: the start of the log.

        Returns:
            An iterator of (position, bytes of the record).

        Raises:
            InvalidRecordsError: a record is damaged, or no record begins at `position`.
            TrimmedError: `position` lies before the start of the log.
            OutOfRangeError: `position` lies behind the end of the log.
        """
        at = self.start if position is None else position
        while at < self._complete_end:
            size = int.from_bytes(self.view(at, 4), "big")
            file = self._file_at(at)
            stop = min(at - file.base + max(size, BLANK_BYTES), len(file.view))
            reached, fault = walk(file.view, at - file.base, stop, file.base)
            if fault is not None or file.base + reached == at:
                _, expected, actual = fault or RecordFault(at, "a whole record", "a part of one")
                raise InvalidRecordsError(at, expected, actual)
            if reached < len(file.view):
                yield at, file.view[at - file.base : reached]
            at = file.base + reached

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync the log, and close it. An incomplete record is cut when the log is opened again.

        Raises:
            PoisonedError: the sync failed. The log is closed anyway.
        """
        if self._error is None and os.getpid() == self._pid:
            try:
                self.sync()
            finally:
                super().close()
        else:
            super().close()

    def _do_close(self) -> None:
        if self._writing is not None:
            self._writing.close()
        self._mapped.clear()
        self._lock.release()

    def _after_fork(self) -> None:
        self._lock.release()


def _size_of_first(directory: Path, bases: list[int]) -> int | None:
    return raw_file.path_of(directory, bases[0]).stat().st_size if bases else None


def _checked_size(wanted: int | None, found: int | None) -> int:
    if wanted is not None and found is not None and wanted != found:
        raise InvalidArgumentError(f"file_bytes: expected {found}, the size of the existing files, found {wanted}")
    size = next(size for size in (wanted, found, FILE_BYTES) if size is not None)
    if not _FILE_BYTES_MIN <= size <= _FILE_BYTES_MAX:
        raise InvalidArgumentError(f"file_bytes: expected {_FILE_BYTES_MIN} to {_FILE_BYTES_MAX}, found {size}")
    return size
