"""The source of `ingest`: a file or a pipe, whose bytes are counted and checksummed as they are consumed."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidArgumentError, ReplogError

_BLOCK_BYTES = 1 << 20
_STANDARD_INPUT = 0


class MalformedRowError(ReplogError):
    """A row of the source does not have the format.

    `line` counts from 1; `offset` is the byte of the source at which the row begins.
    """

    exit_code = 7

    def __init__(self, source: str, line: int, offset: int, expected: str, found: str) -> None:
        self.source, self.line, self.offset, self.expected, self.found = source, line, offset, expected, found
        super().__init__(f"{source} line {line} (byte {offset}): expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[MalformedRowError], tuple[str, int, int, str, str]]:
        return type(self), (self.source, self.line, self.offset, self.expected, self.found)


class SourceChangedError(ReplogError):
    """The source has changed since an earlier run ingested a part of it. Nothing was appended."""

    exit_code = 8


@dataclass(frozen=True)
class SourcePosition:
    """A place between two rows: bytes before it, number of the line after it, CRC-32C of all bytes before it."""

    offset: int = 0
    line: int = 1
    crc: int = 0

    def after(self, data: bytes) -> SourcePosition:
        return SourcePosition(self.offset + len(data), self.line + data.count(b"\n"), crc32c(data, self.crc))


class InputSource:
    """A stream of bytes with a position. `-` is standard input; a pipe works like a file.

    name: name of the source in the log; None: standard input without a name, which is not resumed. size: bytes of the
    file; None: unknown.
    """

    def __init__(self, path: str, name: str | None) -> None:
        if path == "-" and sys.stdin is None:
            raise InvalidArgumentError("standard input is closed; name a file, or redirect standard input")
        self.label = "standard input" if path == "-" else path
        self.name = name if name is not None or path == "-" else str(Path(path).resolve())
        self._fd = os.dup(_STANDARD_INPUT) if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self._fd)
            raise InvalidArgumentError(f"{path} is a directory; expected a file or a pipe")
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self.place = SourcePosition()
        self.at_end = False
        self._buffer = b""
        self._at = 0

    @property
    def pending(self) -> bytes:
        """Bytes that were read and not consumed."""
        return self._buffer[self._at :]

    def fill(self) -> bool:
        """Read more bytes after the pending ones. Return False at the end of the source."""
        block = os.read(self._fd, _BLOCK_BYTES)
        self.at_end = not block
        self._buffer, self._at = self.pending + block, 0
        return not self.at_end

    def consume(self, length: int) -> None:
        """Consume the next `length` pending bytes, or all of them if there are fewer."""
        data = self._buffer[self._at : self._at + length]
        self.place = self.place.after(data)
        self._at += len(data)

    def skip_to(self, place: SourcePosition) -> None:
        """Consume all bytes before `place`. Raises SourceChangedError if they are not those of an earlier run."""
        while self.place.offset < place.offset:
            if self._at == len(self._buffer) and not self.fill():
                raise SourceChangedError(
                    f"{self.label} ends at byte {self.place.offset}, and was ingested up to byte {place.offset} before"
                )
            self.consume(place.offset - self.place.offset)
        if self.place != place:
            raise SourceChangedError(
                f"{self.label} has changed since it was ingested up to byte {place.offset}: expected CRC-32C "
                f"{place.crc:#010x} of the bytes before, found {self.place.crc:#010x}"
            )

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> InputSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
