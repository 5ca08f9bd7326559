"""No Python per record: appends and fetches of 1 and of 256 records make the same calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyreplog.partition.requests import ConsumerFetch, FetchIsolation, FetchParams, Messages
from pyreplog.record_batches.batches import build_batch
from tests.partition.managers import EVENTS, WALL_US, Cluster
from tests.tracing import profile

MANY = 256
ACKS_ALL, ACKS_LEADER = -1, 1
Step = Callable[[], object]


def record_batch(count: int) -> bytes:
    return build_batch([b"value"] * count, timestamps_ms=[WALL_US // 1000] * count)


def compressed_batch(count: int) -> bytes:
    return build_batch([b"value"] * count, timestamps_ms=[WALL_US // 1000] * count, codec=1)


def messages(count: int) -> Messages:
    return Messages([b"value"] * count)


def calls_of(step: Step) -> Counter[str]:
    """Count what a step calls in this thread: functions of Python by their names, and builtins that these call."""
    calls = Counter[str]()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[repr(argument).partition(" at 0x")[0]] += 1

    profile(step, count)
    return calls


class Partition:
    """A partition that three brokers replicate. It has records already, and so has made what is made once."""

    def __init__(self, path: Path) -> None:
        self.cluster = Cluster(path)
        self.cluster.elect()
        self.cluster.settle()
        self.leader = self.cluster.brokers["a"]
        for _ in range(3):
            self.append(record_batch(1), ACKS_ALL)
            self.fetch(FetchIsolation.HIGH_WATERMARK)

    def append(self, records: Any, acks: int) -> None:
        """Append records; followers fetch them, and learn that they are committed."""
        future = self.leader.manager.append_records(acks, {EVENTS: records})
        self.cluster.settle()
        assert future.result()[EVENTS].code == 0

    def fetch(self, isolation: FetchIsolation) -> int:
        """Fetch all committed records; return how many bytes."""
        request = {EVENTS: ConsumerFetch(0, 1 << 20)}
        response = self.leader.manager.fetch_messages(FetchParams(isolation, 0, 1, 1 << 20), request).result()[EVENTS]
        assert response.code == 0
        return response.size

    def close(self) -> None:
        self.cluster.close()


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
@pytest.mark.parametrize("records", [record_batch, compressed_batch, messages])
def test_an_append_and_its_replication_call_no_python_per_record(
    tmp_path: Path, acks: int, records: Callable[[int], Any]
) -> None:
    calls = []
    for count in (1, MANY):
        with closing(Partition(tmp_path / str(count))) as partition:
            calls.append(calls_of(partial(partition.append, records(count), acks)))
            assert partition.leader.log.high_watermark == partition.leader.log.end_mark
            assert partition.leader.log.end_mark.entry == 3 + count
    assert calls[1] - calls[0] == calls[0] - calls[1] == Counter()
    assert calls[0].total() > 20, "the profiler sees nothing"


@pytest.mark.parametrize("isolation", FetchIsolation)
@pytest.mark.parametrize("records", [record_batch, messages])
def test_a_fetch_calls_no_python_per_record(
    tmp_path: Path, isolation: FetchIsolation, records: Callable[[int], Any]
) -> None:
    calls, sizes = [], []
    for count in (1, MANY):
        with closing(Partition(tmp_path / str(count))) as partition:
            partition.append(records(count), ACKS_ALL)
            calls.append(calls_of(partial(partition.fetch, isolation)))
            sizes.append(partition.fetch(isolation))
    assert calls[1] - calls[0] == calls[0] - calls[1] == Counter()
    assert sizes[1] > sizes[0]


def test_calls_for_each_record_are_counted() -> None:
    """As the tests above would miss a loop otherwise."""

    def loop(count: int) -> None:
        for number in range(count):
            abs(number), record_batch_size(number)

    def record_batch_size(number: int) -> int:
        return number

    assert calls_of(lambda: loop(MANY)).total() - calls_of(lambda: loop(1)).total() == 2 * (MANY - 1)
