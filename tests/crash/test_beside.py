"""Appends, truncation, retention and reads of one log, all at once: what one thread removes, another may be looking at."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog.errors import OutOfRangeError
from pyreplog.log.commit_log import CommitLog

SEGMENT_BYTES = 64 << 10
DURATION_S = 1.0


@pytest.fixture
def quick_switches() -> Iterator[None]:
    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(was)


def append_until(stop: threading.Event, log: CommitLog, rng: Random, failures: list[BaseException]) -> None:
    ways = (log.append, lambda value: log.append_batch([value] * 2), lambda value: log.submit(value).result(30.0))
    try:
        while not stop.is_set():
            rng.choice(ways)(bytes(rng.choice((10, 100, 3000))))
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
@pytest.mark.usefixtures("quick_switches")
def test_reads_beside_truncation_and_retention(durability: str, tmp_path: Path, seed: int) -> None:
    """They may find that an entry is gone; never damage, and never another entry."""
    settings = {"durability": durability, "segment_bytes": SEGMENT_BYTES, "retention_bytes": 3 * SEGMENT_BYTES}
    rng, stop, failures = Random(seed), threading.Event(), list[BaseException]()
    with pyreplog.open(tmp_path / "log", **settings, sync_interval_ms=1) as log:
        arguments = [(stop, log, Random(seed + i), failures) for i in range(4)]
        threads = [threading.Thread(target=append_until, args=a) for a in arguments]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + DURATION_S
        while time.monotonic() < deadline and not failures:
            try:
                log.truncate(max(log.start, log.end - rng.choice((0, 1, 5, 50))))
                first = max(log.start, log.end - 20)
                numbers = [record.entry for batch in log.read(first) for record in batch]
                assert numbers == list(range(first, first + len(numbers)))
            except OutOfRangeError:  # gone, or cut: its subclasses
                continue
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    with pyreplog.open(tmp_path / "log") as log:
        assert sum(len(batch) for batch in log.read()) == len(log)


def test_an_entry_that_is_cut_before_its_ack_is_asked_for_was_synced(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", durability="synced", segment_bytes=SEGMENT_BYTES) as log:
        entry, position = log.append_pending(b"x")  # the first half of `submit`
        log.truncate(0)
        assert log._commits.acknowledge(entry, position).result(30.0) == entry
