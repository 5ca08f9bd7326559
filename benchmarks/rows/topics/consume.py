"""Consuming with acknowledgements, beside a bare scan, and beside building the objects."""

from __future__ import annotations

import itertools
import time

import pyreplog
from benchmarks.entries import SIZES, make_values, verify
from benchmarks.logs import fill as fill_log
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from benchmarks.topics import check_values, fill, topic, verify_topic
from pyreplog import CommitLog
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic

_SIZE = 100
_MESSAGES = 1 << 20


def consume(plan: Plan) -> Section:
    """`batches()` and `receive()` of a subscription that begins at the first message."""
    section = Section("topics-consume", "Consume and acknowledge, embedded, one subscription, appended")
    count, values = plan.scaled(_MESSAGES), make_values(_SIZE)
    with (
        topic(plan) as ours,
        plan.folder() as folder,
        pyreplog.open(folder / "log", segment_bytes=plan.segment_bytes, durability="appended") as log,
    ):
        fill(ours, values, count)
        fill_log(log, values, count)
        turns = _Turns(ours, values, count)
        found = interleave(
            plan,
            {
                "batches": turns.batches, "scan": lambda: _scan(log, count),
                "receive": turns.receive, "build": turns.build, "read": turns.read,
            },
        )  # fmt: skip
        checked = f"{turns.verified()}; log: {verify(log, values, count)}"
    sides = (
        ("columns", "batches(), acknowledge(batch)", "batches", "CommitLog scan to columns", "scan", 0.3),
        ("objects", "receive(), acknowledge(message)", "receive", "list of batches at hand", "build", 0.3),
        ("objects, read", "receive(), acknowledge(message)", "receive", "list of what Topic.read gives", "read", None),
    )
    for work, ours_name, ours_side, other_name, other_side, limit in sides:
        section.comparisons.append(
            Comparison(
                f"{work}, {SIZES[_SIZE]}",
                Figure(ours_name, found[ours_side], "/s", "reading", _SIZE),
                Figure(other_name, found[other_side], "/s", "reading", _SIZE),
                None if limit is None else Goal("at least", limit),
                checked,
            )
        )
    return section


class _Turns:
    """A subscription per turn, deleted afterwards. All figures are messages per second."""

    def __init__(self, topic: Topic, values: list[bytes], count: int) -> None:
        self._topic, self._values, self._count = topic, values, count
        self._names = (f"subscription-{number}" for number in itertools.count())
        self._at_hand = list(topic.read())

    def _done(self, consumer: Consumer, received: int, begin: float) -> float:
        took = time.perf_counter() - begin
        consumer.flush()
        there = self._topic.subscription(consumer.subscription)
        left = there.inspect(lambda cursor, _: cursor.backlog(self._topic.managed.end)).messages
        consumer.close()
        self._topic.delete_subscription(consumer.subscription)
        if received != self._count or left:
            raise ValueError(f"{received} of {self._count} messages were received, {left} are not acknowledged")
        return self._count / took

    def _subscribed(self) -> Consumer:
        return self._topic.subscribe(next(self._names), start="earliest")

    def batches(self) -> float:
        consumer, received, begin = self._subscribed(), 0, time.perf_counter()
        for batch in consumer.batches():
            batch.packed()
            consumer.acknowledge(batch)
            received += len(batch)
            if received >= self._count:
                break
        return self._done(consumer, received, begin)

    def receive(self) -> float:
        consumer, begin = self._subscribed(), time.perf_counter()
        receive, acknowledge = consumer.receive, consumer.acknowledge
        for _ in range(self._count):
            message = receive()
            assert message is not None
            acknowledge(message)
        return self._done(consumer, self._count, begin)

    def build(self) -> float:
        begin = time.perf_counter()
        built = sum(len(list(batch)) for batch in self._at_hand)
        return built / (time.perf_counter() - begin)

    def read(self) -> float:
        begin = time.perf_counter()
        built = sum(len(list(batch)) for batch in self._topic.read())
        return built / (time.perf_counter() - begin)

    def verified(self) -> str:
        """What both ways give is what was published."""
        at = 0
        with self._subscribed() as consumer:
            for batch in consumer.batches():
                check_values(batch.packed()[1].tobytes(), self._values, at, len(batch))
                consumer.acknowledge(batch)
                at += len(batch)
                if at == self._count:
                    break
        with self._subscribed() as consumer:
            for number in range(self._count):
                message = consumer.receive()
                assert message is not None
                if message.value != self._values[number % len(self._values)] or message.offset != number:
                    raise ValueError(f"message {number} is not what was published")
                consumer.acknowledge(message)
        return verify_topic(self._topic, self._values, 0, self._count)


def _scan(log: CommitLog, count: int) -> float:
    begin, found = time.perf_counter(), 0
    for batch in log.read():
        batch.packed()
        found += len(batch)
    if found != count:
        raise ValueError(f"{log}: {found} of {count} entries were scanned")
    return count / (time.perf_counter() - begin)
