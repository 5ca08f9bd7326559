"""One partition of a topic on ledgers, at a topic whose room and outcomes the test gives."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.errors import NotEnoughBookiesError, TopicFencedError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.kafka.ledgers.partition import LedgerPartition
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.waiting import PATIENCE_S


class HeldTopic:
    """A topic that gives room when the test says so, and whose first outcome the test gives."""

    is_closing = False

    def __init__(self) -> None:
        self.config = SimpleNamespace(deduplicate=False)
        self.first: AppendFuture[range] | None = None
        self.stored: list[bytes] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.waits_for_room = asyncio.Event()

    async def room(self) -> None:
        if not self.has_room.is_set():
            self.waits_for_room.set()
            await self.has_room.wait()

    def submit_batch(self, values: list[bytes], *_: Any, **__: Any) -> AppendFuture[range]:
        outcome = AppendFuture[range]()
        if self.first is None:
            self.first = outcome
        else:
            self.stored += values
            set_result(outcome, range(len(self.stored) - len(values), len(self.stored)))
        return outcome


def sequenced(value: bytes, sequence: int) -> bytes:
    """A batch with one record of producer 7."""
    return encode_batch(
        encode_records([value], None, [1], None), 1, base_timestamp=1, max_timestamp=1, producer_id=7, producer_epoch=0,
        base_sequence=sequence,
    )  # fmt: skip


def test_a_batch_that_waited_for_room_is_not_appended_before_an_earlier_one_that_failed_meanwhile() -> None:
    """Otherwise the earlier batch, when it is sent again, counts as stored and is lost."""

    async def produce() -> None:
        topic = HeldTopic()
        partition = LedgerPartition("orders", lambda: topic, "test")  # type: ignore[arg-type, return-value]
        first = asyncio.create_task(partition.append(sequenced(b"1", 0), PATIENCE_S))
        while topic.first is None:
            await asyncio.sleep(0)
        topic.has_room.clear()
        second = asyncio.create_task(partition.append(sequenced(b"2", 1), PATIENCE_S))
        await asyncio.wait_for(topic.waits_for_room.wait(), PATIENCE_S)
        set_exception(topic.first, NotEnoughBookiesError("expected 2 bookies, found 1"))
        assert (await first).code is ErrorCode.NOT_ENOUGH_REPLICAS
        topic.has_room.set()
        assert (await second).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence, value in enumerate((b"1", b"2")):
            response = await partition.append(sequenced(value, sequence), PATIENCE_S)
            assert (response.code, response.base_offset) == (ErrorCode.NONE, sequence)
        assert topic.stored == [b"1", b"2"]
        await partition.close()

    asyncio.run(produce())


def test_a_watch_that_fails_when_no_fetch_waits_any_more_is_no_error_of_the_event_loop() -> None:
    async def watch() -> list[dict[str, Any]]:
        failing, errors = asyncio.Event(), list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        class FailingTopic(HeldTopic):
            """A topic that another process takes over."""

            async def subscribe_async(self, *_: Any, **__: Any) -> Any:
                await failing.wait()
                raise TopicFencedError("orders", "another process owns it")

        partition = LedgerPartition("orders", FailingTopic, "test")  # type: ignore[arg-type]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(partition.wait_beyond(0), 0.01)
        failing.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        gc.collect()
        return errors

    assert asyncio.run(watch()) == []
