"""Errors of Spark's data source, beside those of what it reads."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class CheckpointError(ReplogError):
    """The checkpoint of a streaming query does not fit what is read. Nothing was read.

    Another log, another kind of source, or another version wrote it. The message says what to do.
    """

    exit_code = 2
