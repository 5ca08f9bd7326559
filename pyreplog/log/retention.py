"""The rule of retention: which segments at the front of a log may be removed. For topics: `topic.model.retention`."""

from __future__ import annotations

from pyreplog.config import LogConfig


def may_remove(
    config: LogConfig, base: int, segment_end: int, last_time_us: int, log_end: int, now_us: int, floor: int
) -> bool:
    """Return whether the first segment of a log, [base, segment_end), may be removed.

    last_time_us: append time of its last record. log_end: position of the end of the log. now_us: wall time. floor:
    position from which on records must stay; it overrules size and age.
    """
    too_large = config.retention_bytes is not None and log_end - base > config.retention_bytes
    keeps_none = config.retention_ms == 0  # independent of the clock, which may have been set back
    too_old = config.retention_ms is not None and now_us - last_time_us > config.retention_ms * 1000
    return segment_end <= floor and (too_large or too_old or keeps_none)
