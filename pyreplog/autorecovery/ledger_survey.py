"""LedgerSurvey: counts the copies of all ledgers in one read of their metadata, without requests to bookies."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.absence import name_of_bookie
from pyreplog.autorecovery.protocol.member_change import written_end
from pyreplog.autorecovery.protocol.rack_windows import count_racks, single_rack_windows
from pyreplog.autorecovery.worker import bytes_on
from pyreplog.errors import InvalidMetadataError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State
from pyreplog.ledger.ledger_store import VersionedMetadata, stored_ledgers
from pyreplog.ledger.status import missing_copies
from pyreplog.metadata.store import MetadataStore


@dataclass(frozen=True)
class Membership:
    """The known bookies of a cluster.

    Attributes:
        registered: ids of running bookies.
        lost: ids of bookies whose data are lost, and that do not run.
        current: last incarnation of each bookie name; the data of earlier incarnations count as lost.
        leaving: ids of bookies whose copies are replicated again: with an order, lost, or draining.
        racks: rack of each known bookie.
    """

    registered: Set[str]
    lost: Set[str]
    current: Mapping[str, str]
    leaving: Set[str] = frozenset()
    racks: Mapping[str, str] = field(default_factory=dict)

    def is_gone(self, bookie: str) -> bool:
        """Return whether the data of a bookie that does not run are lost."""
        return bookie in self.lost or self.current.get(name_of_bookie(bookie), bookie) != bookie


@dataclass
class LedgerSurvey:
    """Copy counts of the ledgers given to `take`. Entries of the last fragment of an open ledger are unknown.

    Attributes:
        membership: the bookies of the cluster.
        ledgers: number of ledgers with readable metadata.
        open: number of those that are not closed.
        entries: number of entries, as far as it is known.
        missing: number of copies on bookies that do not run.
        lacking: ledgers with members that do not run.
        one_copy: number of entries, by ledger, with one copy on running bookies; ledgers with Qw = 1 are left out.
        no_copy: number of entries, by ledger, without a copy on a running bookie.
        gone: number of entries, by ledger, whose copies are all on bookies with lost data.
        rack_violations: number of write sets, by ledger, whose members are in one rack, in all fragments.
        garbled: ledgers with unreadable metadata.
        leaving: number of ledgers that name each bookie whose copies are replicated again.
        leaving_bytes: size of its copies of closed ledgers, bytes, for the same bookies.
        bytes_to_copy: sum of `leaving_bytes`.
        bytes_away: size of the copies of closed ledgers on other bookies that do not run, bytes.
    """

    membership: Membership
    ledgers: int = 0
    open: int = 0
    entries: int = 0
    missing: int = 0
    lacking: list[int] = field(default_factory=list)
    one_copy: dict[int, int] = field(default_factory=dict)
    no_copy: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    rack_violations: dict[int, int] = field(default_factory=dict)
    garbled: list[int] = field(default_factory=list)
    leaving: dict[str, int] = field(default_factory=dict)
    leaving_bytes: dict[str, int] = field(default_factory=dict)
    bytes_to_copy: int = 0
    bytes_away: int = 0

    def __post_init__(self) -> None:
        self._has_racks = count_racks(self.membership.racks) > 1
        self._violations: dict[tuple[tuple[str, ...], int], int] = {}  # by ensemble and write quorum

    def take(self, ledger: int, stored: VersionedMetadata | InvalidMetadataError) -> None:
        """Count one ledger. `stored` is its metadata, or the error of reading them."""
        if isinstance(stored, InvalidMetadataError):
            self.garbled.append(ledger)
            return
        metadata = stored.metadata
        self.ledgers += 1
        self.open += metadata.state is not State.CLOSED
        self.entries += known_end(metadata)
        if self._has_racks and (count := self._count_violations(metadata)):
            self.rack_violations[ledger] = count
        members = metadata.bookies()
        self._count_bytes(metadata, members)
        absent = members - self.membership.registered
        if absent:
            self._count_absent(metadata, absent)

    def _count_bytes(self, metadata: LedgerMetadata, members: Set[str]) -> None:
        leaving = members & self.membership.leaving
        for bookie in leaving:
            size = bytes_on(metadata, (bookie,))
            self.leaving[bookie] = self.leaving.get(bookie, 0) + 1
            self.leaving_bytes[bookie] = self.leaving_bytes.get(bookie, 0) + size
            self.bytes_to_copy += size
        self.bytes_away += bytes_on(metadata, members - self.membership.registered - leaving)

    def _count_violations(self, metadata: LedgerMetadata) -> int:
        count = 0
        for fragment in metadata.fragments:
            key = fragment.ensemble, metadata.write_quorum
            if key not in self._violations:
                self._violations[key] = single_rack_windows(*key, self.membership.racks)
            count += self._violations[key]
        return count

    def _count_absent(self, metadata: LedgerMetadata, absent: Set[str]) -> None:
        ledger = metadata.ledger
        self.lacking.append(ledger)
        self.missing += missing_copies(metadata, known_end(metadata) - 1, set(self.membership.registered))
        copies = entries_by_copies(metadata, absent)
        if copies.get(0):
            self.no_copy[ledger] = copies[0]
        if copies.get(1) and metadata.write_quorum > 1:
            self.one_copy[ledger] = copies[1]
        gone = {bookie for bookie in absent if self.membership.is_gone(bookie)}
        if gone and (entries := entries_by_copies(metadata, gone).get(0)):
            self.gone[ledger] = entries


def survey_ledgers(store: MetadataStore, membership: Membership) -> LedgerSurvey:
    """Read and count the metadata of all ledgers. Raises the errors of `stored_ledgers`."""
    survey = LedgerSurvey(membership)
    for ledger, stored in stored_ledgers(store):
        survey.take(ledger, stored)
    return survey


def known_end(metadata: LedgerMetadata) -> int:
    """Return the entry behind the last known one; for an open ledger, the first one of its last fragment."""
    return metadata.last_entry + 1 if metadata.state is State.CLOSED else metadata.last_fragment.first


def entries_by_copies(metadata: LedgerMetadata, absent: Set[str]) -> dict[int, int]:
    """Return the number of entries by the number of their copies on bookies that are not absent.

    Entries of the last fragment of a ledger that is not closed are left out.
    """
    counts: dict[int, int] = {}
    for fragment in metadata.fragments:
        end = written_end(metadata, fragment)
        if end is not None:
            for copies, entries in copies_of(metadata, fragment, end, absent):
                counts[copies] = counts.get(copies, 0) + entries
    return counts


def copies_of(metadata: LedgerMetadata, fragment: Fragment, end: int, absent: Set[str]) -> list[tuple[int, int]]:
    """Return pairs (copies, entries), one for each write set of a fragment.

    `copies` counts the members of the write set that are not absent, `entries` its entries below `end`.
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    return [
        (
            sum(fragment.ensemble[place] not in absent for place in write_set(first, size, quorum)),
            len(range(first, end, size)),
        )
        for first in range(fragment.first, min(fragment.first + size, end))
    ]


def uncopied(metadata: LedgerMetadata, fragment: Fragment, end: int, gone: Set[str]) -> int:
    """Count the entries below `end` of a fragment whose copies are all on bookies with lost data."""
    return sum(entries for copies, entries in copies_of(metadata, fragment, end, gone) if not copies)
