"""Where a replicated subscription is, in terms of the clusters where its messages were published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyreplog._native.topic.rangeset import OFFSET_END, RangeSet
from pyreplog.geo.acks.origin_ranges import subtract


@dataclass(frozen=True, slots=True)
class SubscriptionPosition:
    """Where a subscription is in one cluster, among the messages of one origin, as this cluster knows it.

    Acknowledgements that are on their way to another cluster do not count there: it is at this position, or further.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        at: name of the cluster whose position it is; "": this one.
        origin: name of the cluster where the messages were published; "": this one. If no policy names it, its id.
        token: token of the topic's creation there. A topic that was created again is another origin.
        below: every message below this offset at the origin is acknowledged there, or will never be delivered there;
            None: not known.
        beyond: messages from `below` on that are acknowledged.
        end: offset at the origin up to which the cluster has the messages, or gaps; None: it has not told.
        is_known: the cluster has told what it has, since this process owns the topic; if not, the rest is a guess.
        error: why there is no connection to the cluster, or why the position is not known; "": there is one.
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


class Place(NamedTuple):
    """A position among the messages of one origin.

    Attributes:
        below: offset at the origin; all messages below it are passed.
        beyond: number of messages from there on that are passed.
    """

    below: int
    beyond: int


def place(passed: RangeSet, held: RangeSet, end: int) -> Place:
    """Return the position of who has passed some of the messages of an origin.

    Args:
        passed: offsets that are acknowledged, or lie in the base; below `end` also such that name no message.
        held: offsets of the messages that this cluster holds.
        end: end of the origin here; what is acknowledged behind it has not arrived yet.
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
