"""Terms: who was master when, and which one a node has promised to follow. File `terms` of a log directory.

A term is a number together with the name of its master, so that no two masters ever have the same one, whatever the
quorums and whoever was promoted by force (the ballots of Paxos). Terms are compared by number, then name. Histories are
compared as RocketMQ's EpochFileCache does (facts of AutoSwitchHA): the newest term that both know with the same start.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, FormatVersionError, HigherTermError, InvalidMessageError
from pyreplog.log.files import Files
from pyreplog.regular_files import read_regular
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.log_position import LogPosition

TERMS = "terms"
FILE_MAX = 1 << 24  # bytes
MAGIC = b"RPTERM01"
VERSION = 1
TERM_JUMP_MAX = 1 << 24
"""No group holds so many elections while one of its nodes is away. A term that is further above those that a node knows
is nobody's: after the highest number there is there would be no other, and so never a master again."""
HISTORY_MAX = 10_000
"""Terms that a history knows at most; it forgets the oldest."""

_HEAD = "8sIHH"
_HEAD_BYTES = 16


class Term(NamedTuple):
    """Of one master: strictly increasing, see above."""

    number: int
    master: str

    def __str__(self) -> str:
        return f"{self.number} of {self.master}" if self.number else "none"

    def after(self, master: str) -> Term:
        """The lowest term of `master` that is above this one whatever its name."""
        return Term(self.number + 1, master)

    def is_absurd(self, known: Term) -> bool:
        """Whether it cannot be that of a group in which `known` is."""
        return self.number > known.number + TERM_JUMP_MAX


NO_TERM = Term(0, "")


class TermStart(NamedTuple):
    """Where a term began."""

    term: Term
    start: LogPosition


@dataclass(frozen=True)
class History:
    """Where each term began: ascending in term, position and entry. All bytes from one start to the next were written
    by that term's master."""

    starts: tuple[TermStart, ...] = ()

    @property
    def last(self) -> Term:
        return self.starts[-1].term if self.starts else NO_TERM

    def start_of(self, term: Term) -> LogPosition | None:
        at = bisect_left(self.starts, (term,))
        return self.starts[at].start if at < len(self.starts) and self.starts[at].term == term else None

    def up_to(self, end: LogPosition) -> History:
        """Of a log that ends there: terms of which it holds nothing are not in it."""
        return History(tuple(at for at in self.starts if at.start.position < end.position))

    def begin(self, term: Term, start: LogPosition) -> History:
        """With another term, whose master's log ends at `start`."""
        return History((*self.up_to(start).starts, TermStart(term, start))[-HISTORY_MAX:])

    def common_point(self, end: LogPosition, other: History, other_end: LogPosition) -> LogPosition | None:
        """Up to where a log of this history that ends at `end` equals one of the other; None: cannot be told, nothing
        proves that they have anything in common.

        From the newest term to the oldest, the first one that both know with the same start: there they part, at the
        latest where one of them leaves it.
        """
        mine = self.up_to(end).starts
        theirs = other.up_to(other_end).starts
        place = {at.term: index for index, at in enumerate(theirs)}
        for index in range(len(mine) - 1, -1, -1):
            found = place.get(mine[index].term)
            if found is not None and theirs[found].start == mine[index].start:
                my_end = mine[index + 1].start if index + 1 < len(mine) else end
                their_end = theirs[found + 1].start if found + 1 < len(theirs) else other_end
                return min(my_end, their_end)
        return None


def write_term(fields: FieldWriter, term: Term) -> None:
    fields.numbers("Q", term.number)
    fields.name(term.master)


def read_term(fields: FieldReader) -> Term:
    (number,) = fields.numbers("Q")
    return Term(number, fields.name())


def write_history(fields: FieldWriter, history: History) -> None:
    fields.numbers("I", len(history.starts))
    for term, start in history.starts:
        write_term(fields, term)
        fields.mark(start)


def read_history(fields: FieldReader) -> History:
    starts: list[TermStart] = []
    for _ in range(fields.count("I", HISTORY_MAX)):
        found = TermStart(read_term(fields), fields.mark())
        if starts and not (
            starts[-1].term < found.term
            and starts[-1].start.position < found.start.position
            and starts[-1].start.entry <= found.start.entry
        ):
            raise fields.error(f"a term behind {starts[-1]}", f"{found}")
        starts.append(found)
    return History(tuple(starts))


@dataclass(frozen=True)
class Terms:
    """What a node remembers of terms. promised: it follows no lower one, and answers none.

    leads: it is the master of `promised`, and goes on as that when it starts again; see `TermsFile.resign`.
    lossless: it sends nothing that is not on its disk: then a power cut takes nothing that it had sent.
    """

    promised: Term = NO_TERM
    history: History = History()
    leads: bool = False
    lossless: bool = False

    def begun(self, term: Term, start: LogPosition, *, lossless: bool = False) -> Terms:
        """As master of a term that begins there."""
        return Terms(term, self.history.begin(term, start), leads=True, lossless=lossless)

    def resigned(self) -> Terms:
        return Terms(self.promised, self.history)

    def encode(self) -> bytes:
        fields = FieldWriter("<")
        fields.numbers("B", self.leads + self.lossless)
        write_term(fields, self.promised)
        write_history(fields, self.history)
        return seal(MAGIC, fields.take())

    @classmethod
    def decode(cls, path: Path, data: bytes) -> Terms:
        """CorruptionError; FormatVersionError."""
        fields = unseal(path, MAGIC, data)
        try:
            leads, promised = fields.count("B", 2), read_term(fields)
            found = cls(promised, read_history(fields), leads > 0, leads > 1)
            fields.end()
            if leads and found.history.last != promised:
                raise fields.error(f"a history up to {promised}", f"{found.history.last}")
        except InvalidMessageError as error:
            raise CorruptionError(path, 0, "intact terms", str(error)) from error
        return found


def seal(magic: bytes, body: bytes) -> bytes:
    """A small file: magic, CRC of all behind it, versions, body."""
    head = FieldWriter("<")
    versions = VERSION.to_bytes(2, "little") * 2
    head.numbers(_HEAD, magic, crc32c(versions + body), VERSION, VERSION)
    return head.take() + body


def unseal(path: Path, magic: bytes, data: bytes) -> FieldReader:
    """Its body. CorruptionError; FormatVersionError."""
    if len(data) < _HEAD_BYTES:
        raise CorruptionError(path, 0, f"at least {_HEAD_BYTES} bytes", f"{len(data)}")
    found, crc, _, min_reader = FieldReader("<", data[:_HEAD_BYTES], path.name).numbers(_HEAD)
    if found != magic or crc != crc32c(data[12:]):
        raise CorruptionError(path, 0, f"{magic.decode()} and its CRC", data[:12].hex())
    if min_reader > VERSION:
        raise FormatVersionError(path, min_reader, VERSION)
    return FieldReader("<", data[_HEAD_BYTES:], path.name)


class TermsFile:
    """Keeps a node's terms. What a method changes is durable when it returns. Not for several threads at once.

    Errors of opening it: CorruptionError, FormatVersionError; of the others: OSError, nothing changed then.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / TERMS, files
        self.terms = Terms()
        if self._path.exists():
            files.sync_directory(directory)  # who stored it may have been killed before that
            self.terms = Terms.decode(self._path, read_regular(self._path, FILE_MAX))

    @property
    def promised(self) -> Term:
        return self.terms.promised

    @property
    def history(self) -> History:
        return self.terms.history

    def promise(self, term: Term) -> None:
        """No lower term is followed from now on. HigherTermError: a higher one was promised."""
        self.follow(term, self.terms.history)

    def follow(self, term: Term, history: History) -> None:
        """`promise`, and take over a master's history: what went beyond their common point is cut already."""
        self._check(term)
        self._store(Terms(term, history))

    def begin(self, term: Term, start: LogPosition, *, lossless: bool = False) -> None:
        """This node is master of `term` from `start`, its log's end, on. HigherTermError, as of `promise`."""
        self._check(term)
        self._store(self.terms.begun(term, start, lossless=lossless))

    def go_on(self, *, lossless: bool) -> None:
        """A master starts again, and sends from now on what is synced only, or not."""
        self._store(replace(self.terms, lossless=lossless))

    def resign(self) -> None:
        """A master that starts again may lack what it had sent: after anything but a clean close, in another boot, of a
        log that sends what is not synced. Then, before its log is opened, it gives up its term: it would put other
        records of the same term in the place of those that replicas have. To be master it has to be elected."""
        self._store(self.terms.resigned())

    def _check(self, term: Term) -> None:
        if term < self.terms.promised:
            raise HigherTermError(f"term {term} is refused, {self.terms.promised} was promised", self.terms.promised)

    def _store(self, terms: Terms) -> None:
        if terms != self.terms:
            self._files.replace_small(self._path, terms.encode())
            self.terms = terms
