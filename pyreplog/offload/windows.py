"""A stretch of an offloaded segment, of which one window at a time is in memory.

A Window holds what was fetched as a `Segment`, at its place in it: it is scanned as a segment file is. It lives as long
as anybody holds it, or a batch of it.
"""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segmentheader import decode_header
from pyreplog.errors import ObjectCorruptionError
from pyreplog.offload.index import in_memory
from pyreplog.offload.manifest import LogIdentity, SealedObject
from pyreplog.offload.storage import Storage

WINDOW_BYTES = 8 << 20
"""At least the header of a record."""


class ObjectWindow(NamedTuple):
    """Bytes [start, stop) of a segment."""

    segment: Segment
    start: int
    stop: int


class Windows:
    """Of records of a segment that begin from `start` on and before `until`. What lies behind `until` is fetched only
    as far as the last of them, or a search for the next intact one, needs it. For one thread.

    Errors of all calls: ObjectCorruptionError, StorageError; NotALogError: this host does not see the directory.
    """

    def __init__(self, storage: Storage, log: LogIdentity, item: SealedObject, start: int, until: int) -> None:
        """Whether the object is the one that was stored, as far as its size and its header say."""
        self._storage, self._log, self._item, self._until = storage, log, item, until
        self.url = storage.of(item.name)
        found = storage.size(item.name)
        if found != item.length:
            told = "no object" if found is None else f"{found} bytes"
            raise ObjectCorruptionError(self.url, item.base, f"an object of {item.length} bytes", told)
        if start == HEADER_BYTES:
            data = storage.read(item.name, 0, min(HEADER_BYTES + WINDOW_BYTES, until))
        else:
            data = storage.read(item.name, 0, HEADER_BYTES)
        self._check_header(data[:HEADER_BYTES])
        self._window = self._made(HEADER_BYTES, data[HEADER_BYTES:])

    def _check_header(self, block: bytes) -> None:
        item = self._item
        wanted = (self._log.uuid, item.base, self._log.segment_bytes, item.first_entry, item.epoch)
        found = decode_header(self.url, block)
        if found != wanted:
            raise ObjectCorruptionError(
                self.url, item.base, f"the segment at {item.base} of log {self._log.uuid.hex()}, epoch {item.epoch}",
                f"that at {found[1]} of log {found[0].hex()}, epoch {found[4]}",
            )  # fmt: skip

    def at(self, offset: int) -> ObjectWindow:
        """The window with the byte at an offset."""
        if not self._window.start <= offset < self._window.stop:
            self._fetch(offset, min(offset + WINDOW_BYTES, self._until))
        return self._window

    def widen(self, offset: int) -> bool:
        """Whether another window was fetched, since the record at an offset may reach beyond the one there was."""
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
        """A window from an offset to the end of the segment."""
        if offset < self._window.start or self._window.stop < self._item.stop:
            self._fetch(offset, self._item.stop)
        return self._window

    def _fetch(self, start: int, stop: int) -> None:
        self._window = self._made(start, self._storage.read(self._item.name, start, stop))

    def _made(self, start: int, data: bytes) -> ObjectWindow:
        return ObjectWindow(in_memory(self.url, self._log, self._item, start, data), start, start + len(data))
