"""Files that are replaced atomically and durably."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyreplog.log.files import Files, RealFiles


@contextmanager
def replacing(path: Path, *, files: Files | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to.

    The file replaces `path` when the block ends; an error leaves `path` unchanged.
    """
    files = files if files is not None else RealFiles()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        files.sync_file(draft)
        files.rename(draft, path)
        files.sync_directory(path.parent)
    finally:
        files.remove(draft)
