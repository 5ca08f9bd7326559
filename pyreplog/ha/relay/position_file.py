"""PositionFile: stores the applied position in a file; each entry is applied at least once."""

from __future__ import annotations

import struct
from pathlib import Path

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, FormatVersionError, PositionError
from pyreplog.ha.relay.position import Advance, Applied
from pyreplog.log.files import Files, RealFiles
from pyreplog.regular_files import read_regular

_FILE_MAX = 4096
MAGIC = b"RPAPPL01"
VERSION = 1
_FORM = struct.Struct("<8sIHH16sqqI4x")


class PositionFile:
    """Keeps the applied position in a file: at least once.

    The file has a checksum, and is replaced atomically and synced after the function has returned. After a crash in
    between, the last batch is applied again, so the function must be idempotent. No entry is skipped. FORMAT.md
    describes the file ("Applied position").

    Args:
        path: the file, one for each applier; its directory exists.
        files: access to the disk, which tests replace; None: the disk.

    Example:
        ```python
        store = PositionFile("applied.pos")
        with Applier(node.log, apply, store) as applier:
            applier.start()
        ```

    See docs/relay.md.
    """

    transactional = False

    def __init__(self, path: str | Path, *, files: Files | None = None) -> None:
        self.path = Path(path)
        self._files: Files = files if files is not None else RealFiles()

    def load(self) -> Applied | None:
        """Return the position that is stored; None: the file does not exist.

        Raises:
            CorruptionError: the file is damaged.
            FormatVersionError: a newer version wrote the file.
        """
        try:
            data = read_regular(self.path, _FILE_MAX)
        except FileNotFoundError:
            return None
        if len(data) != _FORM.size:
            raise CorruptionError(self.path, 0, f"{_FORM.size} bytes", f"{len(data)} bytes")
        magic, crc, _, min_reader, log, position, entry, check = _FORM.unpack(data)
        if magic != MAGIC or crc != crc32c(data[12:]):
            raise CorruptionError(self.path, 0, "an intact applied position", data[:12].hex())
        if min_reader > VERSION:
            raise FormatVersionError(self.path, min_reader, VERSION)
        return Applied(log, position, entry, check)

    def begin(self, applied: Applied) -> None:
        """Store the first position.

        Args:
            applied: the position.

        Raises:
            PositionError: a position is stored already.
            DiskFullError: nothing was stored.
            OSError: nothing was stored.
        """
        stored = self.load()
        if stored is not None:
            raise PositionError(f"{self.path} holds a position, entry {stored.entry}, already")
        self._write(applied)

    def save(self, advance: Advance) -> None:
        """Store `advance.after`.

        Args:
            advance: the change.

        Raises:
            PositionError: another applier has moved the position.
            DiskFullError: nothing was stored.
            OSError: nothing was stored.
        """
        applied = self.load()
        if applied != advance.before:
            expected, at = advance.before.entry, "nothing" if applied is None else f"entry {applied.entry}"
            raise PositionError(f"{self.path}: expected entry {expected}, found {at}: another applier writes to it")
        self._write(advance.after)

    def _write(self, applied: Applied) -> None:
        body = _FORM.pack(MAGIC, 0, VERSION, VERSION, *applied)
        data = _FORM.pack(MAGIC, crc32c(body[12:]), VERSION, VERSION, *applied)
        self._files.replace_small(self.path, data)

    def __repr__(self) -> str:
        return f"<PositionFile {str(self.path)!r}>"
