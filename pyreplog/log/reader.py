"""LogReader: a read-only handle, in any process, that follows the live tail of a log."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from pyreplog import handles
from pyreplog._native.log.segment import Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.log.tail_page import Tail
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    ForkedError,
    NotALogError,
    ReadOnlyError,
    ReplogError,
    TrimmedError,
)
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import indexes, names, recovery, tail_page, truncation
from pyreplog.log.checkpoint import Checkpoint
from pyreplog.log.files import RealFiles, boot_id, share, translate_open_errors
from pyreplog.log.headers import read_header
from pyreplog.log.log_view import LogView
from pyreplog.log.segments import PREPARED
from pyreplog.log.watcher import Watcher
from pyreplog.purgatory import Purgatory

MAPPED_MAX = 256
"""Number of segments that stay mapped. Each needs a descriptor for its shared lock; a process has about a thousand."""

_POLL_S = 0.01  # interval at which a waiting reader polls a tail page that it may not write
_WRITER_CHECK_S = 0.05  # interval at which a waiting reader without a trusted tail page looks for a writer
_ATTEMPTS = 5
_NOT_LIVE = (1 << 32) - 1


class LogReader(LogView):
    """A log that is open for reading; made by `pyreplog.open` with mode "r".

    A reader sees the entries of a running writer as soon as they are published, in any process. It needs no writer: if
    no writer has opened the log since the machine started, the reader finds the end as recovery does. Scans that reach
    the end, waits, and `end` notice a writer that opens the log later. Any thread may use a reader. A reader changes no
    file of the log, except that it requests wake-ups in the tail page. Garbage collection closes a forgotten reader
    with a ResourceWarning.

    Attributes:
        path: directory of the log.

    Example:
        ```python
        with pyreplog.open("data/orders", mode="r") as log:
            for record in log.follow(start=0, timeout=1.0):
                print(record.entry, record.value)
        ```

    See docs/log.md.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = os.getpid()
        self._files = RealFiles()
        self._error: ReplogError | None = None
        self._lock = threading.RLock()  # guards the table of segments, their indexes, and `_live`
        self._live = False  # the tail page tells where the log ends
        self._untrusted_words: tuple[object, ...] = ()  # words of the tail page when it was not trusted last
        self._opened = 0  # segments mapped since `_unmap_idle` has unmapped idle ones
        self._purgatory = Purgatory()
        self._watcher: Watcher | None = None
        with translate_open_errors(path):
            self._open()
        self._opened_at = handles.opened(self)

    def _open(self) -> None:
        self._boot_id = boot_id()
        recovery.check_directory(self.path)
        if not self.path.is_dir():
            raise NotALogError(f"{self.path} does not exist")
        checkpoint = checkpoints.load(self.path)
        if checkpoint is None and not names.segment_bases(self.path):
            raise NotALogError(f"{self.path} holds no log")
        self._uuid = bytes(16) if checkpoint is None else checkpoint.uuid
        if not self._attach():
            self._recover()

    # ---- with a writer, and without ---------------------------------------------------------------------------

    def _attach(self) -> bool:
        """Attach to the tail page if it is trusted by now; return whether the reader is attached."""
        if self._live or self._error is not None:
            return self._live
        with self._lock:
            if not self._live and self._is_tail_trusted():
                rows, truncations = self._read_table()
                self._use_tail(self.tail, trusted=True)
                self._set_segments(rows, truncations)
                self._watcher = Watcher(self.tail, self._purgatory, self._sleep)
                self._live = True
        return self._live

    def _is_tail_trusted(self) -> bool:
        """Return whether the tail page exists, is of this boot and log, and is trusted; see `tail_page.is_trusted`."""
        tail: Tail | None = self.tail
        if tail is None:  # a writer makes the page if it is missing or too short
            tail = tail_page.map_page(self.path, writable=os.access(self.path / names.TAIL, os.W_OK))
            if tail is None:
                return False
            self._use_tail(tail, trusted=False)
        if not tail.belongs_to(self._boot_id, self._uuid):
            return False
        words = tail.open, tail.pid, tail.wakes, tail.visible
        if words == self._untrusted_words:  # no writer has opened the log since the last check
            return False
        if tail_page.is_trusted(self.path, tail, checkpoints.load(self.path), self._boot_id):
            return True
        self._untrusted_words = words
        return False

    def _recover(self) -> None:
        """Find the end as recovery does, without a change on disk: no writer has opened the log since the boot.

        A writer that opens the log meanwhile removes and replaces files, which looks like damage. So damage is
        reported only if the checkpoint has not changed.
        """
        for attempt in range(_ATTEMPTS):
            checkpoint = checkpoints.load(self.path)
            try:
                self._find_end(checkpoint)
                return
            except (FileNotFoundError, CorruptionError) as error:
                if self._attach():
                    return
                unchanged = isinstance(error, CorruptionError) and checkpoints.load(self.path) == checkpoint
                if unchanged and self._recover_before_damage(checkpoint):
                    return
                if unchanged or attempt == _ATTEMPTS - 1:
                    raise

    def _recover_before_damage(self, checkpoint: Checkpoint | None) -> bool:
        """Open a log with a damaged record up to the end in its tail page, so that its intact records can be read.

        Returns False, and changes nothing, if no writer of this boot has left a valid tail page.
        """
        tail: Tail | None = self.tail
        if tail is None or checkpoint is None or tail_page.appended(self.path, checkpoint) != tail.visible:
            return False
        end, entry = tail.visible, tail.visible_entry
        rows = self._rows_of(checkpoint.start, end, checkpoint)
        self._uuid = checkpoint.uuid
        self._recovered_start = checkpoint.start, rows[0][1] if rows else entry
        self._set_segments(rows)
        self._set_visible_entry(entry)
        self._recovered_end = end
        return True

    def _find_end(self, checkpoint: Checkpoint | None) -> None:
        wanted = truncation.pending(self.path)
        if checkpoint is not None and wanted is not None:  # a crash interrupted it; the next writer finishes it
            checkpoint = truncation.as_if_done(wanted, checkpoint)
        recovered = recovery.recover(self.path, self._files, checkpoint, writable=False, stop=wanted)
        self._uuid = recovered.checkpoint.uuid
        first = max(recovered.files[0].first_entry, 0) if recovered.files else recovered.entry
        self._recovered_start = recovered.checkpoint.start, first
        # A read maps and locks a segment again: a writer may recycle the files that recovery has mapped without a lock.
        self._set_segments([(file.base, file.first_entry, None) for file in recovered.files])
        self._set_visible_entry(recovered.entry)
        self._recovered_end = recovered.end

    # ---- methods that LogView and the native base classes call -----------------------------------------------

    def check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _visible(self) -> int:
        return self.tail.visible if self._attach() else self._recovered_end

    def _readable(self) -> int:
        return self.tail.end if self._attach() else self._recovered_end

    @property
    def truncation_count(self) -> int:
        """Number of truncations that the reader has seen. It changes as well when the reader attaches to the tail page,
        since the writer may have truncated the log before."""
        return super().truncation_count if self._live else _NOT_LIVE

    def _rebuild(self) -> None:
        """Read the table of segments again."""
        with self._lock:
            self.check_open()
            if self._attach():
                self._set_segments(*self._read_table())

    def _read_table(self) -> tuple[list[tuple[int, int, Segment | None]], int]:
        """Return the table of segments, and the log's count of truncations at that time.

        A writer publishes that a segment is no part of the log before it removes the file. So a missing segment is an
        error.

        Raises CorruptionError if a segment is missing, damaged, of another log, or has the name of another one.
        """
        while True:
            truncations, visible = self.tail.truncations, self.tail.visible
            checkpoint = checkpoints.load(self.path)
            if checkpoint is None:
                raise CorruptionError(self.path / names.CHECKPOINT, 0, "the checkpoint of an open log", "none intact")
            rows = self._rows_of(self.tail.start, visible, checkpoint)
            if truncations == self.tail.truncations:
                return rows, truncations

    def _rows_of(self, start: int, end: int, checkpoint: Checkpoint) -> list[tuple[int, int, Segment | None]]:
        """Return the rows of the segments from position `start` to before `end`. They may be trimmed meanwhile.

        Raises CorruptionError if a segment is missing or damaged.
        """
        bases = [base for base in names.segment_bases(self.path) if base < end]
        start = max(start, checkpoint.start)
        first_entries = {base: self._first_entry(base) for base in bases if base >= start}
        due = start
        for base in [*first_entries, end]:  # not each base up to `end`: in a damaged page that may be any number
            if due < min(base, end):
                path = names.segment_path(self.path, due)
                raise CorruptionError(path, due, f"a segment of a log that ends at {end}", "no file")
            due = base + checkpoint.segment_bytes
        rows: list[tuple[int, int, Segment | None]] = []
        for base, first in first_entries.items():
            if isinstance(first, int):
                rows.append((base, first, None))
            elif base >= max(self.tail.start, start):  # before that, it was trimmed meanwhile
                raise first
        return rows

    def _first_entry(self, base: int) -> int | CorruptionError:
        """Return the first entry number in the header of the segment at `base`, or the error of a damaged header."""
        path = names.segment_path(self.path, base)
        try:
            header = read_header(path)
        except FileNotFoundError:
            return CorruptionError(path, base, "a segment file", "none")
        except CorruptionError as error:
            return error
        if (header.uuid, header.base) == (self._uuid, base) and header.first_entry != PREPARED:
            return header.first_entry
        expected = f"the segment at {base} of log {self._uuid.hex()}"
        actual = f"that at {header.base} of log {header.uuid.hex()} (first entry {header.first_entry})"
        return CorruptionError(path, base, expected, actual)

    def _refresh(self) -> bool:
        with self._lock:
            table = self._segment_table()
            known = table[-1][0] if table else -1
            end = self._readable()
            for base in names.segment_bases(self.path):
                if known < base < end:
                    self._push_segment(self._open_segment(base))
                    return True
        return False

    def _open_segment(self, base: int) -> Segment:
        """Map a segment and hold a shared lock on its file, so that the writer does not recycle it."""
        path = names.segment_path(self.path, base)
        self._unmap_idle()
        try:
            fd = self._files.open(path, writable=False)
        except FileNotFoundError:
            self._rebuild()
            raise TrimmedError(f"the segment at {base} was removed; the log begins at {self.start}") from None
        if not share(fd):
            self._rebuild()
            raise TrimmedError(f"the segment at {base} is being removed; the log begins at {self.start}")
        segment = Segment(fd, str(path), writable=False)
        if (segment.base, segment.uuid) != (base, self._uuid) or segment.first_entry == PREPARED:
            self._rebuild()
            raise TrimmedError(f"the segment at {base} was removed; the log begins at {self.start}")
        return segment

    def _unmap_idle(self) -> None:
        """Unmap segments without readers, except the last one, once many were mapped. Called before each mapping."""
        with self._lock:
            self._opened += 1
            if self._opened <= MAPPED_MAX:
                return
            self._opened = 0
            for row, (_, _, segment) in enumerate(self._segment_table()[:-1]):
                if segment is not None and not segment.pinned:
                    self._unmap(row)

    def _load_index(self, segment: Segment, entry: int) -> None:
        """Index a segment up to the visible end. If the entry lies behind it, add the next segment to the table."""
        with self._lock:
            self._extend_index(segment, entry)

    def _extend_index(self, segment: Segment, entry: int) -> None:
        extent = self._extent(segment, self._visible())
        if extent == segment.size and segment.index is None:
            indexes.load(self.path, segment)
        want = entry - segment.first_entry
        if segment.index is not None and not segment.index.memory_bytes:  # mapped from its file
            if want < segment.index.entries or self._refresh():
                return
            segment.index = None  # the index file is intact, but covers too few entries
        if segment.index is None:
            segment.index = SparseIndex(segment.size)
        if want >= segment.index.entries:
            offset, status = segment.verify(segment.index, segment.index.end, extent)
            if status not in (0, recovery.BLANK) and want >= segment.index.entries:
                raise segment.fault(offset, status)
        if want >= segment.index.entries and not self._refresh():
            raise segment.fault(min(segment.index.end, segment.size - 32), recovery.ENTRY)

    def _sleep(self, visible: int, timeout_us: int) -> None:
        if self._live and self.tail.writable:
            self.tail.wait_for(visible, timeout_us)
        else:
            time.sleep(min(timeout_us / 1e6, _POLL_S if self._live else _WRITER_CHECK_S))

    def wake(self) -> None:
        if self._live and self.tail.writable:
            self.tail.wake()

    def _after_fork(self) -> None:
        """Refuse all calls in a forked child."""
        self._error = self._parents = ForkedError(
            f"{self.path} was opened by process {self._pid}; open it again in this one"
        )
        self._set_segments([])

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Number of the first entry in the log."""
        self._check_process()
        if not self._attach():
            return self._recovered_start[1]
        if self.tail.start > super().start_position:  # the log was trimmed
            self._rebuild()
        return super().start

    @property
    def start_position(self) -> int:
        """Position of the first segment, bytes from the beginning of the log."""
        self._check_process()
        return super().start_position if self._attach() else self._recovered_start[0]

    @property
    def end(self) -> int:
        """Number of the first entry that may not be read: one more than that of the last visible entry."""
        if self._parents is not None:
            raise self._parents
        return self.tail.visible_entry if self._attach() else self._own_visible_entry

    @property
    def uuid(self) -> bytes:
        """Identity of the log, 16 bytes; a replica has that of its master."""
        self._check_process()
        return self._uuid

    @property
    def segment_bytes(self) -> int:
        """Size of the log's segment files, bytes.

        Raises:
            CorruptionError: the log has no intact checkpoint.
        """
        checkpoint = checkpoints.load(self.path)
        if checkpoint is None:
            raise CorruptionError(self.path / names.CHECKPOINT, 0, "the checkpoint of a log", "none intact")
        return checkpoint.segment_bytes

    @property
    def unreplicated(self) -> bool:
        """Whether a promotion may cut entries that readers see, as `CommitLog.unreplicated`.

        If no node of a replica group has opened the log since the machine started, the commit point is unknown: the
        reader shows all entries, and this is True.
        """
        self._check_process()
        return self.tail.unreplicated if self._attach() else (self.path / names.TERMS).exists()

    @property
    def live(self) -> bool:
        """Whether the tail page says that a writer has the log open. The writer may have been killed since."""
        self._check_process()
        return self._attach() and self.tail.open

    async def _wait_for_entry(self, entry: int, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._attach():  # without a tail page no writer wakes this task, so it polls
            self.check_open()
            left = _WRITER_CHECK_S if deadline is None else min(_WRITER_CHECK_S, deadline - time.monotonic())
            if self.end > entry or left <= 0:
                return self.end > entry
            await asyncio.sleep(left)
        assert self._watcher is not None, "made when the log goes live"
        left_over = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        return await self._watcher.reached(entry, left_over)

    def close(self) -> None:
        """Release the files. Closing twice has no effect. Batches and views that the reader has given stay valid."""
        with self._lock:
            if self._error is not None:
                return
            error = self._error = ClosedError(f"{self.path} was closed")
            self._set_segments([])
        if self._watcher is not None and not sys.is_finalizing():  # a finalizing interpreter has stopped its thread
            self._watcher.stop(error)

    def append(self, *_: object, **__: object) -> NoReturn:
        """Raise ReadOnlyError: a reader cannot change the log.

        Raises:
            ReadOnlyError: always.
        """
        raise ReadOnlyError(f"{self.path} is open for reading; open it with mode='a' to append")

    append_batch = append_columns = append_record_batches = submit = submit_batch = truncate = trim = sync = append

    def __del__(self) -> None:
        if hasattr(self, "_opened_at") and self._error is None and os.getpid() == self._pid:
            handles.warn_of_leak(f"reader of log {self.path}", self, self._opened_at)
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LogReader holds mapped files and cannot be pickled; open the path again")

    def __repr__(self) -> str:
        state = "closed" if self._error is not None else f"entries {self.start} to {self.end}"
        return f"<LogReader {str(self.path)!r} {state}>"
