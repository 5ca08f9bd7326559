"""Calls of topics by name, with JSON arguments: those that are rare, and may block."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyreplog.errors import InvalidArgumentError, InvalidMessageError, ReplogError
from pyreplog.metadata.layout import cluster_id
from pyreplog.topic.model.wire.json_codec import decode_start, encode_stats
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic_names import check_name

CREATION_WAIT_S = 5.0
"""Seconds to wait for another server that creates the same partitioned topic."""


def call(topics: Topics, topic: str, name: str, arguments: str) -> str:
    """Do a call; return its result as JSON. Blocks.

    Raises InvalidMessageError if there is no such call, and the errors of the call.
    """
    try:
        parameters: dict[str, Any] = json.loads(arguments)
        if not isinstance(parameters, dict):
            raise ValueError(f"an object of arguments, found {type(parameters).__name__}")
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"call of {name}: {error}") from error
    calls = _CALLS if topic else _CLIENT_CALLS
    if name not in calls:
        raise InvalidMessageError(f"call: expected one of {', '.join(calls)}, found {name}")
    target = topics.open(topic, create=False) if topic else topics
    try:
        return calls[name](target, **parameters)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        if isinstance(error, ReplogError):
            raise
        raise InvalidArgumentError(f"{name}: {error}") from error


def _cluster(topics: Topics) -> str:
    return json.dumps(cluster_id(topics.metadata).hex())


def _partitions(topics: Topics, topic: str) -> str:
    return json.dumps(topics.partitioned.find(topic))


def _identity(topics: Topics, topic: str) -> str:
    return json.dumps(topics.identity_of(topic))


def _closed_offsets(topics: Topics, names: list[str]) -> str:
    kept = topics.closed_offsets(names)
    return json.dumps({name: None if each is None else [each.start, each.stop] for name, each in kept.items()})


def _make_partitions(topics: Topics, topic: str, partitions: int, create: bool, settings: Any) -> str:
    check_name(topic)
    stored = topics.partitioned.stored(topic, partitions, create=create, wait=CREATION_WAIT_S, settings=settings)
    return json.dumps(stored)


def _remove_partitioned(topics: Topics, topic: str) -> str:
    topics.partitioned.remove(topic)
    return "null"


def _where(topic: Topic) -> str:
    offsets = topic.offsets()
    return json.dumps([offsets.start, offsets.stop])


def _position(topic: Topic, start: Any) -> str:
    return json.dumps(topic.offset_of(decode_start(start)))


def _create_subscription(topic: Topic, subscription: str, start: Any, properties: Any, settings: Any) -> str:
    topic.create_subscription(subscription, start=decode_start(start), properties=properties, **settings)
    return "null"


def _delete_subscription(topic: Topic, subscription: str, force: bool) -> str:
    topic.delete_subscription(subscription, force=force)
    return "null"


def _seek(topic: Topic, subscription: str, start: Any) -> str:
    return json.dumps(topic.seek(subscription, decode_start(start)))


def _skip(topic: Topic, subscription: str, messages: int) -> str:
    topic.skip(subscription, messages)
    return "null"


def _skip_to(topic: Topic, subscription: str, offset: int, token: str | None) -> str:
    topic.skip_to(subscription, offset, token=token)
    return "null"


def _clear(topic: Topic, subscription: str) -> str:
    topic.clear(subscription)
    return "null"


def _configure(topic: Topic, settings: Any) -> str:
    topic.configure(**settings)
    return json.dumps(topic.config.encoded())


def _hand_over(topic: Topic, subscription: str, target: str, order: str, timeout: float, grace: float) -> str:
    peer = topic.exchange_peer
    if peer is None:  # not yet, or its policy does not say so, of which the caller knows
        return "null"
    return json.dumps(peer.hand_over(subscription, target, order=order, timeout=timeout, grace=grace))


def _take_over(topic: Topic, subscription: str, any_cluster: bool) -> str:
    peer = topic.exchange_peer
    return "null" if peer is None else json.dumps(peer.take_over(subscription, any_cluster=any_cluster))


def _check_deletion(topic: Topic) -> str:
    topic.check_deletion()
    return "null"


def _delete(topic: Topic, force: bool = False) -> str:
    topic.delete(force=force)
    return "null"


_CLIENT_CALLS: dict[str, Callable[..., str]] = {
    "topics": lambda topics: json.dumps(topics.names()),
    "partitioned_topics": lambda topics: json.dumps(topics.partitioned.names()),
    "cluster": _cluster,
    "geo_status": lambda topics: json.dumps(topics.geo_status()),
    "geo_readiness": lambda topics: json.dumps(topics.geo_readiness()),
    "geo_where": lambda topics, topic, subscription: json.dumps(topics.geo_where(topic, subscription)),
    "partitions": _partitions,
    "identity": _identity,
    "closed_offsets": _closed_offsets,
    "make_partitions": _make_partitions,
    "remove_partitioned": _remove_partitioned,
}
"""Calls without a topic."""

_CALLS: dict[str, Callable[..., str]] = {
    "where": _where,
    "position": _position,
    "config": lambda topic: json.dumps(topic.config.encoded()),
    "stats": lambda topic: encode_stats(topic.stats()),
    "internal_stats": lambda topic: encode_stats(topic.internal_stats()),
    "last_sequence": lambda topic, producer: json.dumps(topic.publisher.last_sequence(producer)),
    "subscriptions": lambda topic: json.dumps(topic.subscriptions()),
    "create_subscription": _create_subscription,
    "delete_subscription": _delete_subscription,
    "seek": _seek,
    "skip": _skip,
    "skip_to": _skip_to,
    "clear": _clear,
    "trim": lambda topic: json.dumps(topic.trim()),
    "configure": _configure,
    "geo_handover": _hand_over,
    "geo_take_over": _take_over,
    "check_deletion": _check_deletion,
    "delete": _delete,
}
