"""CopyCheck: a state machine that checks whether the members of a closed ledger hold all entries, and the same.

Members answer HOLDINGS requests with the entries that they have and a digest of them, so that members are compared
without transferring records. Only this comparison finds a record that has a valid checksum but differs from the other
members' record.
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
"""Number of entries of one write set that are compared in one step."""
UNKNOWN_MAX = 16
"""After so many entries of one write set for which a member cannot say whether it has them, no more requests go to
it."""
RANGES_MAX = 1000
"""Maximum number of ranges of each kind in the report of a member; `MemberReport.is_cut` is set when more were
found."""


class MemberVerdict(StrEnum):
    """The worst result of the check of a member."""

    COMPLETE = "complete"
    UNKNOWN = "unknown"
    """For some entries the member could not say whether it has them, or it did not answer."""
    MISSING = "missing"
    """The member definitely lacks entries."""
    DIFFERS = "differs"
    """The member holds valid records that differ from the other members' records."""


@dataclass
class MemberReport:
    """The result of the check of one member, about the entries that it should hold.

    Attributes:
        held: number of entries that it has.
        missing: entries that it definitely lacks.
        differs: entries whose records differ from the other members'.
        unknown: entries for which it cannot say whether it has them.
        why: why the last unknown entries are unknown.
        is_cut: whether more ranges were found than are listed.
    """

    held: int = 0
    missing: list[range] = field(default_factory=list)
    differs: list[range] = field(default_factory=list)
    unknown: list[range] = field(default_factory=list)
    why: str = ""
    is_cut: bool = False

    @property
    def verdict(self) -> MemberVerdict:
        """The worst result: differs, then missing, then unknown."""
        if self.differs:
            return MemberVerdict.DIFFERS
        if self.missing:
            return MemberVerdict.MISSING
        return MemberVerdict.UNKNOWN if self.unknown else MemberVerdict.COMPLETE

    def add(self, ranges: list[range], entries: Iterable[range]) -> None:
        """Add ranges to one of the lists; adjacent ranges are joined."""
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
    """The result of the check of one ledger.

    Attributes:
        ledger: id of the ledger.
        members: report of each bookie.
        nowhere: entries that every member of their write set definitely lacks.
    """

    ledger: int
    members: dict[str, MemberReport]
    nowhere: list[range] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every member holds all its entries, with records equal to the other members'."""
        return all(member.verdict is MemberVerdict.COMPLETE for member in self.members.values())


@dataclass
class _Piece:
    """A chunk of entries with one write set. `replies` holds the OK replies about the entries `asked`."""

    entries: range
    members: tuple[str, ...]
    asked: range = range(0)
    replies: dict[str, tuple[Request, Reply, Holdings]] = field(default_factory=dict)
    # members that cannot say whether they have the first entry; whether later chunks ask them
    unsure: dict[str, bool] = field(default_factory=dict)
    waiting: int = 0


class CopyCheck:
    """Asks each member of a closed ledger which entries it holds; ends with `Finished(CopyReport)`.

    A member that does not answer, or cannot say, is reported as unknown; the check continues.

    Args:
        metadata: metadata of the closed ledger.
        absent: ids of bookies that get no requests; their copies are reported as unknown.
        window: number of chunks, of PIECE_ENTRIES entries each, that are compared concurrently.

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
        self._given_up = dict.fromkeys(absent, "the bookie does not run, and is not asked")
        self._unknowns: Counter[tuple[str, tuple[str, ...]]] = Counter()  # unknown entries of a member in one write set
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
                piece.replies[send.bookie] = send.request, reply, Holdings.decode(send.request, reply)
            except InvalidMessageError as error:
                self._give_up(send.bookie, str(error), piece)
        elif reply.status in (ReplyStatus.UNKNOWN, ReplyStatus.LIMBO):
            self._report.members[send.bookie].why = error_text(reply)
            piece.unsure[send.bookie] = True
        else:
            self._give_up(send.bookie, error_text(reply), piece)
        return self._count_reply(piece)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if self._is_over:
            return []
        self._give_up(send.bookie, str(error), send.about)
        return self._count_reply(send.about)

    def woken(self, about: object) -> list[Effect]:
        return []

    # ---- asking ---------------------------------------------------------------------------------------------

    def _begin_pieces(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._pieces and self._busy < self._window:
            self._busy += 1
            piece = self._pieces.popleft()
            sends = self._begin(piece)
            if not sends:  # no member of the chunk gets requests any more
                self._compare(piece)
            effects += sends
        if not self._busy and not self._is_over:
            self._is_over = True
            effects.append(Finished(self._report))
        return effects

    def _begin(self, piece: _Piece) -> list[Effect]:
        """Return the requests to the members of a chunk that still get requests."""
        piece.asked, piece.replies, piece.unsure = piece.entries, {}, {}
        sends: list[Effect] = []
        for bookie in piece.members:
            if bookie in self._given_up or self._unknowns[bookie, piece.members] >= UNKNOWN_MAX:
                piece.unsure[bookie] = False
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
        """Send no more requests to a member."""
        self._given_up[bookie] = why
        piece.unsure[bookie] = False

    # ---- comparing ------------------------------------------------------------------------------------------

    def _count_reply(self, piece: _Piece) -> list[Effect]:
        """Count a reply.

        Once all members have replied, compare them, or ask again those whose reply covers more entries.
        """
        piece.waiting -= 1
        if piece.waiting:
            return []
        asked = piece.asked
        ends = [asked.index(last_of(asked, reply.last)) + 1 for _, reply, _ in piece.replies.values()]
        count = min(ends, default=len(asked))
        if any(piece.unsure.values()):  # the member cannot say of the first entry only; later entries are asked again
            count = 1
        piece.asked = asked[:count]
        sends: list[Effect] = []
        for bookie, (request, reply, _) in list(piece.replies.items()):
            if min(request.last, reply.last) >= asked[count - 1] + asked.step:
                del piece.replies[bookie]
                sends.append(self._ask(bookie, piece))
        if sends:
            piece.waiting = len(sends)
            return sends
        self._compare(piece)
        return self._begin_pieces()

    def _compare(self, piece: _Piece) -> None:
        """Compare the replies about `asked`; the entries behind it become another chunk."""
        asked = piece.asked
        rest = piece.entries[len(asked) :]
        if rest:
            self._pieces.appendleft(_Piece(rest, piece.members))
        self._busy -= 1
        wanted = np.arange(asked.start, asked.stop, asked.step, dtype=np.int64)
        lacking = {
            bookie: np.setdiff1d(wanted, holdings.entries(request))
            for bookie, (request, _, holdings) in piece.replies.items()
        }
        outliers = _outliers(piece)
        if outliers and len(asked) > 1 and self._may_bisect(outliers):  # bisect to find the entries that differ
            middle = len(asked) // 2
            for part in (asked[middle:], asked[:middle]):
                self._pieces.appendleft(_Piece(part, piece.members))
            return
        self._note_unsure(piece)
        for bookie, entries in lacking.items():
            member = self._report.members[bookie]
            member.held += len(wanted) - len(entries)
            member.add(member.missing, runs_of(entries, asked.step))
        for bookie in outliers:
            member = self._report.members[bookie]
            member.add(member.differs, [asked])
        if len(lacking) == len(piece.members):
            self._report.nowhere += runs_of(reduce(np.intersect1d, lacking.values()), asked.step)

    def _note_unsure(self, piece: _Piece) -> None:
        for bookie, is_asked_on in piece.unsure.items():
            member = self._report.members[bookie]
            member.add(member.unknown, [piece.asked])
            member.why = self._given_up.get(bookie, member.why)
            if is_asked_on:
                self._unknowns[bookie, piece.members] += 1

    def _may_bisect(self, bookies: Iterable[str]) -> bool:
        """Return whether to bisect: not after too many entries of a bookie are known to differ."""
        return all(len(self._report.members[bookie].differs) < UNKNOWN_MAX for bookie in bookies)


def unreadable_entries(report: CopyReport, write_quorum: int) -> tuple[range, ...]:
    """Return the entries that no member is known to have, ascending.

    Args:
        report: the result of the check of a ledger. A report that was cut has fewer of them.
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
    """Return the entries of a closed ledger in chunks, by fragment and write set."""
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


def _outliers(piece: _Piece) -> list[str]:
    """Return the members whose digest differs from that of most with the same entries; without a majority, all."""
    outliers: list[str] = []
    groups: dict[tuple[range, ...], dict[str, int]] = {}
    for bookie, (_, _, holdings) in piece.replies.items():
        groups.setdefault(holdings.ranges, {})[bookie] = holdings.digest
    for digests in groups.values():
        (digest, most), *_ = Counter(digests.values()).most_common(1)
        agreed = digest if 2 * most > len(digests) else None
        outliers += [bookie for bookie, copy_digest in digests.items() if copy_digest != agreed]
    return outliers
