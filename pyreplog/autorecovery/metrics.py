"""Metrics of auto-recovery for Prometheus; docs/operations.md explains each of them."""

from __future__ import annotations

from collections.abc import Iterator

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.metrics import Metric

_PREFIX = "pyreplog_autorecovery_"


def auto_recovery_metrics(recovery: AutoRecovery) -> Iterator[Metric]:
    """Yield the metrics of the auditor and the worker of this process."""
    audit, done = recovery.audit, recovery.worker_status()
    left = sum(audit.named.get(bookie, 0) for bookie in audit.orders)
    phases: dict[str, int] = {}
    for state in audit.states.values():
        phases[state.phase] = phases.get(state.phase, 0) + 1
    yield _gauge("is_auditor", "1 if this process is the auditor, which decides what is copied.", recovery.is_auditor)
    yield _gauge(
        "failed", "1 if the last round ended early, because the metadata store did not answer.", bool(recovery.failure)
    )
    yield Metric(
        f"{_PREFIX}bookies", "gauge", "Bookies that are away, lost, draining or retired, by phase (auditor only).",
        [({"phase": phase}, float(count)) for phase, count in sorted(phases.items())],
    )  # fmt: skip
    yield _gauge("orders", "Bookies whose copies are made again (auditor only).", len(audit.orders))
    yield _gauge("ledgers_left", "Ledgers that name bookies whose copies are made again (auditor only).", left)
    lacking = sum(count for bookie, count in audit.named.items() if bookie not in audit.registered)
    yield _gauge(
        "lacking_ledgers",
        "Ledgers that name a bookie that does not run, counted for each such bookie (auditor only).",
        lacking,
    )  # fmt: skip
    yield _gauge("listed_lost_entries", "Entries that are listed as lost (auditor only).", recovery.listed_lost)
    yield _gauge(
        "hold_seconds",
        "Time for which auto-recovery has been on hold, 0 if it is not (auditor only).",
        recovery.hold_s,
    )
    yield Metric(
        f"{_PREFIX}alarms", "gauge", "1 for each alarm that needs an operator, by code (auditor only).",
        [({"code": alarm.code}, 1.0) for alarm in recovery.status().alarms],
    )  # fmt: skip
    yield _gauge("copying", "1 if the worker of this process copies now.", recovery.is_copying)
    yield _gauge("bytes_left", "Bytes that this worker has still to copy in its pass.", done.bytes_left)
    yield _gauge(
        "one_copy_left", "Ledgers that had at most one copy when the pass of this worker began.", done.one_copy_left
    )
    yield _counter("copied_ledgers", "Ledgers that this worker copied.", done.copied_ledgers)
    yield _counter("copied_entries", "Entries that this worker copied.", done.copied_entries)
    yield _counter("copied_bytes", "Bytes that this worker copied.", done.copied_bytes)
    yield _counter("lost_entries", "Entries that this worker listed as lost.", done.lost_entries)
    repaired, check = recovery.repairs.counters, recovery.replicas_check.progress
    yield _counter("repaired_entries", "Bad copies that this process has written again.", repaired.entries)
    yield _counter("found_entries", "Lost entries that this process found on disks that returned.", repaired.found)
    checked = 0 if check is None else check.checked
    yield _gauge(
        "checked_ledgers", "Ledgers whose copies were compared in this pass of the check (auditor only).", checked
    )
    yield _counter("failures", "Copy attempts of this worker that failed, and are repeated.", done.failures)


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [({}, float(value))])


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [({}, float(value))])
