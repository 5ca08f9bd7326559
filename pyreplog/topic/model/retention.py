"""Retention and expiry: ledgers that may be deleted, messages that are too old, and subscriptions that are not used.

Decisions only, without I/O or clock. `log.retention` decides for logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyreplog.topic.model.backlog import CursorBacklog, is_system
from pyreplog.topic.model.positions import TopicPosition


class ClosedLedger(NamedTuple):
    """A closed ledger, as retention sees it.

    Attributes:
        end: position in the topic behind its last entry.
        closed_us: when it was closed.
        size: bytes of its values.
    """

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
    """Return how many ledgers, from the front, may be deleted.

    Ledgers that every durable cursor has passed are kept up to the limit that is reached first: None is no limit of
    this kind, 0 keeps none. A ledger is deleted only after all ledgers before it.

    Args:
        ledgers: the closed ledgers, oldest first.
        slowest: the lowest durable mark of all durable cursors, as it is stored: a new owner goes back to it after a
            crash. None: there is no durable cursor.
        kept_bytes: bytes of all ledgers, including the open one.
        retention_bytes: as in TopicConfig.
        retention_ms: as in TopicConfig.
        now_us: the time.
    """
    count = 0
    for ledger in ledgers:
        kept_bytes -= ledger.size
        if slowest is not None and ledger.end.offset > slowest.offset:
            break
        keeps_none = retention_ms == 0  # independent of the clock, which may have been set back
        is_old = retention_ms is not None and now_us - ledger.closed_us > retention_ms * 1000
        is_spare = retention_bytes is not None and kept_bytes >= retention_bytes
        if not (keeps_none or is_old or is_spare):
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Expiry:
    """All messages that were appended before `before_us` are to be acknowledged for the cursor."""

    cursor: str
    before_us: int


def expired(cursors: Iterable[CursorBacklog], ttl_ms: int | None, now_us: int) -> list[Expiry]:
    """Return the cursors that have messages older than `ttl_ms`; None: messages do not expire.

    System cursors are never returned, nor those whose oldest message is not known.
    """
    if ttl_ms is None:
        return []
    bound = now_us - ttl_ms * 1000
    return [
        Expiry(cursor.name, bound)
        for cursor in cursors
        if cursor.oldest_us is not None and cursor.oldest_us < bound and not is_system(cursor.name)
    ]


def next_expiry(cursors: Iterable[CursorBacklog], ttl_ms: int | None) -> int | None:
    """Return when `expired` will return more, if no message is published or acknowledged until then; None: never."""
    oldest = [cursor.oldest_us for cursor in cursors if cursor.oldest_us is not None and not is_system(cursor.name)]
    return None if ttl_ms is None or not oldest else min(oldest) + ttl_ms * 1000 + 1


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a subscription.

    Attributes:
        name: its name.
        durable: it is durable.
        consumers: number of connected consumers.
        last_us: when it last had a consumer, or was created; like all times of `unused` on the monotonic clock,
            so a step of the wall clock deletes nothing.
    """

    name: str
    durable: bool
    consumers: int
    last_us: int


def unused(subscriptions: Iterable[Usage], expiry_ms: int | None, owned_since_us: int, now_us: int) -> list[str]:
    """Return the durable subscriptions that had no consumer for more than `expiry_ms`; None: they do not expire.

    System subscriptions are never returned. owned_since_us: when this process began to serve the topic. No consumer
    could connect before, so that time does not count.
    """
    if expiry_ms is None:
        return []
    return [
        usage.name
        for usage in subscriptions
        if usage.durable
        and usage.consumers == 0
        and not is_system(usage.name)
        and now_us - max(usage.last_us, owned_since_us) > expiry_ms * 1000
    ]


def next_unused(subscriptions: Iterable[Usage], expiry_ms: int | None, owned_since_us: int) -> int | None:
    """Return when `unused` will return more, if no consumer connects until then; None: never."""
    last = [
        usage.last_us for usage in subscriptions if usage.durable and not usage.consumers and not is_system(usage.name)
    ]
    return None if expiry_ms is None or not last else max(min(last), owned_since_us) + expiry_ms * 1000 + 1
