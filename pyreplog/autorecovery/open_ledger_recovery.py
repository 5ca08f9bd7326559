"""OpenLedgerRecovery: recovers ledgers without a writer whose last fragment names a bookie that leaves the cluster.

A living writer replaces such a member by itself. Without a writer, a recovery closes the ledger, and then workers
replicate the bookie's copies, as for any closed ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pyreplog.autorecovery.protocol.member_ends import MemberEnds
from pyreplog.autorecovery.protocol.open_ledger_watch import QUIET_US, Ends, OpenLedgerWatch, Verdict
from pyreplog.bookie.bookie_state import bookie_state_key
from pyreplog.clock import Clock
from pyreplog.errors import InvalidMetadataError, NoSuchKeyError, OutcomeUnknownError, ReplogError, VersionConflictError
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import run_machine
from pyreplog.ledger.ledger_handle import WINDOW_ENTRIES
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, ledger_key, metadata_key
from pyreplog.ledger.protocol.copies import MissingCopiesCheck
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.ledger.writer_keys import writer_key

logger = logging.getLogger(__name__)

QUERIES_AT_ONCE = 64
"""Maximum number of ledgers whose members are asked concurrently."""
RECOVERIES_AT_ONCE = 4
CHECKED_ENTRIES = 2 * WINDOW_ENTRIES
"""Number of last entries of a recovered ledger whose copies are checked: a writer that died may have left gaps among
the entries in its window."""

NO_PASSWORD = "it has a password: recover it with `pyreplog ledger recover` and the password, or delete it"


@dataclass(frozen=True)
class OpenLedgersReport:
    """The result of one look at open ledgers. Ledgers are given by id.

    Attributes:
        waiting: ledgers that have a writer, or have been without one for too short a time.
        notified: ledgers whose writers were notified again to replace a member.
        recovering: ledgers that are being recovered, or whose copies are checked.
        recovered: ledgers whose recovery and check have ended since the previous call of `check`.
        lacking: for ledgers in `recovered`, the bookies that lack copies or did not answer; they are noted for repair.
        failed: errors of ledgers that could not be examined or recovered; they are retried.
        needs_operator: reasons for ledgers that only an operator can recover.
    """

    waiting: tuple[int, ...] = ()
    notified: tuple[int, ...] = ()
    recovering: tuple[int, ...] = ()
    recovered: tuple[int, ...] = ()
    lacking: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    needs_operator: Mapping[int, str] = field(default_factory=dict)


@dataclass
class _OpenLedger:
    """A ledger whose last fragment names a bookie that leaves.

    `has_key` tells whether the key of a writer exists; None: unknown.
    """

    metadata: LedgerMetadata
    version: int
    leaving: set[str]
    has_key: bool | None = None
    ends: Mapping[str, Ends | None] = field(default_factory=dict)


@dataclass
class _Watched:
    """The observations of a ledger, while its last fragment stays the same."""

    fragment: Fragment
    watch: OpenLedgerWatch
    leaving: Collection[str] = ()
    has_writer: bool = True


class _Check(NamedTuple):
    """A check of copies on a bookie. `entry` is one that it must have; `missing` are the entries that it lacks."""

    bookie: str
    entry: int
    missing: AppendFuture[list[int]]


@dataclass
class _Recovery:
    """A recovery, and then the checks of the copies."""

    leaving: frozenset[str]
    closing: AppendFuture[LedgerMetadata]
    checks: list[_Check] | None = None


class OpenLedgerRecovery:
    """Watches open ledgers, and recovers those without a writer. One thread at a time calls it.

    Two processes may do this concurrently: a recovery begins with a compare-and-set of the metadata that were examined,
    so it does not begin if a writer changed them in between.

    Args:
        cluster: an open cluster.
        clock: source of monotonic time.
        quiet_us: microseconds without a sign of life of a writer after which its ledger is recovered.
    """

    def __init__(self, cluster: LedgerCluster, clock: Clock, *, quiet_us: int = QUIET_US) -> None:
        self._cluster, self._runtime, self._store = cluster, cluster.runtime, cluster.metadata
        self._clock, self._quiet_us = clock, quiet_us
        self._key = ledger_key(b"")
        self._watched: dict[int, _Watched] = {}
        self._recoveries: dict[int, _Recovery] = {}

    @property
    def quiet_us(self) -> int:
        """Microseconds without a sign of life after which a ledger is recovered.

        Setting another value restarts the times.
        """
        return self._quiet_us

    @quiet_us.setter
    def quiet_us(self, quiet_us: int) -> None:
        if quiet_us != self._quiet_us:
            self._quiet_us = quiet_us
            self._watched.clear()

    def check(self, ledgers: Mapping[int, Collection[str]]) -> OpenLedgersReport:
        """Examine ledgers, and start to recover those that may be recovered, without waiting for the recoveries.

        Call it every few seconds. The interval between two calls counts as at most a third of `quiet_us`.

        Args:
            ledgers: for each ledger that is not closed, the ids of the bookies in its last fragment that leave. Other
                ledgers are forgotten, unless they are being recovered.

        Returns:
            The result of the check.

        Raises:
            ClosedError: the cluster was closed.
            ReplogError: errors of the metadata store. The times without a writer restart.
        """
        report = _Report()
        asked_us = self._clock.monotonic_us()
        try:
            concerned = self._load(ledgers, report)
        except ReplogError:
            self._watched.clear()  # writers may have changed the ledgers meanwhile
            raise
        self._take_outcomes(report)
        self._watched = {ledger: watched for ledger, watched in self._watched.items() if ledger in concerned}
        self._read_keys(concerned)
        self._ask_ends([opened for opened in concerned.values() if opened.has_key is False])
        now_us = self._clock.monotonic_us()
        for ledger, opened in concerned.items():
            watched = self._watched_of(ledger, opened.metadata.last_fragment)
            watched.leaving, watched.has_writer = opened.leaving, opened.has_key is not False
            verdict = watched.watch.observe(now_us, opened.has_key, opened.ends, asked_us=asked_us)
            if verdict is Verdict.RECOVER:
                self._recover(opened, report)
            else:
                (report.notified if verdict is Verdict.NOTIFY else report.waiting).append(ledger)
        self._notify_writers({bookie for ledger in report.notified for bookie in concerned[ledger].leaving})
        return report.freeze(self._recoveries)

    # ---- checking -------------------------------------------------------------------------------------------

    def _load(self, ledgers: Mapping[int, Collection[str]], report: _Report) -> dict[int, _OpenLedger]:
        """Load ledgers, and return those that are not closed and still name a bookie that leaves.

        Ledgers that had no writer and are no longer given are loaded once more, because another process may have
        recovered them.
        """
        without = {ledger: watched.leaving for ledger, watched in self._watched.items() if not watched.has_writer}
        named = {**without, **ledgers}
        wanted = [ledger for ledger in named if ledger not in self._recoveries]
        concerned: dict[int, _OpenLedger] = {}
        for ledger, stored in zip(wanted, self._store.get_many([*map(metadata_key, wanted)]), strict=True):
            if stored is None:
                continue
            try:
                metadata = LedgerMetadata.decode(stored.value)
            except InvalidMetadataError as error:
                report.failed[ledger] = str(error)
                continue
            leaving = set(named[ledger])
            if metadata.state is State.CLOSED:
                self._closed_by_others(metadata, leaving)
            elif ledger in ledgers and not leaving.isdisjoint(metadata.last_fragment.ensemble):
                leaving.intersection_update(metadata.last_fragment.ensemble)
                concerned[ledger] = _OpenLedger(metadata, stored.version, leaving)
        return concerned

    def _read_keys(self, concerned: Mapping[int, _OpenLedger]) -> None:
        """Look up which ledgers have a writer's key; if the store fails, that stays unknown."""
        try:
            keys = self._store.get_many([writer_key(ledger) for ledger in concerned])
        except ReplogError as error:
            logger.warning("cannot look up which open ledgers have writers: %s", error)
            return
        for opened, stored in zip(concerned.values(), keys, strict=True):
            opened.has_key = stored is not None

    def _ask_ends(self, asked: Iterable[_OpenLedger]) -> None:
        """Ask the members of ledgers for their last entry and LAC, a few ledgers at a time."""
        remaining = iter(asked)
        while batch := list(islice(remaining, QUERIES_AT_ONCE)):
            futures = [run_machine(item.metadata.ledger, MemberEnds(item.metadata), self._runtime) for item in batch]
            for item, future in zip(batch, futures, strict=True):
                item.ends = self._runtime.wait(future)

    def _watched_of(self, ledger: int, fragment: Fragment) -> _Watched:
        """Return the observations of a ledger; they restart if a writer has changed the last fragment."""
        watched = self._watched.get(ledger)
        if watched is None or watched.fragment != fragment:
            watched = self._watched[ledger] = _Watched(fragment, OpenLedgerWatch(self._quiet_us))
        return watched

    def _notify_writers(self, bookies: Iterable[str]) -> None:
        """Write the states of bookies again, unchanged: clients that watch them then replace the members."""
        for bookie in sorted(bookies):
            key = bookie_state_key(bookie)
            try:
                stored = self._store.get(key)
                if stored is not None:
                    self._store.put(key, stored.value, stored.version)
            except (VersionConflictError, NoSuchKeyError):
                continue  # another process wrote it, with the same effect
            except ReplogError as error:
                logger.warning("writers were not notified again that bookie %s leaves: %s", bookie, error)

    # ---- recovering -----------------------------------------------------------------------------------------

    def _recover(self, opened: _OpenLedger, report: _Report) -> None:
        """Start to recover a ledger, unless its metadata changed or a writer appeared since it was examined."""
        metadata, ledger = opened.metadata, opened.metadata.ledger
        if not metadata.admits(self._key):
            report.needs_operator[ledger] = NO_PASSWORD
            return
        if len(self._recoveries) >= RECOVERIES_AT_ONCE:
            report.waiting.append(ledger)
            return
        try:
            if self._store.get(writer_key(ledger)) is not None:
                report.waiting.append(ledger)
                return
            version = self._store_in_recovery(metadata, opened.version)
        except (VersionConflictError, NoSuchKeyError):
            report.waiting.append(ledger)
            return
        except ReplogError as error:
            report.failed[ledger] = str(error)
            return
        del self._watched[ledger]
        leaving = ", ".join(sorted(opened.leaving))
        logger.warning("recovering ledger %d: it has no writer, and its last fragment names %s", ledger, leaving)
        closing = self._cluster.begin_recovery(metadata.in_recovery(), version, self._key)
        self._recoveries[ledger] = _Recovery(frozenset(opened.leaving), closing)

    def _store_in_recovery(self, metadata: LedgerMetadata, version: int) -> int:
        """Change the state of a ledger to in recovery; return the version. Raises errors of the store."""
        if metadata.state is State.IN_RECOVERY:
            return version
        try:
            return self._store.put(metadata_key(metadata.ledger), metadata.in_recovery().encode(), version)
        except OutcomeUnknownError:
            logger.info(
                "ledger %d: unknown whether it is in recovery now; the next look reads its state", metadata.ledger
            )
            raise

    def _closed_by_others(self, metadata: LedgerMetadata, leaving: Collection[str]) -> None:
        """Check the copies of a ledger that was watched, and that was closed by a process other than its writer."""
        watched = self._watched.pop(metadata.ledger, None)
        if watched is not None and not watched.has_writer:
            closing: AppendFuture[LedgerMetadata] = AppendFuture(metadata)
            set_result(closing)
            self._recoveries[metadata.ledger] = _Recovery(frozenset(leaving), closing)

    def _take_outcomes(self, report: _Report) -> None:
        """Process the recoveries and checks that have ended."""
        for ledger, recovery in list(self._recoveries.items()):
            if recovery.checks is None and recovery.closing.done():
                error = recovery.closing.exception()
                if error is not None:
                    logger.warning("ledger %d could not be recovered, and will be retried: %s", ledger, error)
                    report.failed[ledger] = str(error)
                    del self._recoveries[ledger]
                    continue
                recovery.checks = list(self._begin_checks(recovery.closing.result(0), recovery.leaving))
            if recovery.checks is not None and all(check.missing.done() for check in recovery.checks):
                self._end_checks(ledger, recovery.checks, report)

    def _begin_checks(self, metadata: LedgerMetadata, leaving: Collection[str]) -> Iterator[_Check]:
        """Start to check the copies of the last entries of a closed ledger, except those on bookies that leave."""
        first = max(metadata.last_entry + 1 - CHECKED_ENTRIES, 0)
        for bookie in sorted(metadata.bookies().difference(leaving)):
            for stripe in metadata.holdings(bookie):
                recent = stripe[max(-(-(first - stripe.start) // stripe.step), 0) :]
                if recent and metadata.admits(self._key):
                    check = MissingCopiesCheck(metadata, self._key, bookie, recent)
                    yield _Check(bookie, recent[-1], run_machine(metadata.ledger, check, self._runtime))

    def _end_checks(self, ledger: int, checks: Iterable[_Check], report: _Report) -> None:
        """Note bookies that lack copies, or did not answer, for a repair, which examines all their copies."""
        lacking: dict[str, int] = {}
        for check in checks:
            missing = [check.entry] if check.missing.exception() is not None else check.missing.result(0)
            if missing:
                lacking[check.bookie] = min(missing[0], lacking.get(check.bookie, missing[0]))
        try:
            for bookie, entry in lacking.items():
                note_repair(self._store, ledger, bookie, entry, lacking_since_us=self._clock.now_us())
        except ReplogError as error:
            report.failed[ledger] = f"missing copies are not noted yet: {error}"
            return  # the next look retries
        del self._recoveries[ledger]
        report.recovered.append(ledger)
        if lacking:
            logger.warning("ledger %d was recovered; copies may be missing on %s", ledger, ", ".join(lacking))
            report.lacking[ledger] = tuple(lacking)


class _Report:
    """A mutable OpenLedgersReport."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.notified: list[int] = []
        self.recovered: list[int] = []
        self.lacking: dict[int, tuple[str, ...]] = {}
        self.failed: dict[int, str] = {}
        self.needs_operator: dict[int, str] = {}

    def freeze(self, recovering: Iterable[int]) -> OpenLedgersReport:
        return OpenLedgersReport(
            tuple(self.waiting), tuple(self.notified), tuple(sorted(recovering)), tuple(self.recovered), self.lacking,
            self.failed, self.needs_operator,
        )  # fmt: skip
