"""Effects: what the state machines ask their drivers to do, in order. Each durable step ends before the next begins."""

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
    """Send a refusal as the last message of a connection and close it; ignore what still arrives on it."""

    connection: Hashable
    refusal: Refuse


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The master commits without replicas from now on (asynchronous), or waits for them again. Readers learn of the
    former before they see more entries, of the latter with `Replicated`."""

    asynchronous: bool


@dataclass(frozen=True, slots=True)
class Replicated:
    """Enough replicas have all entries that readers see, after a time without: inform readers and replicas."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A higher term exists, and this master is deposed. Fail waiting appends with DeposedError."""

    term: Term


@dataclass(frozen=True, slots=True)
class StoreMembers:
    """Make the members durable."""

    members: Members


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """Make promise and history durable in one step (`TermsFile.follow`)."""

    term: Term
    history: History


@dataclass(frozen=True, slots=True)
class StorePromise:
    """Make the promise durable (`TermsFile.promise`). Before that, stop taking records from masters of lower terms."""

    term: Term


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Truncate the log, durably; the truncated records are kept aside."""

    to: LogPosition


@dataclass(frozen=True, slots=True)
class CreateLog:
    """Create an empty log that begins at a position, as a copy of the log with this uuid and segment size."""

    uuid: bytes
    segment_bytes: int
    start: LogPosition


@dataclass(frozen=True, slots=True)
class Joined:
    """Receive the stream from the log's end on. Report `joined(received, synced)` when all earlier effects are done."""


@dataclass(frozen=True, slots=True)
class ShowCommitted:
    """Show readers the entries up to `committed`, as far as the log reaches. unreplicated: enough replicas may not have
    them, because the master went on alone; readers learn of that before they see more, and later when it ends."""

    committed: LogPosition
    unreplicated: bool


@dataclass(frozen=True, slots=True)
class SendToMaster:
    """Send a message to the master."""

    message: Message


@dataclass(frozen=True, slots=True)
class DisconnectFromMaster:
    """Close the connection to the master. permanent: do not connect again, an operator has to act first."""

    error: ReplogError
    permanent: bool


Effect: TypeAlias = (
    SendMessage | Disconnect | Committed | ModeChanged | Replicated | Fenced | StoreMembers | StoreTerms
    | StorePromise | TruncateLog
    | CreateLog | Joined | ShowCommitted | SendToMaster | DisconnectFromMaster
)  # fmt: skip
