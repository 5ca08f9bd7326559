"""What the state machines of this package ask for, in order: what is to be durable is so before the next is done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from pyreplog._native.machines.effects import Committed as Committed
from pyreplog.errors import ReplogError
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import Message, Refuse
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, Term


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message on a connection."""

    connection: Hashable
    message: Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Send these last words on a connection and close it; what it still brings counts for nothing."""

    connection: Hashable
    refusal: Refuse


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The master waits for nobody from now on, which readers are told before they see more, or does so again, which
    they hear of with `Replicated`."""

    asynchronous: bool


@dataclass(frozen=True, slots=True)
class Replicated:
    """Enough replicas have all that readers see, after the master had gone on alone: readers and replicas are told."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """There is a higher term: this node is no master any more. Appends that wait fail with DeposedError."""

    term: Term


@dataclass(frozen=True, slots=True)
class StoreMembers:
    """Make them durable."""

    members: Members


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """Make promise and history durable, together (`TermsFile.follow`)."""

    term: Term
    history: History


@dataclass(frozen=True, slots=True)
class StorePromise:
    """Make it durable (`TermsFile.promise`); from before that on, nothing from masters of lower terms is taken."""

    term: Term


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Cut the log to a mark, durably; what is cut is kept aside."""

    to: LogPosition


@dataclass(frozen=True, slots=True)
class CreateLog:
    """Make a log that is empty and begins at a mark, a copy of the one with this uuid and size of segments."""

    uuid: bytes
    segment_bytes: int
    start: LogPosition


@dataclass(frozen=True, slots=True)
class Joined:
    """Take the stream from the log's end on. Report `joined(received, synced)` when all before this is done."""


@dataclass(frozen=True, slots=True)
class ShowCommitted:
    """Readers may read up to there, as far as the log reaches. unreplicated: what they see may not be on enough
    replicas, for the master went on alone; they are told before they see more, and after it that it is so no more."""

    committed: LogPosition
    unreplicated: bool


@dataclass(frozen=True, slots=True)
class SendToMaster:
    """Send a message to the master."""

    message: Message


@dataclass(frozen=True, slots=True)
class DisconnectFromMaster:
    """Close the connection to the master. permanent: do not try again, somebody has to do something first."""

    error: ReplogError
    permanent: bool


Effect: TypeAlias = (
    SendMessage | Disconnect | Committed | ModeChanged | Replicated | Fenced | StoreMembers | StoreTerms
    | StorePromise | TruncateLog
    | CreateLog | Joined | ShowCommitted | SendToMaster | DisconnectFromMaster
)  # fmt: skip
