"""A service that publishes jobs to a topic and works them off with three threads.

    python examples/worker.py DIRECTORY JOB...

A job that is done is acknowledged. A job that fails (the job "fail" does) is delivered again, and after its third
failure it is a dead letter. After SIGTERM, Ctrl-C or kill -9 the next run does the jobs that were not acknowledged.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import pyreplog


def do(job: str) -> None:
    if job == "fail":
        raise ValueError(job)
    print(f"done: {job}\n", end="", flush=True)  # in one piece: threads do not mix their lines


def consume(consumer: pyreplog.Consumer, handle: Callable[[str], None], stop: threading.Event) -> None:
    """Handle messages until `stop` is set. Messages that are not acknowledged then come again."""
    with consumer:
        while not stop.is_set():
            if (message := consumer.receive(timeout=0.2)) is not None:
                try:
                    handle(message.value.decode())
                except ValueError:
                    consumer.nack(message)
                else:
                    consumer.acknowledge(message)


def main(path: str, *values: str) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with pyreplog.Cluster.embedded(path, bookies=1, segment_bytes=16 << 20) as cluster, ThreadPoolExecutor() as pool:
        jobs, dead_letters = cluster.topic("jobs"), cluster.topic("jobs-workers-DLQ")
        settings = {"type": "shared", "queue": 10, "nack_min_ms": 100, "max_redeliveries": 2}  # at most 10 wait in one
        workers = [jobs.subscribe("workers", start="earliest", **settings) for _ in range(3)]
        support = dead_letters.subscribe("support", start="earliest")
        jobs.publish_batch([value.encode() for value in values])
        threads = [pool.submit(consume, worker, do, stop) for worker in workers]
        threads.append(
            pool.submit(consume, support, lambda job: print(f"dead letter: {job}\n", end="", flush=True), stop)
        )
        for thread in as_completed(threads):
            stop.set()  # an error in one thread ends the others
            thread.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
