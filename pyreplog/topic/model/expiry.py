"""Expiry: messages that became too old for subscriptions, and subscriptions that nobody uses. Pure: decisions only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyreplog.topic.model.backlog import CursorBacklog, is_system


@dataclass(frozen=True, slots=True)
class Expiry:
    """Everything appended before `before_us` is to be acknowledged for the cursor."""

    cursor: str
    before_us: int


def expired(cursors: Iterable[CursorBacklog], ttl_ms: int | None, now_us: int) -> list[Expiry]:
    """The cursors that have messages older than `ttl_ms` (None: there is no such age); never a system cursor, nor one
    of whose oldest message nothing is known."""
    if ttl_ms is None:
        return []
    bound = now_us - ttl_ms * 1000
    return [
        Expiry(cursor.name, bound)
        for cursor in cursors
        if cursor.oldest_us is not None and cursor.oldest_us < bound and not is_system(cursor.name)
    ]


def next_expiry(cursors: Iterable[CursorBacklog], ttl_ms: int | None) -> int | None:
    """When `expired` will have more, if nothing is published or acknowledged until then; None: never."""
    oldest = [cursor.oldest_us for cursor in cursors if cursor.oldest_us is not None and not is_system(cursor.name)]
    return None if ttl_ms is None or not oldest else min(oldest) + ttl_ms * 1000 + 1


@dataclass(frozen=True, slots=True)
class Usage:
    """How a subscription is used. consumers: connected now. last_us: when it last had one, or was made; on a clock that
    nobody sets, as all times of `unused`: a step of it deletes nothing."""

    name: str
    durable: bool
    consumers: int
    last_us: int


def unused(subscriptions: Iterable[Usage], expiry_ms: int | None, owned_since_us: int, now_us: int) -> list[str]:
    """The durable subscriptions without consumers for more than `expiry_ms` (None: never), to be deleted; never one of
    this package.

    owned_since_us: when this process began to serve the topic: before, nobody could connect, and that time does not
    count.
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
    """When `unused` will have more, if none is used until then; None: never."""
    last = [
        usage.last_us for usage in subscriptions if usage.durable and not usage.consumers and not is_system(usage.name)
    ]
    return None if expiry_ms is None or not last else max(min(last), owned_since_us) + expiry_ms * 1000 + 1
