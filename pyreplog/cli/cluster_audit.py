"""`pyreplog cluster audit`: what lacks copies, what is to be copied, and whether copies are equal, now."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyreplog.autorecovery.cluster_audit import ClusterAudit, CopyEstimate, audit_cluster
from pyreplog.autorecovery.config import load_config
from pyreplog.autorecovery.copy_audit import CopyAudit, audit_copies
from pyreplog.autorecovery.protocol.copy_check import CopyReport, MemberVerdict
from pyreplog.cli.cluster_health import EXIT_CODES, print_findings
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.progress import progress
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.ledger_store import VersionedMetadata, load_ledger, stored_ledgers
from pyreplog.metadata.store import MetadataStore

AUDIT = "read the metadata of all ledgers now, and say what lacks copies; changes nothing"

_SHOWN_MAX = 20


def add_actions(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser("audit", help=AUDIT, description=f"{AUDIT}; exit code 0, 10 or 11, as of health")
    parser.add_argument("--full", action="store_true", help=f"name all ledgers concerned, not only {_SHOWN_MAX}")
    parser.add_argument(
        "--check-copies", metavar="LEDGER", type=int, nargs="*",
        help="have bookies read the copies of closed ledgers, of these or of all, and compare them",
    )  # fmt: skip
    parser.add_argument(
        "--bytes-per-s", metavar="N", type=int,
        help="bytes that bookies read in a second for --check-copies (default: the setting of auto-recovery)",
    )  # fmt: skip
    parser.set_defaults(action=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        audit = audit_cluster(
            cluster.runtime,
            limbo=cluster.limbo,
            check_copies=None if arguments.check_copies is None else lambda: _check_copies(cluster, arguments),
        )
    if arguments.json:
        print_json(_as_json(audit))
    else:
        _print(audit, None if arguments.full else _SHOWN_MAX)
    return EXIT_CODES[audit.health.colour]


def _check_copies(cluster: LedgerCluster, arguments: argparse.Namespace) -> CopyAudit:
    rate = arguments.bytes_per_s
    if rate is None:
        rate = load_config(cluster.metadata).bytes_per_s
    with progress("copies", start=0, total=None) as shown:
        return audit_copies(
            cluster.runtime, SystemClock(), _ledgers(cluster.metadata, arguments.check_copies), bytes_per_s=rate,
            on_ledger=lambda audit: shown.update(audit.bytes, audit.checked),
        )  # fmt: skip


def _ledgers(store: MetadataStore, wanted: Sequence[int]) -> Iterator[LedgerMetadata]:
    """The metadata of the ledgers that are named, or of all that can be read. Raises NoSuchLedgerError."""
    if wanted:
        yield from [load_ledger(store, ledger).metadata for ledger in dict.fromkeys(wanted)]
        return
    for _, stored in stored_ledgers(store):
        if isinstance(stored, VersionedMetadata):
            yield stored.metadata


# ---- output ---------------------------------------------------------------------------------------------------------


def _as_json(audit: ClusterAudit) -> dict[str, Any]:
    survey = audit.survey
    return {
        **asdict(audit.health),
        "ledgers": survey.ledgers,
        "open_ledgers": survey.open,
        "entries": survey.entries,
        "orders": dict(audit.orders),
        "leaving": survey.leaving,
        "below_write_quorum": survey.lacking,
        "missing_copies": survey.missing,
        "one_copy": _text_keys(survey.one_copy),
        "no_copy": _text_keys(survey.no_copy),
        "copies_gone": _text_keys(survey.gone),
        "lost_entries": _text_keys(audit.lost),
        "rack_violations": _text_keys(survey.rack_violations),
        "garbled": survey.garbled,
        "bytes_to_copy": survey.bytes_to_copy,
        "bytes_away": survey.bytes_away,
        "workers": audit.to_copy.workers,
        "bytes_per_s": audit.to_copy.bytes_per_s,
        "eta_s": audit.to_copy.eta_s,
        "copies": None if audit.copies is None else _copies_json(audit.copies),
    }


def _text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(ledger): count for ledger, count in counts.items()}


def _copies_json(copies: CopyAudit) -> dict[str, Any]:
    return {
        "checked": copies.checked,
        "skipped": copies.skipped,
        "bytes": copies.bytes,
        "by_verdict": {str(verdict): count for verdict, count in copies.by_verdict.items()},
        "reports": [_report_json(report) for _, report in sorted(copies.reports.items())],
    }


def _report_json(report: CopyReport) -> dict[str, Any]:
    members = {
        bookie: {
            "verdict": str(member.verdict), "held": member.held, "missing": _bounds(member.missing),
            "differs": _bounds(member.differs), "unknown": _bounds(member.unknown), "why": member.why,
            "is_cut": member.is_cut,
        }
        for bookie, member in report.members.items()
        if member.verdict is not MemberVerdict.COMPLETE
    }  # fmt: skip
    return {"ledger": report.ledger, "members": members, "nowhere": _bounds(report.nowhere)}


def _bounds(ranges: Iterable[range]) -> list[list[int]]:
    return [[entry_range.start, entry_range.stop, entry_range.step] for entry_range in ranges]


def _print(audit: ClusterAudit, shown: int | None) -> None:
    survey, health = audit.survey, audit.health
    say(
        f"{health.colour}: {counted(health.bookies, 'bookie')}, {counted(survey.ledgers, 'ledger')} ({survey.open:,} "
        f"open), {counted(survey.entries, 'entry')}"
    )
    for bookie, count in sorted(survey.leaving.items()):
        why = audit.orders.get(bookie, "no order yet")
        say(f"  to copy from {bookie}: {counted(count, 'ledger')} ({why})")
    rows: list[tuple[str, int | None, Iterable[int]]] = [
        ("below the write quorum", None, survey.lacking),
        ("with one copy on bookies that run", sum(survey.one_copy.values()), survey.one_copy),
        ("without a copy on bookies that run", sum(survey.no_copy.values()), survey.no_copy),
        ("with copies on lost bookies alone", sum(survey.gone.values()), survey.gone),
        ("listed as lost", sum(audit.lost.values()), audit.lost),
        ("with all copies in one rack", None, survey.rack_violations),
        ("whose metadata cannot be read", None, survey.garbled),
    ]
    for heading, entries, ledgers in rows:
        if some := sorted(ledgers):
            number = counted(len(some), "ledger")
            of = "" if entries is None else f"{counted(entries, 'entry')} of "
            say(f"  {heading}: {of}{number}{_named(some, shown)}")
    if survey.missing:
        say(f"  copies on bookies that do not run: {survey.missing:,}")
    if survey.bytes_to_copy or survey.bytes_away:
        say(f"  to copy: {amount(survey.bytes_to_copy)}{_time_left(audit.to_copy)}")
        say(f"  on bookies that are away, and may return: {amount(survey.bytes_away)}")
    if audit.copies is not None:
        _print_copies(audit.copies, shown)
    print_findings(health)


def _named(ledgers: Sequence[int], shown: int | None) -> str:
    some = ledgers if shown is None else ledgers[:shown]
    rest = f" and {len(ledgers) - len(some):,} more (--full)" if len(some) < len(ledgers) else ""
    return f": {', '.join(map(str, some))}{rest}"


def _time_left(left: CopyEstimate) -> str:
    if left.eta_s is None:
        return ", at an unknown rate: no worker has reported one yet"
    if not left.bytes:
        return ""
    rate = amount(left.bytes_per_s or 0)
    return f", about {duration(left.eta_s)} at {rate}/s ({counted(left.workers, 'worker')})"


def _print_copies(copies: CopyAudit, shown: int | None) -> None:
    say(
        f"  copies compared: {counted(copies.checked, 'ledger')}, {amount(copies.bytes)}; skipped: {copies.skipped:,}; "
        + ", ".join(f"{verdict} {count:,}" for verdict, count in sorted(copies.by_verdict.items()))
    )
    for ledger, report in sorted(copies.reports.items())[:shown]:
        for bookie, member in report.members.items():
            for state, ranges in (("differ", member.differs), ("missing", member.missing), ("unknown", member.unknown)):
                if ranges:
                    why = f" ({member.why})" if state == "unknown" and member.why else ""
                    say(f"    ledger {ledger}, {bookie}: {state}: entries {_some(ranges)}{why}")
        if report.nowhere:
            say(f"    ledger {ledger}: on no bookie: entries {_some(report.nowhere)}")
    if shown is not None and len(copies.reports) > shown:
        say(f"    and {counted(len(copies.reports) - shown, 'ledger')} more (--full)")


def _some(ranges: Sequence[range], limit: int = 8) -> str:
    parts = [
        str(entry_range[0])
        if len(entry_range) == 1
        else f"{entry_range[0]} to {entry_range[-1]}" + (f" by {entry_range.step}" * (entry_range.step > 1))
        for entry_range in ranges[:limit]
    ]
    return ", ".join(parts) + (f" and {len(ranges) - limit} ranges more" if len(ranges) > limit else "")
