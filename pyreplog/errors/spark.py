"""Errors of Spark's data source, in addition to those of the logs and topics that it reads."""

from __future__ import annotations

from pyreplog.errors.base import ReplogError


class CheckpointError(ReplogError):
    """The checkpoint of a streaming query does not fit the source. Nothing was read.

    Another log, another kind of source, or another version wrote it. The message says what to do.
    """

    exit_code = 2
