"""ReplicasCheck: compares the copies of every closed ledger with each other, all ledgers within `check_ms`.

A scrub finds damage on one disk. This check finds copies that are missing without a trace, and valid records that
differ from the other members' records (BookKeeper's `AuditorReplicasCheckTask` finds only the former). No records are
sent: the members report which entries they have, and a digest.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, CopyReport, MemberVerdict
from pyreplog.autorecovery.protocol.ledger_replicator import LedgerReplicator
from pyreplog.autorecovery.replication_driver import replicate
from pyreplog.autorecovery.targets import TargetChooser
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, InvalidMetadataError, ReplogError
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.ledger_store import VersionedMetadata, find_ledger
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, number
from pyreplog.metadata.values import field as field_of

logger = logging.getLogger(__name__)

REPLICAS_CHECK = "/autorecovery/replicas-check"
DIFFERING_MAX = 100
"""Maximum number of ledgers with differing copies that are named."""
LEDGERS_AT_ONCE = 64
"""Maximum number of ledgers that are checked in one run."""


@dataclass(frozen=True)
class CheckProgress(MetadataValue):
    """The progress of the check of all closed ledgers.

    Attributes:
        began_us: when this pass over the ledgers began, microseconds since 1970-01-01 UTC.
        next_ledger: ledgers below this id were checked in this pass.
        checked: number of ledgers that were checked in this pass.
        differing: description of the differing copies, by ledger; the first DIFFERING_MAX ledgers.
    """

    KIND: ClassVar[str] = f"progress of the check of replicas, {REPLICAS_CHECK} (delete the key)"

    began_us: int
    next_ledger: int = 0
    checked: int = 0
    differing: Mapping[int, str] = field(default_factory=dict)

    def _encode_fields(self) -> dict[str, Any]:
        differing = {str(ledger): text for ledger, text in sorted(self.differing.items())[:DIFFERING_MAX]}
        return {**super()._encode_fields(), "differing": differing}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        differing = {int(ledger): str(text) for ledger, text in field_of(fields, "differing", dict).items()}
        numbers = {name: number(fields, name) for name in ("began_us", "next_ledger", "checked")}
        return {**numbers, "differing": differing}


def find_progress(store: MetadataStore) -> CheckProgress | None:
    """Return the progress of the check of replicas; None: no check has begun.

    Raises:
        InvalidMetadataError: the value is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    stored = store.get(REPLICAS_CHECK)
    return None if stored is None else CheckProgress.decode(stored.value)


class ReplicasCheck:
    """Checks some ledgers at each `run`. One thread at a time calls it.

    Missing copies are noted for repair. A member whose records differ from those of most other members is replaced by
    another bookie, which gets copies from the others. Without such a majority an operator has to decide.

    Args:
        runtime: runtime of the cluster.
        scan: index of ledgers by bookie.
        rate_limiter: limits the bytes per second of copies.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, scan: LedgerScan, rate_limiter: CopyRateLimiter, clock: Clock) -> None:
        self._runtime, self._store, self._scan = runtime, runtime.metadata, scan
        self._rate_limiter, self._clock = rate_limiter, clock
        self._targets = TargetChooser(runtime)
        self._is_stopping = False
        self.progress: CheckProgress | None = None
        """Progress after the last run; None: it has not run yet."""

    def stop(self) -> None:
        """Make `run` return after the ledger in progress. Any thread may call it."""
        self._is_stopping = True

    def run(self, check_ms: int, lost: Collection[str]) -> None:
        """Check the ledgers that are due, at most LEDGERS_AT_ONCE, and store the progress.

        Args:
            check_ms: milliseconds within which all closed ledgers are checked; 0: no check.
            lost: ids of bookies whose data are lost.

        Raises:
            ReplogError: errors of the metadata store.
        """
        if not check_ms or not self._scan.scans:
            return
        stored, now_us = find_progress(self._store), self._clock.now_us()
        progress = CheckProgress(now_us) if stored is None or stored.began_us > now_us else stored
        ledgers = self._scan.ledgers()
        done = int(np.searchsorted(ledgers, progress.next_ledger))
        elapsed_us = now_us - progress.began_us
        if done == len(ledgers) and elapsed_us >= check_ms * 1000:
            progress, done, elapsed_us = replace(progress, began_us=now_us, next_ledger=0, checked=0), 0, 0
        due = min(-(-len(ledgers) * elapsed_us // (check_ms * 1000)), len(ledgers))
        for ledger in ledgers[done : min(due, done + LEDGERS_AT_ONCE)].tolist():
            if self._is_stopping:
                break
            progress = self._check(ledger, progress, frozenset(lost))
        self.progress = progress
        if progress != stored:
            change_key(self._store, REPLICAS_CHECK, lambda _: progress.encode())

    def _check(self, ledger: int, progress: CheckProgress, lost: frozenset[str]) -> CheckProgress:
        """Check one ledger. Returns the progress after it. Raises errors of the store."""
        differing = {number: text for number, text in progress.differing.items() if number != ledger}
        try:
            stored = find_ledger(self._store, ledger)
        except InvalidMetadataError:  # the auditor raises an alarm
            stored = None
        checked = progress.checked
        if stored is not None and stored.metadata.state is State.CLOSED:
            checked += 1
            if text := self._compare(stored, lost):
                differing[ledger] = text
        return replace(progress, next_ledger=ledger + 1, checked=checked, differing=differing)

    def _compare(self, stored: VersionedMetadata, lost: frozenset[str]) -> str:
        """Compare the copies of a ledger, and repair them where possible.

        Returns the problem left to an operator, or "".
        """
        metadata = stored.metadata
        registered = {status.bookie for status in self._runtime.bookie_statuses()}
        machine = CopyCheck(metadata, absent=metadata.bookies() - registered, window=1)
        report: CopyReport = self._runtime.wait(run_machine(metadata.ledger, machine, self._runtime))
        for bookie, member in report.members.items():
            if member.missing:
                logger.warning("ledger %d: copies are missing on %s", metadata.ledger, bookie)
                note_repair(self._store, metadata.ledger, bookie, member.missing[0].start)
        differing = [bookie for bookie, member in report.members.items() if member.verdict is MemberVerdict.DIFFERS]
        if not differing:
            return ""
        entry = min(report.members[bookie].differs[0].start for bookie in differing)
        text = f"from entry {entry} on, records of {', '.join(differing)} differ from those of other members"
        logger.error("ledger %d: %s", metadata.ledger, text)
        if len(differing) > 1:  # two members differ from each other, or there are several faults
            return text
        try:
            self._replace(stored, differing[0], lost)
        except ClosedError:
            raise
        except ReplogError as error:
            return f"{text}; the differing bookie is not replaced: {error}"
        return ""

    def _replace(self, stored: VersionedMetadata, bookie: str, lost: frozenset[str]) -> None:
        """Replace a member by other bookies in all fragments; its entries are copied from the other members first."""
        machine = LedgerReplicator(
            stored.metadata, stored.version, {bookie}, lost=lost, away=frozenset(), choose=self._targets.choose,
            others={status.bookie for status in self._runtime.bookie_statuses()}, throttle=self._rate_limiter.spend,
        )  # fmt: skip
        replicate(stored.metadata.ledger, machine, self._runtime, self._clock, self._scan)
