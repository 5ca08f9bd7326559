"""What clients ask of topics by name, with JSON arguments: what is rare, and may wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyreplog.errors import InvalidArgumentError, InvalidMessageError, ReplogError
from pyreplog.topic.positions import Start, position
from pyreplog.topic.remote.statscodec import encode_stats
from pyreplog.topic.topic import Topic
from pyreplog.topic.topics import Topics


def encode_start(start: Start) -> Any:
    """As JSON."""
    return {"time_us": round(start.timestamp() * 1e6)} if isinstance(start, datetime) else start


def _start(found: Any) -> Start:
    if isinstance(found, dict):
        return datetime.fromtimestamp(found["time_us"] / 1e6)
    start: Start = found
    return start


def call(topics: Topics, topic: str, name: str, arguments: str) -> str:
    """The result, as JSON. Blocks. Errors: those of what is called; InvalidMessageError: there is no such call."""
    try:
        given: dict[str, Any] = json.loads(arguments)
        if not isinstance(given, dict):
            raise ValueError(f"an object of arguments, found {type(given).__name__}")
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"call of {name}: {error}") from error
    if not topic:
        if name != "topics":
            raise InvalidMessageError(f"call: expected topics, found {name}")
        return json.dumps(topics.names())
    if name not in _CALLS:
        raise InvalidMessageError(f"call: expected one of {', '.join(_CALLS)}, found {name}")
    there = topics.open(topic, create=False)
    try:
        return _CALLS[name](there, **given)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        if isinstance(error, ReplogError):
            raise
        raise InvalidArgumentError(f"{name}: {error}") from error


def _where(topic: Topic) -> str:
    return json.dumps([topic.start, topic.end])


def _position(topic: Topic, start: Any) -> str:
    return json.dumps(topic.topics.surroundings.wait(position(topic.managed, _start(start))).offset)


def _create_subscription(topic: Topic, subscription: str, start: Any, properties: Any, settings: Any) -> str:
    topic.create_subscription(subscription, start=_start(start), properties=properties, **settings)
    return "null"


def _delete_subscription(topic: Topic, subscription: str, force: bool) -> str:
    topic.delete_subscription(subscription, force=force)
    return "null"


def _seek(topic: Topic, subscription: str, start: Any) -> str:
    return json.dumps(topic.seek(subscription, _start(start)))


def _skip(topic: Topic, subscription: str, messages: int) -> str:
    topic.skip(subscription, messages)
    return "null"


def _clear(topic: Topic, subscription: str) -> str:
    topic.clear(subscription)
    return "null"


def _configure(topic: Topic, settings: Any) -> str:
    topic.configure(**settings)
    return json.dumps(vars(topic.config))


def _delete(topic: Topic) -> str:
    topic.delete()
    return "null"


_CALLS: dict[str, Callable[..., str]] = {
    "where": _where,
    "position": _position,
    "config": lambda topic: json.dumps(vars(topic.config)),
    "stats": lambda topic: encode_stats(topic.stats()),
    "internal_stats": lambda topic: encode_stats(topic.internal_stats()),
    "last_sequence": lambda topic, producer: json.dumps(topic.publisher.last_sequence(producer)),
    "subscriptions": lambda topic: json.dumps(topic.subscriptions()),
    "create_subscription": _create_subscription,
    "delete_subscription": _delete_subscription,
    "seek": _seek,
    "skip": _skip,
    "clear": _clear,
    "trim": lambda topic: json.dumps(topic.trim()),
    "configure": _configure,
    "delete": _delete,
}
