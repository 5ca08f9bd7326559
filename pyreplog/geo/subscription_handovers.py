"""SubscriptionHandovers: the planned handovers of a topic's replicated subscriptions to other clusters."""

from __future__ import annotations

import logging
from typing import Protocol

from pyreplog.errors import InvalidArgumentError, NoSuchSubscriptionError
from pyreplog.event_queue import EventQueue
from pyreplog.geo.acks.effects import Effect
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.handover import Handover, HandoverPhase
from pyreplog.geo.acks.subscription_state import SubscriptionState
from pyreplog.geo.neighbours import Neighbours
from pyreplog.geo.planned_handover import HandoverStatus, PlannedHandover
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

CHECK_S = 0.05
"""Seconds between two checks of the messages that consumers hold."""


class HandoverOwner(Protocol):
    """The replication that handovers belong to; all calls are steps of its queue."""

    @property
    def live_exchange(self) -> SubscriptionExchange | None:
        """The exchange; None: the replication has not begun, or has ended."""
        ...

    def state(self, name: str) -> SubscriptionState | None:
        """Return the state of a subscription; None: it is not replicated."""
        ...

    def find(self, name: str) -> Subscription | None:
        """Return a subscription of the topic."""
        ...

    def is_in_step(self, name: str) -> bool:
        """Return whether the cursor of a subscription has the state of all clusters."""
        ...

    def take_seeks(self) -> None:
        """Pass the seeks of consumers here to the exchange."""
        ...

    def passes_all_acks(self, name: str) -> bool:
        """Pass the acknowledgements to the exchange; return whether it knows all of them now."""
        ...

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry effects of the exchange out."""
        ...

    def limit(self, name: str) -> None:
        """Let a subscription deliver as far as it may."""
        ...

    def is_home_noted(self, name: str) -> bool:
        """Return whether the metadata have the present home."""
        ...


class SubscriptionHandovers:
    """The handovers that operators ordered, the last one of each subscription; steps of one queue call it.

    Args:
        topic: the topic.
        events: the queue.
        neighbours: the other clusters.
        owner: the replication of the topic's subscriptions.
    """

    def __init__(self, topic: Topic, events: EventQueue, neighbours: Neighbours, owner: HandoverOwner) -> None:
        self._topic, self._context = topic, topic.context
        self._events, self._neighbours, self._owner = events, neighbours, owner
        self._handovers: dict[str, PlannedHandover] = {}
        self._is_check_scheduled = False

    def find(self, name: str, order: str) -> HandoverStatus | None:
        """Return the status of the handover of an order; None: the order is new.

        Args:
            name: name of the subscription.
            order: id of the order.
        """
        handover = self._handovers.get(name)
        return handover.status if handover is not None and handover.order == order else None

    def begin(
        self, exchange: SubscriptionExchange, status: HandoverStatus, order: str, *, timeout: float, grace: float
    ) -> HandoverStatus:
        """Begin a handover, or refuse it; return its status.

        Args:
            exchange: the exchange.
            status: the initial status, with the subscription and the target.
            order: id of the order.
            timeout: seconds after which the handover is cancelled, if the home has not moved.
            grace: seconds after which messages that consumers hold are taken from them.

        Raises:
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
        """
        name, target = status.subscription, status.target
        self.check_replicated(name)
        former = self._handovers.get(name)
        if former is not None and not former.is_over:
            return _refused(status, f"a handover to {former.status.target} is under way: wait until it has ended")
        neighbour = self._neighbours.named(target)
        if neighbour is None:
            names = ", ".join(sorted(known.name for known in self._neighbours.clusters.values())) or "none"
            return _refused(status, f"target: expected a cluster that the topic is replicated with ({names})")
        try:
            handover = Handover(exchange, name, neighbour.cluster)
        except InvalidArgumentError:
            state = self._owner.state(name)
            home = None if state is None else self._neighbours.home_of(state)
            return _refused(
                status, f"its home is the cluster {home}: order it there, or, if that cluster is lost, take it over "
                "here first (`geo take-over`)",
            )  # fmt: skip
        now_us = self._context.clock.monotonic_us()
        ordered = PlannedHandover(order, handover, status, now_us, timeout=timeout, grace=grace)
        self._handovers[name] = ordered
        ordered.note()
        logger.info("topic %s: subscription %s is handed over to %s", self._topic.name, name, target)
        self._owner.limit(name)
        self._check()
        return ordered.status

    def check_replicated(self, name: str) -> None:
        """Raise NoSuchSubscriptionError unless a subscription is replicated."""
        if self._owner.state(name) is None:
            raise NoSuchSubscriptionError(
                self._topic.name, f"it has no replicated subscription {name}: `geo readiness` lists all"
            )

    def holds_back(self, name: str) -> bool:
        """Return whether a handover keeps this cluster from delivering a subscription."""
        handover = self._handovers.get(name)
        return handover is not None and handover.holds_back

    def cancel(self, name: str, reason: str) -> None:
        """Cancel the handover of a subscription, if one is under way."""
        ordered = self._handovers.get(name)
        if ordered is not None and not ordered.is_over:
            ordered.handover.cancel()
            ordered.end("cancelled", reason)

    def advance(self) -> None:
        """Go on with handovers that wait for the other cluster."""
        if self._owner.live_exchange is None:
            return
        for name, ordered in list(self._handovers.items()):
            handover = ordered.handover
            if ordered.is_over:
                continue
            neighbour = self._neighbours.named(ordered.status.target)
            if neighbour is None:
                ordered.give_up(f"the policy no longer names the cluster {ordered.status.target}")
                self._owner.limit(name)
                continue
            if handover.phase is HandoverPhase.DRAINING:
                self._owner.take_seeks()
                if self._owner.state(name) is not None and not self._owner.passes_all_acks(name):
                    continue
            effects = handover.advance()
            if effects:
                self._owner.carry_out(effects)
            if handover.phase is not HandoverPhase.STOPPING:
                self._note(name, ordered, neighbour.cluster)

    def _check_later(self) -> None:
        if not self._is_check_scheduled and any(not ordered.is_over for ordered in self._handovers.values()):
            self._is_check_scheduled = True
            self._context.runtime.wake_after(CHECK_S, lambda: self._events.post(self._check))

    def _check(self) -> None:
        """Check the messages that consumers hold, and the timeouts of handovers."""
        self._is_check_scheduled = False
        owner = self._owner
        if owner.live_exchange is None:
            return
        now_us = self._context.clock.monotonic_us()
        for name, ordered in self._handovers.items():
            if not ordered.is_over and ordered.handover.phase is HandoverPhase.STOPPING:
                subscription = owner.find(name)
                if subscription is None or (owner.is_in_step(name) and ordered.is_stopped(subscription, now_us)):
                    owner.take_seeks()
                    if subscription is None or owner.passes_all_acks(name):
                        owner.carry_out(ordered.handover.stopped())
        self.advance()
        for name, ordered in self._handovers.items():
            if not ordered.is_over and now_us >= ordered.ends_us:
                held = (
                    f"consumers hold {ordered.status.held} messages"
                    if ordered.status.held
                    else "acknowledgements are not stored"
                )
                ordered.give_up(ordered.status.error or held)
                logger.warning(
                    "topic %s: subscription %s was not handed over: %s", self._topic.name, name, ordered.status
                )
                owner.limit(name)
        self._check_later()

    def _note(self, name: str, ordered: PlannedHandover, peer: bytes) -> None:
        """Note the progress of a handover in its status."""
        handover, state = ordered.handover, self._owner.state(name)
        if ordered.is_over:
            return
        if state is None:
            ordered.end("cancelled", "the subscription was deleted")
        elif handover.phase is HandoverPhase.CANCELLED or (
            handover.phase is HandoverPhase.DONE and state.home.cluster != peer
        ):
            home = self._neighbours.home_of(state)
            ordered.end("cancelled", f"the subscription was taken over: its home is the cluster {home}")
        elif handover.phase is HandoverPhase.DONE and not self._owner.is_home_noted(name):
            ordered.wait_for_metadata("its home is not stored in the metadata store yet")
        elif handover.phase is HandoverPhase.DONE:
            ordered.end("done", "")
            target = ordered.status.target
            logger.info("topic %s: subscription %s was handed over to %s", self._topic.name, name, target)
        else:
            exchange = self._owner.live_exchange
            assert exchange is not None
            lacking = exchange.unconfirmed(peer, name).total
            error = self._neighbours.why_not_connected(peer) or self._neighbours.alarms.get(peer, "")
            missing = f"{lacking} acknowledgements" if lacking else "its state of the subscription"
            ordered.note(error=error or f"the cluster has not confirmed {missing} yet")
            return
        self._owner.limit(name)


def _refused(status: HandoverStatus, error: str) -> HandoverStatus:
    return HandoverStatus(status.topic, status.subscription, status.target, "refused", error=error)
