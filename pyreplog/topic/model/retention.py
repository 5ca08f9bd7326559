"""Retention: which closed ledgers of a topic may go. Pure: decisions only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyreplog.topic.model.topic_position import TopicPosition


class ClosedLedger(NamedTuple):
    """end: of the topic, behind its last entry. closed_us: when. size: value bytes."""

    end: TopicPosition
    closed_us: int
    size: int


def trimmable(
    ledgers: Iterable[ClosedLedger],
    slowest: TopicPosition | None,
    *,
    kept_bytes: int,
    retention_bytes: int | None,
    retention_ms: int | None,
    now_us: int,
) -> int:
    """How many ledgers, from the front, may be deleted.

    ledgers: the closed ones, oldest first. slowest: the lowest durable mark of all durable cursors, as it is stored: an
    owner that crashes goes back to it; None: there are none. kept_bytes: of all ledgers that there are, the open one
    included. retention_bytes, retention_ms: as in TopicConfig.

    What every durable cursor has passed is kept up to the limit that is reached first: None is no limit of this kind, 0
    keeps nothing. A ledger stays with all that are behind it.
    """
    count = 0
    for ledger in ledgers:
        kept_bytes -= ledger.size
        if slowest is not None and ledger.end.offset > slowest.offset:
            break
        keeps_none = retention_ms == 0  # whatever the clock says, which may have been set back
        is_old = retention_ms is not None and now_us - ledger.closed_us > retention_ms * 1000
        is_spare = retention_bytes is not None and kept_bytes >= retention_bytes
        if not (keeps_none or is_old or is_spare):
            break
        count += 1
    return count
