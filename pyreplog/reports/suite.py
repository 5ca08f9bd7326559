"""Several reports on one source: those that say something of it, each with the options that it takes."""

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
"""Runs a report, with options of the Spark source, on a snapshot of the same moment."""

logger = logging.getLogger(__name__)

_REMOVED = (TrimmedError, NoSuchLedgerError)
_TRIES = 3

EVERY_TOPIC = "(?s:.*)"

_SUBSCRIPTIONS = ("backlog_by_subscription", "drain_estimate", "backlog_age_histogram", "dead_subscriptions")
_COPIES = ("replica_holes", "under_replicated", "replica_divergence")
_WHOLE = ("crc_audit",)
_TWO_SOURCES = ("replication_lag",)
_READ_BY_SUBSCRIPTION = ("backlog_age_histogram",)
_FACTS = (*_SUBSCRIPTIONS, "retention_forecast")

_ACCESS = (
    "path", "paths", "cluster", "secret", "secretfile", "tlsca", "tlscert", "tlskey", "password", "mode",
    "storageoptions",
)  # fmt: skip
_WHICH = ("topics", "topicspattern", "ledgers")


def chosen(names: Sequence[str]) -> list[str]:
    """All reports, or these. ConfigError: there is none of a name."""
    for name in names:
        report_class(name)
    return [name for name in REPORTS if name in names or not names]


def of_subscriptions(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """As if there were no other subscriptions. ConfigError: there is none of a name."""
    there = {one.name for one in snapshot.readers} | {one.subscription for one in snapshot.unknown if one.subscription}
    for name in names:
        if name not in there and not _unknown_topics(snapshot):
            known = ", ".join(sorted(there)) or "none"
            raise ConfigError(f"subscription: expected one of {known}, found {name!r}")
    return replace(
        snapshot, subscriptions=tuple(one for one in snapshot.subscriptions if one.name in names),
        unknown=tuple(one for one in snapshot.unknown if one.subscription is None or one.subscription in names),
    )  # fmt: skip


def outcomes(
    names: Sequence[str],
    given: Mapping[str, str],
    snapshot: Snapshot,
    engine: Engine,
    subscriptions: Collection[str] = (),
    copy: Mapping[str, str] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of several reports on one source. An error in one report is its outcome, and ends no other.

    Args:
        names: names of reports.
        given: options of the Spark source.
        snapshot: what `gather` returned for the same options.
        engine: runs one report: called with the report, the options and the snapshot.
        subscriptions: names of subscriptions for reports on subscriptions; none: all.
        copy: options that name a copy of the source, for `replication_lag`.

    Raises:
        ConfigError: a report or a subscription is unknown.
    """
    narrowed = of_subscriptions(snapshot, subscriptions) if subscriptions else snapshot
    for name in names:
        found = report_class(name)
        reason = left_out(name, snapshot, copy)
        if reason:
            yield Outcome(found, left_out=reason)
            continue
        try:
            seen = narrowed if name in _SUBSCRIPTIONS else snapshot
            report = report_of(name, to=copy) if name in _TWO_SOURCES else report_of(name)
            warnings = unknown_to(name, seen)
            if not snapshot.topics and _unknown_topics(snapshot) and warnings:
                yield Outcome(found, error="no topic could be asked", warnings=warnings)
                continue
            table = _persistent(engine, report, options_for(name, given, snapshot), seen)
            yield Outcome(found, table, warnings=(*warnings, *_deleted(name, given, seen)))
        except Exception as error:  # whatever it is: the page says it, and the other reports stand
            yield Outcome(found, error=f"{type(error).__name__}: {error}")


def _persistent(engine: Engine, report: Report, options: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
    """As the engine; anew where something was removed between planning and reading: retention goes on meanwhile."""
    for _ in range(_TRIES - 1):
        try:
            return engine(report, options, snapshot)
        except _REMOVED as error:
            logger.info("%s is planned anew: %s", report.name, error)
    return engine(report, options, snapshot)


def left_out(name: str, snapshot: Snapshot, copy: Mapping[str, str] | None = None) -> str:
    """Why a report says nothing of a source; empty: it does."""
    if name in _TWO_SOURCES and copy is None:
        return "no copy was named that the source could be compared with"
    if name in _SUBSCRIPTIONS and not snapshot.topics and not _unknown_topics(snapshot):
        return "there are no topics here, and so no subscriptions"
    if name in _COPIES and not snapshot.ledgers:
        return "there are no ledgers here, of which bookies would have copies"
    if name == "retention_forecast" and not snapshot.topics and not snapshot.logs and not _unknown_topics(snapshot):
        return "there are neither topics nor a log by itself"
    return ""


def unknown_to(name: str, snapshot: Snapshot) -> tuple[str, ...]:
    """What a report does not know, and why. Those on copies know of each ledger by itself what they do not know."""
    if name in _COPIES or name in _WHOLE:
        return ()
    return tuple(str(one) for one in snapshot.unknown if one.subscription is None or name in _FACTS)


def _unknown_topics(snapshot: Snapshot) -> bool:
    return any(one.subscription is None for one in snapshot.unknown)


def _deleted(name: str, given: Mapping[str, str], snapshot: Snapshot) -> list[str]:
    """Which subscriptions were there when the snapshot was taken, but not any more when a report had read them."""
    if name not in _READ_BY_SUBSCRIPTION:
        return []
    gone = deleted_since(ReadOptions.of({o: v for o, v in given.items() if o.lower() in _ACCESS}), snapshot)
    return [f"subscription {one.name} of topic {one.on} was deleted meanwhile" for one in gone]


def options_for(name: str, given: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """As a report takes them. Those on subscriptions choose by the snapshot what they read, those on copies read whole
    ledgers; the others read messages where there are topics: of those that could be asked."""
    if name in _FACTS or name in _COPIES or name in _WHOLE:
        return {option: value for option, value in given.items() if option.lower() in _ACCESS}
    if _unknown_topics(snapshot):
        rest = {option: value for option, value in given.items() if option.lower() not in _WHICH}
        return {**rest, "topics": json.dumps([one.name for one in snapshot.topics])}
    if snapshot.topics and not {option.lower() for option in given} & set(_WHICH):
        return {**given, "topicsPattern": EVERY_TOPIC}
    return dict(given)
