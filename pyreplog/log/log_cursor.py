"""LogCursor: a named, durable place in a log. Retention keeps the records from the place of a cursor on.

A cursor is a file of two checksummed slots in `cursors/`, written in turn like the log's checkpoint (FORMAT.md, "Log
cursors"). The rule is that of PostgreSQL's replication slots: the reader acknowledges entries, and the log keeps the
others; `LogConfig.cursor_hold_bytes` limits what the cursor of an abandoned reader can hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog._native.system.checksum import crc32c
from pyreplog.arguments import as_int, check_text
from pyreplog.coroutines import in_thread
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    ForkedError,
    FormatVersionError,
    InvalidArgumentError,
    LockedError,
    NotALogError,
    OutOfRangeError,
    ReadOnlyError,
    TrimmedError,
    TruncatedError,
)
from pyreplog.handles import Closeable
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names
from pyreplog.log.files import Files, lock_range
from pyreplog.regular_files import open_reading

MAGIC = b"RPCURS01"
VERSION = 1
SLOT_BYTES = 512
_SLOT = struct.Struct("<8sIHH16sqqqI")
_RECORD_HEAD = 24  # length, CRC, stamp, time: these differ between two records that had the same place
HELD_S = 5.0
"""Seconds to wait for another process that creates a cursor or runs retention, which takes milliseconds."""

_POLL_S = 0.002
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

CursorStart = int | Literal["earliest", "latest"]


class CursorPlace(NamedTuple):
    """The place of a cursor.

    uuid: uuid of the log. position: position behind the last acknowledged record, bytes from the beginning of the log.
    entry: number of the first entry that is not acknowledged. check: `record_check` of the record before `entry`; 0:
    there is none. sequence: number of the write; the slot with the higher one counts.
    """

    uuid: bytes
    position: int
    entry: int
    check: int
    sequence: int = 0

    def encode(self) -> bytes:
        body = (self.uuid, self.position, self.entry, self.sequence, self.check)
        packed = _SLOT.pack(MAGIC, 0, VERSION, VERSION, *body)
        return _SLOT.pack(MAGIC, crc32c(packed[12:]), VERSION, VERSION, *body)

    @classmethod
    def decode(cls, data: bytes, path: Path) -> CursorPlace | None:
        """Decode a slot; return None if it is torn or empty.

        Raises FormatVersionError if a newer version wrote it.
        """
        if len(data) < _SLOT.size:
            return None
        magic, crc, version, min_reader, uuid, position, entry, sequence, check = _SLOT.unpack_from(data)
        if magic != MAGIC or crc != crc32c(data[12 : _SLOT.size]):
            return None
        if min_reader > VERSION:
            raise FormatVersionError(path, version, VERSION)
        return cls(uuid, position, entry, check, sequence)


class FollowedLog(Protocol):
    """The part of an open log, a reader or a writer, that a cursor needs."""

    path: Path

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def check_open(self) -> None: ...
    def get(self, entry: int) -> Record: ...
    def position_of(self, entry: int) -> int: ...
    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[Record]: ...
    def follow_batches(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[RecordBatch]: ...


class LogCursor(Closeable):
    """A named place in a log, made by `log.cursor(name)`. It is durable, and one handle at a time can have it open.

        with pyreplog.open("data/orders", "r") as log, log.cursor("invoices") as cursor:
            for batch in cursor.follow_batches(timeout=1.0):
                write_invoices(batch)
                cursor.advance(batch.end)

    After a crash, reading resumes at the place of the last `advance`; entries that were processed since then are
    delivered again. Any thread may call all methods. See docs/log.md, Cursors.
    """

    def __init__(self, log: FollowedLog, files: Files, name: str, start: CursorStart) -> None:
        """Open or create a cursor; the arguments and errors are those of `LogView.cursor`."""
        self.name = check_name(name)
        self._log, self._files, self._pid = log, files, os.getpid()
        self._lock = threading.Lock()
        self._path = cursor_path(log.path, name)
        self._fd = -1
        checkpoint = checkpoints.load(log.path)
        if checkpoint is None:
            raise NotALogError(
                f"{log.path} has no checkpoint, which identifies the log of a cursor: open it for writing first"
            )
        try:
            if not self._path.exists():
                self._create(checkpoint.uuid, start)
            self._fd = files.open(self._path, writable=True)
            if not lock_range(self._fd, exclusive=True):
                raise LockedError(self._path, None, "a cursor has one reader at a time")
            place = load_place(self._path)
            if place.uuid != checkpoint.uuid:
                raise CorruptionError(
                    self._path, 0, f"a cursor of log {checkpoint.uuid.hex()}", f"one of log {place.uuid.hex()}; "
                    "remove the file to give it up",
                )  # fmt: skip
            self._make_durable(place)
        except PermissionError as error:
            self.close()
            raise ReadOnlyError(
                f"{self._path} cannot be written by this user: a cursor is a file of its log"
            ) from error
        except BaseException:
            self.close()
            raise

    def _make_durable(self, place: CursorPlace) -> None:
        """Make the place durable: after a kill or a failed sync, the file may be in the page cache only."""
        for folder in (self._path.parent, self._log.path):
            self._files.sync_directory(folder)
        self._store(place._replace(sequence=place.sequence + 1))

    def _create(self, uuid: bytes, start: CursorStart) -> None:
        """Create the cursor's file, with retention held, so that retention does not remove the entries of its place."""
        self._files.make_directory(self._path.parent)
        with retention_held(self._log.path, HELD_S):
            entry = self._resolve(start)
            place = CursorPlace(uuid, self._log.position_of(entry), entry, self._check_before(entry))
            self._files.replace_small(self._path, place.encode().ljust(2 * SLOT_BYTES, b"\0"))

    def _resolve(self, start: CursorStart) -> int:
        log = self._log
        if start == "earliest":
            return log.start
        if start == "latest":
            return log.end
        if isinstance(start, str):
            raise InvalidArgumentError(f"start: expected an entry's number, 'earliest' or 'latest', found {start!r}")
        return self._check_held(as_int("start", start))

    def _check_held(self, entry: int) -> int:
        """Return an entry number if a cursor can have it. Raises TrimmedError or OutOfRangeError otherwise."""
        start, end = self._log.start, self._log.end
        if entry < start:
            raise TrimmedError(f"{self._log.path} begins at entry {start}, entry {entry} was removed")
        if entry > end:
            raise OutOfRangeError(f"{self._log.path}: expected an entry up to its end, {end}, found {entry}")
        return entry

    def _check_before(self, entry: int) -> int:
        return record_check(self._log.get(entry - 1)) if entry > self._log.start else 0

    # ---- the place of the cursor ----------------------------------------------------------------------------

    @property
    def entry(self) -> int:
        """Number of the first entry that is not acknowledged."""
        self._check_open()
        return self._place.entry

    @property
    def position(self) -> int:
        """Position behind the last acknowledged record. Retention keeps the records from here on."""
        self._check_open()
        return self._place.position

    @property
    def lag(self) -> int:
        """Number of visible entries that are not acknowledged."""
        self._check_open()
        return max(self._log.end - self._place.entry, 0)

    def follow(self, *, timeout: float | None = None) -> Iterator[Record]:
        """Return the records from the cursor's place on, as `follow` of the log does. This does not move the cursor.

        Args:
            timeout: seconds without a new record after which the iteration ends; None: it never ends.

        Raises:
            TrimmedError: retention has removed the records; `cursor_hold_bytes` allows that.
            TruncatedError: the log was cut before the cursor's place, or holds another record there.
        """
        self._check_place()
        return self._log.follow(self._place.entry, timeout=timeout)

    def follow_batches(self, *, timeout: float | None = None) -> Iterator[RecordBatch]:
        """Return batches of records from the cursor's place on. This does not move the cursor.

        Args:
            timeout: seconds without a new record after which the iteration ends; None: it never ends.

        Raises:
            TrimmedError, TruncatedError: as `follow`.
        """
        self._check_place()
        return self._log.follow_batches(self._place.entry, timeout=timeout)

    def _check_place(self) -> None:
        self._check_open()
        place, log = self._place, self._log
        if place.entry < log.start:
            raise TrimmedError(
                f"cursor {self.name} of {log.path} stands at entry {place.entry}, and the log begins at {log.start}: "
                "what lies between was removed; go on with seek()"
            )
        if place.entry > log.end or (
            place.check and place.entry > log.start and self._check_before(place.entry) != place.check
        ):
            raise TruncatedError(
                f"cursor {self.name} of {log.path} stands at entry {place.entry}, and the log was cut before it: the "
                "entries that were read do not exist any more; go on with seek()"
            )

    # ---- moving the cursor ----------------------------------------------------------------------------------

    def advance(self, entry: int) -> None:
        """Move the cursor forward: entries before `entry` are acknowledged. The place is durable when this returns.

        Args:
            entry: a number from the cursor's `entry` to the log's `end`.

        Raises:
            InvalidArgumentError: the number is lower than the cursor's; `seek` moves it back.
            OutOfRangeError: the number is beyond the end of the log.
            DiskError: the disk refused the write; the cursor has not moved.
        """
        as_int("entry", entry)
        with self._lock:
            self._check_open()
            if entry < self._place.entry:
                raise InvalidArgumentError(
                    f"cursor {self.name}: expected entry {self._place.entry}, where it stands, or more, found {entry}; "
                    "seek() moves it back"
                )
            if entry > self._place.entry:
                self._write(self._check_held(entry))

    def seek(self, entry: int) -> None:
        """Move the cursor to any entry that the log holds, or to its end. The new place is durable when this returns.

        Args:
            entry: number of the first entry that is not acknowledged.

        Raises:
            TrimmedError, OutOfRangeError: the log does not hold the entry.
            DiskError: the disk refused the write; the cursor has not moved.
        """
        as_int("entry", entry)
        with self._lock:
            self._check_open()
            if entry >= self._place.entry:
                self._write(self._check_held(entry))
                return
            with retention_held(self._log.path, HELD_S):
                self._write(self._check_held(entry))

    def _write(self, entry: int) -> None:
        position, check = self._log.position_of(entry), self._check_before(entry)
        self._store(CursorPlace(self._place.uuid, position, entry, check, self._place.sequence + 1))

    def _store(self, place: CursorPlace) -> None:
        self._files.write_sync(self._fd, place.encode(), (place.sequence & 1) * SLOT_BYTES)
        self._place = place

    advance_async = in_thread(advance)
    seek_async = in_thread(seek)

    # ---- closing --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"cursor {self.name} was opened by process {self._pid}; open it again in this one")
        if self._fd < 0:
            raise ClosedError(f"cursor {self.name} was closed")
        self._log.check_open()

    def delete(self) -> None:
        """Delete the cursor, and close this handle. Retention no longer keeps entries for it."""
        with self._lock:
            self._check_open()
            self._files.remove(self._path)
            self._files.sync_directory(self._path.parent)
        self.close()

    delete_async = in_thread(delete)

    def close(self) -> None:
        """Close this handle; the cursor keeps its place. Closing twice has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"<LogCursor {self.name!r} of {str(self._log.path)!r} at entry {self._place.entry}>"


def record_check(record: Record) -> int:
    """Return a checksum that differs for another record in the same place; never 0."""
    return crc32c(record.raw[:_RECORD_HEAD]) or 1


def check_name(name: str) -> str:
    """Return the name of a cursor if it is valid. Raises WrongTypeError or InvalidArgumentError otherwise."""
    if _NAME.fullmatch(check_text("name", name)) is None:
        raise InvalidArgumentError(
            "cursor: expected a name of 1 to 100 letters, digits, '.', '_' and '-' that begins with a letter or a "
            f"digit, found {name!r}"
        )
    return name


def cursor_path(directory: Path, name: str) -> Path:
    return directory / names.CURSORS / f"{name}.cursor"


def load_place(path: Path) -> CursorPlace:
    """Return the newest intact place in a cursor's file.

    Raises FileNotFoundError if the cursor does not exist, CorruptionError if no slot is intact, FormatVersionError if a
    newer version wrote it.
    """
    with open_reading(path) as file:
        data = file.read(2 * SLOT_BYTES)
    slots = [CursorPlace.decode(data[at : at + SLOT_BYTES], path) for at in (0, SLOT_BYTES)]
    places = [place for place in slots if place is not None]
    if not places:
        raise CorruptionError(
            path, 0, "a cursor's place in one of two slots", "none intact; remove the file to give it up"
        )
    return max(places, key=lambda place: place.sequence)


def cursor_places(directory: Path, uuid: bytes) -> dict[str, CursorPlace]:
    """Return the cursors of a log by their names, without those that are deleted meanwhile.

    Raises CorruptionError and FormatVersionError as `load_place` does.
    """
    places: dict[str, CursorPlace] = {}
    folder = directory / names.CURSORS
    try:
        paths = sorted(folder.glob("*.cursor"))
    except FileNotFoundError:
        return places
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            place = load_place(path)
            if place.uuid == uuid:
                places[path.stem] = place
    return places


def held_from(directory: Path, uuid: bytes, end: int, hold_bytes: int | None) -> int:
    """Return the position from which on a log's cursors hold its records; 1 << 62 if no cursor does.

    Args:
        directory: directory of the log.
        uuid: uuid of the log.
        end: position of the end of the log.
        hold_bytes: cursors further behind the end hold no records; None: all cursors do.

    Raises the errors of `cursor_places`: the place of a damaged cursor is unknown, so no segment may be removed.
    """
    positions = [place.position for place in cursor_places(directory, uuid).values()]
    if hold_bytes is not None:
        positions = [position for position in positions if end - position <= hold_bytes]
    return min(positions, default=1 << 62)


@contextlib.contextmanager
def retention_held(directory: Path, timeout: float) -> Iterator[None]:
    """Hold a lock on the log's directory in a `with` block, so that no other process creates cursors or runs retention.

    directory: directory of the log. timeout: seconds to wait for the lock.

    Raises LockedError if another process holds the lock for that long.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                raise LockedError(directory, None, "another process creates a cursor or removes segments; try again")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
