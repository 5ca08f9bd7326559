"""Messages between the nodes of a replica group, in control bodies (FORMAT.md, "Replication").

State machines exchange these objects; only drivers encode them. Decoding checks the bounds of all fields, and raises
InvalidMessageError for malformed bytes.
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
    """Why a master refuses a replica, a replica refuses a master, or a node rejects a candidate."""

    VERSION = 1  # of the protocol
    FOREIGN = 2  # another log
    NOT_A_MEMBER = 3
    BEHIND = 4  # the master's log begins later than the replica's ends
    AHEAD = 5  # the replica's log is longer than its master's, in the same term
    DIVERGED = 6  # the two logs have no term in common
    LOST = 7  # the replica lacks what it had synced
    ABSURD = 8  # the message contradicts the protocol, or what is known
    HIGHER_TERM = 9
    REPLACED = 10  # the same member connected again
    NOT_MASTER = 11
    MASTER_LIVES = 12  # for a candidate that considers its master lost


class PreVote(IntEnum):
    """Whether a PREPARE asks for a promise, or only whether the node would promise. So a candidate that cannot win
    deposes no master."""

    NO = 0
    YES = 1
    HOLD = 2  # of a planned change-over: the master admits no appends for a while, so that the candidate catches up
    IF_LOST = 3  # from a candidate that does not hear from its master: a member that hears from the master rejects it


PERMANENT = frozenset(
    {RefusalCode.FOREIGN, RefusalCode.BEHIND, RefusalCode.AHEAD, RefusalCode.DIVERGED, RefusalCode.LOST}
)
"""Codes for which a retry does not help, because they are about the data on disks: an operator has to act. Other codes
may come from a state that changes, or from another version; the next connection may succeed."""


class Join(NamedTuple):
    """Replica -> master, the first message. uuid: of the log; NO_UUID: the replica has no log. received, synced: ends
    of its log. history: its history up to `received`."""

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
    """Replica -> master: the members with this version are durable."""

    version: int


class Accept(NamedTuple):
    """Master -> replica: the replica may follow. start: of the master's log. resume: the replica truncates its log
    there if it is longer; the stream begins there."""

    uuid: bytes
    segment_bytes: int
    term: Term
    history: History
    start: LogPosition
    resume: LogPosition


class Refuse(NamedTuple):
    """Either direction, the last message on a connection. text: the reason and the remedy."""

    code: int
    text: str


class Commit(NamedTuple):
    """Master -> replica: the commit point. start: position where the master's log begins. unreplicated: enough replicas
    may not have all entries before the commit point, because the master commits without them, or did."""

    committed: LogPosition
    start: int
    unreplicated: bool


class MembershipUpdate(NamedTuple):
    """Master -> replica: the members of the group; answered by MembersStored."""

    members: Members


class Prepare(NamedTuple):
    """Candidate -> node: promise to follow no master of a term below this one, whose master the candidate would be.
    uuid: of its log. stamp: version of the members that it knows. trial: answer only whether you would (`PreVote`)."""

    term: Term
    uuid: bytes
    stamp: MembersVersion
    trial: int = PreVote.NO


class Promise(NamedTuple):
    """Answer to Prepare: the promise, durable unless it is a trial. received, synced: ends of the log, which gets no
    more records of lower terms. history: up to `received`."""

    term: Term
    history: History
    received: LogPosition
    synced: LogPosition
    members: Members | None
    trial: bool = False


class VoteRejected(NamedTuple):
    """Answer to Prepare: a rejection. promised: the highest term that the node knows."""

    code: int
    promised: Term
    text: str
    members: Members | None


class AskStatus(NamedTuple):
    """Any peer -> node: a request for the state of the node."""


class StatusReply(NamedTuple):
    """Answer to AskStatus and Command, JSON."""

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
    """Return the control body of a message."""
    if type(message) is ProgressReport:  # the fast path: one for each batch or append
        return encode_report(*message)
    fields = FieldWriter(">")
    kind, write = _WRITERS[type(message)]
    fields.numbers("B", kind)
    write(fields, message)
    return fields.take()


class UnknownKindError(InvalidMessageError):
    """A control body has an unknown kind: a later version sent it."""


def decode(body: ReadableBuffer) -> Message:
    """Decode a control body. Raises UnknownKindError if the kind is unknown, InvalidMessageError if it is malformed."""
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
    """Skip fields that a later version appends: the master refuses that version anyway."""
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


def _write_membership_update(fields: FieldWriter, update: MembershipUpdate) -> None:
    write_members(fields, update.members)


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
    """Write no fields: the message consists of its kind."""


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
