"""What a page begins with: questions that people have, and what reports answer. What is unknown is said to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page import copies as pagecopies
from pyreplog.reports.page import findings as pagefindings
from pyreplog.reports.page.cells import printable
from pyreplog.reports.page.sentences import MOST, Found, State, total


class Finding(NamedTuple):
    """report: where the figures are; empty: nowhere in the page."""

    state: State
    text: str
    report: str = ""


class Question(NamedTuple):
    """What people ask, and what is known of it."""

    title: str
    findings: list[Finding]


_Reader = Callable[[pa.Table], Found]

_QUESTIONS: tuple[tuple[str, tuple[tuple[str, _Reader], ...]], ...] = (
    (
        "Which subscription lags, by how much, and since when?",
        (
            ("backlog_by_subscription", pagefindings.lagging),
            ("drain_estimate", pagefindings.draining),
            ("dead_subscriptions", pagefindings.dead),
            ("backlog_age_histogram", pagefindings.nothing),
            ("retention_forecast", pagefindings.nothing),
        ),
    ),
    (
        "What is hot?",
        (
            ("key_skew", pagefindings.hot_keys),
            ("partition_skew", pagefindings.hot_partitions),
            ("rate_by_minute", pagefindings.busiest),
            ("size_histogram", pagefindings.nothing),
        ),
    ),
    (
        "Which bookie lost copies?",
        (
            ("replica_holes", pagecopies.holes),
            ("under_replicated", pagecopies.under_replicated),
            ("replica_divergence", pagecopies.diverging),
        ),
    ),
    (
        "Is anything damaged, missing, there twice, or out of order?",
        (
            ("crc_audit", pagecopies.damaged),
            ("log_gaps", pagefindings.gaps),
            ("sequence_gaps", pagefindings.sequence_gaps),
            ("duplicates", pagefindings.duplicates),
            ("order_violations", pagefindings.order),
            ("replication_lag", pagecopies.replication_lag),
        ),
    ),
)
"""Each with the reports that answer it, and what reads their tables."""

ORDER = tuple(name for _, readers in _QUESTIONS for name, _ in readers)
"""Of reports in a page: as they are asked for."""

_RESTS_ON = {"replica_divergence": "under_replicated"}
"""Reports whose good news is worth what could be looked at, and the report that says what could not."""

_WORST_FIRST: tuple[State, ...] = ("bad", "hot", "unknown", "fine", "n/a")


def questions(outcomes: Mapping[str, Outcome]) -> list[Question]:
    """With all that is known, the worst first. outcomes: by name of the report."""
    return [Question(title, _answers(readers, outcomes)) for title, readers in _QUESTIONS]


def _answers(readers: tuple[tuple[str, _Reader], ...], outcomes: Mapping[str, Outcome]) -> list[Finding]:
    asked = [(read, outcomes[name]) for name, read in readers if name in outcomes]
    asked_for = [(read, outcome) for read, outcome in asked if not outcome.left_out]
    found = [_doubted(finding, outcomes) for read, outcome in asked_for for finding in _findings(read, outcome)]
    found += _unknown([outcome for _, outcome in asked_for])
    if found:
        return sorted(found, key=lambda finding: _WORST_FIRST.index(finding.state))
    reasons = dict.fromkeys(outcome.left_out for _, outcome in asked if outcome.left_out)
    if reasons:
        return [Finding("n/a", printable(f"{reason[:1].upper()}{reason[1:]}.")) for reason in reasons]
    return [Finding("unknown", "No report that tells was asked for.")]


def _findings(read: _Reader, outcome: Outcome) -> Iterator[Finding]:
    name = outcome.report.name
    if outcome.table is None:
        yield Finding("unknown", f"{outcome.report.title}: the report failed. {printable(outcome.error)}", name)
        return
    for state, text in read(outcome.table):
        if len(outcome.table) or not outcome.warnings:  # no row, of what could be asked, is no good news
            yield Finding(state, text, name)


def _doubted(finding: Finding, outcomes: Mapping[str, Outcome]) -> Finding:
    """Good news are none where copies could not be looked at."""
    base = outcomes.get(_RESTS_ON.get(finding.report, ""))
    if finding.state != "fine" or base is None or base.table is None or not total(base.table, "unknown"):
        return finding
    return finding._replace(state="unknown", text=f"{finding.text} Others could not.")


def _unknown(outcomes: list[Outcome]) -> Iterator[Finding]:
    """What reports do not know, each once, with the first of them that says so."""
    said: dict[str, str] = {}
    for outcome in outcomes:
        for warning in outcome.warnings:
            said.setdefault(warning, outcome.report.name)
    for warning, name in [*said.items()][:MOST]:
        yield Finding("unknown", printable(f"{warning[:1].upper()}{warning[1:]}."), name)
    if len(said) > MOST:
        yield Finding("unknown", f"{len(said) - MOST:,} more that could not be asked.")
