"""How a cluster is: bookies, ledgers, what lacks copies."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyreplog._native.quorum.stripe import member_count
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.repairs import Garbled, Repair


@dataclass(frozen=True)
class LedgerStatus:
    """One ledger. last_add_confirmed, last_add_pushed: of an open one as its bookies know them, -1: nothing, or nobody
    tells. below_write_quorum: copies of entries that lie on bookies that do not run."""

    ledger: int
    state: State
    fragments: int
    last_add_confirmed: int
    last_add_pushed: int
    below_write_quorum: int

    @property
    def distance(self) -> int:
        """LAP - LAC: entries that are on their way."""
        return max(self.last_add_pushed - self.last_add_confirmed, 0)


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
    repairs: list[Repair] = field(default_factory=list)
    limbo: list[tuple[int, str]] = field(default_factory=list)
    garbled: list[Garbled] = field(default_factory=list)

    @property
    def below_write_quorum(self) -> int:
        """Copies that are missing, or cannot be reached now."""
        return sum(ledger.below_write_quorum for ledger in self.ledgers) + len(self.repairs)


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


def ledger_status(metadata: LedgerMetadata, ends: tuple[int, int], running: set[str]) -> LedgerStatus:
    """Of one ledger. ends: LAC and highest entry. running: bookies."""
    confirmed, pushed = ends
    missing = missing_copies(metadata, pushed, running)
    return LedgerStatus(metadata.ledger, metadata.state, len(metadata.fragments), confirmed, pushed, missing)
