"""Moving a subscription to where a streaming query has come, when asked: Spark's own `commit` comes late, or never."""

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
    """Acknowledge, for a subscription, what a streaming query has done: all below its offsets. Never moves back.

    cluster: whose topics the query reads; this process, or the server that is asked, owns them from now on. progress:
    `query.lastProgress`, what a listener is told, their JSON, or the JSON of an offset alone, from a checkpoint. All up
    to a progress is in the sink. Returns the offset of each topic, and partition, by name.

    Errors: CheckpointError, there is no offset of topics in it; NoSuchTopicError, also of one made anew since;
    NoSuchSubscriptionError; OutOfRangeError; those of `Cluster.topic`.
    """
    done: dict[str, int] = {}
    for offset in _offsets(progress):
        for (topic, partition), position in offset.positions.items():
            name = topic if partition == NO_PARTITION else partition_name(topic, partition)
            place = cluster.topic(name, create=False)
            if isinstance(place, PartitionedHandle):
                raise NoSuchTopicError(name, "it was deleted, and made anew with partitions")
            place.skip_to(subscription, position.offset, token=position.token)
            done[name] = position.offset
    return done


def _offsets(progress: StreamingQueryProgress | Mapping[str, Any] | str) -> list[StreamOffset]:
    """Of all sources of this kind in it."""
    found = _parse(progress if isinstance(progress, str | Mapping) else progress.json)
    ends = _ends(found) if "sources" in found else iter((found,))
    offsets = [StreamOffset.decode(end) for end in ends]
    topics = [offset for offset in offsets if offset.kind == "topics"]
    if not topics:
        raise CheckpointError(
            "progress: expected that of a query of topics, whose subscriptions can be moved; found "
            f"{'logs, which have none' if offsets else 'no source of pyreplog that has come anywhere'}"
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
        found = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"progress: expected JSON, found {text[:80]!r}: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"progress: expected the JSON of one, or of an offset, found {text[:80]!r}")
    return found
