"""Readiness: the messages that would be lost or repeated if consumers had to go on in another cluster now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pyreplog._native.topic.range_set import OFFSET_END
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.origin_ranges import OriginRanges, Ranges, ranges_of, subtract
from pyreplog.origins.origin import Origin


@dataclass(frozen=True)
class Readiness:
    """The effect of a fail-over of one subscription to one cluster now, as this cluster knows it.

    Messages and acknowledgements in flight count as missing at the target. A message in flight may arrive nevertheless,
    and its acknowledgement not: it counts as repeated. So a fail-over loses or repeats at most these.

    Attributes:
        name: name of the subscription.
        target: id of the cluster.
        is_known: whether the target has reported its acknowledgements since this process began; if not, the other
            values are guesses.
        is_current: whether the target knows the present generation; if not, it goes on from its position before the
            seek.
        lost: messages that are to be delivered and that the target does not store: they have not arrived there, or were
            removed before a seek went back to them.
        repeated: messages that are acknowledged, and that the target would deliver if it stores them, as it may.
        revived: messages that expired here without being acknowledged, and that the target would deliver likewise.
    """

    name: str
    target: bytes
    is_known: bool
    is_current: bool
    lost: OriginRanges
    repeated: OriginRanges
    revived: OriginRanges

    @property
    def is_ready(self) -> bool:
        """Whether no message would be lost or repeated, for certain."""
        return self.is_known and self.is_current and not self.lost and not self.repeated


def readiness(
    exchange: SubscriptionExchange,
    name: str,
    target: bytes,
    held: OriginRanges,
    stored: Mapping[Origin, int],
    foreign: Callable[[Origin, int, int], Ranges] | None = None,
    sent: Callable[[Origin], int] = lambda _: 0,
    kept: Callable[[Origin, Ranges], Ranges] | None = None,
) -> Readiness:
    """Return the effect of a fail-over to `target` now.

    Args:
        exchange: exchange of the topic in this cluster.
        name: name of an existing subscription.
        target: id of a neighbour.
        held: the messages that this cluster holds; those below `stored` are not looked at.
        stored: for each origin, the target's last reported position.
        foreign: returns the offsets of an origin, between two of them, that hold messages of other origins, and so name
            no messages.
        sent: returns the offset at an origin below which the target may store messages, since they were sent from here,
            or may have come from elsewhere.
        kept: returns the messages in ranges of an origin that this cluster holds; None: none below `stored` is held.

    Raises:
        InvalidArgumentError: the target is no neighbour.
    """
    peer, state = exchange.peer(target), exchange.state(name)
    assert state is not None
    lost, repeated, revived = OriginRanges(), OriginRanges(), OriginRanges()
    unconfirmed, expired = exchange.unconfirmed(target, name), exchange.expired_here(name)
    for origin in {*held, *unconfirmed, *expired, *peer.starts}:
        end = stored.get(origin, 0)
        arriving = max(end, sent(origin))
        lost.add(origin, *held.between(origin, end))
        lost.remove(origin, *state.passed(origin, end, OFFSET_END))
        if kept is not None and (start := peer.starts.get(origin, 0)):  # the target has told that it stores none below
            removed = ranges_of(np.zeros(1, np.int64), np.array([start], np.int64))
            if missing := subtract(removed, state.passed_set(origin)):
                lost.add(origin, *kept(origin, missing.intersect()))
        lost.remove(origin, *expired.between(origin))
        repeated.add(origin, *unconfirmed.between(origin, 0, arriving))
        repeated.remove(origin, *state.bases.between(origin))
        if foreign is not None and (named := repeated.of(origin)):  # of what is foreign most lies elsewhere
            repeated.remove(origin, *foreign(origin, named.first or 0, repeated.last(origin) + 1))
        revived.add(origin, *expired.between(origin, 0, arriving))
        revived.remove(origin, *state.passed(origin))
        if origin in peer.proved and (start := peer.starts.get(origin, 0)):
            for deliverable in (repeated, revived):
                deliverable.remove(origin, np.zeros(1, np.int64), np.array([start], np.int64))
    return Readiness(
        name,
        target,
        is_known={*state.acks} <= peer.compared,
        is_current=not exchange.lacks_header(target, name),
        lost=lost,
        repeated=repeated,
        revived=revived,
    )
