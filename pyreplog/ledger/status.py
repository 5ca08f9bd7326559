"""The status of a cluster: bookies, ledgers, missing copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyreplog._native.quorum.stripe import member_count
from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.bookie.scrub_report import LastScrub
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.repair_notes import Garbled, RepairNote


@dataclass(frozen=True)
class LedgerStatus:
    """The status of one ledger.

    Attributes:
        ledger: number of the ledger.
        state: open, in recovery, or closed.
        fragments: number of fragments.
        last_add_confirmed: LAC; of an open ledger the highest that a bookie knows, -1: none.
        last_add_pushed: LAP; of an open ledger the highest entry that a bookie has, -1: none.
        below_write_quorum: number of copies on bookies that do not run.
        lacking: of an open ledger, bookies that its writer goes on without, or went on without for a while.
        lacking_since_us: since when, microseconds since 1970-01-01 UTC; 0: unknown.
    """

    ledger: int
    state: State
    fragments: int
    last_add_confirmed: int
    last_add_pushed: int
    below_write_quorum: int
    lacking: tuple[str, ...] = ()
    lacking_since_us: int = 0

    @property
    def distance(self) -> int:
        """LAP - LAC: number of entries that are on their way."""
        return max(self.last_add_pushed - self.last_add_confirmed, 0)


@dataclass(frozen=True)
class DegradedLedger:
    """A ledger of this client that goes on without copies on bookies that failed.

    Attributes:
        ledger: number of the ledger.
        bookies: ids of the bookies.
        since_us: since when, microseconds since 1970-01-01 UTC.
        why: errors of the bookies, as text.
    """

    ledger: int
    bookies: tuple[str, ...]
    since_us: int
    why: str


@dataclass(frozen=True)
class BookieStatus:
    """The status of one bookie.

    Attributes:
        bookie: id of the bookie.
        address: "host:port"; "" for a bookie in this process.
        rack: rack of the bookie; "": unknown.
        read_only: whether it refuses new entries.
        free_bytes: free space on its disk.
        phase: away, lost, draining or retired; None: an ordinary member.
        verified_since_us: every segment of its log was verified on the disk, or began, after this time, microseconds
            since 1970-01-01 UTC; 0: unknown, or it has no segment.
        scrub: its last complete pass over its segments; None: there was none, or the bookie does not tell.
    """

    bookie: str
    address: str
    rack: str
    read_only: bool
    free_bytes: int
    phase: BookiePhase | None = None
    scrub: LastScrub | None = None
    verified_since_us: int = 0


@dataclass(frozen=True)
class ClusterStatus:
    """A snapshot of a cluster; made by a call of `LedgerCluster.status`.

    Attributes:
        bookies: the bookies that run.
        ledgers: all ledgers, ordered by number.
        repairs: copies that are noted as damaged or missing.
        limbo: pairs of a ledger and a bookie that may have lost entries of it.
        garbled: keys of the metadata store that cannot be read; the other attributes do not cover them.
        absent: bookies that do not run, and are away, lost, draining or retired.
    """

    bookies: list[BookieStatus]
    ledgers: list[LedgerStatus]
    repairs: list[RepairNote] = field(default_factory=list)
    limbo: list[tuple[int, str]] = field(default_factory=list)
    garbled: list[Garbled] = field(default_factory=list)
    absent: list[BookieStatus] = field(default_factory=list)

    @property
    def below_write_quorum(self) -> int:
        """Number of copies that are missing, or cannot be reached now."""
        return sum(ledger.below_write_quorum for ledger in self.ledgers) + len(self.repairs)

    @property
    def health(self) -> Literal["green", "amber"]:
        """Health as one word: "green" or "amber".

        "amber": copies are missing or noted for repair, bookies may have lost entries, or metadata cannot be read.
        Nothing is known to be lost.
        """
        return "amber" if self.below_write_quorum or self.limbo or self.garbled else "green"


def missing_copies(metadata: LedgerMetadata, last: int, running: set[str]) -> int:
    """Count the copies of entries up to `last` on bookies that are not among `running`."""
    missing = 0
    for fragment in metadata.fragments:
        end = metadata.fragment_end(fragment)
        stop = last + 1 if end is None else min(end, last + 1)
        if fragment.first < stop:
            missing += sum(
                member_count(place, fragment.first, stop, metadata.ensemble_size, metadata.write_quorum)
                for place, bookie in enumerate(fragment.ensemble)
                if bookie not in running
            )
    return missing


def ledger_status(
    metadata: LedgerMetadata, ends: tuple[int, int], running: set[str], lacking: Mapping[str, int]
) -> LedgerStatus:
    """Make the status of one ledger.

    Args:
        metadata: metadata of the ledger.
        ends: LAC and highest entry.
        running: ids of the bookies that run.
        lacking: bookies that the writer goes on without, as `repair_notes.lacking_since_us` returns them.
    """
    confirmed, pushed = ends
    missing = missing_copies(metadata, pushed, running)
    bookies = sorted(lacking.keys() & metadata.bookies())
    since_us = min((lacking[bookie] for bookie in bookies), default=0)
    return LedgerStatus(
        metadata.ledger, metadata.state, len(metadata.fragments), confirmed, pushed, missing, tuple(bookies), since_us
    )
