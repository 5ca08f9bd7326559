"""Replications of topics to other clusters, from the metadata and the stored cursors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyreplog.errors import InvalidMetadataError
from pyreplog.geo.clusters import RemoteCluster
from pyreplog.geo.geo_cursor import GEO_PREFIX, GeoState, cursor_name
from pyreplog.geo.policies import ReplicationConfig
from pyreplog.reports.snapshot import ReplicationSnapshot, SubscriptionSnapshot, TopicSnapshot


def replication_snapshots(
    config: ReplicationConfig, topics: Sequence[TopicSnapshot], subscriptions: Sequence[SubscriptionSnapshot]
) -> Iterator[ReplicationSnapshot]:
    """Yield the replications of these topics that policies order. No I/O.

    Args:
        config: clusters, policies and orders.
        subscriptions: subscriptions of the topics, including cursors of replication targets.
    """
    cursors = {(cursor.on, cursor.name): cursor for cursor in subscriptions if cursor.name.startswith(GEO_PREFIX)}
    for topic in topics:
        problem = ""
        try:
            policy = config.policy_of(topic.name)
            targets = () if policy is None or policy.direction != "send" else policy.targets
        except InvalidMetadataError as error:  # its cursors tell how far it was sent
            targets = tuple(name.removeprefix(GEO_PREFIX) for on, name in cursors if on == topic.name)
            problem = str(error)
        for target in targets:
            yield _replication(config, topic, target, cursors.get((topic.name, cursor_name(target))), problem)


def cluster_names(config: ReplicationConfig) -> tuple[tuple[str, str], ...]:
    """Return id, as 32 hexadecimal digits, and name of each cluster whose metadata can be read; ascending. No I/O."""
    known = [(cluster, name) for name, cluster in config.clusters.items() if isinstance(cluster, RemoteCluster)]
    return tuple(sorted((cluster.id.hex(), name) for cluster, name in known))


def _replication(
    config: ReplicationConfig, topic: TopicSnapshot, target: str, cursor: SubscriptionSnapshot | None, problem: str
) -> ReplicationSnapshot:
    if cursor is not None and _is_of_former(config, target, cursor):
        cursor = None
    mark = topic.start if cursor is None else cursor.mark
    end = max(topic.end, mark)
    state, alarm = ("unknown", problem) if problem else _state(config, topic, target, cursor)
    return ReplicationSnapshot(
        topic=topic.topic, partition=topic.partition, target=target, state=state,
        stored=None if cursor is None else mark.offset, end=end.offset, unsent_messages=end.offset - mark.offset,
        unsent_bytes=end.size - mark.size, oldest_us=None if cursor is None else cursor.oldest_us, alarm=alarm,
    )  # fmt: skip


def _is_of_former(config: ReplicationConfig, target: str, cursor: SubscriptionSnapshot) -> bool:
    """Return whether a cursor is that of a former cluster, which had the name of the target."""
    try:
        return bool(cursor.state) and not GeoState.from_bytes(cursor.name, cursor.state).is_of(
            config.cluster_ids.get(target, "")
        )
    except InvalidMetadataError:
        return False


def _state(
    config: ReplicationConfig, topic: TopicSnapshot, target: str, cursor: SubscriptionSnapshot | None
) -> tuple[str, str]:
    """Return the state, and what an operator has to do; "": nothing."""
    if target not in config.clusters:
        return "failed", "no cluster of this name was added: add it (`geo cluster add`), or change the policy"
    if isinstance(known := config.clusters[target], InvalidMetadataError):
        return "unknown", str(known)
    try:
        if cursor is not None and cursor.state and GeoState.from_bytes(cursor.name, cursor.state).is_detached:
            return "detached", "its backlog was too large, and is not kept: order `geo resync` once the target is back"
        is_paused = target in config.controls_of(topic.name).paused
    except InvalidMetadataError as error:
        return "unknown", str(error)
    return "paused" if is_paused else "sending", ""
