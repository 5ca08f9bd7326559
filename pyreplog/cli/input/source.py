"""What `ingest` reads: a file or a pipe, its bytes counted and checksummed as they are consumed."""

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
    """A row of the source is not of the format.

    `line` counts from 1, `offset` is the byte of the source where the row begins.
    """

    exit_code = 7

    def __init__(self, source: str, line: int, offset: int, expected: str, found: str) -> None:
        self.source, self.line, self.offset, self.expected, self.found = source, line, offset, expected, found
        super().__init__(f"{source} line {line} (byte {offset}): expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[MalformedRowError], tuple[str, int, int, str, str]]:
        return type(self), (self.source, self.line, self.offset, self.expected, self.found)


class SourceChangedError(ReplogError):
    """The source is no longer what an earlier run ingested a part of; nothing was appended."""

    exit_code = 8


@dataclass(frozen=True)
class SourcePosition:
    """A point between two rows of a source: bytes before it, number of the line after it, CRC-32C of all before."""

    offset: int = 0
    line: int = 1
    crc: int = 0

    def after(self, data: bytes) -> SourcePosition:
        return SourcePosition(self.offset + len(data), self.line + data.count(b"\n"), crc32c(data, self.crc))


class InputSource:
    """A stream of bytes with a place in it. `-` is standard input; a pipe is as good as a file.

    name: what the log remembers the source by; None for standard input that was given no name, which is not
    remembered. size: bytes of the file, None when that cannot be known.
    """

    def __init__(self, path: str, name: str | None) -> None:
        if path == "-" and sys.stdin is None:
            raise InvalidArgumentError("standard input is closed; name a file, or redirect it")
        self.label = "standard input" if path == "-" else path
        self.name = name if name is not None or path == "-" else str(Path(path).resolve())
        self._fd = os.dup(_STANDARD_INPUT) if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self._fd)
            raise InvalidArgumentError(f"{path} is a directory; a source is a file or a pipe")
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self.place = SourcePosition()
        self.at_end = False
        self._buffer = b""
        self._at = 0

    @property
    def pending(self) -> bytes:
        """Bytes read and not consumed yet."""
        return self._buffer[self._at :]

    def fill(self) -> bool:
        """Read some more behind the pending bytes; False at the end of the source."""
        block = os.read(self._fd, _BLOCK_BYTES)
        self.at_end = not block
        self._buffer, self._at = self.pending + block, 0
        return not self.at_end

    def consume(self, length: int) -> None:
        """Move the place past the next `length` pending bytes (past all of them, when there are fewer)."""
        data = self._buffer[self._at : self._at + length]
        self.place = self.place.after(data)
        self._at += len(data)

    def skip_to(self, place: SourcePosition) -> None:
        """Consume all before `place`. SourceChangedError when those are not the bytes that were there before."""
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
