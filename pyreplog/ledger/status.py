"""How a cluster is: bookies, ledgers, what lacks copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pyreplog._native.quorum.stripe import member_count
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.repair_notes import Garbled, RepairNote


@dataclass(frozen=True)
class LedgerStatus:
    """One ledger. last_add_confirmed, last_add_pushed: of an open one as its bookies know them, -1: nothing, or nobody
    tells. below_write_quorum: copies of entries that lie on bookies that do not run. lacking: of one that is not
    closed, bookies that its writer goes on without, or went on without for a while; lacking_since_us: since when,
    microseconds since 1970, 0: nobody knows."""

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
        """LAP - LAC: entries that are on their way."""
        return max(self.last_add_pushed - self.last_add_confirmed, 0)


@dataclass(frozen=True)
class DegradedLedger:
    """A ledger that is written here, and goes on without copies on `bookies`, which failed. since_us: since 1970."""

    ledger: int
    bookies: tuple[str, ...]
    since_us: int
    why: str


@dataclass(frozen=True)
class BookieStatus:
    """One bookie. address: "" in this process."""

    bookie: str
    address: str
    rack: str
    read_only: bool
    free_bytes: int


@dataclass(frozen=True)
class ClusterStatus:
    """A moment of a cluster. repairs: copies that were found bad, or are known to be missing. limbo: pairs of a ledger
    and a bookie that may have lost entries of it. garbled: keys of the metadata that make no sense; what they stood for
    is not among the rest."""

    bookies: list[BookieStatus]
    ledgers: list[LedgerStatus]
    repairs: list[RepairNote] = field(default_factory=list)
    limbo: list[tuple[int, str]] = field(default_factory=list)
    garbled: list[Garbled] = field(default_factory=list)

    @property
    def below_write_quorum(self) -> int:
        """Copies that are missing, or cannot be reached now."""
        return sum(ledger.below_write_quorum for ledger in self.ledgers) + len(self.repairs)

    @property
    def health(self) -> Literal["green", "amber"]:
        """ "amber": nothing is lost as far as is known, and there is less than there should be: copies are missing or
        noted for repair, bookies may have lost entries, or metadata make no sense."""
        return "amber" if self.below_write_quorum or self.limbo or self.garbled else "green"


def missing_copies(metadata: LedgerMetadata, last: int, running: set[str]) -> int:
    """How many copies of entries up to `last` lie on bookies that are not among `running`."""
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
    """Of one ledger. ends: LAC and highest entry. running: bookies. lacking: see `repair_notes.lacking_since_us`."""
    confirmed, pushed = ends
    missing = missing_copies(metadata, pushed, running)
    here = sorted(lacking.keys() & metadata.bookies())
    since_us = min((lacking[bookie] for bookie in here), default=0)
    return LedgerStatus(
        metadata.ledger, metadata.state, len(metadata.fragments), confirmed, pushed, missing, tuple(here), since_us
    )
