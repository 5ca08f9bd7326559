"""A durable outbox: a service appends events to a log of its own, and a relay publishes each of them to a topic once.

    python examples/outbox.py DIRECTORY COUNT

An append returns when the event is on disk, whether the topic can be reached or not. The relay publishes each event
with its number in the log as the sequence number, and the topic drops a sequence number that it has already. So kill -9
at any moment neither loses an event nor publishes one twice: run the command again, and the relay goes on.

A topic remembers a producer for six hours after its last message. A relay that was killed between publishing a batch
and storing its position must run again within that time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyreplog
from pyreplog.ha.relay import Advance, Applier, PositionFile


def main(directory: Path, count: int) -> None:
    with (
        pyreplog.open(directory / "outbox", durability="synced", segment_bytes=1 << 20) as log,
        pyreplog.Cluster.embedded(directory / "cluster", bookies=1, segment_bytes=16 << 20) as cluster,
    ):
        topic = cluster.topic("events", deduplicate=True)
        topic.create_subscription("billing", start="earliest")  # it keeps the events until they are acknowledged
        positions = PositionFile(directory / "position")
        with topic.producer("outbox") as producer:

            def publish(batch: pyreplog.RecordBatch, advance: Advance) -> None:
                """Publish some entries. The relay then stores its position, and trims the log behind it."""
                producer.publish_batch(batch.values(), batch.keys(), sequences=batch.entry)
                print(f"published {advance.after.entry} events", flush=True)

            with Applier(log, publish, positions) as relay:
                relay.start()  # in a thread of its own, beside the service
                for number in range(log.end, log.end + count):
                    log.append(b"event %d" % number, key=b"customer %d" % (number % 10))
                relay.wait_applied(log.end - 1)
        print(f"the log has had {log.end} events, the topic has {len(topic)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
