"""Start positions and statistics as JSON, in the arguments and results of rare calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pyreplog.errors import InvalidMessageError
from pyreplog.times import moment_at, moment_us
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


def encode_start(start: Start) -> Any:
    """Return a start position as JSON."""
    if isinstance(start, datetime):
        return {"time_us": moment_us("start", start)}
    return start if isinstance(start, str) else int(start)


def decode_start(encoded: Any) -> Start:
    """Decode a start position from JSON, unchecked.

    Raises KeyError if a field is missing, and the errors of `moment_at`.
    """
    if isinstance(encoded, dict):
        return moment_at(encoded["time_us"])
    start: Start = encoded
    return start


S = TypeVar("S", bound=Stats)


def encode_stats(stats: Stats) -> str:
    """Encode the fields of statistics; computed properties are left out."""
    return json.dumps(dataclasses.asdict(stats))


def decode_stats(kind: type[S], text: str) -> S:
    """Decode statistics. Raises InvalidMessageError when they are malformed."""
    try:
        return _build(kind, json.loads(text))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidMessageError(f"{kind.__name__}: {error}") from error


def _build(kind: type[S], fields: Mapping[str, Any]) -> S:
    return kind(**{name: _CONVERTED.get((kind, name), _same)(value) for name, value in fields.items()})


def _same(value: Any) -> Any:
    return value


def _total(value: Any) -> TopicPosition:
    return TopicPosition(*value)


def _optional_tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def _tuple_of(kind: type[Stats]) -> Callable[[Any], tuple[Stats, ...]]:
    return lambda values: tuple(_build(kind, value) for value in values)


_CONVERTED: dict[tuple[type[Stats], str], Callable[[Any], Any]] = {
    (TopicStats, "start"): _total,
    (TopicStats, "end"): _total,
    (TopicStats, "quota_exceeded"): tuple,
    (TopicStats, "subscriptions"): _tuple_of(SubscriptionStats),
    (SubscriptionStats, "mark"): _total,
    (SubscriptionStats, "consumers"): _tuple_of(ConsumerStats),
    (InternalStats, "start"): _total,
    (InternalStats, "end"): _total,
    (InternalStats, "last_entry"): _optional_tuple,
    (InternalStats, "ledgers"): _tuple_of(LedgerStats),
    (InternalStats, "cursors"): _tuple_of(CursorStats),
    (LedgerStats, "start"): _total,
    (CursorStats, "mark"): _total,
    (CursorStats, "durable_mark"): _total,
}
