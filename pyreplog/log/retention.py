"""Which segments may go: a pure decision over sizes and ages."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.config import LogConfig


@dataclass(frozen=True)
class Candidate:
    """A sealed segment: where it lies, and when its last record was appended (us since the epoch)."""

    base: int
    end: int
    last_time: int


def removable(config: LogConfig, candidates: list[Candidate], end: int, now_us: int, floor: int) -> int:
    """How many segments may go from the front.

    candidates: sealed segments, ascending. end: position after the last record. floor: nothing at or after this
    position may go. A segment goes only when all before it go.
    """
    count = 0
    for segment in candidates:
        too_large = config.retention_bytes is not None and end - segment.base > config.retention_bytes
        too_old = config.retention_ms is not None and now_us - segment.last_time > config.retention_ms * 1000
        if segment.end > floor or not (too_large or too_old):
            break
        count += 1
    return count
