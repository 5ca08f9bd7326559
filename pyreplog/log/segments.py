"""Making segment files: fresh ones ahead of need, and old ones again.

A recycled file keeps its mapping and its blocks, so that appending to it takes no page fault and no allocation
(4 to 12 times faster than a fresh file). Its old bytes never count: their stamp is that of an earlier life.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path

from pyreplog._native.segment import Segment, encode_header
from pyreplog.errors import DiskError, ReplogError
from pyreplog.log import names
from pyreplog.log.files import Files, lock_range, unlock

PREPARED = -2
"""First entry number in the header of a file that has its place but no record yet."""

_POPULATE_BYTES = 16 << 20

UNNUMBERED = -1
"""First entry number in the header of a log whose records carry their own numbers."""


class SegmentPool:
    """Segment files for the positions to come. Thread-safe.

    `prepared` ones have their final name and a durable directory entry; starting to write one takes no file
    operation that can fail for lack of space.
    """

    def __init__(self, directory: Path, files: Files, *, uuid: bytes, size: int, zeroed: bool, spares: int) -> None:
        self._directory, self._files = directory, files
        self._uuid, self._size, self._zeroed, self._spares = uuid, size, zeroed, spares
        self._lock = threading.Lock()  # next_base and the length of _prepared, together
        self._making = threading.RLock()  # held for as long as a file takes to make
        self._prepared: deque[Segment] = deque()
        self._recycled: list[Segment] = []
        self._spare_number = 1 + max((int(p.stem[6:]) for p in names.spare_paths(directory)), default=0)
        self.next_base = 0
        self.epoch = 0

    def place(self, next_base: int, epoch: int) -> None:
        """The next segment begins at `next_base`; what was prepared for elsewhere goes back to the spares."""
        with self._making:
            while self._prepared:
                self._put_away(self._prepared.pop())
            self.next_base, self.epoch = next_base, epoch

    def quiet(self) -> AbstractContextManager[bool]:
        """While held, no other thread makes a segment: for who removes files behind the log's end."""
        return self._making

    @property
    def ready(self) -> int:
        """How many segments are prepared."""
        return len(self._prepared)

    def wanting(self) -> bool:
        """Whether `prepare` has something to do."""
        return len(self._prepared) < self._spares

    def prepare(self, at_least: int) -> list[Segment]:
        """Make segments until `at_least` are ready, and return those that were made.

        Slow; never on the append path if it can be helped. `take` does not wait for it while another one is ready.
        Errors: DiskFullError, no room; DiskError, the disk fails.
        """
        made: list[Segment] = []
        if len(self._prepared) >= at_least:
            return made
        with self._making:  # whoever was making one may have made enough
            while len(self._prepared) < at_least:
                with self._lock:
                    base = self.next_base + len(self._prepared) * self._size
                path = names.segment_path(self._directory, base)
                try:
                    made.append(self._prepare(base, path))
                except ReplogError:  # a full disk, or a file system that lacks something
                    raise
                except OSError as error:
                    raise DiskError(error.errno, f"{path} cannot be prepared: {error}") from error
                self._prepared.append(made[-1])
        return made

    def populate(self, segment: Segment) -> None:
        """Fault the pages of a prepared segment in, ahead of the appends, which may have begun already.

        Not for a log that syncs: populating marks every page dirty, and the first sync would write the whole file.
        """
        if self._zeroed:
            return
        for offset in range(0, self._size, _POPULATE_BYTES):
            start = max(offset, segment.end & -4096)
            stop = min(offset + _POPULATE_BYTES, self._size)
            if start < stop:
                segment.populate(start, stop - start)

    def _prepare(self, base: int, path: Path) -> Segment:
        segment = self._reuse(base, path) if self._recycled else self._make(base, path)
        try:
            self._files.sync_directory(self._directory)
        except BaseException:
            self._files.remove(path)
            raise
        return segment

    def _make(self, base: int, path: Path) -> Segment:
        fresh = self._directory / f"fresh-{base:020d}.seg"
        self._files.remove(fresh)
        fd = self._files.create(fresh, self._size, zeroed=self._zeroed)
        try:
            self._files.write_sync(fd, self._header(base, PREPARED), 0)
            self._files.rename(fresh, path)
        except BaseException:
            os.close(fd)
            self._files.remove(fresh)
            raise
        return Segment(fd, str(path), writable=True)

    def _reuse(self, base: int, path: Path) -> Segment:
        segment = self._recycled.pop()
        self._files.write(segment.fileno(), self._header(base, PREPARED), 0)
        if self._zeroed:  # a log that syncs: its old bytes are on disk, so this writes one block
            self._files.sync(segment.fileno())
        unlock(segment.fileno())  # a reader that waited with the old name in mind now finds another header
        self._files.rename(Path(segment.path), path)
        segment.reassign(str(path), self._uuid, base, PREPARED, self.epoch)
        return segment

    def _header(self, base: int, first_entry: int) -> bytes:
        return encode_header(self._uuid, base, self._size, first_entry, self.epoch)

    def take(self, first_entry: int) -> Segment:
        """The next segment, now beginning with entry `first_entry`. Prepares one first if none is ready."""
        self.prepare(1)
        segment = self._prepared[0]
        try:
            self._files.write(segment.fileno(), self._header(segment.base, first_entry), 0)
        except OSError as error:  # it stays prepared
            raise DiskError(error.errno, f"{segment.path} cannot be begun: {error}") from error
        with self._lock:
            self._prepared.popleft()
            self.next_base = segment.base + self._size
        segment.reassign(segment.path, self._uuid, segment.base, first_entry, self.epoch)
        return segment

    def retire(self, base: int, segment: Segment | None) -> None:
        """Remove a segment from the log. Its file is recycled unless somebody, in any process, still reads it."""
        self._files.remove(names.index_path(self._directory, base))
        if segment is not None and self._may_recycle(segment):
            self._put_away(segment)
        else:
            self._files.remove(names.segment_path(self._directory, base))
        self._files.sync_directory(self._directory)

    def _may_recycle(self, segment: Segment) -> bool:
        return (
            len(self._recycled) < self._spares
            and segment.writable
            and segment.pinned == 0
            and self._lock_out_readers(segment)
        )

    def _lock_out_readers(self, segment: Segment) -> bool:
        if segment.fileno() < 0:
            segment.set_file(self._files.open(Path(segment.path), writable=True))
        return lock_range(segment.fileno(), exclusive=True)

    def _put_away(self, segment: Segment) -> None:
        path = names.spare_path(self._directory, self._spare_number)
        self._spare_number += 1
        self._files.rename(Path(segment.path), path)
        segment.reassign(str(path), self._uuid, segment.base, PREPARED, self.epoch)
        self._recycled.append(segment)

    def close(self) -> None:
        """Remove what has no place in the log. What a power cut brings back, the next opening removes."""
        with self._making:
            for segment in (*self._prepared, *self._recycled):
                self._files.remove(Path(segment.path))
            self._prepared.clear()
            self._recycled.clear()
