"""What the keeper needs of the replicator of one topic and one target, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.protocol.effects import OriginNote

ReplicatorState = Literal[
    "connecting", "running", "paused", "diverged", "detached", "failed", "closed", "unowned", "unknown"
]


@dataclass(frozen=True, slots=True)
class ReplicatorStatus:
    """The state of the replication of one topic to one target.

    Numbers of what is unsent are counted from `stored`, also while the target cannot be reached: they never say less
    than what the target lacks.

    Attributes:
        topic: name of the topic.
        target: name of the target cluster.
        state: "connecting": also between attempts; "running"; "paused"; "diverged": the two histories differ, people
            decide; "detached": the backlog grew beyond its bound; "failed": an error that repetition does not help.
            Without a replicator: "unowned": no process has the topic open; "unknown": its owner was not asked.
        stored: everything of the topic below this offset is stored at the target, or was skipped for a cause; None: the
            target has not told it since this process owns the topic.
        end: offset behind the topic's last confirmed message.
        unsent_messages: messages from `stored` (or the durable cursor) on.
        unsent_bytes: their bytes, estimated.
        oldest_unsent_us: when the first of them was published; None: there is none.
        sent_messages: messages that the target has stored since the replicator was started.
        sent_bytes: their bytes.
        skipped: messages that were skipped since then, by cause in lower case ("filtered", "expired", "refused", …).
        reconnects: connections that were made after the first one.
        error: the last error; "": none since the connection was made.
        alarm: what people have to decide or do; "": nothing.
    """

    topic: str
    target: str
    state: ReplicatorState
    stored: int | None
    end: int
    unsent_messages: int
    unsent_bytes: int
    oldest_unsent_us: int | None = None
    sent_messages: int = 0
    sent_bytes: int = 0
    skipped: tuple[tuple[str, int], ...] = ()
    reconnects: int = 0
    error: str = ""
    alarm: str = ""


class ReplicatorLike(Protocol):
    """The replicator of one topic and one target. Its methods do not wait; any thread may call them."""

    @property
    def note(self) -> OriginNote | None:
        """What the target said last that it has of the topic; None: nothing yet."""
        ...

    def start(self) -> None:
        """Begin to replicate, from the target's `stored` on."""
        ...

    def configure(self, policy: ReplicationPolicy) -> None:
        """Go on with another policy, without another connection where that is possible."""
        ...

    def pause(self) -> None:
        """Send nothing more until `resume`; trimming still waits for the target."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...

    def resync(self) -> None:
        """After `diverged` or `detached`: go on with what is stored here, and note as lost what is not."""
        ...

    def remove(self) -> None:
        """Close, and delete the durable cursor: trimming no longer waits for the target."""
        ...

    def close(self) -> None:
        """End. The durable cursor stays."""
        ...

    def status(self) -> ReplicatorStatus:
        """Return the present state."""
        ...
