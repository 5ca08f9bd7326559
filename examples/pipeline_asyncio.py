"""An asyncio pipeline: a producer and consumers in one event loop, none of which ever blocks it.

    python examples/pipeline_asyncio.py DIRECTORY MESSAGES

It shows back-pressure on both sides. The producer awaits `room()`, so at most 16 MiB of messages are on their way to
the disk. The consumer has a short queue, so the topic delivers no faster than the handlers take messages; the others
stay in the topic, on disk.
"""

from __future__ import annotations

import asyncio
import sys

import pyreplog

HANDLERS = 4
PAYLOAD = bytes(4096)


async def produce(topic: pyreplog.Topic, count: int) -> None:
    futures = []
    for number in range(count):
        await topic.room()  # without it, `submit` raises WindowFullError when the disk is slower than this loop
        futures.append(topic.submit(b"%d " % number + PAYLOAD))
    for future in futures:
        await future  # its offset, or the error


async def handle(consumer: pyreplog.Consumer, sizes: dict[int, int], count: int) -> None:
    while len(sizes) < count:
        message = await consumer.receive_async()
        await asyncio.sleep(0)  # the work, such as a request to another service
        sizes[message.offset] = len(message.value)
        consumer.acknowledge(message)  # does not wait


async def pipeline(topic: pyreplog.Topic, count: int) -> dict[int, int]:
    sizes: dict[int, int] = {}
    async with (
        await topic.subscribe_async("handlers", type="shared", start="earliest", queue=100) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(produce(topic, count))
        handlers = [tasks.create_task(handle(consumer, sizes, count)) for _ in range(HANDLERS)]
        await asyncio.wait(handlers, return_when=asyncio.FIRST_COMPLETED)
        for handler in handlers:  # they wait for messages that do not come
            handler.cancel()
    return sizes


def main(directory: str, count: int) -> None:
    with pyreplog.Cluster.embedded(directory, bookies=1, segment_bytes=16 << 20) as cluster:
        sizes = asyncio.run(pipeline(cluster.topic("payloads"), count))
        print(f"handled {len(sizes)} messages, {sum(sizes.values()):,} B")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
