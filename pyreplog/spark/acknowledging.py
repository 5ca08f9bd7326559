"""Moves a subscription to the position of a streaming query, on request: Spark calls `commit` late, or never."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyreplog.errors import CheckpointError, NoSuchTopicError
from pyreplog.spark.stream.offsets import SOURCE, StreamOffset
from pyreplog.tables.slices import NO_PARTITION
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.model.routing import partition_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from pyreplog.cluster import Cluster
    from pyreplog.topic.client.remote.client import Client


def acknowledge(
    cluster: Cluster | Client, progress: StreamingQueryProgress | Mapping[str, Any] | str, subscription: str
) -> dict[str, int]:
    """Acknowledge the messages that a streaming query has processed: all below its offsets. Never moves back.

    All messages up to a progress are in the sink of the query.

    Args:
        cluster: cluster, or client of a topic server, with the topics of the query. It owns these topics from now on.
        progress: `query.lastProgress`, the progress that a listener gets, its JSON, or the JSON of an offset in a
            checkpoint.
        subscription: name of the subscription.

    Returns:
        The offset of each topic or partition, by name.

    Raises:
        CheckpointError: `progress` has no offset of topics.
        NoSuchTopicError: a topic was deleted, or deleted and created again.
        NoSuchSubscriptionError: a topic has no such subscription.
        OutOfRangeError: an offset is after the end of its topic.
        ReplogError: as `Cluster.topic`.
    """
    done: dict[str, int] = {}
    for offset in _offsets(progress):
        for (topic, partition), position in offset.positions.items():
            name = topic if partition == NO_PARTITION else partition_name(topic, partition)
            place = cluster.topic(name, create=False)
            if isinstance(place, PartitionedHandle):
                raise NoSuchTopicError(name, "it was deleted, and created again with partitions")
            place.skip_to(subscription, position.offset, token=position.token)
            done[name] = position.offset
    return done


def _offsets(progress: StreamingQueryProgress | Mapping[str, Any] | str) -> list[StreamOffset]:
    """Return the offsets of all pyreplog sources in a progress."""
    parsed = _parse(progress if isinstance(progress, str | Mapping) else progress.json)
    ends = _ends(parsed) if "sources" in parsed else iter((parsed,))
    offsets = [StreamOffset.decode(end) for end in ends]
    topics = [offset for offset in offsets if offset.kind == "topics"]
    if not topics:
        raise CheckpointError(
            "progress: expected that of a query that reads topics, whose subscriptions can be moved; found "
            f"{'only logs, which have none' if offsets else 'no offset of a pyreplog source'}"
        )
    return topics


def _ends(progress: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for source in progress["sources"]:
        end = _parse(source.get("endOffset") or "{}")
        if end.get("source") == SOURCE:
            yield end


def _parse(text: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(text, str):
        return text
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"progress: expected JSON, found {text[:80]!r}: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"progress: expected the JSON of a progress or of an offset, found {text[:80]!r}")
    return parsed
