"""SubscriptionReport: the readiness and the positions of a topic's replicated subscriptions, for operators."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.origin_ranges import subtract
from pyreplog.geo.acks.readiness import readiness
from pyreplog.geo.acks.subscription_position import SubscriptionPosition, place
from pyreplog.geo.neighbours import Neighbour, Neighbours
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.origins.origin import Origin
from pyreplog.topic.owner.topic import Topic


class SubscriptionReport:
    """Reports the readiness and the positions of the replicated subscriptions of one topic. It changes nothing.

    Args:
        topic: the topic.
        exchange: the exchange, which has all acknowledgements of this cluster.
        positions: the positions of the topic's messages.
        neighbours: the other clusters; each is to have a connection.
    """

    def __init__(
        self, topic: Topic, exchange: SubscriptionExchange, positions: TopicPositions, neighbours: Neighbours
    ) -> None:
        self._topic, self._exchange, self._positions, self._neighbours = topic, exchange, positions, neighbours

    def readiness(self, alarms: Mapping[str, str]) -> list[SubscriptionReadiness]:
        """Return the effect of a fail-over of each subscription to each other cluster now.

        Args:
            alarms: alarms by subscription.
        """
        exchange, neighbours, rows = self._exchange, self._neighbours, []
        kept = partial(self._positions.kept, start=self._topic.managed.start.offset)
        for peer, neighbour in neighbours.clusters.items():
            connection = neighbours.connections[peer]
            stored = {self._topic.origin: connection.stored or 0}
            if connection.origin is not None:
                stored[connection.origin] = OFFSET_END
            third: set[Origin] = set()
            for origin in self._positions.ends().keys() - stored.keys():
                forwarded = neighbour.forwarded(origin)
                if forwarded is None:  # its messages come from elsewhere, or not at all
                    third.add(origin)
                    forwarded = exchange.peer(peer).positions.get(origin, 0)
                stored[origin] = forwarded
            may_have = partial(_may_have, third, neighbour)
            held = self._positions.held_from(stored)
            error = neighbours.why_not_connected(peer)
            for name in exchange.names():
                effect = readiness(exchange, name, peer, held, stored, self._positions.foreign, may_have, kept)
                state = exchange.state(name)
                assert state is not None
                alarm = neighbours.alarms.get(peer, "") or alarms.get(name, "")
                rows.append(
                    SubscriptionReadiness(
                        self._topic.name, name, neighbour.name, effect.is_ready, effect.is_known, effect.is_current,
                        effect.lost.total, effect.repeated.total, effect.revived.total, error, alarm,
                        neighbours.home_of(state), sum(effect.lost.of(origin).total for origin in third),
                    )
                )  # fmt: skip
        return sorted(rows, key=lambda row: (row.subscription, row.target))

    def where(self, name: str) -> list[SubscriptionPosition]:
        """Return the positions of a subscription in this and the other clusters, by origin; []: it is not replicated.

        Args:
            name: name of the subscription.
        """
        exchange, topic, own = self._exchange, self._topic.name, self._topic.origin
        state = exchange.state(name)
        if state is None:
            return []
        ends, held, rows = self._ends(), self._positions.held(), []
        expired, home = exchange.expired_here(name), self._neighbours.home_of(state)
        origins = sorted({*ends, *state.origins()}, key=lambda origin: (origin != own, origin))

        def add(at: str, origin: Origin, passed: RangeSet, end: int | None, is_known: bool, error: str) -> None:
            below, beyond = place(passed, held.of(origin), ends.get(origin, 0))
            publisher = self._neighbours.name_of(origin.cluster)
            rows.append(
                SubscriptionPosition(
                    topic, name, at, publisher, origin.token, below, beyond, end, is_known, error, home
                )
            )  # fmt: skip

        for origin in origins:
            passed = state.passed_set(origin)
            passed.add_ranges(*expired.between(origin))
            add("", origin, passed, ends.get(origin, 0), is_known=True, error="")
        for peer, neighbour in sorted(self._neighbours.clusters.items(), key=lambda item: item[1].name):
            connection = self._neighbours.connections[peer]
            unconfirmed = exchange.unconfirmed(peer, name)
            is_current = not exchange.lacks_header(peer, name)
            for origin in origins:
                if origin == own:
                    end = connection.stored
                elif (end := neighbour.forwarded(origin)) is None:
                    end = exchange.peer(peer).positions.get(origin)
                is_known = is_current and origin in exchange.peer(peer).compared
                passed = subtract(state.passed_set(origin), unconfirmed.of(origin))
                add(neighbour.name, origin, passed, end, is_known, self._neighbours.why_not_connected(peer))
        return rows

    def _ends(self) -> dict[Origin, int]:
        """Return the end of each origin here, also of an origin whose messages were all trimmed."""
        states, ends = self._topic.origins.all(), self._positions.ends()
        if self._positions.end >= self._topic.managed.end.offset:  # the positions include all entries of the states
            for origin, known in states.items():
                if known.last is not None:  # otherwise it forwarded nothing but gaps
                    ends[origin] = max(ends.get(origin, 0), known.stored)
        return ends


def _may_have(third: Set[Origin], neighbour: Neighbour, origin: Origin) -> int:
    """Return the offset at an origin below which another cluster may store messages; of those in `third`: any."""
    return OFFSET_END if origin in third else neighbour.sent(origin)
