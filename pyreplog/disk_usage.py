"""The space that files take on a disk."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 512  # bytes in a unit of st_blocks


def size_on_disk(path: Path) -> int:
    """Return the bytes that the files below a directory take on the disk. Files that are removed meanwhile count 0."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size += (Path(folder) / name).lstat().st_blocks * _BLOCK
            except FileNotFoundError:
                continue
    return size
