"""Logs that are open: copies of them as a killed process leaves them, and their active segment."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyreplog._native.log.segment import Segment
from pyreplog.log.commit_log import CommitLog


def copied(log: CommitLog, directory: Path, to: Path) -> Path:
    """`directory`, in which the log lies, as it is when the process ends now, but for work files."""
    with log.freeze_files():
        shutil.copytree(directory, to, ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new"))
    return to


def active_segment(log: CommitLog) -> Segment:
    """The segment that is being written."""
    end = log.stats().end_position
    _, segment = log.hold_segment(end - end % log.segment_bytes)
    return segment
