"""Making segment files: fresh ones ahead of need, and old ones again.

A recycled file keeps its mapping and its blocks, so that appending to it takes no page fault and no allocation
(4 to 12 times faster than a fresh file). Its old bytes never count: their stamp is that of an earlier life.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pyreplog._native.log.disk import Steps
from pyreplog._native.log.segment import Segment
from pyreplog._native.log.segment_header import COUNTED, encode_header
from pyreplog.errors import DiskError, ReplogError
from pyreplog.log import names
from pyreplog.log.files import Files, disk_error, lock_range
from pyreplog.log.hole_punch import is_hole_punched

PREPARED = -2
"""First entry number in the header of a file that has its place but no record yet."""

_POPULATE_BYTES = 64 << 20

_RUN_BYTES = 256 << 20
"""So much of recycled segments is prepared in one go, or one of them: an append that finds none ready waits for it."""

UNNUMBERED = -1
"""First entry number in the header of a log whose records carry their own numbers."""

Removed = tuple[int, Segment | None]
"""A segment that left the table: its base, and itself where it is mapped."""


class SegmentPool:
    """Segment files for the positions to come. Thread-safe.

    `prepared` ones have their final name and a durable directory entry; starting to write one takes no file
    operation that can fail for lack of space.
    """

    def __init__(
        self, directory: Path, files: Files, *, uuid: bytes, size: int, zeroed: bool, populate: bool, spares: int
    ) -> None:
        """zeroed: written and synced ahead, for a log that syncs. populate: `populates`."""
        self._directory, self._files = directory, files
        self._uuid, self._size, self._spares = uuid, size, spares
        self._zeroed = zeroed
        self.populates = populate
        """Whether segments are mapped ahead, for a log that is written through the map and is not synced often: in
        others it would mark every page dirty, and the first sync would write the whole file."""
        self._lock = threading.Lock()  # next_base and the length of _prepared, together
        self._making = threading.RLock()  # held for as long as a file takes to make
        self._prepared: deque[Segment] = deque()
        self._recycled: list[Segment] = []
        self._halted = False
        self._spare_number = 1 + max((int(p.stem[6:]) for p in names.spare_paths(directory)), default=0)
        self.next_base = 0
        self.epoch = 0
        self.version = 1  # of the format of segments to come

    def place(self, next_base: int, epoch: int) -> None:
        """The next segment begins at `next_base`; what was prepared for elsewhere goes back to the spares."""
        with self._making:
            steps = Steps()
            while self._prepared:
                self._recycled.append(self._prepared.pop())
                self._put_away(self._recycled[-1], steps)
            self._files.run(steps)
            self.next_base, self.epoch = next_base, epoch

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no other thread make, rename or remove a segment file for the length of a `with` block."""
        with self._making:
            yield

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """While held, no other thread makes a segment: for who removes files behind the log's end. After an error in
        there nobody does any more: it would get the name of a file that may still be needed."""
        with self._making:
            try:
                yield
            except BaseException:
                self._halted = True
                raise

    @property
    def ready(self) -> int:
        """How many segments are prepared."""
        return len(self._prepared)

    def wanting(self) -> bool:
        """Whether there is one to prepare."""
        return len(self._prepared) < self._spares

    # ---- preparing ------------------------------------------------------------------------------------------

    def prepare(self, at_least: int) -> None:
        """Make segments until `at_least` are ready, for an append that needs them now.

        Slow. `take` does not wait for it while another one is ready.
        Errors: DiskFullError, no room; DiskError, the disk fails.
        """
        if len(self._prepared) >= at_least:
            return
        with self._making:  # the thread that was making one may have made enough
            while len(self._prepared) < at_least:
                if self._recycled:
                    self._turn_over([], at_least, populate=False)
                else:
                    self._prepared.append(self._make(self._next_base()))

    def prepare_ahead(self) -> None:
        """Prepare what there is of recycled segments, or make one more where there is none, and fault its pages in, so
        that no append pays for it. Errors as prepare."""
        with self._making:
            if self._recycled:
                self._turn_over([], self._spares, populate=True)
                return
            prepared = self._make(self._next_base())
            self._prepared.append(prepared)
        self._populate(prepared)

    def _next_base(self) -> int:
        """Where the segment after the prepared ones begins. For the holder of `_making`."""
        if self._halted:
            raise DiskError(
                errno.EIO,
                f"{self._directory}: a truncation failed half way; close the log and open it again, which completes it",
            )
        with self._lock:
            return self.next_base + len(self._prepared) * self._size

    def _make(self, base: int) -> Segment:
        path, fresh = names.segment_path(self._directory, base), self._directory / f"fresh-{base:020d}.seg"
        try:
            self._files.remove(fresh)
            fd = self._files.create(fresh, self._size, zeroed=self._zeroed)
            steps = Steps()
            steps.write(fd, self._header(base, PREPARED), 0)
            steps.sync(fd)
            steps.rename(fresh, path)
            steps.sync_directory(self._directory)
            try:
                self._files.run(steps)
            except BaseException:
                os.close(fd)
                self._files.remove(fresh)
                self._files.remove(path)
                raise
            return Segment(fd, str(path), writable=True)
        except ReplogError:  # a full disk, or a file system that lacks something
            raise
        except OSError as error:
            raise disk_error(error, f"{path} cannot be prepared") from error

    def _populate(self, segment: Segment) -> None:
        """In pieces, of a segment whose appends may have begun already; what they have passed needs nothing."""
        for offset in range(0, self._size if self.populates else 0, _POPULATE_BYTES):
            start = max(offset, segment.end & -4096)
            stop = min(offset + _POPULATE_BYTES, self._size)
            if start < stop:
                segment.populate(start, stop - start)

    def _header(self, base: int, first_entry: int) -> bytes:
        return encode_header(self._uuid, base, self._size, first_entry, self.epoch, self.version)

    # ---- beginning ------------------------------------------------------------------------------------------

    def take(self, first_entry: int) -> Segment:
        """The next segment, now beginning with entry `first_entry`. Prepares one first if none is ready."""
        self.prepare(1)
        segment = self._prepared[0]
        try:
            self._files.write(segment.fileno(), self._header(segment.base, first_entry), 0)
        except OSError as error:  # it stays prepared
            raise disk_error(error, f"{segment.path} cannot be begun") from error
        with self._lock:
            self._prepared.popleft()
            self.next_base = segment.base + self._size
        segment.reassign(segment.path, self._uuid, segment.base, first_entry, self.epoch)
        return segment

    # ---- recycling ------------------------------------------------------------------------------------------

    def retire(self, removed: list[Removed], *, refill: bool = False) -> None:
        """Remove segments from the log, the first one first. Files are recycled that nobody, in any process, reads.

        refill: and prepare what is wanted of them, as far as they go.
        Errors: OSError, the files may be there or not; DiskError, they are gone, and none was prepared.
        """
        with self._making:
            self._turn_over(removed, self._spares if refill else 0, populate=True)

    def _turn_over(self, removed: list[Removed], at_least: int, *, populate: bool) -> None:
        """Put segments away and recycled ones into place, with one call to the disk. For the holder of `_making`."""
        steps = Steps()
        free = self._recycled + self._put_away_all(removed, steps)
        self._recycled = []  # an interruption leaves files that nobody uses, rather than segments without a file
        put_away, spares, reused = len(steps), list[Path](), list[Segment]()
        most = min(at_least - len(self._prepared), max(_RUN_BYTES // self._size, 1))
        while free and len(reused) < most:
            spares.append(Path(free[-1].path))
            self._reuse(free[-1], self._next_base() + len(reused) * self._size, steps)
            if populate and self.populates:
                steps.populate(free[-1])
            reused.append(free.pop())
        if steps:
            steps.sync_directory(self._directory)
        try:
            self._files.run(steps)
        except OSError as error:
            if not reused or steps.done < put_away:
                raise
            self._recycled = free
            for path in (*spares, *(Path(segment.path) for segment in reused)):
                with contextlib.suppress(OSError):  # a stray file, then: no part of the log
                    self._files.remove(path)
            raise disk_error(error, f"{reused[0].path} cannot be prepared") from error
        self._recycled = free
        self._prepared.extend(reused)

    def _put_away_all(self, removed: list[Removed], steps: Steps) -> list[Segment]:
        """Note how segments leave the disk; those whose files are kept."""
        kept: list[Segment] = []
        room = 2 * self._spares - len(self._recycled) - len(self._prepared)
        while removed:  # no reference is kept to a segment that is not kept
            base, segment = removed.pop(0)
            steps.remove(names.index_path(self._directory, base))
            if segment is not None and len(kept) < room and self._may_recycle(segment):
                self._put_away(segment, steps)
                kept.append(segment)
            else:
                steps.remove(names.segment_path(self._directory, base))
        return kept

    def _may_recycle(self, segment: Segment) -> bool:
        sound = segment.writable and not is_hole_punched(segment)  # which lacks the blocks
        return sound and segment.pinned == 0 and self._lock_out_readers(segment) and self._has_blocks(segment)

    def _has_blocks(self, segment: Segment) -> bool:
        """Whether all of a file is on disk: that of a cleaned segment ends behind its blank."""
        return segment.version < COUNTED or os.fstat(segment.fileno()).st_blocks * 512 >= segment.size

    def _lock_out_readers(self, segment: Segment) -> bool:
        if segment.fileno() < 0:
            try:
                segment.set_file(self._files.open(Path(segment.path), writable=True))
            except OSError:  # too many open files: it is removed in place of being recycled
                return False
        return lock_range(segment.fileno(), exclusive=True)

    def _put_away(self, segment: Segment, steps: Steps) -> None:
        path = names.spare_path(self._directory, self._spare_number)
        self._spare_number += 1
        steps.rename(Path(segment.path), path)
        segment.reassign(str(path), self._uuid, segment.base, PREPARED, self.epoch)

    def _reuse(self, segment: Segment, base: int, steps: Steps) -> None:
        path = names.segment_path(self._directory, base)
        steps.write(segment.fileno(), self._header(base, PREPARED), 0)
        if self._zeroed:  # a log that syncs: its old bytes are on disk, so this writes one block
            steps.sync(segment.fileno())
        steps.unlock(segment.fileno())  # a reader that waited with the old name in mind now finds another header
        steps.rename(Path(segment.path), path)
        segment.reassign(str(path), self._uuid, base, PREPARED, self.epoch)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove what has no place in the log. What a power cut brings back, the next opening removes."""
        steps = Steps()
        with self._making:
            for segment in (*self._prepared, *self._recycled):
                steps.remove(Path(segment.path))
            self._files.run(steps)
            self._prepared.clear()
            self._recycled.clear()
