"""Start positions and statistics as JSON, in the arguments and results of rare calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pyreplog.errors import InvalidMessageError
from pyreplog.topic.model.positions import Start, TopicPosition
from pyreplog.topic.model.stats import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    Stats,
    SubscriptionStats,
    TopicStats,
)
from pyreplog.topic.model.times import moment_at, moment_us


def encode_start(start: Start) -> Any:
    """As JSON."""
    if isinstance(start, datetime):
        return {"time_us": moment_us("start", start)}
    return start if isinstance(start, str) else int(start)


def decode_start(encoded: Any) -> Start:
    """From JSON; not checked. Errors: KeyError; those of `moment_at`."""
    if isinstance(encoded, dict):
        return moment_at(encoded["time_us"])
    start: Start = encoded
    return start


S = TypeVar("S", bound=Stats)


def encode_stats(stats: Stats) -> str:
    """Fields only: what follows from them is not in it."""
    return json.dumps(dataclasses.asdict(stats))


def decode_stats(kind: type[S], text: str) -> S:
    """InvalidMessageError: it is none."""
    try:
        return _made(kind, json.loads(text))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidMessageError(f"{kind.__name__}: {error}") from error


def _made(kind: type[S], found: Mapping[str, Any]) -> S:
    return kind(**{name: _CONVERTED.get((kind, name), _same)(value) for name, value in found.items()})


def _same(value: Any) -> Any:
    return value


def _total(value: Any) -> TopicPosition:
    return TopicPosition(*value)


def _optional_tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _several(kind: type[Stats]) -> Callable[[Any], tuple[Stats, ...]]:
    return lambda values: tuple(_made(kind, value) for value in values)


_CONVERTED: dict[tuple[type[Stats], str], Callable[[Any], Any]] = {
    (TopicStats, "start"): _total,
    (TopicStats, "end"): _total,
    (TopicStats, "quota_exceeded"): tuple,
    (TopicStats, "subscriptions"): _several(SubscriptionStats),
    (SubscriptionStats, "mark"): _total,
    (SubscriptionStats, "consumers"): _several(ConsumerStats),
    (InternalStats, "start"): _total,
    (InternalStats, "end"): _total,
    (InternalStats, "last_entry"): _optional_tuple,
    (InternalStats, "ledgers"): _several(LedgerStats),
    (InternalStats, "cursors"): _several(CursorStats),
    (LedgerStats, "start"): _total,
    (CursorStats, "mark"): _total,
    (CursorStats, "durable_mark"): _total,
}
