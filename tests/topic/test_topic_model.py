"""A topic compared with a small model: a list of messages, and a set of acknowledged offsets for each subscription.

The backlogs of the statistics, of reading all messages and of consumers agree. This holds after crashes, too, which may
undo only acknowledgements that were not flushed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.topic.counting import Faults
from tests.topic.handling import (
    KEPT,
    SMALL,
    check_backlog,
    counted_backlog,
    open_cluster,
    receive,
    reported_backlog,
    stored,
    trim,
    values,
)
from tests.topic.killable_processes import kill, killable_process

NAME = "t"
TYPES = {"one": "exclusive", "shared": "shared", "keys": "key_shared"}
names = st.sampled_from(sorted(TYPES))
some = st.lists(st.integers(0, 1 << 16), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("model")) as cluster:
        yield cluster


class Model(RuleBasedStateMachine):
    """Random calls of a topic.

    Attributes:
        hand: messages that a consumer has, neither acknowledged nor refused.
        flushed: offsets whose acknowledgement is stored.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.end = self.start = 0
        self.acked: dict[str, set[int]] = {name: set() for name in TYPES}
        self.flushed: dict[str, set[int]] = {name: set() for name in TYPES}
        self.hand: dict[str, set[int]] = {name: set() for name in TYPES}
        self.rest = ExitStack()

    @initialize()
    def begin(self) -> None:
        self.process = self.rest.enter_context(killable_process(self.cluster, Faults()))
        self.topic: Topic = self.process.topic(NAME, **SMALL)
        self.consumers: dict[str, Consumer] = {
            name: self.topic.subscribe(
                name, start="earliest", type=type_, queue=7, nack_min_ms=0, nack_max_ms=0
            )
            for name, type_ in TYPES.items()
        }  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "topic"):
            self.topic.delete()
            for consumer in self.consumers.values():
                consumer.close()
        self.rest.close()

    def left(self, name: str) -> set[int]:
        return set(range(self.end)) - self.acked[name]

    def pick(self, wanted: list[int], among: set[int]) -> list[int]:
        ordered = sorted(among)
        return sorted({ordered[at % len(ordered)] for at in wanted})

    # ---- publishing --------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 9), gathered=st.booleans())
    def publish(self, count: int, gathered: bool) -> None:
        wanted = values(count, self.end)
        keys = [b"%d" % (int(value) % 3) for value in wanted]
        if gathered:
            futures = [self.topic.submit(value, key) for value, key in zip(wanted, keys, strict=True)]
            assert [future.result() for future in futures] == list(range(self.end, self.end + count))
        else:
            assert self.topic.publish_batch(wanted, keys) == range(self.end, self.end + count)
        self.end += count

    @rule()
    def roll(self) -> None:
        self.topic.managed.roll().result()

    @rule()
    def trim(self) -> None:
        for consumer in self.consumers.values():
            consumer.flush()
        trim(self.topic)
        self.topic.configure(**KEPT)
        assert self.topic.start <= min(min(self.left(name), default=self.end) for name in TYPES)
        self.start = max(self.start, self.topic.start)
        assert self.topic.start == self.start

    # ---- consuming ---------------------------------------------------------------------------------------------

    @rule(name=names, count=st.integers(1, 8))
    def receive(self, name: str, count: int) -> None:
        coming = self.left(name) - self.hand[name]
        if name == "keys":  # messages behind a refused one of the same key may have to wait
            count = min(count, 1)
        for message in receive(self.consumers[name], min(count, len(coming))):
            assert message.offset in coming and message.value == b"%d" % message.offset
            if name == "one":
                assert message.offset == min(coming)
            coming.discard(message.offset)
            self.hand[name].add(message.offset)

    @precondition(lambda self: any(self.hand.values()))
    @rule(data=st.data(), wanted=some)
    def acknowledge(self, data: st.DataObject, wanted: list[int]) -> None:
        name = data.draw(st.sampled_from([name for name, hand in sorted(self.hand.items()) if hand]))
        offsets = self.pick(wanted, self.hand[name])
        self.consumers[name].acknowledge(offsets)
        self._done(name, offsets)

    @precondition(lambda self: self.end)
    @rule(name=names, wanted=some)
    def acknowledge_anything(self, name: str, wanted: list[int]) -> None:
        """Acknowledge any messages that are kept, also ones that were never delivered or are acknowledged already."""
        offsets = self.pick(wanted, set(range(self.end)))
        if offsets[0] >= self.start:
            self.consumers[name].acknowledge(offsets)
            self._done(name, offsets)

    def _done(self, name: str, offsets: Any) -> None:
        self.acked[name].update(offsets)
        self.consumers[name].flush()
        self.flushed[name] = set(self.acked[name])
        self._redeliver(name)  # messages in the consumer's queue may be acknowledged by now

    def _redeliver(self, name: str) -> None:
        """Discard the messages in the consumer's queue, so that it returns none of them."""
        self.consumers[name].redeliver()
        self.consumers[name].flush()  # another thread may be delivering, and discards as well
        self.flushed[name] = set(self.acked[name])
        self.hand[name].clear()

    @precondition(lambda self: any(self.hand.values()))
    @rule(data=st.data(), wanted=some)
    def acknowledge_late(self, data: st.DataObject, wanted: list[int]) -> None:
        """Acknowledge without a flush, which a crash may undo."""
        name = data.draw(st.sampled_from([name for name, hand in sorted(self.hand.items()) if hand]))
        offsets = self.pick(wanted, self.hand[name])
        self.consumers[name].acknowledge(offsets)
        self.acked[name].update(offsets)
        self.hand[name].difference_update(offsets)

    @precondition(lambda self: any(self.hand.values()))
    @rule(data=st.data(), wanted=some)
    def refuse(self, data: st.DataObject, wanted: list[int]) -> None:
        name = data.draw(
            st.sampled_from([name for name, hand in sorted(self.hand.items()) if hand and name != "one"] or ["one"])
        )
        if name == "one":
            return
        offsets = self.pick(wanted, self.hand[name])
        self.consumers[name].nack(offsets)
        self.hand[name].difference_update(offsets)

    @precondition(lambda self: self.end)
    @rule(at=st.integers(0, 1 << 16))
    def cumulative(self, at: int) -> None:
        last = at % self.end
        mark = min(self.left("one"), default=self.end)
        if last + 1 < mark:
            with pytest.raises(InvalidArgumentError):
                self.consumers["one"].acknowledge_cumulative(last)
        else:
            self.consumers["one"].acknowledge_cumulative(last)
            self._done("one", range(last + 1))

    # ---- positions ---------------------------------------------------------------------------------------------

    @rule(name=names, at=st.integers(0, 1 << 16))
    def seek(self, name: str, at: int) -> None:
        to = self.start + at % (self.end - self.start + 1)
        assert self.topic.seek(name, to) == to
        self.acked[name], self.flushed[name] = set(range(to)), set(range(to))
        self.hand[name].clear()

    @rule(name=names, count=st.integers(0, 5))
    def skip(self, name: str, count: int) -> None:
        self.consumers[name].flush()
        self.topic.skip(name, count)
        skipped = sorted(self.left(name))[:count]
        if skipped:
            self._done(name, range(skipped[-1] + 1))

    @rule(name=names)
    def clear(self, name: str) -> None:
        self.topic.clear(name)
        self._done(name, range(self.end))

    # ---- ends --------------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.topic.close()
        self.topic = self.process.topic(NAME)
        self._come_back()

    @rule()
    def crash(self) -> None:
        kill(self.process)
        self.rest.close()
        self.process = self.rest.enter_context(killable_process(self.cluster, Faults()))
        self.topic = self.process.topic(NAME)
        for name in TYPES:
            numbers = set(range(self.end)) - set(counted_backlog(self.topic, name)[0])
            assert self.flushed[name] <= numbers <= self.acked[name]
            self.acked[name], self.flushed[name] = set(numbers), numbers
        self._come_back()

    def _come_back(self) -> None:
        for name, type_ in TYPES.items():
            self.consumers[name].close()
            self.consumers[name] = self.topic.subscribe(name, type=type_, queue=7, nack_min_ms=0, nack_max_ms=0)
            self.hand[name].clear()
            self.flushed[name] = set(self.acked[name])

    # ---- always ------------------------------------------------------------------------------------------------

    @invariant()
    def backlogs_are_equal(self) -> None:
        if hasattr(self, "topic"):
            assert self.topic.end == self.end and self.topic.start == self.start
            assert stored(self.topic) == dict(enumerate(values(self.end - self.start, self.start), self.start))
            for name in TYPES:
                assert reported_backlog(self.topic, name) == counted_backlog(self.topic, name)[1]

    @rule(name=names)
    def check(self, name: str) -> None:
        self.consumers[name].flush()
        self.flushed[name] = set(self.acked[name])
        check_backlog(self.topic, name, self.left(name))

    @rule(name=names)
    def drain(self, name: str) -> None:
        """Check that exactly the remaining messages are delivered."""
        self._redeliver(name)
        numbers: set[int] = set()
        while numbers != self.left(name):
            (message,) = receive(self.consumers[name], 1)
            assert message.offset in self.left(name) - numbers
            numbers.add(message.offset)
        assert self.consumers[name].receive(timeout=0) is None
        self.hand[name] = numbers


def test_a_topic_against_its_model(cluster: Cluster) -> None:
    """Scenarios 8, 9 and 24."""
    run_state_machine_as_test(
        lambda: Model(cluster),
        settings=settings(
            max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
