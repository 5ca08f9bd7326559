"""ReplicatorStatus: the state of the replication of one topic to one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReplicatorState = Literal[
    "connecting", "running", "paused", "diverged", "detached", "failed", "closed", "unowned", "unknown"
]


@dataclass(frozen=True, slots=True)
class ReplicatorStatus:
    """The state of the replication of one topic to one target.

    Unsent messages and bytes are counted from `stored`, also while the target cannot be reached: the numbers are never
    too small.

    Attributes:
        topic: name of the topic.
        target: name of the target cluster.
        state: "connecting": also between attempts; "running"; "paused"; "diverged": the two histories differ, and a
            person decides; "detached": the backlog grew beyond its bound; "failed": a retry does not mend the error.
            Without a replicator: "unowned": no process has the topic open; "unknown": its owner has not reported it.
        stored: every message of the topic below this offset is stored at the target, or was skipped for a cause; None:
            the target has not reported it since this process owns the topic.
        end: offset behind the topic's last confirmed message.
        unsent_messages: messages from `stored` (or the durable cursor) on.
        unsent_bytes: estimated bytes of the unsent messages.
        oldest_unsent_us: publish time of the first unsent message, microseconds since 1970; None: all are sent.
        sent_messages: messages that the target has stored since the replicator was started.
        sent_bytes: their bytes.
        skipped: messages that were skipped since then, by cause in lower case ("filtered", "expired", "refused", …).
        reconnects: connections that were made after the first one.
        error: the last error; "": none since the connection was made.
        alarm: the problem that a person has to solve; "": none.
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
