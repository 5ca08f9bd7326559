"""The objects of an offloaded log: a JSON manifest for each generation, written last; the highest generation counts."""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from pyreplog._native.log.segment import HEADER_BYTES, SIZE_MAX, SIZE_MIN
from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import NotALogError, ObjectCorruptionError
from pyreplog.log.backup.copying import BLANK_BYTES
from pyreplog.offload.storage import Storage

FORMAT = "pyreplog offload"
VERSION = 2  # 2: of a log with segments of version 2

MANIFESTS, SEGMENTS = "manifests", "segments"
"""Prefixes of object names."""

_NAME = re.compile(rf"{MANIFESTS}/(\d{{20}})\.json")
_SIZE_MAX = 1 << 30  # of a manifest
_ATTEMPTS = 5
_NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class SealedObject:
    """A sealed segment on object storage, and its index.

    Names contain a CRC: other bytes have another name.

    Attributes:
        base: position of the segment, bytes from the beginning of the log.
        first_entry: number of its first entry.
        epoch: epoch of the segment.
        stop: offset after its last record; a blank record follows and ends the object.
        entries: number of entries.
        crc32c: CRC-32C of the object.
        index_bytes: size of the index, bytes.
        index_crc32c: CRC-32C of the index.
        time_low: append time of its first record, microseconds since 1970-01-01 UTC.
        time_high: append time of its blank record, microseconds since 1970-01-01 UTC.
        version: format version of the segment.
    """

    base: int
    first_entry: int
    epoch: int
    stop: int
    entries: int
    crc32c: int
    index_bytes: int
    index_crc32c: int
    time_low: int
    time_high: int
    version: int = 1

    @property
    def length(self) -> int:
        """Bytes of the object."""
        return self.stop + BLANK_BYTES

    @property
    def end_entry(self) -> int:
        """Number after that of its last entry."""
        return self.first_entry + self.entries

    @property
    def name(self) -> str:
        """Name of the object."""
        return f"{SEGMENTS}/{self.base:020d}-{self.crc32c:08x}.log"

    @property
    def index_name(self) -> str:
        """Name of the index."""
        return f"{SEGMENTS}/{self.base:020d}-{self.index_crc32c:08x}.idx"


class LogIdentity(NamedTuple):
    """The values that all segments of a log share.

    Attributes:
        uuid: identity of the log, 16 bytes.
        segment_bytes: size of a segment file, bytes.
    """

    uuid: bytes
    segment_bytes: int


@dataclass(frozen=True, kw_only=True)
class Offloaded:
    """An offloaded log at one moment.

    Attributes:
        uuid: identity of the log, hexadecimal.
        segment_bytes: size of a segment file, bytes.
        epoch: epoch of the log when it was copied; it grows with every truncation.
        generation: number of the manifest.
        token: identifies the process that wrote the manifest.
        created: time of the manifest, microseconds since 1970-01-01 UTC.
        segments: its objects, in order.
    """

    uuid: str
    segment_bytes: int
    epoch: int
    generation: int
    token: str
    created: int
    segments: tuple[SealedObject, ...]

    @property
    def identity(self) -> LogIdentity:
        """Identity of the log."""
        return LogIdentity(bytes.fromhex(self.uuid), self.segment_bytes)

    @property
    def start(self) -> int:
        """Number of the first entry."""
        return self.segments[0].first_entry if self.segments else 0

    @property
    def end(self) -> int:
        """Number after that of the last entry."""
        return self.segments[-1].end_entry if self.segments else 0

    @property
    def length(self) -> int:
        """Bytes of its objects, without their indexes."""
        return sum(item.length for item in self.segments)

    def encode(self) -> bytes:
        """Return the manifest as it is stored."""
        content, version = asdict(self), max((item.version for item in self.segments), default=1)
        if version == 1:  # as earlier builds wrote it, and read it
            for item in content["segments"]:
                del item["version"]
        return dump_checksummed(FORMAT, version, content)


def name_of(generation: int) -> str:
    return f"{MANIFESTS}/{generation:020d}.json"


def generations(storage: Storage) -> dict[int, int]:
    """Return the stored generations, with the sizes of their manifests. Raises StorageError."""
    sizes = storage.sizes(MANIFESTS)
    return {int(match[1]): size for name, size in sizes.items() if (match := _NAME.fullmatch(name))}


def load(storage: Storage) -> Offloaded:
    """Load the newest manifest of an offloaded log.

    Args:
        storage: where the objects lie.

    Returns:
        The manifest.

    Raises:
        NotALogError: there is no manifest.
        ObjectCorruptionError: the manifest is damaged.
        FormatVersionError: a newer version wrote the manifest.
        StorageError: the object store cannot be reached, denies access, or failed.
    """
    for _ in range(_ATTEMPTS):
        sizes = generations(storage)
        if not sizes:
            break
        newest = max(sizes)
        url = storage.of(name_of(newest))
        if sizes[newest] > _SIZE_MAX:
            raise ObjectCorruptionError(url, 0, f"a manifest of at most {_SIZE_MAX} bytes", f"{sizes[newest]} bytes")
        try:
            data = storage.read(name_of(newest), 0, sizes[newest])
        except ObjectCorruptionError:
            if newest in generations(storage):
                raise
            continue  # a newer generation replaced it
        return _decode(url, newest, data)
    raise NotALogError(f"{storage.url} holds no offloaded log: expected a manifest, found none")


def _decode(url: str, generation: int, data: bytes) -> Offloaded:
    try:
        content = load_checksummed(data, FORMAT, VERSION, url)
        segments = tuple(SealedObject(**item) for item in content["segments"])
        manifest = Offloaded(**{**content, "segments": segments})
        _check(manifest, generation)
    except (ValueError, TypeError, KeyError) as error:
        raise ObjectCorruptionError(url, 0, "an intact manifest of an offloaded log", str(error)) from error
    return manifest


def _check(manifest: Offloaded, generation: int) -> None:
    """Check that numbers are in range, and that segments follow each other. Raises ValueError and TypeError."""
    size = manifest.segment_bytes
    if manifest.generation != generation or len(manifest.identity.uuid) != 16 or not SIZE_MIN <= size <= SIZE_MAX:
        raise ValueError(f"generation {manifest.generation}, log {manifest.uuid}, segments of {size} bytes")
    for item in manifest.segments:
        numbers = [getattr(item, field.name) for field in fields(item)]
        is_valid = all(isinstance(number, int) and 0 <= number <= _NUMBER_MAX for number in numbers)
        is_valid = is_valid and max(item.epoch, item.crc32c, item.index_crc32c) < 1 << 32
        is_valid = is_valid and 1 <= item.version <= VERSION
        is_valid = is_valid and item.base % size == 0 and HEADER_BYTES <= item.stop <= size - BLANK_BYTES
        if not is_valid or item.index_bytes > size or item.end_entry > _NUMBER_MAX:
            raise ValueError(f"a number is out of range in the segment at {item.base}")
    for before, item in itertools.pairwise(manifest.segments):
        if (before.base + size, before.end_entry) != (item.base, item.first_entry):
            raise ValueError(f"the segment at {item.base} does not follow the one at {before.base}")
