"""Three replica managers over real logs, in a schedule that is drawn at random: leaders change, brokers are killed,
messages are lost or come late. What was acknowledged stays, and what a consumer has read was committed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.partition.config import RetentionConfig
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.partition_state import is_lost
from pyreplog.partition.requests import ConsumerFetch, FetchParams, FetchPartitionData
from tests.ha.streams import SEGMENT_BYTES, assert_same_files

from .managers import EVENTS, NAMES, Broker, Cluster, FetchRequest, batch, messages

STEPS = 1_500
UNKNOWN = (
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)  # fmt: skip
LAG_US = 300_000
RETENTION = RetentionConfig(retention_bytes=3 * SEGMENT_BYTES, segment_ms=5_000)


class Schedule:
    """Steps drawn at random, and what clients have seen."""

    def __init__(self, path: Path, rng: Random, *, requires_sync: bool) -> None:
        self.rng = rng
        self.cluster = Cluster(path, requires_sync=requires_sync, lag_us=LAG_US, retention=RETENTION)
        self.cluster.elect()
        self.sequence = 0
        self.acknowledged: dict[int, bytes] = {}
        self.outcomes: dict[int, int] = {}  # how many each produce had
        self.read: list[tuple[int, bytes]] = []  # position and bytes that consumers have seen
        self.in_vain: list[FetchPartitionData] = []  # of fetches that a leader answered early, with no record

    def step(self) -> None:
        rng, cluster = self.rng, self.cluster
        broker = cluster.brokers[rng.choice(NAMES)]
        action = rng.random()
        if action < 0.6 and cluster.inbox:
            act = cluster.inbox.pop(rng.randrange(len(cluster.inbox)))
            if isinstance(act, FetchRequest) and rng.random() < 0.05:
                act.lose()
            else:
                act()
        elif action < 0.75:
            self.produce(broker)
        elif action < 0.85:
            self.consume(broker)
        elif action < 0.9:
            broker.partition.sync()
        elif action < 0.94:
            cluster.fetch_bytes = rng.choice((1, 500, 20_000, 1 << 20))
            cluster.advance_ms(rng.randrange(200))
        elif action < 0.96:
            broker.manager.check_isr()
            broker.refresh(EVENTS)
        elif action < 0.98:
            if rng.random() < 0.5:
                broker.partition.trim(max(broker.partition.high_watermark.entry - 40, 0))
            else:
                broker.partition.apply_retention()
        elif action < 0.99:
            self.move()
        else:
            self.restart(broker)

    def produce(self, broker: Broker) -> None:
        number = len(self.outcomes)
        self.outcomes[number] = 0
        value = b"%d," % number + self.rng.randbytes(self.rng.choice((0, 7, 300, 9000)))
        records: Any = messages(value) if self.rng.random() < 0.5 else batch(self.rng.randint(1, 9), 60)
        future = broker.manager.append_records(ACKS_ALL, {EVENTS: records}, timeout_ms=self.rng.choice((50, 5000)))

        def done(future: Any) -> None:
            self.outcomes[number] += 1
            response = future.result()[EVENTS]
            if response.code is ErrorCode.NONE:
                end, count = response.end_offset, response.end_offset - response.base_offset
                self.acknowledged[end - 1] = value if count == 1 and not isinstance(records, bytes) else b""
            else:
                assert response.base_offset < 0 or response.code in UNKNOWN

        future.add_done_callback(done)

    def consume(self, broker: Broker) -> None:
        log = broker.log
        start = self.rng.randint(log.start, max(log.end, log.start))
        params = FetchParams(
            max_wait_ms=self.rng.choice((0, 100)), only_leader=False, min_bytes=self.rng.choice((1, 9000))
        )

        partition, clock = broker.partition, self.cluster.clock
        epoch, deadline_us = partition.leader_epoch, clock.monotonic_us() + params.max_wait_ms * 1000

        def done(future: Any) -> None:
            data = future.result()[EVENTS]
            if data.records is not None:
                self.read += [(at, bytes(body)) for at, body in data.records.frames]
                is_early = clock.monotonic_us() < deadline_us and epoch is not None and partition.leader_epoch == epoch
                if is_early and data.records.end.entry == data.records.position.entry:
                    self.in_vain.append(data)

        broker.manager.fetch_messages(params, {EVENTS: ConsumerFetch(start, 20_000)}).add_done_callback(done)

    def move(self) -> None:
        """Another member of the ISR leads, though the leader may not know it."""
        state = self.cluster.states[EVENTS][1]
        others = [
            member.broker
            for member in state.isr
            if member.broker != state.leader and not is_lost(member, self.cluster.registered)
        ]
        if others:
            self.cluster.lead(self.rng.choice(others))

    def restart(self, broker: Broker) -> None:
        incarnation = self.cluster.registered[broker.name].incarnation + 1
        self.cluster.registered = {
            **self.cluster.registered, broker.name: self.cluster.registered[broker.name]._replace(incarnation=incarnation)
        }  # fmt: skip
        broker.restart()
        self.cluster.register(broker.name, incarnation)
        self.cluster.elect()

    def settle(self) -> None:
        """Nothing is lost or late any more, until all have all."""
        cluster = self.cluster
        for _ in range(300):
            marks = {(broker.log.end_mark, broker.log.high_watermark) for broker in cluster.brokers.values()}
            if len(marks) == 1 and len({*marks.pop()}) == 1 and len(cluster.states[EVENTS][1].isr) == len(NAMES):
                return
            cluster.advance_ms(20)
            cluster.elect()
            for broker in cluster.brokers.values():
                broker.refresh(EVENTS)
                broker.partition.sync()
            cluster.settle(4)
        raise AssertionError(f"it does not settle: {cluster.states}, {[*cluster.brokers.values()]}")


@pytest.mark.parametrize("requires_sync", [False, True], ids=["received", "synced"])
def test_acknowledged_records_survive_random_schedules(tmp_path: Path, seed: int, requires_sync: bool) -> None:
    schedule = Schedule(tmp_path, Random(seed), requires_sync=requires_sync)
    try:
        check(schedule)
    finally:
        schedule.cluster.close()


def check(schedule: Schedule) -> None:
    for _ in range(STEPS):
        schedule.step()
    schedule.settle()
    cluster = schedule.cluster
    logs = sorted((broker.log for broker in cluster.brokers.values()), key=lambda log: log.start, reverse=True)
    for log in logs[1:]:
        assert_same_files(logs[0], log)
    assert schedule.acknowledged, "nothing was acknowledged"
    assert schedule.read, "nothing was read"
    assert max(schedule.outcomes.values()) == 1
    assert schedule.in_vain == []
    held = {record.entry: (record.value if record.kind == 1 else b"") for batch in logs[0].read() for record in batch}
    kept = {offset: value for offset, value in schedule.acknowledged.items() if offset >= logs[0].start}
    assert {offset: held.get(offset) for offset in kept} == kept
    for position, body in schedule.read:
        if position >= logs[0].start_position:
            segment = logs[0].hold_segment(position)[1]
            assert bytes(segment.view(position - segment.base, len(body))) == body, f"position {position}"
