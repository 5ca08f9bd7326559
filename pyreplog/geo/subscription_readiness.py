"""SubscriptionReadiness: the effect of a fail-over of a subscription, as operators see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

FailOverState = Literal["ready", "not ready", "before the seek", "unknown"]


@dataclass(frozen=True, slots=True)
class SubscriptionReadiness:
    """The effect of a fail-over of one subscription to one cluster now, as this cluster knows it.

    Messages and acknowledgements in flight count as missing at the target, so a fail-over loses or repeats at most
    these.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        target: name of the other cluster.
        is_ready: no message would be lost or repeated, for certain.
        is_known: the target has reported its acknowledgements since this process owns the topic; if not, the other
            values are guesses.
        is_current: the target knows the last seek; if not, it goes on from its position before that seek.
        lost: messages that are to be delivered, and that the target does not store.
        repeated: messages that are acknowledged, and that the target stores and would deliver.
        revived: messages that expired here without an acknowledgement, and that the target would deliver.
        error: why the target is not connected, or why nothing is known; "": it is connected.
        alarm: the problem that a person has to solve; "": none.
        home: name of the only cluster whose consumers get messages; "": this cluster; None: all clusters deliver.
        unreachable: of `lost`, the messages of third clusters that this cluster does not send there: they get there
            only from the cluster that published them, or from one that forwards them.
    """

    topic: str
    subscription: str
    target: str
    is_ready: bool
    is_known: bool
    is_current: bool
    lost: int
    repeated: int
    revived: int
    error: str = ""
    alarm: str = ""
    home: str | None = None
    unreachable: int = 0

    @classmethod
    def unknown(cls, topic: str, subscription: str, target: str, error: str) -> Self:
        """Return a row which says that nothing is known of a fail-over; nobody counted its messages.

        Args:
            topic: name of the topic.
            subscription: name of the subscription.
            target: name of the other cluster.
            error: the reason, and what to do.
        """
        return cls(topic, subscription, target, False, False, False, 0, 0, 0, error=error)

    @property
    def state(self) -> FailOverState:
        """Whether a fail-over would be exact, or why not; "before the seek": the target does not know the last one."""
        if self.is_ready:
            return "ready"
        if not self.is_known:
            return "unknown"
        return "not ready" if self.is_current else "before the seek"
