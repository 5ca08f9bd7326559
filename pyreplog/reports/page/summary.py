"""The summary at the top of a page: questions, and the answers of reports, including unknown parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page import copies as pagecopies
from pyreplog.reports.page import findings as pagefindings
from pyreplog.reports.page import geo as pagegeo
from pyreplog.reports.page import partitions as pagepartitions
from pyreplog.reports.page import recovery as pagerecovery
from pyreplog.reports.page.cells import printable
from pyreplog.reports.page.sentences import MOST, Found, State, total


class SummaryFinding(NamedTuple):
    """One sentence of an answer. report: name of the report with the figures; empty: none is in the page."""

    state: State
    text: str
    report: str = ""


class Question(NamedTuple):
    """A question, and the findings that answer it."""

    title: str
    findings: list[SummaryFinding]


_Reader = Callable[[pa.Table], Found]

_QUESTIONS: tuple[tuple[str, tuple[tuple[str, _Reader], ...]], ...] = (
    (
        "Which subscription or consumer group lags, by how much, and since when?",
        (
            ("backlog_by_subscription", pagefindings.lagging),
            ("group_lag", pagepartitions.groups),
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
            ("origins", pagefindings.nothing),
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
        "Are partitions led, in sync, and spread evenly?",
        (
            ("partition_state", pagepartitions.states),
            ("replica_lag", pagepartitions.replicas),
            ("leader_skew", pagepartitions.skew),
        ),
    ),
    (
        "Are lost copies made again, and when is that done?",
        (
            ("cluster_health", pagerecovery.health),
            ("recovery_state", pagerecovery.state),
            ("recovery_orders", pagerecovery.orders),
            ("recovery_progress", pagerecovery.progress),
            ("bookie_disks", pagerecovery.disks),
        ),
    ),
    (
        "What do other clusters lack?",
        (("geo_replication", pagegeo.replication),),
    ),
    (
        "What would a fail-over to another cluster lose or repeat?",
        (("geo_readiness", pagegeo.readiness),),
    ),
    (
        "Is anything damaged, missing, duplicated, or out of order?",
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
"""Questions, each with the reports that answer it, and the functions that read their tables."""

ORDER = tuple(name for _, readers in _QUESTIONS for name, _ in readers)
"""Names of reports in the order of the page."""

_RESTS_ON = {"replica_divergence": "under_replicated"}
"""Reports whose good news count only if all copies were read; and the reports that tell whether they were."""

_WORST_FIRST: tuple[State, ...] = ("bad", "hot", "unknown", "fine", "n/a")


def questions(outcomes: Mapping[str, Outcome]) -> list[Question]:
    """Return all questions with their findings, the worst first. outcomes: by name of the report."""
    return [Question(title, _answers(readers, outcomes)) for title, readers in _QUESTIONS]


def _answers(readers: tuple[tuple[str, _Reader], ...], outcomes: Mapping[str, Outcome]) -> list[SummaryFinding]:
    asked = [(read, outcomes[name]) for name, read in readers if name in outcomes]
    asked_for = [(read, outcome) for read, outcome in asked if not outcome.left_out]
    findings = [_as_unknown(finding, outcomes) for read, outcome in asked_for for finding in _findings(read, outcome)]
    findings += _unknown([outcome for _, outcome in asked_for])
    if findings:
        return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.state))
    reasons = dict.fromkeys(outcome.left_out for _, outcome in asked if outcome.left_out)
    if reasons:
        return [SummaryFinding("n/a", printable(f"{reason[:1].upper()}{reason[1:]}.")) for reason in reasons]
    return [SummaryFinding("unknown", "No report that answers this was run.")]


def _findings(read: _Reader, outcome: Outcome) -> Iterator[SummaryFinding]:
    name = outcome.report.name
    if outcome.table is None:
        yield SummaryFinding("unknown", f"{outcome.report.title}: the report failed. {printable(outcome.error)}", name)
        return
    for state, text in read(outcome.table):
        if len(outcome.table) or not outcome.warnings:  # an empty table is no good news if something is unknown
            yield SummaryFinding(state, text, name)


def _as_unknown(finding: SummaryFinding, outcomes: Mapping[str, Outcome]) -> SummaryFinding:
    """Return a finding as unknown instead of fine if not all copies could be read."""
    base = outcomes.get(_RESTS_ON.get(finding.report, ""))
    if finding.state != "fine" or base is None or base.table is None or not total(base.table, "unknown"):
        return finding
    return finding._replace(state="unknown", text=f"{finding.text} Other copies could not be read.")


def _unknown(outcomes: list[Outcome]) -> Iterator[SummaryFinding]:
    """Yield the unknown parts of reports, each once, with the first report that names it."""
    reports: dict[str, str] = {}
    for outcome in outcomes:
        for warning in outcome.warnings:
            reports.setdefault(warning, outcome.report.name)
    for warning, name in [*reports.items()][:MOST]:
        yield SummaryFinding("unknown", printable(f"{warning[:1].upper()}{warning[1:]}."), name)
    if len(reports) > MOST:
        yield SummaryFinding("unknown", f"{len(reports) - MOST:,} more topics or subscriptions are unknown.")
