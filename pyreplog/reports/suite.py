"""Several reports on one source: those that apply to it, each with the options that it takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pyreplog.errors import ConfigError, NoSuchLedgerError, TrimmedError
from pyreplog.reports.catalogue import REPORTS, report_class, report_of
from pyreplog.reports.gathering import deleted_since
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.report import Report
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions

Engine = Callable[[Report, Mapping[str, str], Snapshot], pa.Table]
"""Runs a report, with options of the Spark source and a snapshot of the same source."""

logger = logging.getLogger(__name__)

_REMOVED = (TrimmedError, NoSuchLedgerError)
_TRIES = 3

EVERY_TOPIC = "(?s:.*)"

_SUBSCRIPTIONS = ("backlog_by_subscription", "drain_estimate", "backlog_age_histogram", "dead_subscriptions")
_COPIES = ("replica_holes", "under_replicated", "replica_divergence")
_WHOLE = ("crc_audit",)
_RECOVERY = ("cluster_health", "recovery_state", "recovery_orders", "recovery_progress", "bookie_disks")
_TWO_SOURCES = ("replication_lag",)
_OF_TOPICS = ("origins",)
_READ_BY_SUBSCRIPTION = ("backlog_age_histogram",)
_GEO = ("geo_replication",)
_READINESS = ("geo_readiness",)
_FACTS = (*_SUBSCRIPTIONS, *_GEO, *_READINESS, "retention_forecast")
_GROUPS = ("group_lag",)
_PARTITIONS = ("partition_state", "replica_lag", "leader_skew", *_GROUPS)

_ACCESS = (
    "path", "paths", "cluster", "secret", "secretfile", "tlsca", "tlscert", "tlskey", "password", "mode",
    "storageoptions",
)  # fmt: skip
_WHICH = ("topics", "topicspattern", "ledgers")


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of all reports, or of these in the order of all. Raises ConfigError for an unknown name."""
    for name in names:
        report_class(name)
    return [name for name in REPORTS if name in names or not names]


def of_subscriptions(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """Return a snapshot with only these subscriptions and consumer groups. Raises ConfigError for an unknown name."""
    known = {subscription.name for subscription in snapshot.readers}
    known |= {group.group for group in snapshot.groups}
    known |= {row.subscription for row in snapshot.readiness}
    known |= {state.subscription for state in snapshot.unknown if state.subscription}
    for name in names:
        if name not in known and not _unknown_topics(snapshot):
            names_text = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"subscription: expected one of {names_text}, found {name!r}")
    return replace(
        snapshot,
        subscriptions=tuple(subscription for subscription in snapshot.subscriptions if subscription.name in names),
        groups=tuple(group for group in snapshot.groups if group.group in names),
        readiness=tuple(row for row in snapshot.readiness if row.subscription in names),
        unknown=tuple(
            state for state in snapshot.unknown if state.subscription is None or state.subscription in names
        ),
    )  # fmt: skip


def outcomes(
    names: Sequence[str],
    source: Mapping[str, str],
    snapshot: Snapshot,
    engine: Engine,
    subscriptions: Collection[str] = (),
    copy: Mapping[str, str] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of each of several reports on one source.

    An error in one report is the outcome of that report; the others go on.

    Args:
        names: names of reports.
        source: options of the Spark source.
        snapshot: what `gather` returned for the same options.
        engine: runs one report: called with the report, the options and the snapshot.
        subscriptions: names of the subscriptions for reports on subscriptions; empty: all.
        copy: options that name a copy of the source, for `replication_lag`.

    Yields:
        The outcomes, in the order of `names`.

    Raises:
        ConfigError: a report or a subscription is unknown.
    """
    narrowed = of_subscriptions(snapshot, subscriptions) if subscriptions else snapshot
    for name in names:
        report_type = report_class(name)
        reason = left_out(name, snapshot, copy)
        if reason:
            yield Outcome(report_type, left_out=reason)
            continue
        try:
            selected = narrowed if name in (*_SUBSCRIPTIONS, *_GROUPS, *_READINESS) else snapshot
            report = report_of(name, to=copy) if name in _TWO_SOURCES else report_of(name)
            warnings = unknown_to(name, selected)
            if not snapshot.topics and _unknown_topics(snapshot) and warnings:
                yield Outcome(report_type, error="the bookies of no topic answered", warnings=warnings)
                continue
            table = _with_replanning(engine, report, options_for(name, source, snapshot), selected)
            yield Outcome(report_type, table, warnings=(*warnings, *_deleted(name, source, selected)))
        except Exception as error:  # any error becomes the outcome of this report
            yield Outcome(report_type, error=f"{type(error).__name__}: {error}")


def _with_replanning(engine: Engine, report: Report, options: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    """Run the engine; run it again if entries were removed between planning and reading, as retention does."""
    for _ in range(_TRIES - 1):
        try:
            return engine(report, options, snapshot)
        except _REMOVED as error:
            logger.info("%s is planned again: %s", report.name, error)
    return engine(report, options, snapshot)


def left_out(name: str, snapshot: Snapshot, copy: Mapping[str, str] | None = None) -> str:
    """Return the reason why a report does not apply to a source; empty: it applies."""
    if name in _TWO_SOURCES and copy is None:
        return "no copy of the source was given to compare it with"
    if name in _SUBSCRIPTIONS and not snapshot.topics and not _unknown_topics(snapshot):
        return "the source has no topics, and so no subscriptions"
    if name in _OF_TOPICS and not snapshot.topics and not _unknown_topics(snapshot):
        return "the source has no topics, into which other clusters would replicate"
    if name in _GEO and not snapshot.replications and not _unknown_topics(snapshot):
        return "no topic of the source is replicated to another cluster"
    if name in _READINESS and not snapshot.readiness and not _unknown_topics(snapshot):
        return "no subscription of the source is replicated to another cluster"
    if name in _GROUPS and not snapshot.groups and not snapshot.partition_notes:
        return "the source has no Kafka consumer groups"
    if name in _PARTITIONS and not snapshot.partitions and not snapshot.partition_notes:
        return "the source is not a cluster with topics of partitions"
    if _reads_records(name) and _has_only_partitions(snapshot):
        return "records of partitions are read in the directory of a broker, not through its cluster"
    if name in _RECOVERY and snapshot.recovery is None:
        return "the source is not a whole cluster whose bookies are reached over TCP"
    if name in _COPIES and not snapshot.ledgers:
        return "the source has no ledgers, of which bookies would have copies"
    if name == "retention_forecast" and not snapshot.topics and not snapshot.logs and not _unknown_topics(snapshot):
        return "the source has neither topics nor logs outside of clusters"
    return ""


def unknown_to(name: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the parts that are missing from a report, with the reasons.

    Reports on copies list them for each ledger.
    """
    if name in _PARTITIONS:
        return snapshot.partition_notes
    if name in _COPIES or name in _WHOLE or name in _RECOVERY:
        return ()
    unknown = tuple(str(state) for state in snapshot.unknown if state.subscription is None or name in _FACTS)
    return (*snapshot.readiness_notes, *unknown) if name in _READINESS else unknown


def _reads_records(name: str) -> bool:
    return REPORTS[name][0].startswith("records.") or name in _WHOLE


def _has_only_partitions(snapshot: Snapshot) -> bool:
    of_others = snapshot.topics or snapshot.ledgers or snapshot.logs or _unknown_topics(snapshot)
    return bool(snapshot.partitions) and not of_others


def _unknown_topics(snapshot: Snapshot) -> bool:
    return any(state.subscription is None for state in snapshot.unknown)


def _deleted(name: str, source: Mapping[str, str], snapshot: Snapshot) -> list[str]:
    """Return a warning for each subscription that was deleted after the snapshot, before the report had read it."""
    if name not in _READ_BY_SUBSCRIPTION:
        return []
    gone = deleted_since(ReadOptions.of({o: v for o, v in source.items() if o.lower() in _ACCESS}), snapshot)
    return [f"subscription {deleted.name} of topic {deleted.on} was deleted meanwhile" for deleted in gone]


def options_for(name: str, source: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """Return the options of the source as a report takes them.

    Reports on subscriptions choose the messages to read by the snapshot, those on copies read whole ledgers. The others
    read the messages of topics whose ends are known, if there are topics.
    """
    if name in (*_FACTS, *_COPIES, *_WHOLE, *_RECOVERY, *_PARTITIONS):
        return {option: value for option, value in source.items() if option.lower() in _ACCESS}
    if _unknown_topics(snapshot) or (snapshot.partitions and _chooses(source)):
        others = {option: value for option, value in source.items() if option.lower() not in _WHICH}
        return {**others, "topics": json.dumps([topic.name for topic in snapshot.topics])}
    if snapshot.topics and not _chooses(source):
        return {**source, "topicsPattern": EVERY_TOPIC}
    return dict(source)


def _chooses(source: Mapping[str, str]) -> bool:
    """Return whether options choose topics or ledgers."""
    return bool({option.lower() for option in source} & set(_WHICH))
