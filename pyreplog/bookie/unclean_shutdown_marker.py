"""The file that says that a bookie may have acknowledged what no disk holds yet, and since which boot of its machine.

A bookie with durability "appended" acknowledges entries from memory. When the power is cut, its log ends earlier, and
cleanly: nothing in it says that more was there. So this file lies beside the log, durably, from before the first
acknowledgement until after the last sync of a clean close; found at a start under another boot, entries may be lost.
(BookKeeper: the DIRTY file of BP-46.)
"""

from __future__ import annotations

from pathlib import Path

from pyreplog.log.files import Files, boot_id
from pyreplog.regular_files import read_regular

_FILE_MAX = 4096
NAME = "unsynced"


class UncleanShutdownMarker:
    """The file in a bookie's directory; it holds the boot id."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / NAME, files

    def tells_of_loss(self) -> bool:
        """Whether it was left there under another boot. A damaged one was, for all that is known."""
        try:
            return read_regular(self._path, _FILE_MAX) != boot_id()
        except FileNotFoundError:
            return False

    def put(self) -> None:
        """From now on memory may hold what the disk does not. Durable when it returns. Errors: OSError."""
        self._files.replace_small(self._path, boot_id())

    def remove(self) -> None:
        """Everything is on disk. Should the file come back with a power cut, some ledgers are in limbo for nothing."""
        self._files.remove(self._path)
