"""The position of a replicated subscription, as offsets in the clusters that published its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.geo.acks.origin_ranges import subtract


@dataclass(frozen=True, slots=True)
class SubscriptionPosition:
    """The position of a subscription in one cluster, among the messages of one origin, as this cluster knows it.

    Acknowledgements in flight to another cluster do not count there: its position is this one, or further.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        at: name of the cluster whose position it is; "": this cluster.
        origin: name of the cluster that published the messages; "": this cluster. If no policy names it, its id.
        token: token of the topic's creation there. A topic that was created again is another origin.
        below: every message below this offset at the origin is acknowledged in the cluster, or will never be delivered
            there; None: unknown.
        beyond: number of acknowledged messages from `below` on.
        end: offset at the origin up to which the cluster has the messages, or gaps; None: it has not reported it.
        is_known: the cluster has reported its acknowledgements since this process owns the topic; if not, the other
            values are guesses.
        error: why the cluster is not connected, or why the position is unknown; "": it is connected.
        home: name of the only cluster whose consumers get messages; "": this cluster; None: all clusters deliver.
    """

    topic: str
    subscription: str
    at: str
    origin: str
    token: str
    below: int | None
    beyond: int
    end: int | None
    is_known: bool
    error: str = ""
    home: str | None = None


class Place(NamedTuple):
    """A position among the messages of one origin.

    Attributes:
        below: offset at the origin; all messages below it are passed.
        beyond: number of passed messages from `below` on.
    """

    below: int
    beyond: int


def place(passed: RangeSet, held: RangeSet, end: int) -> Place:
    """Return the position of a subscription that has passed some of the messages of an origin.

    Args:
        passed: offsets that are acknowledged, or lie in the base; below `end` some of them may name no message.
        held: offsets of the messages that this cluster holds.
        end: end of the origin here; acknowledged messages behind it have not arrived yet.
    """
    left = subtract(held, passed)
    below = left.first
    if below is None:
        starts, ends = passed.intersect(end, OFFSET_END, 1)
        below = int(ends[0]) if len(starts) and starts[0] == end else end
    beyond = 0
    for ranges, sign in ((held.intersect(below), 1), (left.intersect(), -1), (passed.intersect(max(below, end)), 1)):
        beyond += sign * int((ranges[1] - ranges[0]).sum())
    return Place(below, beyond)
