"""LogPosition: a byte position and an entry number in a log."""

from __future__ import annotations

from pyreplog._native.log.log_position import LogPosition

__all__ = ["ORIGIN", "LogPosition"]

ORIGIN = LogPosition(0, 0)
