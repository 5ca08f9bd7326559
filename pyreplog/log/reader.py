"""LogReader: a read-only handle, in any process, that follows the live tail of a log."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from pyreplog._native.segment import Segment
from pyreplog._native.sparse import SparseIndex
from pyreplog._native.tail import Tail
from pyreplog.errors import ClosedError, ForkedError, NotALogError, ReadOnlyError, ReplogError, TrimmedError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import handles, indexes, names, recovery, truncation
from pyreplog.log.access import Access
from pyreplog.log.files import RealFiles, boot_id, lock_range
from pyreplog.log.watcher import Watcher
from pyreplog.purgatory import Purgatory

_POLL_S = 0.01


class LogReader(Access):
    """A log opened for reading; made by `pyreplog.open(path, mode="r")`.

    Sees what the writer publishes, at once; needs no writer. Any thread may use it. It never changes a file of the log
    (a page it may write only carries the request to be woken).
    """

    def __init__(self, path: Path) -> None:
        recovery.check_directory(path)
        if not path.is_dir():
            raise NotALogError(f"{path} does not exist")
        self.path = path
        self._pid = os.getpid()
        self._files = RealFiles()
        self._error: ReplogError | None = None
        self._lock = threading.RLock()  # the table of segments and their indexes
        self._live = self._open_tail()
        if self._live:
            self._use_tail(self.tail, trusted=True)
            self._rebuild()
        else:
            self._settle()
        handles.opened(self)
        self._purgatory = Purgatory()
        self._watcher = Watcher(self.tail, self._purgatory, self._sleep) if self.tail is not None else None

    def _open_tail(self) -> bool:
        """Map the tail page; whether it tells the truth (written since this boot, by a writer of this log)."""
        path = self.path / names.TAIL
        checkpoint = checkpoints.load(self.path)
        writable = os.access(path, os.W_OK)
        try:
            with path.open("r+b" if writable else "rb") as file:
                tail = Tail(file, writable=writable)
        except (OSError, ValueError) as error:
            if checkpoint is None and not names.segment_bases(self.path):
                raise NotALogError(f"{self.path} holds no log") from error
            return False
        self._use_tail(tail, trusted=False)
        return checkpoint is not None and tail.belongs_to(boot_id(), checkpoint.uuid) and tail.end > 0

    def _settle(self) -> None:
        """No writer since the boot: find the end as recovery does, changing nothing."""
        checkpoint, wanted = checkpoints.load(self.path), truncation.pending(self.path)
        if checkpoint is not None and wanted is not None:  # a truncation that the next writer finishes
            checkpoint = truncation.as_if_done(wanted, checkpoint)
        found = recovery.recover(self.path, self._files, checkpoint, writable=False, stop=wanted)
        self._settled_start = found.checkpoint.start, found.files[0].first_entry if found.files else found.entry
        opened = {segment.base: segment for segment in found.opened}
        self._set_segments([(file.base, file.first_entry, opened.get(file.base)) for file in found.files])
        self._set_visible_entry(found.entry)
        self._settled_end = found.end

    # ---- what Access and the native side ask for ------------------------------------------------------------

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self.path} was opened by process {self._pid}; open it again in this one")
        if self._error is not None:
            raise self._error

    def _visible(self) -> int:
        return self.tail.visible if self._live else self._settled_end

    def _rebuild(self) -> None:
        """Read the table of segments anew."""
        with self._lock:
            self._check_open()
            rows: list[tuple[int, int, Segment | None]] = []
            truncations, visible = self.tail.truncations, self._visible()
            for base in names.segment_bases(self.path):
                if base < self.tail.start:
                    continue  # trimmed, and on its way out: those behind it may be gone already
                if base >= visible:
                    break
                try:
                    _, found, _, first, _ = recovery.read_header(names.segment_path(self.path, base))
                except FileNotFoundError:
                    continue  # trimmed while we looked
                if found == base and first >= 0:
                    rows.append((base, first, None))
            self._set_segments(rows, truncations)

    def _refresh(self) -> bool:
        with self._lock:
            table = self._segment_table()
            known = table[-1][0] if table else -1
            visible = self._visible()
            for base in names.segment_bases(self.path):
                if known < base < visible:
                    self._push_segment(self._open_segment(base))
                    return True
        return False

    def _open_segment(self, base: int) -> Segment:
        """Map a segment and hold a shared lock on its file, so that the writer does not recycle it."""
        path = names.segment_path(self.path, base)
        try:
            fd = self._files.open(path, writable=False)
        except FileNotFoundError:
            self._rebuild()
            raise TrimmedError(f"the segment at {base} was removed; the log begins at {self.start}") from None
        if not lock_range(fd, exclusive=False):
            os.close(fd)
            self._rebuild()
            raise TrimmedError(f"the segment at {base} is being removed; the log begins at {self.start}")
        segment = Segment(fd, str(path), writable=False)
        if segment.base != base:
            self._rebuild()
            raise TrimmedError(f"the segment at {base} was removed; the log begins at {self.start}")
        return segment

    def _load_index(self, segment: Segment, entry: int) -> None:
        """Index a segment as far as it is visible; if the entry lies beyond, learn of the next segment."""
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
            segment.index = None  # intact, and yet it says too little
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
        else:  # the page cannot be slept on without the right to write it
            time.sleep(min(timeout_us / 1e6, _POLL_S))

    def _forked(self) -> None:
        """In a forked child: refuse everything."""
        self._set_segments([])

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Number of the first entry there is."""
        if not self._live:
            return self._settled_start[1]
        if self.tail.start > super().start_position:  # trimmed since
            self._rebuild()
        return super().start

    @property
    def start_position(self) -> int:
        """Position of the first segment."""
        return super().start_position if self._live else self._settled_start[0]

    @property
    def end(self) -> int:
        """Number of the first entry that may not be read: one more than the last visible one."""
        return self.tail.visible_entry if self._live else self._own_visible_entry

    @property
    def live(self) -> bool:
        """Whether a writer says that it has the log open (it may have been killed since)."""
        return bool(self._live and self.tail.open)

    async def _reached(self, entry: int, timeout: float | None) -> bool:
        if self._watcher is None or not self._live:
            return self.end > entry
        return await self._watcher.reached(entry, timeout)

    def close(self) -> None:
        """Let go of the files. Closing twice is fine; batches and views already given out stay valid."""
        if self._error is not None:
            return
        self._error = ClosedError(f"{self.path} was closed")
        if self._watcher is not None:
            self._watcher.stop(self._error)
        self._set_segments([])

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, *_: object, **__: object) -> NoReturn:
        """Refused: ReadOnlyError."""
        raise ReadOnlyError(f"{self.path} is open for reading; open it with mode='a' to append")

    append_batch = append_columns = submit = submit_batch = truncate = trim = sync = append

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LogReader holds mapped files and cannot be pickled; open the path again")

    def __repr__(self) -> str:
        return f"<LogReader {str(self.path)!r} entries {self.start} to {self.end}>"
