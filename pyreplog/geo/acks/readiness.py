"""What would be lost or repeated if a cluster failed now, and consumers went on in another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyreplog._native.topic.rangeset import OFFSET_END
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.origins.origin import Origin


@dataclass(frozen=True)
class Readiness:
    """What a fail-over of one subscription to one cluster would do now, as this cluster knows it.

    What is on its way counts as not there: the truth is this, or better.

    Attributes:
        name: of the subscription.
        target: id of the cluster.
        is_known: whether the target has told what it has, since this process began; if not, the rest is a guess.
        is_current: whether the target knows the present generation: if not, it goes on where it was before the seek.
        lost: messages that are to be delivered and that the target does not store.
        repeated: messages that are acknowledged, and that the target stores and would deliver.
        revived: messages that expired here without being acknowledged, and that the target stores and would deliver.
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
        """Whether nothing would be lost or repeated, for certain."""
        return self.is_known and self.is_current and not self.lost and not self.repeated


def readiness(
    exchange: SubscriptionExchange,
    name: str,
    target: bytes,
    held: OriginRanges,
    stored: Mapping[Origin, int],
    foreign: OriginRanges | None = None,
) -> Readiness:
    """Return what a fail-over to `target` would do now.

    Args:
        exchange: of the topic in this cluster.
        name: of a subscription that exists.
        target: id of a neighbour.
        held: the messages that this cluster holds.
        stored: of each origin, the offset below which the target stores everything, as it told last.
        foreign: offsets of origins that are known to hold messages of other origins: they name no messages.

    Raises:
        InvalidArgumentError: the target is no neighbour.
    """
    peer, state = exchange.peer(target), exchange.state(name)
    assert state is not None
    lost, repeated, revived = OriginRanges(), OriginRanges(), OriginRanges()
    unconfirmed, expired = exchange.unconfirmed(target, name), exchange.expired_here(name)
    for origin in {*held, *unconfirmed}:
        end = stored.get(origin, 0)
        lost.add(origin, *held.between(origin, end))
        lost.remove(origin, *state.passed(origin, end, OFFSET_END))
        lost.remove(origin, *expired.between(origin))
        repeated.add(origin, *unconfirmed.between(origin, 0, end))
        repeated.remove(origin, *state.bases.between(origin))
        if foreign is not None:
            repeated.remove(origin, *foreign.between(origin))
        revived.add(origin, *expired.between(origin, 0, end))
        revived.remove(origin, *state.passed(origin))
    return Readiness(
        name,
        target,
        is_known={*state.acks} <= peer.compared,
        is_current=not exchange.lacks_header(target, name),
        lost=lost,
        repeated=repeated,
        revived=revived,
    )
