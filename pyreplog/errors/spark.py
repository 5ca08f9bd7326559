"""Errors of Spark's data source, beside those of what it reads."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class CheckpointError(ReplogError):
    """A streaming query's checkpoint does not fit what is read: another log, another kind of source, or another version
    wrote it. Nothing was read; the message says what to do."""

    exit_code = 2
