"""A service with a topic in its own process: publishes the flights that the topic lacks, and two subscriptions take
them. Of these the board keeps up, by batches; the archive takes a few at a time, and lags.

    topicservice.py DIRECTORY LOG SECONDS

Publishes evenly over so many seconds, but for the last of them: it waits to be killed. Tells how many flights are
confirmed: a JSON object per line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyreplog

TOPIC, PRODUCER = "flights", "importer"
BOARD, ARCHIVE = "board", "archive"
SEGMENT_BYTES = 4 << 20
BATCH_BYTES = 256 << 10
ARCHIVE_AT_ONCE, ARCHIVE_PAUSE_S = 50, 0.02
MOST = 0.7
"""Of the flights; the rest is left for another worker."""


@contextmanager
def opened(directory: str | Path) -> Iterator[pyreplog.Topic]:
    """The topic, of a cluster that belongs to this process."""
    with pyreplog.Cluster.embedded(directory, bookies=3, segment_bytes=SEGMENT_BYTES) as cluster:
        topic = cluster.topic(TOPIC, deduplicate=True)
        for subscription in (BOARD, ARCHIVE):
            topic.create_subscription(subscription, start="earliest")
        yield topic


class Consumers:
    """Both, in threads of their own, until the block ends. next: the flight that the board takes next; it goes on where
    its subscription is. missed: flights that it was not given."""

    def __init__(self, topic: pyreplog.Topic) -> None:
        self.next = {there.name: there.mark.offset for there in topic.stats().subscriptions}[BOARD]
        self.missed = 0
        self._topic = topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._board, self._archive)]

    def _board(self) -> None:
        with self._topic.subscribe(BOARD) as consumer:
            while not self._stop.is_set():
                for batch in consumer.batches(timeout=0.05):
                    self.missed += int(batch.offset[0]) - self.next
                    self.next = int(batch.offset[-1]) + 1
                    consumer.acknowledge(batch)

    def _archive(self) -> None:
        with self._topic.subscribe(ARCHIVE, queue=ARCHIVE_AT_ONCE) as consumer:
            while not self._stop.wait(ARCHIVE_PAUSE_S):
                for message in consumer.receive(max_messages=ARCHIVE_AT_ONCE, timeout=0.05):
                    consumer.acknowledge(message)

    def __enter__(self) -> Consumers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def publish(topic: pyreplog.Topic, log: pyreplog.LogReader, start: int, pace: float = 0.0) -> Iterator[int]:
    """Flights of the log from `start` on, under their numbers there: those that the topic has are dropped. Yields how
    many are confirmed. pace: seconds for each."""
    producer = topic.producer(PRODUCER)
    for batch in log.read(start, batch_bytes=BATCH_BYTES):
        first, end = int(batch.entry[0]), int(batch.entry[-1]) + 1
        time.sleep(len(batch) * pace)
        numbers, times = range(first, end), batch.event_time.tolist()
        producer.publish_batch(batch.values(), batch.keys(), event_times=times, sequences=numbers)
        yield end


def main(directory: str, path: str, seconds: float) -> None:
    with pyreplog.open(path, "r") as log, opened(directory) as topic, Consumers(topic):
        for confirmed in publish(topic, log, 0, seconds / max(log.end, 1)):
            sys.stdout.write(json.dumps({"confirmed": confirmed}) + "\n")
            sys.stdout.flush()
            while confirmed > log.end * MOST:
                time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
