"""Messages that are published at a rate, and what each takes until a consumer has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic

COLUMNS = (
    ("messages", "{messages:,}"),
    ("publish to receipt, median", "{median_us:.0f} us"),
    ("p99", "{p99_us:.0f} us"),
)
RATE = 1_000
VALUE_BYTES = 100
_PATIENCE_S = 60.0


def measured(topics: Sequence[Topic], consumers: Sequence[Consumer], messages: int) -> dict[str, float]:
    """Publish messages to topics in turn, RATE a second, while a task receives for each consumer.

    All run in one event loop. Returns the fields of COLUMNS. ValueError if a message was not received exactly once.
    """
    latencies = sorted(asyncio.run(_Exchange(messages).run(topics, consumers)))
    return {
        "messages": messages, "median_us": latencies[messages // 2] * 1e6,
        "p99_us": latencies[messages * 99 // 100] * 1e6,
    }  # fmt: skip


class _Exchange:
    """The messages of one run: when each was published, and what it took."""

    def __init__(self, messages: int) -> None:
        self._published = [0.0] * messages
        self._latencies: dict[int, float] = {}
        self._repeated = 0
        self._all = asyncio.Event()

    async def run(self, topics: Sequence[Topic], consumers: Sequence[Consumer]) -> list[float]:
        tasks = [asyncio.create_task(self._receive(consumer)) for consumer in consumers]
        futures, began = [], time.perf_counter()
        for number in range(len(self._published)):
            await asyncio.sleep(max(began + number / RATE - time.perf_counter(), 0.0))
            value = number.to_bytes(VALUE_BYTES, "big")
            self._published[number] = time.perf_counter()
            futures.append(topics[number % len(topics)].submit(value))
        for future in futures:
            await future
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all.wait(), _PATIENCE_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if len(self._latencies) < len(self._published) or self._repeated:
            raise ValueError(
                f"{len(self._published)} messages were published, {len(self._latencies)} received, "
                f"{self._repeated} of them again"
            )
        return list(self._latencies.values())

    async def _receive(self, consumer: Consumer) -> None:
        while True:
            message = await consumer.receive_async()
            number, now = int.from_bytes(message.value, "big"), time.perf_counter()
            self._repeated += number in self._latencies
            self._latencies[number] = now - self._published[number]
            consumer.acknowledge(message)
            if len(self._latencies) == len(self._published):
                self._all.set()
