"""Acknowledgements that arrive before their message: they wait, and are applied before it is delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.geo.acks.lifecycle import SubscriptionLifecycle
from pyreplog.geo.acks.origin_ranges import Ranges
from pyreplog.geo.acks.subscription_state import SubscriptionState
from pyreplog.origins.origin import Origin


class EarlyAcks:
    """Knows the stored offset of each origin here, and so which acknowledgements are early.

    The acknowledgements themselves stay in the states of the subscriptions, which are durable.
    """

    def __init__(self) -> None:
        self._stored: dict[Origin, int] = {}
        self._last: dict[Origin, int] = {}  # no subscription has passed a message behind this offset

    def stored(self, origin: Origin) -> int:
        """Return the offset below which an origin is stored here; 0: no message is."""
        return self._stored.get(origin, 0)

    def expect(self, state: SubscriptionState) -> None:
        """Note the messages that a subscription has passed, maybe before they arrive here."""
        for origin in state.origins():
            self.expect_up_to(origin, max(state.acks.last(origin), state.bases.last(origin)))

    def expect_up_to(self, origin: Origin, last: int) -> None:
        """Note that a message was acknowledged, maybe before it arrives here."""
        if last > self._last.get(origin, -1):
            self._last[origin] = last

    def present(self, origin: Origin, ranges: RangeSet) -> RangeSet:
        """Return the newly acknowledged messages that are stored here; the others wait."""
        present = RangeSet()
        present.add_ranges(*ranges.intersect(0, self.stored(origin)))
        return present

    def arrive(
        self, origin: Origin, end: int, lifecycles: Mapping[str, SubscriptionLifecycle]
    ) -> Iterator[tuple[str, Ranges]]:
        """Note that an origin is stored up to `end`; yield the new messages that are acknowledged, by subscription.

        Messages in the base of a subscription count as acknowledged: its creation or its last seek passed them over.
        """
        begin = self.stored(origin)
        if end <= begin:
            return
        self._stored[origin] = end
        if self._last.get(origin, -1) < begin:  # the usual case, without a loop over the subscriptions
            return
        for name, lifecycle in lifecycles.items():
            state = lifecycle.state
            if state is None or max(state.acks.last(origin), state.bases.last(origin)) < begin:
                continue
            ranges = state.passed(origin, begin, end)
            if len(ranges[0]):
                yield name, ranges
