"""LedgerSurvey: what the metadata of all ledgers say about copies, read once. Asks no bookie."""

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
    """What is known of the bookies of a cluster.

    Attributes:
        registered: ids of those that run.
        lost: ids of those whose data are gone, and that do not run.
        current: name of a bookie -> its last incarnation; the data of earlier ones count as gone.
        leaving: ids of those whose copies are made again: with an order, lost, or draining.
        racks: rack of each bookie that is known.
    """

    registered: Set[str]
    lost: Set[str]
    current: Mapping[str, str]
    leaving: Set[str] = frozenset()
    racks: Mapping[str, str] = field(default_factory=dict)

    def is_gone(self, bookie: str) -> bool:
        """Whether the data of a bookie that does not run are gone."""
        return bookie in self.lost or self.current.get(name_of_bookie(bookie), bookie) != bookie


@dataclass
class LedgerSurvey:
    """Numbers of all ledgers that were taken. Entries of the last fragment of an open ledger are not known.

    Attributes:
        membership: the bookies.
        ledgers: ledgers whose metadata can be read.
        open: those among them that are not closed.
        entries: entries, as far as their number is known.
        missing: copies on bookies that do not run.
        lacking: ledgers with members that do not run.
        one_copy: ledger -> entries with one copy on bookies that run; ledgers that ask for one copy are left out.
        no_copy: ledger -> entries with no copy on a bookie that runs.
        gone: ledger -> entries whose copies are all on bookies whose data are gone.
        rack_violations: ledger -> write sets whose members are in one rack, of all fragments.
        garbled: ledgers whose metadata cannot be read.
        leaving: bookie -> ledgers that name it, of bookies whose copies are made again.
        leaving_bytes: bookie -> bytes of its copies of closed ledgers, of the same bookies.
        bytes_to_copy: the sum of these.
        bytes_away: bytes of copies of closed ledgers on other bookies that do not run.
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
        """Count one ledger. stored: its metadata, or why they cannot be read."""
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
    """Read the metadata of all ledgers. Raises as `stored_ledgers`."""
    survey = LedgerSurvey(membership)
    for ledger, stored in stored_ledgers(store):
        survey.take(ledger, stored)
    return survey


def known_end(metadata: LedgerMetadata) -> int:
    """Return the entry behind the last one that is known: of a ledger that is not closed, that of its last fragment."""
    return metadata.last_entry + 1 if metadata.state is State.CLOSED else metadata.last_fragment.first


def entries_by_copies(metadata: LedgerMetadata, absent: Set[str]) -> dict[int, int]:
    """Return, for each number of copies on bookies that are not absent, how many entries have so many.

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
    """Return pairs of copies on bookies that are not absent, and entries below `end` of a fragment that have so many.

    One pair for each write set.
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
    """Count the entries below `end` of a fragment whose copies are all on bookies that are gone."""
    return sum(entries for copies, entries in copies_of(metadata, fragment, end, gone) if not copies)
