"""Whether all members of a closed ledger hold what they should, and the same. A state machine.

Members are asked for HOLDINGS: which entries they have, and a digest of them. So two members are compared without
their bytes. A copy whose checksum is right, and that is another record than the other members', is found in no other
way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce

import numpy as np

from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog.autorecovery.protocol.entry_ranges import last_of, runs_of
from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, InvalidMessageError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import Effect, Finished
from pyreplog.ledger.protocol.terminal_errors import error_text

PIECE_ENTRIES = 4096
"""Entries of one write set that are compared at a time."""
UNKNOWN_MAX = 16
"""Entries of one write set of which a member could not say whether it has them, before it is asked for no more."""
RANGES_MAX = 1000
"""Ranges that are reported of a member, of each kind; a report that leaves some out says so."""


class MemberVerdict(StrEnum):
    """The worst that is known of a member's copies."""

    COMPLETE = "complete"
    UNKNOWN = "unknown"
    """It could not say of some entries whether it has them, or did not answer."""
    MISSING = "missing"
    """It definitely lacks entries."""
    DIFFERS = "differs"
    """It holds records that are intact, and are not those of the other members."""


@dataclass
class MemberReport:
    """What is known of the copies of one member. Entries of a range that the member should hold are meant.

    held: how many entries it has. missing: it definitely lacks them. differs: its records are not the others'. unknown:
    it cannot say. why: of the last entries that are unknown. is_cut: more ranges were found than are listed.
    """

    held: int = 0
    missing: list[range] = field(default_factory=list)
    differs: list[range] = field(default_factory=list)
    unknown: list[range] = field(default_factory=list)
    why: str = ""
    is_cut: bool = False

    @property
    def verdict(self) -> MemberVerdict:
        """The worst that is known: differs, then missing, then unknown."""
        if self.differs:
            return MemberVerdict.DIFFERS
        if self.missing:
            return MemberVerdict.MISSING
        return MemberVerdict.UNKNOWN if self.unknown else MemberVerdict.COMPLETE

    def add(self, ranges: list[range], entries: Iterable[range]) -> None:
        """Add ranges to one of the lists; neighbours are joined."""
        for entry_range in entries:
            last = ranges[-1] if ranges else None
            if last is not None and last.step == entry_range.step and last[-1] + last.step == entry_range.start:
                ranges[-1] = range(last.start, entry_range[-1] + 1, entry_range.step)
            elif len(ranges) < RANGES_MAX:
                ranges.append(entry_range)
            else:
                self.is_cut = True


@dataclass
class CopyReport:
    """What the check of one ledger found.

    members: by bookie. nowhere: entries that every member of their write set definitely lacks.
    """

    ledger: int
    members: dict[str, MemberReport]
    nowhere: list[range] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every member holds all that it should, and the same as the others."""
        return all(member.verdict is MemberVerdict.COMPLETE for member in self.members.values())


@dataclass
class _Piece:
    """Entries with one write set. told: replies of members about `asked`; those that are not OK are left out."""

    entries: range
    members: tuple[str, ...]
    asked: range = range(0)
    told: dict[str, tuple[Request, Reply, Holdings]] = field(default_factory=dict)
    silent: dict[str, bool] = field(default_factory=dict)  # cannot say of the first entry; whether it is to be asked on
    waiting: int = 0


class CopyCheck:
    """Asks each member of a closed ledger what it holds of its stripes; ends with `Finished(CopyReport)`.

    A member that does not answer, or cannot say, is reported as unknown, and ends nothing.

    Args:
        metadata: of the ledger, which is closed.
        absent: bookies that are not asked; their copies are unknown.
        window: pieces of PIECE_ENTRIES entries that are compared at a time.

    Raises:
        InvalidArgumentError: the ledger is not closed, or `window` is below 1.
    """

    def __init__(self, metadata: LedgerMetadata, *, absent: Iterable[str] = (), window: int = 2) -> None:
        if metadata.state is not State.CLOSED:
            raise InvalidArgumentError(f"ledger {metadata.ledger} is {metadata.state}, expected a closed one")
        if window < 1:
            raise InvalidArgumentError(f"window: expected 1 or more, found {window}")
        self._ledger, self._window = metadata.ledger, window
        self._report = CopyReport(metadata.ledger, {bookie: MemberReport() for bookie in sorted(metadata.bookies())})
        self._given_up = dict.fromkeys(absent, "it is not asked")
        self._unknowns: Counter[tuple[str, tuple[str, ...]]] = Counter()  # of a member, in one write set
        self._pieces: deque[_Piece] = deque(_pieces(metadata))
        self._busy = 0
        self._is_over = False

    def start(self) -> list[Effect]:
        return self._begin_pieces()

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        piece: _Piece = send.about
        if self._is_over:
            return []
        if reply.status == ReplyStatus.OK:
            try:
                piece.told[send.bookie] = send.request, reply, Holdings.decode(send.request, reply)
            except InvalidMessageError as error:
                self._give_up(send.bookie, str(error), piece)
        elif reply.status in (ReplyStatus.UNKNOWN, ReplyStatus.LIMBO):
            self._report.members[send.bookie].why = error_text(reply)
            piece.silent[send.bookie] = True
        else:
            self._give_up(send.bookie, error_text(reply), piece)
        return self._arrived(piece)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if self._is_over:
            return []
        self._give_up(send.bookie, str(error), send.about)
        return self._arrived(send.about)

    def woken(self, about: object) -> list[Effect]:
        return []

    # ---- asking ---------------------------------------------------------------------------------------------

    def _begin_pieces(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._pieces and self._busy < self._window:
            self._busy += 1
            piece = self._pieces.popleft()
            sends = self._begin(piece)
            if not sends:  # none of its members is asked any more
                self._compare(piece)
            effects += sends
        if not self._busy and not self._is_over:
            self._is_over = True
            effects.append(Finished(self._report))
        return effects

    def _begin(self, piece: _Piece) -> list[Effect]:
        """Ask all members of a piece that are still asked."""
        piece.asked, piece.told, piece.silent = piece.entries, {}, {}
        sends: list[Effect] = []
        for bookie in piece.members:
            if bookie in self._given_up or self._unknowns[bookie, piece.members] >= UNKNOWN_MAX:
                piece.silent[bookie] = False
            else:
                sends.append(self._ask(bookie, piece))
        piece.waiting = len(sends)
        return sends

    def _ask(self, bookie: str, piece: _Piece) -> Send:
        entries = piece.asked
        request = Request(
            RequestKind.HOLDINGS, self._ledger, entries[0], entries[-1], limit=READ_BYTES_MAX, step=entries.step
        )
        return Send(bookie, request, piece)

    def _give_up(self, bookie: str, why: str, piece: _Piece) -> None:
        """Ask a member for nothing more."""
        self._given_up[bookie] = why
        piece.silent[bookie] = False

    # ---- comparing ------------------------------------------------------------------------------------------

    def _arrived(self, piece: _Piece) -> list[Effect]:
        """When all members have answered: have them speak of the same entries, and compare."""
        piece.waiting -= 1
        if piece.waiting:
            return []
        asked = piece.asked
        ends = [asked.index(last_of(asked, reply.last)) + 1 for _, reply, _ in piece.told.values()]
        count = min(ends, default=len(asked))
        if any(piece.silent.values()):  # of the first entry alone it is known that they cannot say
            count = 1
        piece.asked = asked[:count]
        sends: list[Effect] = []
        for bookie, (request, reply, _) in list(piece.told.items()):
            if min(request.last, reply.last) >= asked[count - 1] + asked.step:
                del piece.told[bookie]
                sends.append(self._ask(bookie, piece))
        if sends:
            piece.waiting = len(sends)
            return sends
        self._compare(piece)
        return self._begin_pieces()

    def _compare(self, piece: _Piece) -> None:
        """Compare what the members hold of `asked`; what lies behind it is another piece."""
        asked = piece.asked
        rest = piece.entries[len(asked) :]
        if rest:
            self._pieces.appendleft(_Piece(rest, piece.members))
        self._busy -= 1
        wanted = np.arange(asked.start, asked.stop, asked.step, dtype=np.int64)
        lacking = {
            bookie: np.setdiff1d(wanted, holdings.entries(request))
            for bookie, (request, _, holdings) in piece.told.items()
        }
        odd = _odd_ones(piece)
        if odd and len(asked) > 1 and self._room_for(odd):  # find the entries that differ
            middle = len(asked) // 2
            for part in (asked[middle:], asked[:middle]):
                self._pieces.appendleft(_Piece(part, piece.members))
            return
        self._note_silent(piece)
        for bookie, entries in lacking.items():
            member = self._report.members[bookie]
            member.held += len(wanted) - len(entries)
            member.add(member.missing, runs_of(entries, asked.step))
        for bookie in odd:
            member = self._report.members[bookie]
            member.add(member.differs, [asked])
        if len(lacking) == len(piece.members):
            self._report.nowhere += runs_of(reduce(np.intersect1d, lacking.values()), asked.step)

    def _note_silent(self, piece: _Piece) -> None:
        for bookie, is_asked_on in piece.silent.items():
            member = self._report.members[bookie]
            member.add(member.unknown, [piece.asked])
            member.why = self._given_up.get(bookie, member.why)
            if is_asked_on:
                self._unknowns[bookie, piece.members] += 1

    def _room_for(self, bookies: Iterable[str]) -> bool:
        """Whether it is worth while to look for single entries that differ."""
        return all(len(self._report.members[bookie].differs) < UNKNOWN_MAX for bookie in bookies)


def unreadable_entries(report: CopyReport, write_quorum: int) -> tuple[range, ...]:
    """Return the entries of which no member is known to have a copy, ascending.

    Args:
        report: what the check of a ledger found. A report that was cut names fewer.
        write_quorum: number of copies of each entry.
    """
    lacking = [
        np.arange(entry_range.start, entry_range.stop, entry_range.step, dtype=np.int64)
        for member in report.members.values()
        for entry_range in (*member.missing, *member.unknown)
    ]
    if not lacking:
        return ()
    entries, counts = np.unique(np.concatenate(lacking), return_counts=True)
    return tuple(runs_of(entries[counts >= write_quorum], 1))


def _pieces(metadata: LedgerMetadata) -> Iterable[_Piece]:
    """The entries of a closed ledger, by fragment and write set."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for fragment in metadata.fragments:
        end = metadata.fragment_end(fragment)
        stop = metadata.last_entry + 1 if end is None else end
        step = 1 if size == quorum else size
        for first in range(fragment.first, min(fragment.first + step, stop)):
            entries = range(first, stop, step)
            members = tuple(fragment.ensemble[place] for place in write_set(first, size, quorum))
            for start in range(0, len(entries), PIECE_ENTRIES):
                yield _Piece(entries[start : start + PIECE_ENTRIES], members)


def _odd_ones(piece: _Piece) -> list[str]:
    """Members whose digest is not that of most of those that hold the same entries; all, if there is no majority."""
    odd: list[str] = []
    groups: dict[tuple[range, ...], dict[str, int]] = {}
    for bookie, (_, _, holdings) in piece.told.items():
        groups.setdefault(holdings.ranges, {})[bookie] = holdings.digest
    for digests in groups.values():
        (digest, most), *_ = Counter(digests.values()).most_common(1)
        agreed = digest if 2 * most > len(digests) else None
        odd += [bookie for bookie, copy_digest in digests.items() if copy_digest != agreed]
    return odd
