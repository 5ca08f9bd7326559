"""What the nodes of a replica group say to each other, in control bodies (FORMAT.md, "Replication").

State machines exchange these objects; only drivers encode them. Nothing is believed before it is bounded, and bytes
that are no message raise InvalidMessageError.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyreplog._native.ha.reports import ProgressReport as ProgressReport
from pyreplog._native.ha.reports import decode_report, encode_report
from pyreplog.errors import InvalidMessageError
from pyreplog.ha.protocol.members import Members, MembersVersion, read_members, write_members
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, Term, read_history, read_term, write_history, write_term

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VERSION = 2
NO_UUID = bytes(16)


class MessageKind(IntEnum):
    """First byte of a control body."""

    JOIN = 1
    PROGRESS = 2
    STORED = 3
    ACCEPT = 4
    REFUSE = 5
    COMMIT = 6
    MEMBERS = 7
    PREPARE = 8
    PROMISE = 9
    DECLINE = 10
    ASK_STATUS = 11
    STATUS = 12
    COMMAND = 13


class RefusalCode(IntEnum):
    """Why a replica, a master or a candidate is refused."""

    VERSION = 1  # of the protocol
    FOREIGN = 2  # another log
    NOT_A_MEMBER = 3
    BEHIND = 4  # the master's log begins later than the replica's ends
    AHEAD = 5  # the replica has more of the same term than its master
    DIVERGED = 6  # nothing proves that the two logs have anything in common
    LOST = 7  # the replica lacks what it had synced
    ABSURD = 8  # progress that cannot be
    HIGHER_TERM = 9
    REPLACED = 10  # the same member connected again
    NOT_MASTER = 11
    MASTER_LIVES = 12  # to a candidate that takes it for lost


class PreVote(IntEnum):
    """What a PREPARE asks for, if it is not for a promise: whether there would be one. No candidate that cannot win
    deposes anybody."""

    NO = 0
    YES = 1
    HOLD = 2  # of a planned change-over: the master admits no appends for a while, so that the candidate catches up
    IF_LOST = 3  # of a candidate that misses its master: a member that hears from the master declines


PERMANENT = frozenset(
    {RefusalCode.FOREIGN, RefusalCode.BEHIND, RefusalCode.AHEAD, RefusalCode.DIVERGED, RefusalCode.LOST}
)
"""Trying again later does not help: somebody has to do something. All of these are about what is on the disks. What a
node said at a bad moment, or in another version, the next connection may put right."""


class Join(NamedTuple):
    """Replica -> master, first of all. uuid: of the log; NO_UUID: there is none yet. received, synced: ends of what it
    has. history: up to received."""

    uuid: bytes
    segment_bytes: int
    member: str
    observer: bool
    received: LogPosition
    synced: LogPosition
    promised: Term
    history: History
    version: int = VERSION


class MembersStored(NamedTuple):
    """Replica -> master: the members of that version are durable here."""

    version: int


class Accept(NamedTuple):
    """Master -> replica. start: of the master's log. resume: cut to it if beyond; the stream begins there."""

    uuid: bytes
    segment_bytes: int
    term: Term
    history: History
    start: LogPosition
    resume: LogPosition


class Refuse(NamedTuple):
    """Either way, last word on a connection. text: what to do."""

    code: int
    text: str


class Commit(NamedTuple):
    """Master -> replica. start: position where the master's log begins. unreplicated: the master goes on alone, or did,
    and enough replicas may not have all before the commit point."""

    committed: LogPosition
    start: int
    unreplicated: bool


class MembershipUpdate(NamedTuple):
    """Master -> replica; answered by MembersStored."""

    members: Members


class Prepare(NamedTuple):
    """Candidate -> node: follow nobody below this term, of which the candidate would be master. uuid: of its log.
    stamp: of the members that it knows. trial: only say whether you would (`PreVote`)."""

    term: Term
    uuid: bytes
    stamp: MembersVersion
    trial: int = PreVote.NO


class Promise(NamedTuple):
    """Answer: durable, but for a trial's. received, synced: ends of what it has, and will not get more of below `term`.
    history: up to received."""

    term: Term
    history: History
    received: LogPosition
    synced: LogPosition
    members: Members | None
    trial: bool = False


class VoteRejected(NamedTuple):
    """The other answer. promised: the highest term it knows of."""

    code: int
    promised: Term
    text: str
    members: Members | None


class AskStatus(NamedTuple):
    """Anybody -> node."""


class StatusReply(NamedTuple):
    """Answer, JSON."""

    json: bytes


class Command(NamedTuple):
    """Operator -> node: carry out a command (JSON, see `commands`). The answer is a StatusReply."""

    json: bytes


Message: TypeAlias = (
    Join | ProgressReport | MembersStored | Accept | Refuse | Commit | MembershipUpdate | Prepare | Promise
    | VoteRejected | AskStatus | StatusReply
    | Command
)  # fmt: skip


def encode(message: Message) -> bytes:
    """Its control body."""
    if type(message) is ProgressReport:  # one for each batch, or each append
        return encode_report(*message)
    fields = FieldWriter(">")
    kind, write = _WRITERS[type(message)]
    fields.numbers("B", kind)
    write(fields, message)
    return fields.take()


class UnknownKindError(InvalidMessageError):
    """A control body is of a kind that is not known here: a later version sent it."""


def decode(body: ReadableBuffer) -> Message:
    """InvalidMessageError: it is none. UnknownKindError: of a kind that is not known here."""
    if (report := decode_report(body)) is not None:
        return report
    fields = FieldReader(">", body, "control body")
    (kind,) = fields.numbers("B")
    read = _READERS.get(kind)
    if read is None:
        raise UnknownKindError(f"control body: expected a kind from 1 to {max(MessageKind)}, found {kind}")
    message = read(fields)
    fields.end()
    return message


# ---- one pair for each kind -----------------------------------------------------------------------------------------


def _write_join(fields: FieldWriter, join: Join) -> None:
    fields.numbers("H16sIB", join.version, join.uuid, join.segment_bytes, join.observer)
    fields.name(join.member)
    fields.mark(join.received)
    fields.mark(join.synced)
    write_term(fields, join.promised)
    write_history(fields, join.history)


def _read_join(fields: FieldReader) -> Join:
    """Fields that a later version appends are its own affair: this one is refused by its version."""
    version, uuid, segment_bytes = fields.numbers("H16sI")
    observer, member = fields.flag(), fields.name()
    received, synced = fields.mark(), fields.mark()
    promised = read_term(fields)
    join = Join(uuid, segment_bytes, member, observer, received, synced, promised, read_history(fields), version)
    if version > VERSION:
        fields.rest()
    return join


def _write_progress(fields: FieldWriter, progress: ProgressReport) -> None:
    fields.mark(progress.received)
    fields.mark(progress.synced)


def _read_progress(fields: FieldReader) -> ProgressReport:
    return ProgressReport(fields.mark(), fields.mark())


def _write_stored(fields: FieldWriter, stored: MembersStored) -> None:
    fields.numbers("Q", stored.version)


def _read_stored(fields: FieldReader) -> MembersStored:
    return MembersStored(*fields.numbers("Q"))


def _write_accept(fields: FieldWriter, accept: Accept) -> None:
    fields.numbers("16sI", accept.uuid, accept.segment_bytes)
    write_term(fields, accept.term)
    fields.mark(accept.start)
    fields.mark(accept.resume)
    write_history(fields, accept.history)


def _read_accept(fields: FieldReader) -> Accept:
    uuid, segment_bytes = fields.numbers("16sI")
    term, start, resume = read_term(fields), fields.mark(), fields.mark()
    return Accept(uuid, segment_bytes, term, read_history(fields), start, resume)


def _write_refuse(fields: FieldWriter, refuse: Refuse) -> None:
    fields.numbers("B", refuse.code)
    fields.text(refuse.text)


def _read_refuse(fields: FieldReader) -> Refuse:
    return Refuse(_read_code(fields), fields.text())


def _read_code(fields: FieldReader) -> int:
    return fields.count("B", max(RefusalCode))


def _write_commit(fields: FieldWriter, commit: Commit) -> None:
    fields.mark(commit.committed)
    fields.numbers("qB", commit.start, commit.unreplicated)


def _read_commit(fields: FieldReader) -> Commit:
    committed, (start,) = fields.mark(), fields.numbers("q")
    commit = Commit(committed, start, fields.flag())
    if commit.start < 0:
        raise fields.error("a position from 0 on", str(commit.start))
    return commit


def _write_membership_update(fields: FieldWriter, told: MembershipUpdate) -> None:
    write_members(fields, told.members)


def _read_membership_update(fields: FieldReader) -> MembershipUpdate:
    return MembershipUpdate(read_members(fields))


def _write_prepare(fields: FieldWriter, prepare: Prepare) -> None:
    write_term(fields, prepare.term)
    fields.numbers("16s", prepare.uuid)
    write_term(fields, prepare.stamp.term)
    fields.numbers("QB", prepare.stamp.version, prepare.trial)


def _read_prepare(fields: FieldReader) -> Prepare:
    term, (uuid,), stamp_term = read_term(fields), fields.numbers("16s"), read_term(fields)
    return Prepare(term, uuid, MembersVersion(stamp_term, *fields.numbers("Q")), fields.count("B", max(PreVote)))


def _write_promise(fields: FieldWriter, promise: Promise) -> None:
    write_term(fields, promise.term)
    fields.numbers("B", promise.trial)
    fields.mark(promise.received)
    fields.mark(promise.synced)
    _write_known(fields, promise.members)
    write_history(fields, promise.history)


def _read_promise(fields: FieldReader) -> Promise:
    term, trial, received, synced = read_term(fields), fields.flag(), fields.mark(), fields.mark()
    members = _read_known(fields)
    return Promise(term, read_history(fields), received, synced, members, trial)


def _write_vote_rejected(fields: FieldWriter, rejection: VoteRejected) -> None:
    fields.numbers("B", rejection.code)
    write_term(fields, rejection.promised)
    fields.text(rejection.text)
    _write_known(fields, rejection.members)


def _read_vote_rejected(fields: FieldReader) -> VoteRejected:
    return VoteRejected(_read_code(fields), read_term(fields), fields.text(), _read_known(fields))


def _write_known(fields: FieldWriter, members: Members | None) -> None:
    fields.numbers("B", members is not None)
    if members is not None:
        write_members(fields, members)


def _read_known(fields: FieldReader) -> Members | None:
    return read_members(fields) if fields.flag() else None


def _write_status(fields: FieldWriter, status: StatusReply) -> None:
    fields.raw(status.json)


def _read_status(fields: FieldReader) -> StatusReply:
    return StatusReply(fields.rest())


def _write_command(fields: FieldWriter, command: Command) -> None:
    fields.raw(command.json)


def _read_command(fields: FieldReader) -> Command:
    return Command(fields.rest())


def _write_nothing(fields: FieldWriter, message: AskStatus) -> None:
    """The kind says it all."""


_KINDS: tuple[tuple[MessageKind, type, Callable[[FieldWriter, Any], None], Callable[[FieldReader], Message]], ...] = (
    (MessageKind.JOIN, Join, _write_join, _read_join),
    (MessageKind.PROGRESS, ProgressReport, _write_progress, _read_progress),
    (MessageKind.STORED, MembersStored, _write_stored, _read_stored),
    (MessageKind.ACCEPT, Accept, _write_accept, _read_accept),
    (MessageKind.REFUSE, Refuse, _write_refuse, _read_refuse),
    (MessageKind.COMMIT, Commit, _write_commit, _read_commit),
    (MessageKind.MEMBERS, MembershipUpdate, _write_membership_update, _read_membership_update),
    (MessageKind.PREPARE, Prepare, _write_prepare, _read_prepare),
    (MessageKind.PROMISE, Promise, _write_promise, _read_promise),
    (MessageKind.DECLINE, VoteRejected, _write_vote_rejected, _read_vote_rejected),
    (MessageKind.ASK_STATUS, AskStatus, _write_nothing, lambda fields: AskStatus()),
    (MessageKind.STATUS, StatusReply, _write_status, _read_status),
    (MessageKind.COMMAND, Command, _write_command, _read_command),
)
_WRITERS = {message: (kind, write) for kind, message, write, _ in _KINDS}
_READERS = {kind.value: read for kind, _, _, read in _KINDS}
