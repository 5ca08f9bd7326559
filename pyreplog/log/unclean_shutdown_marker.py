"""UncleanShutdownMarker: a file that marks a bookie or broker which may have acknowledged entries not on its disk.

A bookie with durability "appended" acknowledges entries from memory, and so does a broker. After a power cut the log
ends earlier, and has no trace of the lost entries. So this file, which holds the boot id, exists durably from before
the first acknowledgement until after the last sync of a clean close. A node that finds it after another boot may have
lost entries. (BookKeeper: the DIRTY file of BP-46. Kafka: `.kafka_cleanshutdown`, which exists after a clean shutdown
only.)
"""

from __future__ import annotations

from pathlib import Path

from pyreplog.log.files import Files, boot_id
from pyreplog.regular_files import read_regular

_FILE_MAX = 4096
NAME = "unsynced"


class UncleanShutdownMarker:
    """The marker file in the directory of a bookie or a broker."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / NAME, files

    def last_shutdown_was_unclean(self) -> bool:
        """Return whether entries may be lost: the file is from another boot, or damaged."""
        try:
            return read_regular(self._path, _FILE_MAX) != boot_id()
        except FileNotFoundError:
            return False

    def put(self) -> None:
        """Write the file durably, before entries are acknowledged from memory. Raises OSError if the system refuses."""
        self._files.replace_small(self._path, boot_id())

    def remove(self) -> None:
        """Remove the file after all entries were synced. If a power cut brings it back, limbo is entered needlessly."""
        self._files.remove(self._path)
