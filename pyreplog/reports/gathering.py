"""Gathers a snapshot: from the headers of segments, or from a cluster's metadata, cursor ledgers and bookies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.log.sparse import SparseIndex
from pyreplog.autorecovery.overview import RecoveryOverview, RecoveryWatch
from pyreplog.bookie.identity import BOOKIES
from pyreplog.clock import SystemClock
from pyreplog.cursors.subscription_metadata import list_subscriptions
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.geo.geo_cursor import GEO_PREFIX
from pyreplog.geo.policies import ReplicationConfig, load_config
from pyreplog.geo.revision import REVISION
from pyreplog.kafka.groups.group_status import GroupStatus, LedgerBounds, unread_offsets
from pyreplog.ledger.ledger_metadata import LedgerMetadata, ledger_key
from pyreplog.ledger.ledger_store import find_ledger, list_ledgers
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.log import names as log_names
from pyreplog.partition.metadata.topic_metadata import list_topics
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.reports.append_times import appended, first_since
from pyreplog.reports.cluster_partitions import PartitionsSnapshot, partitions_snapshot, topics_of_partitions
from pyreplog.reports.cursors import subscription_snapshots
from pyreplog.reports.readiness import readiness_snapshots
from pyreplog.reports.replications import cluster_names, replication_snapshots
from pyreplog.reports.snapshot import (
    LedgerSnapshot,
    ReadinessSnapshot,
    SegmentSnapshot,
    Snapshot,
    SubscriptionSnapshot,
    TopicSnapshot,
    UnknownState,
)
from pyreplog.tables.cluster.cluster_slices import environment_credentials, survey_of
from pyreplog.tables.cluster.entry_slices import slim
from pyreplog.tables.cluster.ledger_ends import Unasked, amounts_known
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterSnapshot, RemoteCluster
from pyreplog.tables.cluster.topics import PlannedTopic, find_known_topics, rows_of
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.log_slices import take_snapshots
from pyreplog.tables.logs import LogSnapshot, SegmentToRead
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.ranges import is_among, partition_of
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.chain_store import find_chain
from pyreplog.topic_names import TOPICS, unquote_name

logger = logging.getLogger(__name__)

_EVERY = re.compile(r".*", re.DOTALL)


def gather(options: ReadOptions, as_of_us: int, window_ms: int = 300_000) -> Snapshot:
    """Gather facts about logs or a cluster, without reading whole logs.

    A topic ends at the last entry that its bookies know to be confirmed; a writer that pauses sends them the LAC within
    a second. The acknowledgements of a subscription count when they are stored, which a running owner does every 100
    ms. Topics and subscriptions whose bookies do not answer are in `Snapshot.unknown`, and are logged.

    Args:
        options: names the logs, or the topics or ledgers of a cluster. Its ranges of offsets and times have no effect.
        as_of_us: the moment, microseconds since 1970-01-01 UTC.
        window_ms: milliseconds over which current rates are measured.

    Returns:
        The snapshot.

    Raises:
        NotALogError: a path holds no log.
        CorruptionError: a log is damaged.
        NoSuchTopicError: a topic does not exist.
        InvalidMetadataError: the metadata of a subscription is invalid.
        ReplogError: as connecting, and as the metadata store.
    """
    snapshot = Snapshot(as_of_us=as_of_us, window_ms=window_ms)
    folder = cluster_of(options.paths)
    if folder is None and options.cluster is None:
        logs = tuple(_log(log) for log in take_snapshots(options.paths))
        return replace(snapshot, logs=tuple(log for log in logs if log is not None))
    with survey_of(folder, options) as survey:
        planned, unreachable = _topics(survey, options)
        partitions = _partitions(survey, options, planned, as_of_us, window_ms)
        groups = _groups(survey, planned, partitions, snapshot)
        topics = tuple(_topic(topic) for topic in planned)
        subscriptions, unread = subscription_snapshots(survey, topics, snapshot.since_us)
        timed = tuple(_with_times(survey, planned, subscriptions))
        config = _replication_config(survey, topics)
        unknown = (*(UnknownState(name, None, str(error)) for name, error in unreachable.items()), *unread)
        readiness, readiness_notes = _readiness(survey, config, topics, timed)
        for note in (*map(str, unknown), *partitions.notes, *readiness_notes):
            logger.warning("%s", note)
        return replace(
            snapshot, topics=topics, subscriptions=timed,
            ledgers=_ledgers(survey, options, planned, unreachable), unknown=unknown,
            recovery=None if partitions.brokers and not _has_bookies(survey) else _recovery(survey, options),
            replications=() if config is None else tuple(replication_snapshots(config, topics, timed)),
            readiness=readiness, readiness_notes=readiness_notes,
            clusters=() if config is None else cluster_names(config), partitions=partitions.partitions,
            brokers=partitions.brokers, groups=groups, partition_notes=partitions.notes,
        )  # fmt: skip


def deleted_since(options: ReadOptions, snapshot: Snapshot) -> list[SubscriptionSnapshot]:
    """Return the subscriptions of a snapshot that were deleted since. options: lead to the same cluster.

    Raises the errors of connecting, and of the metadata store.
    """
    if not snapshot.subscriptions:
        return []
    with survey_of(cluster_of(options.paths), options) as survey:
        store, topics = (
            survey.runtime.metadata,
            list({subscription.on: None for subscription in snapshot.subscriptions}),
        )
        names = each(survey, lambda topic: list_subscriptions(store, topic), topics)
    existing = {(topic, name) for topic, listed in zip(topics, names, strict=True) for name in listed}
    return [deleted for deleted in snapshot.subscriptions if (deleted.on, deleted.name) not in existing]


def _recovery(survey: ClusterSnapshot, options: ReadOptions) -> RecoveryOverview | None:
    """Return the state of auto-recovery; None: bookies are not reached over TCP, or only a part of the cluster is
    read."""
    if options.reads_topics or options.ledgers is not None or not isinstance(survey.runtime, RuntimeBase):
        return None
    return RecoveryWatch(survey.runtime, SystemClock()).take_overview()


def _has_bookies(survey: ClusterSnapshot) -> bool:
    """Return whether a bookie was ever registered."""
    return bool(survey.runtime.metadata.list(BOOKIES))


def _partitions(
    survey: ClusterSnapshot, options: ReadOptions, planned: Sequence[PlannedTopic], as_of_us: int, window_ms: int
) -> PartitionsSnapshot:  # fmt: skip
    """Return partitions, brokers and consumer groups, also those of topics on ledgers.

    A cluster without brokers costs one or two calls of the store.
    """
    if not isinstance(survey.origin, RemoteCluster):
        return PartitionsSnapshot()
    names = topics_of_partitions(survey.runtime.metadata, options)
    if options.reads_topics and (names or (planned and list_topics(survey.runtime.metadata))):
        names = list(dict.fromkeys((*names, *(_place(topic).topic for topic in planned))))
    if not names:
        return PartitionsSnapshot()
    return partitions_snapshot(
        survey.origin.url, survey.origin.credentials, names, is_all=not options.reads_topics, as_of_us=as_of_us,
        window_ms=window_ms,
    )  # fmt: skip


def _place(topic: PlannedTopic) -> TopicPartition:
    """Return the partition that Kafka clients see in a topic on ledgers."""
    name, number = topic.rows
    return TopicPartition(name, max(number, 0))


def _groups(
    survey: ClusterSnapshot, planned: Sequence[PlannedTopic], partitions: PartitionsSnapshot, snapshot: Snapshot
) -> tuple[GroupStatus, ...]:  # fmt: skip
    """Return the consumer groups with their lag in topics on ledgers. Topics of brokers hide them."""
    of_brokers = {row.topic for row in partitions.partitions}
    wanted = {each.name for group in partitions.groups for each in group.partitions if each.topic not in of_brokers}
    topics = {place: topic for topic in planned if (place := _place(topic)) in wanted}
    kept = {place: range(topic.chain.start.offset, topic.end) for place, topic in topics.items()}
    unread, bounds = unread_offsets(partitions.groups, kept), dict[TopicPartition, LedgerBounds]()
    for place, topic in topics.items():
        times, before = appended(survey, topic, unread.get(place, ())), first_since(survey, topic, snapshot.since_us)
        rate_in = None if before is None else (topic.end - before) / (snapshot.window_ms / 1000)
        bounds[place] = LedgerBounds(kept[place].start, topic.end, rate_in, times)
    return tuple(group.on_ledgers(bounds, snapshot.as_of_us) for group in partitions.groups)


def _replication_config(survey: ClusterSnapshot, topics: Sequence[TopicSnapshot]) -> ReplicationConfig | None:
    """Return other clusters, and policies; None: there are none, which costs one call of the store, or no topics."""
    store = survey.runtime.metadata
    return None if not topics or store.get(REVISION) is None else load_config(store)


def _readiness(
    survey: ClusterSnapshot, config: ReplicationConfig | None, topics: Sequence[TopicSnapshot],
    subscriptions: Sequence[SubscriptionSnapshot],
) -> tuple[tuple[ReadinessSnapshot, ...], tuple[str, ...]]:  # fmt: skip
    """Return the readiness of subscriptions for a fail-over, and notes on it."""
    if config is None:
        return (), ()
    origin = survey.origin
    credentials = origin.credentials if isinstance(origin, RemoteCluster) else environment_credentials()
    return readiness_snapshots(survey.runtime.metadata, config, credentials, topics, subscriptions)


# ---- topics ----------------------------------------------------------------------------------------------------


def _topics(survey: ClusterSnapshot, options: ReadOptions) -> tuple[list[PlannedTopic], dict[str, Unasked]]:
    """Return the topics whose end is known; and the errors of the others."""
    if options.ledgers is not None:
        return [], {}
    of_partitions = topics_of_partitions(survey.runtime.metadata, options) if options.reads_topics else []
    if of_partitions:  # a partitioned topic of brokers need not be a topic of ledgers as well
        known = {rows_of(unquote_name(name))[0] for name in survey.runtime.metadata.list(TOPICS)}
        others = {*of_partitions} - known
        if options.topics is not None:
            options = replace(options, topics=tuple(name for name in options.topics if name not in others))
        elif options.topics_pattern is not None and not any(map(options.topics_pattern.fullmatch, known)):
            return [], {}
        if options.topics == ():
            return [], {}
    if not options.reads_topics:
        if not survey.runtime.metadata.list(TOPICS):
            return [], {}
        options = replace(options, topics_pattern=_EVERY)
    return find_known_topics(survey, options)


def _topic(planned: PlannedTopic) -> TopicSnapshot:
    end = planned.chain.end
    segments = []
    for item, _, end in planned.ledgers:
        start = item.start
        segments.append(
            SegmentSnapshot(
                str(item.ledger), start.offset, end.offset, end.size - start.size, item.created_us,
                item.closed_us if item.is_closed else None, item.is_closed,
            )
        )  # fmt: skip
    topic, partition = planned.rows
    return TopicSnapshot(
        name=planned.name, topic=topic, partition=partition, start=planned.chain.start, end=end,
        segments=tuple(segments),
    )  # fmt: skip


def _with_times(
    survey: ClusterSnapshot, planned: list[PlannedTopic], subscriptions: Sequence[SubscriptionSnapshot]
) -> Iterator[SubscriptionSnapshot]:
    """Yield the subscriptions with the append times of their oldest and newest messages."""
    wanted: dict[str, set[int]] = {topic.name: set() for topic in planned}
    for subscription in subscriptions:
        if not subscription.is_system or subscription.name.startswith(GEO_PREFIX):
            wanted[subscription.on] |= {
                offset for offset in (subscription.oldest, subscription.newest) if offset is not None
            }
    times = {topic.name: appended(survey, topic, wanted[topic.name]) for topic in planned}
    for subscription in subscriptions:
        oldest_us, newest_us = (
            None if offset is None else times[subscription.on].get(offset)
            for offset in (subscription.oldest, subscription.newest)
        )
        yield replace(subscription, oldest_us=oldest_us, newest_us=newest_us)


# ---- ledgers ---------------------------------------------------------------------------------------------------


def _ledgers(
    survey: ClusterSnapshot, options: ReadOptions, planned: list[PlannedTopic], unreachable: Iterable[str]
) -> tuple[LedgerSnapshot, ...]:
    """Return snapshots of ledgers.

    unreachable: topics whose ends are unknown; metadata name their ledgers.
    """
    store = survey.runtime.metadata
    if options.reads_topics:
        chain_versions = each(survey, lambda name: find_chain(store, name), unreachable)
        stored = [versioned.chain for versioned in chain_versions if versioned is not None]
        chains = [*(topic.chain for topic in planned), *(chain for chain in stored if chain is not None)]
        ids = sorted(ledger for chain in chains for ledger in chain.ids)
    else:
        ids = list_ledgers(store)
    if options.ledgers is not None:
        ranges = tuple((low, high + 1) for low, high in options.ledgers)
        ids = [ledger for ledger in ids if is_among(ledger, ranges)]
    loaded = each(survey, lambda ledger: _load(survey, options, ledger), ids)
    ledgers = [metadata for metadata in loaded if metadata is not None]
    names: dict[str, str] = {}
    entries = _entries(survey, ledgers, ledger_key(options.password))
    return tuple(
        LedgerSnapshot(metadata=slim(metadata, names), entries=entries.get(metadata.ledger)) for metadata in ledgers
    )


def _load(survey: ClusterSnapshot, options: ReadOptions, ledger: int) -> LedgerMetadata | None:
    """Return the metadata of a ledger; None: it was deleted meanwhile, or is invalid and the mode is not FAILFAST."""
    try:
        versioned = find_ledger(survey.runtime.metadata, ledger)
    except InvalidMetadataError as error:
        if options.mode == "FAILFAST":
            raise
        logger.warning("ledger %d is skipped: %s", ledger, error)
        return None
    return None if versioned is None else versioned.metadata


def _entries(survey: ClusterSnapshot, ledgers: list[LedgerMetadata], key: bytes) -> dict[int, int]:
    """Return the number of confirmed entries of each ledger for which it is known."""
    known, unasked = amounts_known(survey.runtime, ledgers, key)
    for ledger, error in unasked.items():
        logger.warning("the end of ledger %d is unknown: %s", ledger, error)
    return {ledger: amount.entries for ledger, amount in known.items()}


# ---- logs outside of clusters ----------------------------------------------------------------------------------


def _log(log: LogSnapshot) -> TopicSnapshot | None:
    """Return the snapshot of a log; None: it is a bookie's log, whose segments hold entries of many ledgers."""
    if not log.numbered:
        return None
    name, partition = partition_of(log)
    bounds = _bounds(log)
    segments = tuple(
        _segment(log, segment, bounds[n], bounds[n + 1], is_last=n == len(log.segments) - 1)
        for n, segment in enumerate(log.segments)
    )
    return TopicSnapshot(
        name=str(log.directory), topic=name, partition=partition, start=TopicPosition(log.first_entry, 0, 0),
        end=TopicPosition(log.ends.end_entry, 0, 0), segments=segments,
    )  # fmt: skip


def _bounds(log: LogSnapshot) -> list[int]:
    """Return the first entry of each segment, and the end of the last one.

    A segment that cannot be read counts as empty; its entries are added to those of the segment before it.
    """
    bounds = [log.ends.end_entry]
    for segment in reversed(log.segments):
        bounds.append(bounds[-1] if segment.fault is not None else segment.first_entry)
    return bounds[::-1]


def _segment(log: LogSnapshot, file: SegmentToRead, start: int, stop: int, *, is_last: bool) -> SegmentSnapshot:
    times = None if is_last or file.fault is not None else _times(log, file)
    return SegmentSnapshot(
        Path(file.path).name, start, stop, file.weight, None if times is None else times[0],
        None if times is None else times[1], not is_last,
    )  # fmt: skip


def _times(log: LogSnapshot, file: SegmentToRead) -> tuple[int, int] | None:
    """Return the append times of the first and the last record of a sealed segment, from its index."""
    try:
        held = map_locked(file.path, log.uuid, file.base, file.epoch)
        path = str(log_names.index_path(log.directory, file.base))
        return SparseIndex.load(path, held.size, held.uuid, held.base, held.first_entry, held.stamp)[1:]
    except (OSError, ReplogError) as error:
        logger.info("the time at which %s was closed is unknown: %s", file.path, error)
        return None
