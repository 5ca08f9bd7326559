"""Leader epochs: which leader wrote which part of a log (KIP-101, KIP-279).

An epoch is a `Term` of `stream`, a number and the leader's name; a `History` has the start of each. Every leadership
begins with a control record that contains its epoch, so the epochs of a log can be read from the log itself, and a
follower whose log has the record of an epoch follows no lower one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import NO_TERM, History, Term, TermStart

LeaderEpoch: TypeAlias = Term

NO_EPOCH = NO_TERM


def end_of_epoch(history: History, epoch: LeaderEpoch, end: LogPosition) -> LogPosition | None:
    """Return where an epoch ends in a log of this history; None: the log has no record of it.

    Args:
        history: history of the log.
        epoch: the epoch.
        end: the end of the log.
    """
    starts = history.starts
    at = bisect_right(starts, epoch, key=lambda start: start.term) - 1
    if at < 0 or starts[at].term != epoch:
        return None
    return starts[at + 1].start if at + 1 < len(starts) else end


def has_prefix(history: History, start: LogPosition, end: LogPosition, epoch: LeaderEpoch, to: LogPosition) -> bool:
    """Return whether another log, which ends at `to` in this epoch, is a prefix of a log.

    Each epoch has one leader, and all logs copy its records from that leader: two logs that hold a record of the same
    epoch are equal up to that record.

    Args:
        history: history of the log.
        start: the start of the log.
        end: the end of the log.
        epoch: the last epoch of the other log; NO_EPOCH: it is empty.
        to: the end of the other log.
    """
    if epoch == NO_EPOCH:
        return to == start
    epoch_end = end_of_epoch(history, epoch, end)
    return epoch_end is not None and to <= epoch_end


def starts_between(history: History, start: LogPosition, end: LogPosition) -> tuple[TermStart, ...]:
    """Return the epochs that begin in a part of the log."""
    return tuple(at for at in history.starts if at.is_before(end) and not at.is_before(start))


def extended(history: History, starts: tuple[TermStart, ...]) -> History:
    """Return the history of a log to which records of these epochs were appended."""
    for epoch, start in starts:
        history = history.begin(epoch, start)
    return history
