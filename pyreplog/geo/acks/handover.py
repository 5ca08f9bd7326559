"""A planned change of the cluster whose consumers receive the messages of a subscription, without duplicates.

Delivery stops here. Once the other cluster has every acknowledgement durably, the home of the subscription moves there;
the home is durable, and all clusters learn it. Before that the handover can be cancelled. Afterwards the other cluster
delivers, and this one does not, also after crashes. If this process ends before the move, the handover is forgotten,
and its successor goes on with the delivery. If it ends afterwards, the successor reads the home from the journal.
"""

from __future__ import annotations

from enum import StrEnum

from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.effects import Effect
from pyreplog.geo.acks.exchange import SubscriptionExchange


class HandoverPhase(StrEnum):
    """Phase of a handover."""

    STOPPING = "stopping"
    """Delivery here has to stop, and consumers have to acknowledge their messages or give them back."""
    DRAINING = "draining"
    """The other cluster lacks acknowledgements, or has not reported which ones it has."""
    MOVING = "moving"
    """The home has moved to the other cluster, which has not confirmed it."""
    DONE = "done"
    CANCELLED = "cancelled"
    """Delivery here may go on."""


class Handover:
    """The state machine of one handover. One thread at a time.

    Args:
        exchange: exchange of the topic, in the cluster that delivers so far.
        name: name of the subscription.
        target: id of the neighbour that is to deliver the subscription.

    Raises:
        InvalidArgumentError: the target is no neighbour, or the subscription does not exist or is not delivered here.
            If its home is the target already, it is accepted: the handover is in the phase MOVING.
    """

    def __init__(self, exchange: SubscriptionExchange, name: str, target: bytes) -> None:
        state = exchange.state(name)
        exchange.peer(target)
        has_moved = state is not None and state.home.cluster == target
        if state is None or not (has_moved or state.home.admits(exchange.cluster)):
            raise InvalidArgumentError(f"subscription {name!r}: expected one that is delivered here, found none")
        self._exchange = exchange
        self._name, self._target = name, target
        self.phase = HandoverPhase.MOVING if has_moved else HandoverPhase.STOPPING

    @property
    def is_over(self) -> bool:
        """Whether the handover has ended."""
        return self.phase in (HandoverPhase.DONE, HandoverPhase.CANCELLED)

    @property
    def delivers(self) -> bool:
        """Whether messages may be delivered here."""
        return self.phase is HandoverPhase.CANCELLED

    def stopped(self) -> list[Effect]:
        """Note that delivery here has stopped, and that no consumer holds messages."""
        if self.phase is HandoverPhase.STOPPING:
            self.phase = HandoverPhase.DRAINING
            self._exchange.peer(self._target).hasten()
        return self.advance()

    def advance(self) -> list[Effect]:
        """Go on if the other cluster has confirmed all items; call it after each of its confirmations."""
        exchange, state = self._exchange, self._exchange.state(self._name)
        may_be_taken_back = self.phase in (HandoverPhase.STOPPING, HandoverPhase.DRAINING)
        if may_be_taken_back and (state is None or not state.home.admits(exchange.cluster)):
            self.phase = HandoverPhase.CANCELLED  # deleted meanwhile, or taken over by another cluster
        elif state is None:
            self.phase = HandoverPhase.DONE
        elif self.phase is HandoverPhase.DRAINING and self._has_all():
            self.phase = HandoverPhase.MOVING
            return exchange.move(self._name, self._target)
        elif self.phase is HandoverPhase.MOVING and self._has_header():
            self.phase = HandoverPhase.DONE
        return []

    def _has_header(self) -> bool:
        """Whether the other cluster has the generation and the home, durably; unknown is no."""
        exchange = self._exchange
        return exchange.peer(self._target).has_reported and not exchange.lacks_header(self._target, self._name)

    def _has_all(self) -> bool:
        """Whether the other cluster has the generation and every acknowledgement, durably; unknown is no."""
        exchange, state = self._exchange, self._exchange.state(self._name)
        if state is None or not {*state.acks} <= exchange.peer(self._target).compared:
            return False
        return self._has_header() and not exchange.unconfirmed(self._target, self._name)

    def cancel(self) -> bool:
        """Cancel the handover, unless the home has moved; return whether delivery here may go on."""
        if self.phase in (HandoverPhase.STOPPING, HandoverPhase.DRAINING):
            self.phase = HandoverPhase.CANCELLED
        return self.phase is HandoverPhase.CANCELLED
