"""PlannedHandover: the handover of one subscription, with its time limits and its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyreplog.future import AppendFuture
from pyreplog.geo.acks.handover import Handover, HandoverPhase
from pyreplog.topic.owner.subscription import Subscription

Phase = Literal["opening", "stopping", "draining", "moving", "done", "cancelled", "unconfirmed", "refused"]

_PHASES: dict[HandoverPhase, Phase] = {
    HandoverPhase.STOPPING: "stopping", HandoverPhase.DRAINING: "draining", HandoverPhase.MOVING: "moving",
    HandoverPhase.DONE: "done", HandoverPhase.CANCELLED: "cancelled",
}  # fmt: skip


COLLECTED_S = 0.3
"""Seconds that a handover waits for the acknowledgements that consumers have collected."""


@dataclass(frozen=True, slots=True)
class HandoverStatus:
    """The progress of the handover of a subscription of one topic or partition.

    Attributes:
        topic: name of the topic or partition.
        subscription: name of the subscription.
        target: name of the cluster that is to deliver the subscription.
        phase: `opening`: the topic's owner is still reading the kept messages, or storing the home. `stopping`:
            consumers hold messages. `draining`: the target lacks acknowledgements. `moving`: the home has moved to the
            target, which has not confirmed it, or the metadata store here lacks it. `done`. `cancelled`: consumers here
            go on. `unconfirmed`: the handover was `moving` at its timeout. `refused`: the handover cannot begin.
        held: messages that consumers here have and did not acknowledge.
        error: the present obstacle, or the reason for the end; "": none.
    """

    topic: str
    subscription: str
    target: str
    phase: Phase
    held: int = 0
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the handover has ended."""
        return self.phase in ("done", "cancelled", "unconfirmed", "refused")


class PlannedHandover:
    """One handover that an operator ordered, in the process that owns the topic; one thread at a time calls it.

    Args:
        order: id of the order, by which the caller polls the status.
        handover: the state machine.
        status: the initial status.
        now_us: time of the monotonic clock.
        timeout: seconds after which the handover is cancelled, if the home has not moved.
        grace: seconds after which messages that consumers hold are taken from them.
    """

    def __init__(
        self, order: str, handover: Handover, status: HandoverStatus, now_us: int, *, timeout: float, grace: float
    ) -> None:
        self.order, self.handover, self.status = order, handover, status
        self.ends_us, self._gives_back_us = now_us + int(timeout * 1e6), now_us + int(grace * 1e6)
        self._stops_from_us: int | None = None  # until then messages that were taken from consumers may be acknowledged
        self._flushed: AppendFuture[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the handover has ended."""
        return self.status.is_over

    @property
    def holds_back(self) -> bool:
        """Whether the handover keeps this cluster from delivering the subscription."""
        return not self.is_over and not self.handover.delivers

    def is_stopped(self, subscription: Subscription, now_us: int) -> bool:
        """Return whether consumers hold no messages, and all their acknowledgements are stored in the cursor.

        Call it repeatedly: after the grace period the messages that consumers hold are taken from them.

        Args:
            subscription: the subscription, whose delivery has stopped.
            now_us: time of the monotonic clock.
        """
        held = subscription.held
        self.note(held=held)
        if held and now_us >= self._gives_back_us and self._stops_from_us is None:
            self._stops_from_us = now_us + int(COLLECTED_S * 1e6)
            subscription.give_back()
        if held or (self._stops_from_us is not None and now_us < self._stops_from_us):
            self._flushed = None
        elif self._flushed is None or (self._flushed.done() and self._flushed.exception() is not None):
            self._flushed = subscription.flush_async()
        return self._flushed is not None and self._flushed.done() and self._flushed.exception() is None

    def note(self, *, held: int = 0, error: str = "") -> None:
        """Set the status to the present phase.

        Args:
            held: messages that consumers hold.
            error: the present obstacle.
        """
        self._set(_PHASES[self.handover.phase], error, held)

    def wait_for_metadata(self, obstacle: str) -> None:
        """Stay in the phase `moving`, although the target has confirmed the handover.

        Args:
            obstacle: the step that is missing here.
        """
        self._set("moving", obstacle, 0)

    def end(self, phase: Phase, error: str) -> None:
        """End the handover.

        Args:
            phase: its last phase.
            error: the reason.
        """
        self._set(phase, error, 0)

    def give_up(self, error: str) -> None:
        """Cancel the handover if its home has not moved; otherwise end it as `unconfirmed`.

        Args:
            error: the reason.
        """
        self._set("cancelled" if self.handover.cancel() else "unconfirmed", error, 0)

    def _set(self, phase: Phase, error: str, held: int) -> None:
        status = self.status
        self.status = HandoverStatus(status.topic, status.subscription, status.target, phase, held, error)
