"""Several reports on one source: those that say something of it, each with the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pyreplog.errors import ConfigError
from pyreplog.reports.catalogue import REPORTS, report_class, report_of
from pyreplog.reports.facts import Facts
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.report import Report

Engine = Callable[[Report, Mapping[str, str], Facts], pa.Table]
"""Runs a report, with options of the Spark source, on facts of the same moment."""

EVERY_TOPIC = "(?s:.*)"

_SUBSCRIPTIONS = ("backlog_by_subscription", "drain_estimate", "backlog_age_histogram", "dead_subscriptions")
_COPIES = ("replica_holes", "under_replicated", "replica_divergence")
_WHOLE = ("crc_audit",)
_TWO_SOURCES = ("replication_lag",)
_FACTS = (*_SUBSCRIPTIONS, "retention_forecast")

_ACCESS = ("path", "paths", "cluster", "secret", "password", "mode")
_WHICH = ("topics", "topicspattern", "ledgers")


def chosen(names: Sequence[str]) -> list[str]:
    """All reports, or these. ConfigError: there is none of a name."""
    for name in names:
        report_class(name)
    return [name for name in REPORTS if name in names or not names]


def of_subscriptions(facts: Facts, names: Collection[str]) -> Facts:
    """As if there were no other subscriptions. ConfigError: there is none of a name."""
    there = {one.name for one in facts.readers}
    for name in names:
        if name not in there:
            known = ", ".join(sorted(there)) or "none"
            raise ConfigError(f"subscription: expected one of {known}, found {name!r}")
    return replace(facts, subscriptions=tuple(one for one in facts.subscriptions if one.name in names))


def outcomes(
    names: Sequence[str],
    given: Mapping[str, str],
    facts: Facts,
    engine: Engine,
    subscriptions: Collection[str] = (),
    copy: Mapping[str, str] | None = None,
) -> Iterator[Outcome]:
    """One of each report, in turn. What goes wrong in one is its outcome, and ends no other.

    given: options of the Spark source. facts: as gathered with the same. subscriptions: those that reports on
    subscriptions are of; none: of all. copy: options that say where a copy of the source is, for replication_lag.
    """
    narrowed = of_subscriptions(facts, subscriptions) if subscriptions else facts
    for name in names:
        found = report_class(name)
        reason = left_out(name, facts, copy)
        if reason:
            yield Outcome(found, left_out=reason)
            continue
        try:
            seen = narrowed if name in _SUBSCRIPTIONS else facts
            report = report_of(name, to=copy) if name in _TWO_SOURCES else report_of(name)
            yield Outcome(found, engine(report, options_for(name, given, facts), seen))
        except Exception as error:  # whatever it is: the page says it, and the other reports stand
            yield Outcome(found, error=f"{type(error).__name__}: {error}")


def left_out(name: str, facts: Facts, copy: Mapping[str, str] | None = None) -> str:
    """Why a report says nothing of a source; empty: it does."""
    if name in _TWO_SOURCES and copy is None:
        return "no copy was named that the source could be compared with"
    if name in _SUBSCRIPTIONS and not facts.topics:
        return "there are no topics here, and so no subscriptions"
    if name in _COPIES and not facts.ledgers:
        return "there are no ledgers here, of which bookies would have copies"
    if name == "retention_forecast" and not facts.topics and not facts.logs:
        return "there are neither topics nor a log by itself"
    return ""


def options_for(name: str, given: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """As a report takes them. Those on subscriptions choose by facts what they read, those on copies read whole
    ledgers; the others read messages where there are topics."""
    if name in _FACTS or name in _COPIES or name in _WHOLE:
        return {option: value for option, value in given.items() if option.lower() in _ACCESS}
    if facts.topics and not {option.lower() for option in given} & set(_WHICH):
        return {**given, "topicsPattern": EVERY_TOPIC}
    return dict(given)
