"""A planned change of the cluster whose consumers receive the messages of a subscription: nothing comes twice.

Delivery stops here; once the other cluster has every acknowledgement durably, the subscription gets its home there,
which is durable and known to all clusters. Until then it can be taken back. From then on the other cluster delivers,
and this one does not, whatever crashes.
"""

from __future__ import annotations

from enum import StrEnum

from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.effects import Effect
from pyreplog.geo.acks.exchange import SubscriptionExchange


class HandoverPhase(StrEnum):
    """How far a handover is."""

    STOPPING = "stopping"
    """Delivery here has to stop, and what consumers hold has to be acknowledged or given back."""
    DRAINING = "draining"
    """The other cluster lacks acknowledgements, or has not said which ones it has."""
    MOVING = "moving"
    """The other cluster is to deliver from now on; it has not confirmed that it knows."""
    DONE = "done"
    CANCELLED = "cancelled"
    """Delivery here may go on."""


class Handover:
    """The state machine of one handover. One thread at a time.

    Args:
        exchange: of the topic, in the cluster that delivers so far.
        name: of the subscription.
        target: id of the neighbour that is to deliver.

    Raises:
        InvalidArgumentError: the target is no neighbour, or the subscription does not exist or is not delivered here.
    """

    def __init__(self, exchange: SubscriptionExchange, name: str, target: bytes) -> None:
        state = exchange.state(name)
        if state is None or not state.home.admits(exchange.cluster):
            raise InvalidArgumentError(f"subscription {name!r}: expected one that is delivered here, found none")
        exchange.peer(target)
        self._exchange = exchange
        self._name, self._target = name, target
        self.phase = HandoverPhase.STOPPING

    @property
    def delivers(self) -> bool:
        """Whether messages may be delivered here."""
        return self.phase is HandoverPhase.CANCELLED

    def stopped(self) -> list[Effect]:
        """Note that nothing is delivered here any more, and that no consumer holds anything."""
        if self.phase is HandoverPhase.STOPPING:
            self.phase = HandoverPhase.DRAINING
        return self.advance()

    def advance(self) -> list[Effect]:
        """Go on if the other cluster has confirmed what it lacked; to be called when it confirmed something."""
        exchange, state = self._exchange, self._exchange.state(self._name)
        if state is None and self.phase in (HandoverPhase.STOPPING, HandoverPhase.DRAINING):
            self.phase = HandoverPhase.CANCELLED  # deleted meanwhile
        elif state is None:
            self.phase = HandoverPhase.DONE
        elif self.phase is HandoverPhase.DRAINING and self._has_all():
            self.phase = HandoverPhase.MOVING
            return exchange.move(self._name, self._target)
        elif self.phase is HandoverPhase.MOVING and not exchange.lacks_header(self._target, self._name):
            self.phase = HandoverPhase.DONE
        return []

    def _has_all(self) -> bool:
        """Whether the other cluster has the generation and every acknowledgement, durably; unknown is no."""
        exchange, peer, state = self._exchange, self._exchange.peer(self._target), self._exchange.state(self._name)
        if state is None or peer.session is None or not {*state.acks} <= peer.compared:
            return False
        return not exchange.lacks_header(self._target, self._name) and not exchange.unconfirmed(
            self._target, self._name
        )

    def cancel(self) -> bool:
        """Take it back; return whether delivery here may go on. Once the other cluster is to deliver, it may not."""
        if self.phase in (HandoverPhase.STOPPING, HandoverPhase.DRAINING):
            self.phase = HandoverPhase.CANCELLED
        return self.phase is HandoverPhase.CANCELLED
