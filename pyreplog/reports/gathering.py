"""Takes a snapshot: from the headers of segments, or from a cluster's metadata, cursor ledgers and bookies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.ledger.ledger_store import find_ledger, list_ledgers
from pyreplog.ledger.ledgermetadata import LedgerMetadata, ledger_key
from pyreplog.log import names as log_names
from pyreplog.reports.append_times import appended
from pyreplog.reports.cursors import subscription_snapshots
from pyreplog.reports.snapshot import (
    LedgerSnapshot,
    SegmentSnapshot,
    Snapshot,
    SubscriptionSnapshot,
    TopicSnapshot,
    UnknownState,
)
from pyreplog.tables.cluster.clusterplan import survey_of
from pyreplog.tables.cluster.entryslices import slim
from pyreplog.tables.cluster.ledgerends import Unasked, amounts_known
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterView
from pyreplog.tables.cluster.topics import PlannedTopic, find_known_topics
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import LogSnapshot, SegmentToRead
from pyreplog.tables.logslices import look_at_all
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.ranges import is_among, partition_of
from pyreplog.topic.model.names import TOPICS
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.subscription_metadata import list_subscriptions
from pyreplog.topic.owner.managed.chainstore import find_chain

logger = logging.getLogger(__name__)

_EVERY = re.compile(r".*", re.DOTALL)


def gather(options: ReadOptions, as_of_us: int, window_s: float = 300.0) -> Snapshot:
    """Gather what is known of logs or of a cluster, without reading them through.

    A topic ends where its bookies say that entries are confirmed; a writer that pauses tells them within a second. A
    subscription stands where its acknowledgements were stored, which a running owner does every 100 ms. Topics and
    subscriptions whose bookies do not answer are in `Snapshot.unknown`, and are logged.

    Args:
        options: names the logs, or the topics or ledgers of a cluster. Its ranges of offsets and times have no effect.
        as_of_us: the moment, microseconds since 1970-01-01 UTC.
        window_s: seconds over which present rates are taken.

    Raises:
        NotALogError: a path holds no log.
        CorruptionError: a log is damaged.
        NoSuchTopicError: a topic does not exist.
        InvalidMetadataError: the metadata of a subscription is invalid.
        ReplogError: as connecting, and as the metadata store.
    """
    made = Snapshot(as_of_us=as_of_us, window_s=window_s)
    folder = cluster_of(options.paths)
    if folder is None and options.cluster is None:
        logs = tuple(_log(log) for log in look_at_all(options.paths))
        return replace(made, logs=tuple(log for log in logs if log is not None))
    with survey_of(folder, options) as survey:
        planned, away = _topics(survey, options)
        topics = tuple(_topic(one) for one in planned)
        found, unread = subscription_snapshots(survey, topics, made.since_us)
        unknown = (*(UnknownState(name, None, str(error)) for name, error in away.items()), *unread)
        for one in unknown:
            logger.warning("%s", one)
        return replace(
            made, topics=topics, subscriptions=tuple(_with_times(survey, planned, found)),
            ledgers=_ledgers(survey, options, planned, away), unknown=unknown,
        )  # fmt: skip


def deleted_since(options: ReadOptions, snapshot: Snapshot) -> list[SubscriptionSnapshot]:
    """Subscriptions of the snapshot that are no more. options: that lead to the same cluster.

    Errors: those of connecting, and of the metadata store.
    """
    if not snapshot.subscriptions:
        return []
    with survey_of(cluster_of(options.paths), options) as survey:
        store, topics = survey.runtime.metadata, list(dict.fromkeys(one.on for one in snapshot.subscriptions))
        names = each(survey, lambda topic: list_subscriptions(store, topic), topics)
    there = {(topic, name) for topic, found in zip(topics, names, strict=True) for name in found}
    return [one for one in snapshot.subscriptions if (one.on, one.name) not in there]


# ---- topics ----------------------------------------------------------------------------------------------------


def _topics(survey: ClusterView, options: ReadOptions) -> tuple[list[PlannedTopic], dict[str, Unasked]]:
    """Those that are known; and why others are not."""
    if options.ledgers is not None:
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
    survey: ClusterView, planned: list[PlannedTopic], found: Sequence[SubscriptionSnapshot]
) -> Iterator[SubscriptionSnapshot]:
    """The same, with the times of their oldest and newest messages."""
    wanted: dict[str, set[int]] = {one.name: set() for one in planned}
    for fact in found:
        if not fact.is_system:
            wanted[fact.on] |= {offset for offset in (fact.oldest, fact.newest) if offset is not None}
    times = {one.name: appended(survey, one, wanted[one.name]) for one in planned}
    for fact in found:
        oldest_us, newest_us = (
            None if offset is None else times[fact.on].get(offset) for offset in (fact.oldest, fact.newest)
        )
        yield replace(fact, oldest_us=oldest_us, newest_us=newest_us)


# ---- ledgers ---------------------------------------------------------------------------------------------------


def _ledgers(
    survey: ClusterView, options: ReadOptions, planned: list[PlannedTopic], away: Iterable[str]
) -> tuple[LedgerSnapshot, ...]:
    """away: topics that could not be asked; metadata say what their ledgers are."""
    store = survey.runtime.metadata
    if options.reads_topics:
        stored = [one.chain for one in each(survey, lambda name: find_chain(store, name), away) if one is not None]
        chains = [*(one.chain for one in planned), *(chain for chain in stored if chain is not None)]
        ids = sorted(ledger for chain in chains for ledger in chain.ids)
    else:
        ids = list_ledgers(store)
    if options.ledgers is not None:
        ranges = tuple((low, high + 1) for low, high in options.ledgers)
        ids = [ledger for ledger in ids if is_among(ledger, ranges)]
    found = [one for one in each(survey, lambda ledger: _load(survey, options, ledger), ids) if one is not None]
    names: dict[str, str] = {}
    entries = _entries(survey, found, ledger_key(options.password))
    return tuple(LedgerSnapshot(metadata=slim(one, names), entries=entries.get(one.ledger)) for one in found)


def _load(survey: ClusterView, options: ReadOptions, ledger: int) -> LedgerMetadata | None:
    """None: it was deleted meanwhile; or it makes no sense, and that does not matter."""
    try:
        found = find_ledger(survey.runtime.metadata, ledger)
    except InvalidMetadataError as error:
        if options.mode == "FAILFAST":
            raise
        logger.warning("ledger %d is passed over: %s", ledger, error)
        return None
    return None if found is None else found.metadata


def _entries(survey: ClusterView, ledgers: list[LedgerMetadata], key: bytes) -> dict[int, int]:
    """How many are certain, of those ledgers of which somebody can tell."""
    found, unasked = amounts_known(survey.runtime, ledgers, key)
    for ledger, error in unasked.items():
        logger.warning("how far ledger %d goes cannot be told: %s", ledger, error)
    return {ledger: amount.entries for ledger, amount in found.items()}


# ---- logs by themselves ----------------------------------------------------------------------------------------


def _log(log: LogSnapshot) -> TopicSnapshot | None:
    """None: a bookie's log, whose segments hold entries of many ledgers."""
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
    """Where segments begin, and the last ends. One that cannot be read counts as empty, and its entries as of the one
    before it: nobody knows."""
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
    """When the first and the last record of a sealed segment were appended, as its index says."""
    try:
        held = map_locked(file.path, log.uuid, file.base, file.epoch)
        path = str(log_names.index_path(log.directory, file.base))
        return SparseIndex.load(path, held.size, held.uuid, held.base, held.first_entry, held.stamp)[1:]
    except (OSError, ReplogError) as error:
        logger.info("when %s was closed cannot be told: %s", file.path, error)
        return None
