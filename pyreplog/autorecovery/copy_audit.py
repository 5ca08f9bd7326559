"""Copy audit: compares the copies of closed ledgers by digests, without transferring records."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, CopyReport, MemberVerdict
from pyreplog.clock import Clock
from pyreplog.errors import InvalidMetadataError
from pyreplog.future import AppendFuture
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.ledger_store import VersionedMetadata, find_ledger
from pyreplog.ledger.runtime import RuntimeBase

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Number of ledgers that are compared concurrently."""
REPORTS_MAX = 1000
"""Maximum number of reports that are kept, of ledgers with differences; further ledgers are only counted."""


@dataclass
class CopyAudit:
    """The result of a comparison of copies; it grows while the comparison runs.

    Attributes:
        checked: number of closed ledgers that were compared.
        skipped: number of ledgers that are not closed, were deleted meanwhile, or have unreadable metadata.
        bytes: bytes that bookies had to read.
        by_verdict: number of ledgers by the worst verdict on a member's copies, "complete" included.
        reports: reports, by ledger, of up to REPORTS_MAX ledgers whose copies are not all complete and equal.
    """

    checked: int = 0
    skipped: int = 0
    bytes: int = 0
    by_verdict: dict[MemberVerdict, int] = field(default_factory=dict)
    reports: dict[int, CopyReport] = field(default_factory=dict)

    def take(self, report: CopyReport) -> None:
        """Count the report of one ledger."""
        verdict = max((member.verdict for member in report.members.values()), key=_RANK.__getitem__)
        self.checked += 1
        self.by_verdict[verdict] = self.by_verdict.get(verdict, 0) + 1
        if verdict is not MemberVerdict.COMPLETE and len(self.reports) < REPORTS_MAX:
            self.reports[report.ledger] = report

    def ledgers(self, *verdicts: MemberVerdict) -> list[int]:
        """Return the ledgers in `reports` with a member that has one of the verdicts, ascending."""
        return sorted(
            ledger
            for ledger, report in self.reports.items()
            if any(member.verdict in verdicts for member in report.members.values())
        )


_RANK = {verdict: rank for rank, verdict in enumerate(MemberVerdict)}


def audit_copies(
    runtime: RuntimeBase,
    clock: Clock,
    ledgers: Iterable[LedgerMetadata],
    *,
    bytes_per_s: int | None = None,
    pause: Callable[[float], object] = time.sleep,
    on_ledger: Callable[[CopyAudit], object] = lambda audit: None,
) -> CopyAudit:
    """Compare the copies of closed ledgers, without changing anything.

    A ledger whose copies seem incomplete is compared again if its metadata changed meanwhile, because another bookie
    may have replaced a member.

    Args:
        runtime: runtime of the cluster.
        clock: source of time.
        ledgers: metadata of the ledgers; those that are not closed are skipped.
        bytes_per_s: maximum number of bytes that all bookies together read per second; None: no limit.
        pause: waits for a number of seconds.
        on_ledger: called with the result so far after each ledger.

    Returns:
        The result of the comparison.

    Raises:
        ReplogError: errors of the metadata store; the cluster was closed.
    """
    audit, rate_limiter = CopyAudit(), CopyRateLimiter(bytes_per_s, clock)
    waiting: deque[tuple[LedgerMetadata, AppendFuture[CopyReport]]] = deque()

    def finish_first() -> None:
        metadata, future = waiting.popleft()
        report = runtime.wait(future)
        if not report.is_complete and (current := _changed_since(runtime, metadata)) is not metadata:
            if current is None:
                audit.skipped += 1
                return
            report = runtime.wait(_begin(runtime, current))
        audit.take(report)

    for metadata in ledgers:
        if metadata.state is not State.CLOSED:
            audit.skipped += 1
            continue
        size = metadata.length * metadata.write_quorum
        audit.bytes += size
        if (delay_s := rate_limiter.spend(size)) > 0:
            pause(delay_s)
        waiting.append((metadata, _begin(runtime, metadata)))
        if len(waiting) >= AT_ONCE:
            finish_first()
            on_ledger(audit)
    while waiting:
        finish_first()
        on_ledger(audit)
    return audit


def _begin(runtime: RuntimeBase, metadata: LedgerMetadata) -> AppendFuture[CopyReport]:
    machine = CopyCheck(metadata, absent=metadata.bookies() - _registered(runtime))
    return run_machine(metadata.ledger, machine, runtime)


def _registered(runtime: RuntimeBase) -> Set[str]:
    return {status.bookie for status in runtime.bookie_statuses()}


def _changed_since(runtime: RuntimeBase, metadata: LedgerMetadata) -> LedgerMetadata | None:
    """Return the metadata if they are unchanged, else the new ones; None: the ledger was deleted, or cannot be read."""
    try:
        stored: VersionedMetadata | None = find_ledger(runtime.metadata, metadata.ledger)
    except InvalidMetadataError as error:
        logger.warning("ledger %d is not compared: %s", metadata.ledger, error)
        return None
    if stored is None:
        return None
    return metadata if stored.metadata == metadata else stored.metadata
