"""A plain file: header, CRC-32C and value, written and flushed per call; what one writes before looking for a log."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c

from benchmarks.peers.peer import Peer

_HEADER = struct.Struct("<IIQq")  # size, CRC, position, time


class PlainFile(Peer):
    title = "file"

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._path = directory / "log"
        self._synced = synced
        self._position = sum(_HEADER.size + len(value) for value in self.values()) if self._path.exists() else 0
        self._file = self._path.open("ab", buffering=1 << 16)
        self._file.truncate(self._position)
        self._reader = os.open(self._path, os.O_RDONLY)

    @staticmethod
    def version() -> str:
        return f"crc32c {crc32c.__version__}"

    def append(self, value: bytes) -> int:
        position = self._position
        self._file.write(_HEADER.pack(len(value), crc32c.crc32c(value), position, time.time_ns()))
        self._file.write(value)
        self._position = position + _HEADER.size + len(value)
        self._finish()
        return position

    def append_batch(self, values: list[bytes]) -> list[int]:
        position, positions, now = self._position, [], time.time_ns()
        write, pack, checksum = self._file.write, _HEADER.pack, crc32c.crc32c
        for value in values:
            write(pack(len(value), checksum(value), position, now))
            write(value)
            positions.append(position)
            position += _HEADER.size + len(value)
        self._position = position
        self._finish()
        return positions

    def _finish(self) -> None:
        self._file.flush()
        if self._synced:
            os.fdatasync(self._file.fileno())

    def scan(self) -> tuple[int, int]:
        count = total = 0
        checksum = crc32c.crc32c
        with self._path.open("rb", buffering=1 << 20) as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                size, expected, _, _ = _HEADER.unpack(header)
                if checksum(file.read(size)) != expected:
                    break
                count += 1
                total += size
        return count, total

    def values(self) -> Iterator[bytes]:
        """All that are intact: a torn one ends the file."""
        with self._path.open("rb", buffering=1 << 20) as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                size, expected, _, _ = _HEADER.unpack(header)
                value = file.read(size)
                if crc32c.crc32c(value) != expected:
                    return
                yield value

    def reader(self) -> Callable[[int], bytes]:
        return self._read

    def _read(self, position: int) -> bytes:
        size, _, _, _ = _HEADER.unpack(os.pread(self._reader, _HEADER.size, position))
        return os.pread(self._reader, size, position + _HEADER.size)

    def close(self) -> None:
        self._file.close()
        os.close(self._reader)
