"""Removing segments from the front of a log: which may go, and in what order they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.config import LogConfig
from pyreplog.errors import DiskError
from pyreplog.log.segments import Removed

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog


def may_go(
    config: LogConfig, base: int, segment_end: int, last_time_us: int, log_end: int, now_us: int, floor: int
) -> bool:
    """Whether the first segment of a log, [base, segment_end), may be removed.

    last_time_us: when its last record was appended. floor: nothing at or after this position may go; it overrules
    size and age.
    """
    too_large = config.retention_bytes is not None and log_end - base > config.retention_bytes
    too_old = config.retention_ms is not None and now_us - last_time_us > config.retention_ms * 1000
    return segment_end <= floor and (too_large or too_old)


def remove_front(log: CommitLog, count: int) -> None:
    """Take `count` segments out of the table and then off the disk. The caller holds the log's lock.

    PoisonedError when the disk fails in between.
    """
    retire(log, take_out(log, count))


def take_out(log: CommitLog, count: int) -> list[Removed]:
    """Take `count` segments out of the table, for `retire`. The caller holds the log's lock.

    The checkpoint says so before any file goes: recovery then neither misses them nor takes up what is left of them.
    """
    if not count:
        return []
    if log._error is not None:  # a truncation that failed half way may still need what would go
        raise log._error
    table = log._segment_table()
    bases, (start, first_entry, _) = [row[0] for row in table[:count]], table[count]
    try:
        log._checkpoint.trim(start=start, entry=max(first_entry, 0))
    except OSError as error:
        raise log._poison("trim", error) from error
    dropped = log._drop_segments(count)
    log.tail.start = log.start_position
    log._housekeeper.forget(bases[-1])
    return list(zip(bases, dropped, strict=True))


def retire(log: CommitLog, removed: list[Removed], *, refill: bool = False) -> None:
    """Take segments that left the table off the disk, the first one first; refill: and prepare their files again.

    Empties the list, so that nothing holds a segment that may be recycled. DiskError when none could be prepared.
    """
    try:
        log._pool.retire(removed, refill=refill)
    except DiskError:
        raise
    except OSError as error:
        raise log._poison("trim", error) from error
