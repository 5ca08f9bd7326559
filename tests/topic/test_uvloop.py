"""Programs that run uvloop: pyreplog has no event loop of its own, and works in the loop in which it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import pyreplog
from pyreplog.ha import open_master, open_replica
from tests.topic.handling import PATIENCE_S, SMALL, open_cluster

T = TypeVar("T")

COUNT = 256


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main, PATIENCE_S))


async def outcome(future: pyreplog.AppendFuture[T]) -> T:
    return await future


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_log_is_appended_to_in_uvloop(tmp_path: Path, durability: str) -> None:
    with pyreplog.open(tmp_path / "log", durability=durability) as log:

        async def main() -> list[int]:
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
            return await asyncio.gather(*(outcome(log.submit(b"%d" % n)) for n in range(COUNT)))

        assert sorted(run(main())) == list(range(COUNT))


def test_a_ledger_and_a_topic(tmp_path: Path) -> None:
    with open_cluster(tmp_path) as cluster, cluster.topic("topic", **SMALL) as topic:

        async def main() -> list[bytes]:
            async with await cluster.create_ledger_async(1, 1, 1) as ledger:
                entries = await asyncio.gather(*(outcome(ledger.submit(b"%d" % n)) for n in range(COUNT)))
            assert sorted(entries) == list(range(COUNT))
            values = []
            async with await topic.subscribe_async("one", start="earliest") as consumer:
                for number in range(COUNT):
                    await topic.room()
                    topic.submit(b"%d" % number)
                async for message in consumer:
                    consumer.acknowledge(message)
                    values.append(message.value)
                    if len(values) == COUNT:
                        return values
            return values

        assert run(main()) == [b"%d" % number for number in range(COUNT)]


def test_a_replica_group_is_appended_to_in_uvloop(tmp_path: Path) -> None:
    with (
        open_master(tmp_path / "a", name="a", members=["a", "b"], sync_replicas=1) as master,
        open_replica(tmp_path / "b", name="b", master=master.address),
    ):

        async def main() -> list[int]:
            return await asyncio.gather(*(outcome(master.submit(b"%d" % n)) for n in range(COUNT)))

        assert sorted(run(main())) == list(range(COUNT))
