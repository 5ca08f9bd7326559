"""Copies the sealed segments of a log below a URL: segments and indexes first, then the manifest that names them.

Steps for each segment; FORMAT.md says what a crash between two of them leaves behind:

1. write the object of the segment, whose name contains its CRC; then that of its index 2. after each GiB, and at the
end: write the manifest of the next generation, unless that generation exists 3. remove all manifests but the last two

Nothing that a manifest names is changed or removed, so that a planned read can finish.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    InvalidArgumentError,
    NotALogError,
    ObjectCorruptionError,
    OffloadConflictError,
    StorageError,
    TrimmedError,
    TruncatedError,
    UnnumberedError,
)
from pyreplog.log import names, recovery
from pyreplog.log.backup.copying import BLANK_BYTES
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.fsck import survey
from pyreplog.log.fsck.locked_segment import map_locked
from pyreplog.log.headers import read_header
from pyreplog.log.reader import LogReader
from pyreplog.offload import index as indexes
from pyreplog.offload import manifest as manifests
from pyreplog.offload.manifest import SEGMENTS, Offloaded, SealedObject
from pyreplog.offload.storage import BLOCK_BYTES, Storage, options_text

Progress = Callable[[int, int], object]
"""Called with (bytes copied, entries copied) in all."""

PUBLISH_BYTES = 1 << 30
"""Bytes after which a manifest is written, so that an offload that is killed need not start again."""

_STEP_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Copied(NamedTuple):
    """The result of an offload.

    Attributes:
        manifest: the manifest that was written last.
        segments: segments that were copied.
        bytes: bytes that were copied.
        replaced: segments that are no longer in the manifest, since the log was cut before their ends.
    """

    manifest: Offloaded
    segments: int
    bytes: int
    replaced: int


def offload(
    path: Path | str, url: str, *, storage_options: dict[str, Any] | None = None, verify: bool = True,
    progress: Progress | None = None, files: Files | None = None,
) -> Copied:  # fmt: skip
    """Copy the sealed segments of a log to an object store, with an index of each.

    Existing objects are kept, even if the log was trimmed since. Missing, short or damaged objects are copied again, as
    long as the log has their segment. Every record is verified before it is copied. Any process may call it, with or
    without a writer of the log. If two processes do at the same time, one of them gets OffloadConflictError.

    Args:
        path: directory of the log.
        url: where the objects lie, as "s3://bucket/prefix" or "file:///directory".
        storage_options: options of fsspec's file system, such as credentials.
        verify: read all existing objects, and compare their checksums with the manifest. False: compare only their
            sizes.
        progress: called with the bytes and the entries copied so far.
        files: access to the disk if `url` is a directory, which tests replace; None: the disk.

    Returns:
        What was copied.

    Raises:
        NotALogError: `path` holds no log.
        UnnumberedError: the log is that of a bookie.
        CorruptionError: the log is damaged; or an object is, and the log no longer has its segment.
        TrimmedError: a segment was removed before it was copied, and segments before it were copied earlier.
        TruncatedError: the log was cut meanwhile; begin again.
        InvalidArgumentError: `url` holds another log, or lies in this one.
        StorageError: the object store cannot be reached, denies access, or failed.
        ConfigError: `url` or `storage_options` is invalid.
        MissingExtraError: fsspec, or the library for this kind of URL, is not installed.
        OffloadConflictError: another offload stored its manifest first.

    Example:
        ```python
        copied = offload("data/orders", "s3://bucket/orders")
        print(copied.segments, copied.manifest.end)
        ```

    See docs/spark.md.
    """
    source, storage = Path(path), Storage(url, options_text(storage_options or {}), files or RealFiles())
    if storage.folder is not None and storage.folder.resolve().is_relative_to(source.resolve()):
        raise InvalidArgumentError(f"url: expected a place outside the log {source}, found {url}")
    with LogReader(source) as log:
        return _Offload(source, storage, progress, verify=verify).run(log.start_position, log.end_position)


@dataclass
class _Local:
    """A sealed segment of the log."""

    segment: Segment
    index: bytes
    item: SealedObject


class _Wrong(NamedTuple):
    """An object that differs from the manifest."""

    name: str
    expected: str
    found: str


class _Offload:
    """One run of `offload`."""

    def __init__(self, source: Path, storage: Storage, progress: Progress | None, *, verify: bool) -> None:
        self._source, self._storage, self._progress, self._verify = source, storage, progress, verify
        self._epoch, _ = survey.generation(source)
        self._done: list[SealedObject] = []
        self._copied, self._bytes, self._entries, self._unpublished = 0, 0, 0, 0

    def run(self, start: int, end: int) -> Copied:
        """Copy the log between two positions."""
        self._storage.sweep(SEGMENTS)
        self._storage.sweep(manifests.MANIFESTS)
        self._known = known = self._published(start)
        replaced = self._keep(known, start, end)
        size = known.segment_bytes
        for base in self._missing(start, end, size):
            try:
                local = self._verify_segment(base)
            except TrimmedError:
                if self._done:
                    raise
                continue  # the segment was trimmed just now: the copy begins after it
            self._copy(local)
            self._done.append(local.item)
            if self._unpublished >= PUBLISH_BYTES:
                self._publish()
        if tuple(self._done) != self._known.segments or self._known.epoch != self._epoch or not self._known.generation:
            self._publish()
        return Copied(self._known, self._copied, self._bytes, replaced)

    def _published(self, start: int) -> Offloaded:
        """Return the current manifest; an empty one of generation 0 if there is none."""
        base = next((base for base in names.segment_bases(self._source) if base >= start), None)
        if base is None:
            raise NotALogError(f"{self._source} holds no segment")
        uuid, _, size, first, _, _ = read_header(names.segment_path(self._source, base))
        if first == -1:
            raise UnnumberedError(self._source)
        try:
            manifest = manifests.load(self._storage)
        except NotALogError:
            return Offloaded(
                uuid=uuid.hex(), segment_bytes=size, epoch=self._epoch, generation=0, token="", created=0, segments=()
            )  # fmt: skip
        if manifest.identity != (uuid, size):
            raise InvalidArgumentError(
                f"{self._storage.url}: expected log {uuid.hex()} of {self._source}, or nothing, found log "
                f"{manifest.uuid}"
            )
        return manifest

    # ---- existing objects ---------------------------------------------------------------------------------------

    def _keep(self, known: Offloaded, start: int, end: int) -> int:
        """Keep the segments in the manifest, as far as the log is the same. Return the number of segments that are
        dropped.

        Sizes are compared, and then checksums. If the log was cut since, the checksums of all its segments are
        compared.
        """
        sizes, was_cut = self._storage.sizes(SEGMENTS), known.epoch != self._epoch
        for number, item in enumerate(known.segments):
            wrong = self._wrong(item, sizes)
            is_whole = wrong is None
            if not is_whole or was_cut:
                is_in_log = start <= item.base <= end - known.segment_bytes
                local = self._try(item.base) if is_in_log else None
                if (local is not None and local.item != item) or (was_cut and not is_in_log and item.base >= start):
                    logger.warning("%s was cut: its copy is replaced from position %d on", self._source, item.base)
                    return len(known.segments) - number
                if wrong is not None:
                    self._repair(item, local, wrong)
            self._done.append(item)
        return 0

    def _try(self, base: int) -> _Local | None:
        """Return a verified sealed segment; None: it was trimmed just now. Raises CorruptionError."""
        try:
            return self._verify_segment(base)
        except TrimmedError:
            return None

    def _wrong(self, item: SealedObject, sizes: dict[str, int]) -> _Wrong | None:
        """Return the object of a segment that differs from the manifest; None: none does."""
        objects = (
            (item.name, item.length, item.crc32c),
            (item.index_name, item.index_bytes, item.index_crc32c),
        )
        for name, size, _ in objects:
            if sizes.get(name) != size:
                return _Wrong(name, f"{size} bytes", f"{sizes[name]} bytes" if name in sizes else "no object")
        for name, size, checksum in objects if self._verify else ():
            actual = 0
            for at in range(0, size, BLOCK_BYTES):
                actual = crc32c(self._storage.read(name, at, min(at + BLOCK_BYTES, size)), actual)
            if actual != checksum:
                return _Wrong(name, f"CRC-32C {checksum:#010x}", f"{actual:#010x}")
        return None

    def _repair(self, item: SealedObject, local: _Local | None, wrong: _Wrong) -> None:
        """Copy a segment again, one of whose objects is damaged.

        Raises ObjectCorruptionError if the log no longer has it.
        """
        if local is None:
            expected = f"{wrong.expected}, of a segment that the log no longer has"
            raise ObjectCorruptionError(self._storage.of(wrong.name), item.base, expected, wrong.found)
        logger.warning(
            "%s: found %s, expected %s; copying it again", self._storage.of(wrong.name), wrong.found, wrong.expected
        )
        self._copy(local)

    # ---- copying ------------------------------------------------------------------------------------------------

    def _missing(self, start: int, end: int, size: int) -> Iterator[int]:
        """Yield the bases of sealed segments that are to be copied.

        Raises TrimmedError if there is a gap before them.
        """
        first = self._done[-1].base + size if self._done else start
        if first < start:
            raise TrimmedError(
                f"{self._source}: the segments from position {first} to before {start} were removed before they were "
                f"copied, and are not in {self._storage.url}: offload to another URL"
            )
        yield from range(first, end - size + 1, size)

    def _verify_segment(self, base: int) -> _Local:
        """Return a verified sealed segment. Raises TrimmedError and CorruptionError."""
        segment = map_locked(self._source, base)
        index = SparseIndex(segment.size)
        stop, status = segment.verify(index, HEADER_BYTES, segment.size)
        if status != recovery.BLANK:
            raise segment.fault(stop, status)
        data, low, high = indexes.encode(segment, index)
        length, crc = stop + BLANK_BYTES, 0
        for part in _parts(segment, length):
            crc = crc32c(part, crc)
        item = SealedObject(
            base=base, first_entry=segment.first_entry, epoch=segment.epoch, stop=stop, entries=index.entries,
            crc32c=crc, index_bytes=len(data), index_crc32c=crc32c(data), time_low=low, time_high=high,
            version=segment.version,
        )  # fmt: skip
        return _Local(segment, data, item)

    def _copy(self, local: _Local) -> None:
        item = local.item
        self._put(item.name, item.length, _parts(local.segment, item.length))
        self._put(item.index_name, item.index_bytes, [local.index])
        self._copied, self._bytes = self._copied + 1, self._bytes + item.length
        self._entries, self._unpublished = self._entries + item.entries, self._unpublished + item.length
        if self._progress is not None:
            self._progress(self._bytes, self._entries)

    def _put(self, name: str, size: int, parts: Iterable[bytes | memoryview]) -> None:
        self._storage.put(name, parts)
        stored = self._storage.size(name)
        if stored != size:
            raise StorageError(
                f"{self._storage.of(name)}: expected an object of {size} bytes after writing it, found {stored}"
            )

    def _publish(self) -> None:
        """Write the manifest of the next generation. Raises OffloadConflictError, TruncatedError and StorageError."""
        if survey.generation(self._source) != (self._epoch, False):
            raise TruncatedError(f"{self._source} was cut while it was copied; start again")
        last = self._known.generation
        manifest = replace(
            self._known, epoch=self._epoch, generation=last + 1, token=secrets.token_hex(16),
            created=time.time_ns() // 1000, segments=tuple(self._done),
        )  # fmt: skip
        data = manifest.encode()
        if not self._storage.create(manifests.name_of(last + 1), data):
            self._check_own(last + 1, data)
        stored = manifests.generations(self._storage)
        if max(stored, default=0) != last + 1:  # other offloads went on, and removed this generation
            self._storage.remove(manifests.name_of(last + 1))
            raise self._conflict(max(stored, default=0))
        for generation in stored:
            if generation < last:
                self._storage.remove(manifests.name_of(generation))
        self._known, self._unpublished = manifest, 0

    def _check_own(self, generation: int, data: bytes) -> None:
        """Raise OffloadConflictError unless this run wrote the generation.

        The reply to a write may be lost, and the store asked again.
        """
        name = manifests.name_of(generation)
        if self._storage.size(name) != len(data) or self._storage.read(name, 0, len(data)) != data:
            raise self._conflict(generation)

    def _conflict(self, generation: int) -> OffloadConflictError:
        return OffloadConflictError(
            f"{self._storage.url}: another offload has stored generation {generation} meanwhile; run this one again"
        )


def _parts(segment: Segment, length: int) -> Iterator[memoryview]:
    """Yield the first bytes of a segment."""
    for at in range(0, length, _STEP_BYTES):
        yield segment.view(at, min(_STEP_BYTES, length - at))
