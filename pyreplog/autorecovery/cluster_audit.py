"""Cluster audit: reads the metadata of all ledgers, reports missing copies, and estimates how long replication takes.

It changes nothing, and needs no auditor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyreplog.autorecovery.config import load_config
from pyreplog.autorecovery.copy_audit import CopyAudit
from pyreplog.autorecovery.health import ClusterHealth, Colour, Finding, check_health, find_membership
from pyreplog.autorecovery.ledger_survey import LedgerSurvey, survey_ledgers
from pyreplog.autorecovery.lost_entries import list_lost
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.protocol.copy_check import MemberVerdict
from pyreplog.autorecovery.worker_status import list_workers
from pyreplog.bookie.bookie_state import BookieState, list_bookie_states
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.store import MetadataStore
from pyreplog.plurals import agreeing, counted


@dataclass(frozen=True)
class CopyEstimate:
    """An estimate of how long auto-recovery takes.

    Attributes:
        bytes: bytes to copy, in closed ledgers.
        workers: number of running workers that have copied something; at least 1.
        bytes_per_s: their total rate: the configured limit, or the measured rate; None: unknown.
    """

    bytes: int
    workers: int
    bytes_per_s: int | None

    @property
    def eta_s(self) -> float | None:
        """Seconds until all bytes are copied at that rate; None: the rate is unknown."""
        if not self.bytes:
            return 0.0
        return self.bytes / self.bytes_per_s if self.bytes_per_s else None


@dataclass(frozen=True)
class ClusterAudit:
    """The result of an audit.

    Attributes:
        health: colour and findings: those of `check_health` and those of the audit.
        survey: copy counts of all ledgers.
        orders: reason of the order for each bookie.
        lost: number of entries that are listed as lost, by ledger.
        to_copy: the bytes to copy, and an estimate of the time.
        copies: result of a comparison of the copies; None: they were not compared.
    """

    health: ClusterHealth
    survey: LedgerSurvey
    orders: Mapping[str, str]
    lost: Mapping[int, int]
    to_copy: CopyEstimate
    copies: CopyAudit | None = field(default=None)


def audit_cluster(
    runtime: RuntimeBase,
    *,
    limbo: Callable[[], list[tuple[int, str]]] | None = None,
    check_copies: Callable[[], CopyAudit] | None = None,
) -> ClusterAudit:
    """Audit a cluster, without changing anything.

    Args:
        runtime: runtime of the cluster.
        limbo: asks bookies for ledgers in limbo, returned as pairs of ledger and bookie; None: bookies are not asked.
        check_copies: compares copies; None: they are not compared.

    Returns:
        The result of the audit.

    Raises:
        MetadataLayoutError: the store has to be migrated.
        ReplogError: errors of the store, and of `check_copies`.
    """
    store = runtime.metadata
    survey = survey_ledgers(store, find_membership(runtime, _states(store)))
    copies = None if check_copies is None else check_copies()
    orders = {bookie: order.reason for bookie, order in list_orders(store).items()}
    lost = {ledger: sum(len(item.entries) for item in listed.ranges) for ledger, listed in list_lost(store).items()}
    health = check_health(runtime, limbo=limbo, survey=survey)
    more = [*_of_survey(survey), *(() if copies is None else _of_copies(store, copies))]
    return ClusterAudit(
        _with_findings(health, more), survey, orders, lost, estimate_copies(store, survey.bytes_to_copy), copies
    )


def estimate_copies(store: MetadataStore, size: int) -> CopyEstimate:
    """Estimate how long auto-recovery takes to copy a number of bytes.

    The rate is the configured limit times the number of workers that have copied something; without a limit it is the
    sum of their measured rates.

    Args:
        store: metadata store.
        size: bytes to copy.

    Raises:
        InvalidMetadataError: settings or the status of a worker are malformed.
        ReplogError: errors of the store.
    """
    workers, limit = list_workers(store), load_config(store).bytes_per_s
    count = max(len(workers), 1)
    rate = sum(worker.bytes_per_s for worker in workers.values()) if limit is None else limit * count
    return CopyEstimate(size, count, rate or None)


def _states(store: MetadataStore) -> Mapping[str, BookieState]:
    try:
        return list_bookie_states(store)
    except InvalidMetadataError:  # `check_health` reports it
        return {}


def _with_findings(health: ClusterHealth, more: Iterable[Finding]) -> ClusterHealth:
    findings = sorted((*health.findings, *more), key=lambda finding: finding.colour is not Colour.RED)
    colour = findings[0].colour if findings else Colour.GREEN
    return replace(health, colour=colour, findings=tuple(findings))


def _entries_of(entries: Mapping[int, int], verb: str) -> str:
    """Return a text about entries; `entries` is their number by ledger."""
    count = sum(entries.values())
    return f"{counted(count, 'entry')} of {counted(len(entries), 'ledger')} {agreeing(count, verb)}"


def _of_survey(survey: LedgerSurvey) -> Iterator[Finding]:
    if survey.no_copy:
        text = f"{_entries_of(survey.no_copy, 'have')} no copy on a bookie that "
        step = "start the bookies; pyreplog cluster status has those that do not run"
        yield Finding("no-copy", Colour.AMBER, f"{text}runs, of ledger {min(survey.no_copy)} first", step)
    if survey.one_copy:
        text = f"{_entries_of(survey.one_copy, 'have')} one copy on bookies that "
        step = "start the bookies, or wait until auto-recovery has made the copies again: it begins with these"
        yield Finding("one-copy", Colour.AMBER, f"{text}run, of ledger {min(survey.one_copy)} first", step)
    if violations := survey.rack_violations:
        text = f"{counted(len(violations), 'ledger', 'have')} entries whose copies are all in one rack"
        text += f", ledger {min(violations)} first"
        yield Finding("one-rack", Colour.AMBER, text, "pyreplog cluster rebalance")


def _of_copies(store: MetadataStore, copies: CopyAudit) -> Iterator[Finding]:
    if differing := copies.ledgers(MemberVerdict.DIFFERS):
        text = f"copies of {counted(len(differing), 'ledger')} are intact and differ from the others'"
        text += f", ledger {differing[0]} first"
        step = "the auditor replaces a bookie that differs from most others; if two differ, an operator has to decide"
        yield Finding("copies-differ", Colour.AMBER, text, step)
    if missing := copies.ledgers(MemberVerdict.MISSING):
        text = f"bookies lack copies of {counted(len(missing), 'ledger')} that they should have"
        text += f", ledger {missing[0]} first"
        step = "pyreplog ledger repair LEDGER; the auditor, too, finds them when it next checks these ledgers"
        yield Finding("copies-lacking", Colour.AMBER, text, step)
    if unknown := copies.ledgers(MemberVerdict.UNKNOWN):
        text = f"bookies could not report which entries they have of {counted(len(unknown), 'ledger')}"
        text += f", ledger {unknown[0]} first"
        yield Finding("copies-unknown", Colour.AMBER, text, "start the bookies, or upgrade them; then audit again")
    listed = list_lost(store)
    nowhere = {
        ledger: sum(map(len, report.nowhere))
        for ledger, report in copies.reports.items()
        if report.nowhere and ledger not in listed
    }
    if nowhere:
        text = f"{_entries_of(nowhere, 'are')} on none of their bookies"
        step = "bring back the disk of a bookie that had them"
        yield Finding("entries-nowhere", Colour.RED, f"{text}, of ledger {min(nowhere)} first", step)
