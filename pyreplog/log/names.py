"""Names of the files in a log directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

LOCK = "lock"
TAIL = "tail"
CHECKPOINT = "checkpoint"
TRUNCATION = "truncation"
ASIDE = "aside"
REPLICA = "replica"
TERMS, MEMBERS = "terms", "members"
CURSORS = "cursors"

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_LEDGERS = re.compile(r"([0-9]{20})\.led")


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def index_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.idx"


def ledgers_path(directory: Path, base: int) -> Path:
    """The ledger index of a segment that holds the entries of many ledgers."""
    return directory / f"{base:020d}.led"


def ledgers_bases(directory: Path) -> list[int]:
    """Bases of the segments that have a ledger index in a directory."""
    return [int(match[1]) for path in directory.iterdir() if (match := _LEDGERS.fullmatch(path.name))]


def spare_path(directory: Path, number: int) -> Path:
    """A segment file without a place in the log yet; whatever it holds is never read."""
    return directory / f"spare-{number}.seg"


def segment_bases(directory: Path) -> list[int]:
    """Bases of the segment files in a directory, ascending."""
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _SEGMENT.fullmatch(path.name)))


def no_files(directory: Path) -> list[Path]:
    """What has the name of a file of a log, and is no file; nothing of a directory that may not be read."""
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if _is_own(entry.name) and not entry.is_file()]
    except (FileNotFoundError, PermissionError):
        return []


def _is_own(name: str) -> bool:
    return name in (LOCK, TAIL, CHECKPOINT, TRUNCATION) or _SEGMENT.fullmatch(name) is not None


def spare_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("spare-*.seg"))
