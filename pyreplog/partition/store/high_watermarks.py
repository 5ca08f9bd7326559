"""The file `high_watermarks` of a broker: the high watermarks of its replicas, as the broker knows them.

A log does not contain its high watermark. Without the file, a follower shows no records after a start until it learns
the high watermark from a leader, and a leader shows no records until its followers have fetched. So no record is lost
with the file; a damaged file is ignored, and an old one only has lower high watermarks. FORMAT.md, "High watermarks of
a broker".

An entry has the leader epoch in which the high watermark lies, with its start. If the log was truncated or reset since,
its epochs may be others: the high watermark is lowered to the common prefix, as between two replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyreplog.errors import CorruptionError, InvalidMessageError
from pyreplog.log.files import Files, RealFiles
from pyreplog.regular_files import read_regular
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart, read_term, seal, unseal, write_term

logger = logging.getLogger(__name__)

FILE_NAME = "high_watermarks"
MAGIC = b"RPHIGHW1"
PARTITIONS_MAX = 1 << 20
FILE_MAX = 1 << 29  # bytes

_UUID_BYTES = 16


class StoredHighWatermark(NamedTuple):
    """A high watermark, with the fields by which it is compared with the present log of a replica.

    Attributes:
        uuid: id of the log, 16 bytes.
        epoch: the leader epoch of the last record before it, and where that epoch begins.
        high_watermark: the high watermark.
        log_start: offset before which records were deleted, though a segment may hold them; 0: no record was deleted.
    """

    uuid: bytes
    epoch: TermStart
    high_watermark: LogPosition
    log_start: int = 0

    def valid_in(self, uuid: bytes, history: History, end: LogPosition) -> LogPosition | None:
        """Return the part of the high watermark that is valid in a log; None: it is one of another log.

        Args:
            uuid: id of the log.
            history: history of the log.
            end: end of the log.
        """
        if uuid != self.uuid:
            return None
        return History((self.epoch,)).common_point(self.high_watermark, history, end)


def encode_high_watermarks(stored: Mapping[str, StoredHighWatermark]) -> bytes:
    """Return the contents of the file."""
    fields = FieldWriter("<")
    fields.numbers("I", len(stored))
    for partition, (uuid, (term, start), high_watermark, log_start) in stored.items():
        entry = FieldWriter("<")
        entry.name(partition)
        entry.raw(uuid)
        entry.mark(high_watermark)
        write_term(entry, term)
        entry.mark(start)
        if log_start:
            entry.numbers("q", log_start)
        encoded = entry.take()
        fields.numbers("H", len(encoded))
        fields.raw(encoded)
    return seal(MAGIC, fields.take())


def decode_high_watermarks(path: Path, data: bytes) -> dict[str, StoredHighWatermark]:
    """Decode the contents of the file.

    Raises:
        CorruptionError: the file is damaged.
        FormatVersionError: a later version wrote the file, with a `min_reader` above this version.
    """
    fields = unseal(path, MAGIC, data)
    try:
        count = fields.count("I", PARTITIONS_MAX)
        return dict(_read_entry(fields) for _ in range(count))
    except InvalidMessageError as error:
        raise CorruptionError(path, 0, "intact high watermarks", str(error)) from error


def _read_entry(fields: FieldReader) -> tuple[str, StoredHighWatermark]:
    (size,) = fields.numbers("H")
    entry = FieldReader("<", b"".join(fields.numbers(f"{size}s")), FILE_NAME)
    partition, (uuid,), high_watermark = entry.name(), entry.numbers(f"{_UUID_BYTES}s"), entry.mark()
    epoch = TermStart(read_term(entry), entry.mark())
    if epoch.start >= high_watermark:
        raise entry.error(f"an epoch begun before {high_watermark}", f"{epoch}")
    log_start = entry.numbers("q")[0] if entry.left >= 8 else 0
    if not 0 <= log_start <= high_watermark.entry:
        raise entry.error(f"a log start of 0 to {high_watermark.entry}", f"{log_start}")
    return partition, StoredHighWatermark(uuid, epoch, high_watermark, log_start)


class HighWatermarkFile:
    """The file `high_watermarks` in the directory of a broker's logs. `store` is durable when it returns. One thread.

    Args:
        directory: the directory, which exists.
        files: the disk; None: the system's.

    Raises:
        FormatVersionError: a later version wrote the file; raised by the constructor.
        OSError: the disk failed.

    Example:
        ```python
        file = HighWatermarkFile(directory)
        log.restore_high_watermark(file.get("orders-0"))
        ...
        file.store({"orders-0": log.stored_high_watermark})
        ```
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._path, self._files = directory / FILE_NAME, files if files is not None else RealFiles()
        self._stored: dict[str, StoredHighWatermark] = {}
        try:
            self._stored = decode_high_watermarks(self._path, read_regular(self._path, FILE_MAX))
        except FileNotFoundError:
            pass
        except CorruptionError as error:
            logger.warning("%s; the high watermarks are learned from the leaders again", error)

    def get(self, partition: str) -> StoredHighWatermark | None:
        """Return the stored high watermark of a partition; None: none is stored."""
        return self._stored.get(partition)

    def names(self) -> list[str]:
        """Return the partitions that have a stored high watermark."""
        return list(self._stored)

    def store(self, high_watermarks: Mapping[str, StoredHighWatermark | None]) -> None:
        """Replace all stored high watermarks, atomically. Partitions with None are not stored.

        Args:
            high_watermarks: `PartitionLog.stored_high_watermark` of each partition.
        """
        stored = {name: mark for name, mark in high_watermarks.items() if mark is not None}
        if stored != self._stored:
            self._files.replace_small(self._path, encode_high_watermarks(stored))
            self._stored = stored
