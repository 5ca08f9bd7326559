"""What a request leaves behind is freed at once. In a cycle of references it would wait for the garbage collector, which
may take minutes to come, and a view of the log in it would keep a segment mapped for as long."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from pyreplog.kafka.wire.messages import CreateTopicsCreatableTopic, CreateTopicsRequest
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, fetch, fetched, produce

PRODUCE_VERSION, FETCH_VERSION, CREATE_TOPICS_VERSION = 9, 11, 7


def collected(work: Callable[[], object]) -> set[str]:
    """The types of pyreplog's objects that only the garbage collector finds after some work."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        return {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("pyreplog")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_fetches_of_consumers_and_followers_and_connections_leave_no_cycles(tmp_path: Path, uncollected: None) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", "2").create(replication_factor=2)
        server = brokers.servers[brokers.leader()]
        batch = build_batch([bytes(100)], timestamps_ms=[0])
        with RawClient(server) as writer:  # fetches that wait are answered when the epoch of the leader is committed
            writer.ask(ApiKey.PRODUCE, PRODUCE_VERSION, produce(batch))

        def append_and_fetch() -> None:
            for offset in range(1, 21):
                with RawClient(server) as reader, RawClient(server) as writer:
                    late = reader.send(ApiKey.FETCH, FETCH_VERSION, fetch(offset, max_wait_ms=1))  # its time runs out
                    reader.answer(ApiKey.FETCH, FETCH_VERSION, late)
                    waiting = reader.send(ApiKey.FETCH, FETCH_VERSION, fetch(offset, max_wait_ms=60_000))
                    answer = writer.ask(ApiKey.PRODUCE, PRODUCE_VERSION, produce(batch))
                    assert answer.responses[0].partition_responses[0].base_offset == offset
                    records = list(fetched(reader.answer(ApiKey.FETCH, FETCH_VERSION, waiting)))
                    assert len(records[0]) == len(batch)

        assert collected(append_and_fetch) == set()


def test_requests_that_wait_for_leaders_leave_no_cycles(tmp_path: Path, uncollected: None) -> None:
    with KafkaBrokers(tmp_path) as brokers, RawClient(brokers.start("1").servers["1"]) as client:

        def create_topics() -> None:
            for number in range(5):
                request = CreateTopicsRequest((CreateTopicsCreatableTopic(f"topic-{number}", 2, 1),))
                answer = client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                assert answer.topics[0].error_code == 0

        assert collected(create_topics) == set()
