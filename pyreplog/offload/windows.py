"""A part of an offloaded segment, of which one window at a time is in memory.

A window holds the fetched bytes as a `Segment`, at their offset, so that it is scanned like a segment file. It lives as
long as something refers to it or to one of its batches.
"""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import decode_header
from pyreplog.errors import ObjectCorruptionError
from pyreplog.offload.index import in_memory
from pyreplog.offload.manifest import LogIdentity, SealedObject
from pyreplog.offload.storage import Storage

WINDOW_BYTES = 8 << 20
"""Size of a window; at least the header of a record."""


class ObjectWindow(NamedTuple):
    """Bytes [start, stop) of a segment."""

    segment: Segment
    start: int
    stop: int


class Windows:
    """Windows over the records of a segment that begin from `start` to before `until`. For one thread.

    Bytes after `until` are fetched only if the last record, or a search for an intact one, needs them. All calls raise
    ObjectCorruptionError, StorageError, and NotALogError if this host does not see the directory.
    """

    def __init__(self, storage: Storage, log: LogIdentity, item: SealedObject, start: int, until: int) -> None:
        """Check by size and header that the object is the one in the manifest."""
        self._storage, self._log, self._item, self._until = storage, log, item, until
        self.url = storage.of(item.name)
        size = storage.size(item.name)
        if size != item.length:
            size_text = "no object" if size is None else f"{size} bytes"
            raise ObjectCorruptionError(self.url, item.base, f"an object of {item.length} bytes", size_text)
        if start == HEADER_BYTES:
            data = storage.read(item.name, 0, min(HEADER_BYTES + WINDOW_BYTES, until))
        else:
            data = storage.read(item.name, 0, HEADER_BYTES)
        self._check_header(data[:HEADER_BYTES])
        self._window = self._made(HEADER_BYTES, data[HEADER_BYTES:])

    def _check_header(self, block: bytes) -> None:
        item = self._item
        wanted = (self._log.uuid, item.base, self._log.segment_bytes, item.first_entry, item.epoch, item.version)
        header = decode_header(self.url, block)
        if header != wanted:
            raise ObjectCorruptionError(
                self.url, item.base, f"the segment at {item.base} of log {self._log.uuid.hex()}, epoch {item.epoch}",
                f"that at {header.base} of log {header.uuid.hex()}, epoch {header.epoch}",
            )  # fmt: skip

    def at(self, offset: int) -> ObjectWindow:
        """Return the window with the byte at an offset."""
        if not self._window.start <= offset < self._window.stop:
            self._fetch(offset, min(offset + WINDOW_BYTES, self._until))
        return self._window

    def widen(self, offset: int) -> bool:
        """Fetch a larger window for a record that may exceed the current one. Return whether one was fetched."""
        window = self._window
        if window.start != offset and window.stop < self._until:
            self._fetch(offset, min(offset + WINDOW_BYTES, self._until))
            return True
        stop = offset + (int.from_bytes(window.segment.bytes_at(offset, 4), "little") + 7) // 8 * 8
        if not window.stop < stop <= self._item.stop:
            return False
        self._fetch(offset, stop)
        return True

    def rest(self, offset: int) -> ObjectWindow:
        """Return a window from an offset to the end of the segment."""
        if offset < self._window.start or self._window.stop < self._item.stop:
            self._fetch(offset, self._item.stop)
        return self._window

    def _fetch(self, start: int, stop: int) -> None:
        self._window = self._made(start, self._storage.read(self._item.name, start, stop))

    def _made(self, start: int, data: bytes) -> ObjectWindow:
        return ObjectWindow(in_memory(self.url, self._log, self._item, start, data), start, start + len(data))
