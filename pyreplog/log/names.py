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
CLEANED, INCARNATION = "cleaned", "incarnation"  # of a compacted log of a partition

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_LEDGERS = re.compile(r"([0-9]{20})\.led")


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def index_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.idx"


def ledgers_path(directory: Path, base: int) -> Path:
    """Return the path of the ledger index of a segment with entries of many ledgers."""
    return directory / f"{base:020d}.led"


def ledgers_bases(directory: Path) -> list[int]:
    """Return the bases of the segments that have a ledger index in a directory."""
    return [int(match[1]) for path in directory.iterdir() if (match := _LEDGERS.fullmatch(path.name))]


def spare_path(directory: Path, number: int) -> Path:
    """Return the path of a spare: a file to be recycled as a segment, whose content is never read."""
    return directory / f"spare-{number}.seg"


def segment_bases(directory: Path) -> list[int]:
    """Return the bases of the segment files in a directory, ascending."""
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _SEGMENT.fullmatch(path.name)))


def no_files(directory: Path) -> list[Path]:
    """Return the paths with the name of a log's file that are no files; none if the directory may not be read."""
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if _is_own(entry.name) and not entry.is_file()]
    except (FileNotFoundError, PermissionError):
        return []


def _is_own(name: str) -> bool:
    return name in (LOCK, TAIL, CHECKPOINT, TRUNCATION) or _SEGMENT.fullmatch(name) is not None


def spare_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("spare-*.seg"))
