"""Terms: which master wrote which part of a log, and which term a node has promised to follow. File `terms`.

A term is a number and the name of its master, so two masters never have the same term, whatever the quorums are, and
even after a forced promotion (the ballots of Paxos). Terms are compared by number, then by name. Histories are compared
as in RocketMQ's EpochFileCache: the newest term that both histories have with the same start.
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
"""No group holds so many elections while one of its nodes is away. A node ignores a term that is further above those
it knows: a forged term with the highest number would leave no number for another master."""
HISTORY_MAX = 10_000
"""Most terms in a history; the oldest ones are dropped."""

_HEAD = "8sIHH"
_HEAD_BYTES = 16


class Term(NamedTuple):
    """The term of one master; terms increase strictly."""

    number: int
    master: str

    def __str__(self) -> str:
        return f"{self.number} of {self.master}" if self.number else "none"

    def after(self, master: str) -> Term:
        """Return the lowest term of `master` that is higher than this one whatever its name is."""
        return Term(self.number + 1, master)

    def is_absurd(self, known: Term) -> bool:
        """Return whether this cannot be a term of a group in which `known` is a term."""
        return self.number > known.number + TERM_JUMP_MAX


NO_TERM = Term(0, "")


class TermStart(NamedTuple):
    """A term, and the mark where it began."""

    term: Term
    start: LogPosition

    def is_before(self, end: LogPosition) -> bool:
        """Return whether a log that ends at `end` holds records of the term.

        Entry numbers decide, because compaction by key moves records to the front of their segment, while the mark of a
        term does not change. Positions decide if the entry numbers are equal.
        """
        return self.start.entry < end.entry or (self.start.entry == end.entry and self.start.position < end.position)


@dataclass(frozen=True)
class History:
    """Where each term began, ascending in term, position and entry.

    All bytes from one start to the next were written by the master of the first one's term.
    """

    starts: tuple[TermStart, ...] = ()

    @property
    def last(self) -> Term:
        return self.starts[-1].term if self.starts else NO_TERM

    def start_of(self, term: Term) -> LogPosition | None:
        at = bisect_left(self.starts, (term,))
        return self.starts[at].start if at < len(self.starts) and self.starts[at].term == term else None

    def up_to(self, end: LogPosition) -> History:
        """Return the history of a log that ends at `end`, without terms of which that log holds no records."""
        return History(tuple(at for at in self.starts if at.is_before(end)))

    def begin(self, term: Term, start: LogPosition) -> History:
        """Return the history with one more term, which begins at `start`, the end of its master's log."""
        return History((*self.up_to(start).starts, TermStart(term, start))[-HISTORY_MAX:])

    def common_point(self, end: LogPosition, other: History, other_end: LogPosition) -> LogPosition | None:
        """Return the mark up to which a log of this history equals a log of the other; None: it cannot be determined.

        The logs diverge at the end of the newest term that both have with the same start: where the first of them ends
        that term. Without such a term nothing proves that they have a common part.

        Args:
            end: end of the log of this history.
            other: the other history.
            other_end: end of the log of the other history.
        """
        mine = self.up_to(end).starts
        theirs = other.up_to(other_end).starts
        place = {at.term: index for index, at in enumerate(theirs)}
        for index in range(len(mine) - 1, -1, -1):
            other_index = place.get(mine[index].term)
            if other_index is not None and theirs[other_index].start == mine[index].start:
                my_end = mine[index + 1].start if index + 1 < len(mine) else end
                their_end = theirs[other_index + 1].start if other_index + 1 < len(theirs) else other_end
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
        start = TermStart(read_term(fields), fields.mark())
        if starts and not (
            starts[-1].term < start.term
            and starts[-1].start.position < start.start.position
            and starts[-1].start.entry <= start.start.entry
        ):
            raise fields.error(f"a term behind {starts[-1]}", f"{start}")
        starts.append(start)
    return History(tuple(starts))


@dataclass(frozen=True)
class Terms:
    """The state of the file `terms`.

    Attributes:
        promised: the node follows no master of a lower term, and votes for none.
        history: where each term began in its log.
        is_master: the node is the master of `promised`, and goes on as master after a restart; see `TermsFile.resign`.
        lossless: the master sends only synced records, so a power cut takes none that it has sent.
    """

    promised: Term = NO_TERM
    history: History = History()
    is_master: bool = False
    lossless: bool = False

    def begun(self, term: Term, start: LogPosition, *, lossless: bool = False) -> Terms:
        """Return the state of the master of a term that begins at `start`."""
        return Terms(term, self.history.begin(term, start), is_master=True, lossless=lossless)

    def resigned(self) -> Terms:
        return Terms(self.promised, self.history)

    def encode(self) -> bytes:
        fields = FieldWriter("<")
        fields.numbers("B", self.is_master + self.lossless)
        write_term(fields, self.promised)
        write_history(fields, self.history)
        return seal(MAGIC, fields.take())

    @classmethod
    def decode(cls, path: Path, data: bytes) -> Terms:
        """Decode the contents of the file. Raises CorruptionError or FormatVersionError."""
        fields = unseal(path, MAGIC, data)
        try:
            role, promised = fields.count("B", 2), read_term(fields)
            terms = cls(promised, read_history(fields), role > 0, role > 1)
            fields.end()
            if role and terms.history.last != promised:
                raise fields.error(f"a history up to {promised}", f"{terms.history.last}")
        except InvalidMessageError as error:
            raise CorruptionError(path, 0, "intact terms", str(error)) from error
        return terms


def seal(magic: bytes, body: bytes) -> bytes:
    """Return the contents of a small file: magic, CRC of the bytes after it, versions, body."""
    head = FieldWriter("<")
    versions = VERSION.to_bytes(2, "little") * 2
    head.numbers(_HEAD, magic, crc32c(versions + body), VERSION, VERSION)
    return head.take() + body


def unseal(path: Path, magic: bytes, data: bytes) -> FieldReader:
    """Return a reader of the body of a small file. Raises CorruptionError or FormatVersionError."""
    if len(data) < _HEAD_BYTES:
        raise CorruptionError(path, 0, f"at least {_HEAD_BYTES} bytes", f"{len(data)}")
    file_magic, crc, _, min_reader = FieldReader("<", data[:_HEAD_BYTES], path.name).numbers(_HEAD)
    if file_magic != magic or crc != crc32c(data[12:]):
        raise CorruptionError(path, 0, f"{magic.decode()} and its CRC", data[:12].hex())
    if min_reader > VERSION:
        raise FormatVersionError(path, min_reader, VERSION)
    return FieldReader("<", data[_HEAD_BYTES:], path.name)


class TermsFile:
    """The file with the terms of a node. A change is durable when the method returns. Not thread-safe.

    Raises:
        CorruptionError: the file is damaged; raised by the constructor.
        FormatVersionError: a newer version wrote the file; raised by the constructor.
        OSError: the disk failed; the terms are unchanged. Raised by the other methods.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / TERMS, files
        self.terms = Terms()
        if self._path.exists():
            files.sync_directory(directory)  # the process that stored it may have been killed before it synced
            self.terms = Terms.decode(self._path, read_regular(self._path, FILE_MAX))

    @property
    def promised(self) -> Term:
        return self.terms.promised

    @property
    def history(self) -> History:
        return self.terms.history

    def promise(self, term: Term) -> None:
        """Promise to follow no lower term. Raises HigherTermError if a higher one was promised."""
        self.follow(term, self.terms.history)

    def follow(self, term: Term, history: History) -> None:
        """Promise a term and store its master's history. The log was truncated to their common point before."""
        self._check(term)
        self._store(Terms(term, history))

    def begin(self, term: Term, start: LogPosition, *, lossless: bool = False) -> None:
        """Make this node the master of `term` from `start` on, the end of its log.

        Raises HigherTermError as `promise` does.
        """
        self._check(term)
        self._store(self.terms.begun(term, start, lossless=lossless))

    def resume(self, *, lossless: bool) -> None:
        """Note whether a master that starts again sends only synced records."""
        self._store(replace(self.terms, lossless=lossless))

    def resign(self) -> None:
        """Give up the term of a master that starts again and may lack records that it had sent.

        It may, if the log sends records before they are synced, after a boot without a clean close. Called before the
        log is opened: otherwise the node would write other records of the same term in place of those that it lost and
        replicas have. To become master again, it has to be elected.
        """
        self._store(self.terms.resigned())

    def _check(self, term: Term) -> None:
        if term < self.terms.promised:
            raise HigherTermError(f"term {term} is refused, {self.terms.promised} was promised", self.terms.promised)

    def _store(self, terms: Terms) -> None:
        if terms != self.terms:
            self._files.replace_small(self._path, terms.encode())
            self.terms = terms
