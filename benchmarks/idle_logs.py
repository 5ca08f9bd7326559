"""`python -m benchmarks.idle_logs [COUNT …]`: what logs of one runtime cost while nothing is appended to them.

Each count is measured in a process of its own: the logs are made, get one entry, are idle, are closed, and are opened
again. What grows with the count is printed for each log: it should be the same in all rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path

import pyreplog
from benchmarks.idle_costs import print_table, process_sizes
from pyreplog.disk_usage import size_on_disk
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.runtime import LogRuntime

_IDLE_MS = 200
_AT_ONCE = 200
"""So many logs have a segment at a time: an active one takes its whole size of the disk."""
_WAKES = 200
_COLUMNS = (
    ("logs", "{logs:,}"),
    ("made", "{made_s:.2f} s"),
    ("opened again, each", "{opened_us:.0f} us"),
    ("threads", "{threads}"),
    ("descriptors", "{descriptors}"),
    ("maps, each", "{maps:.2f}"),
    ("anonymous memory, each", "{anonymous:.1f} KiB"),
    ("resident, each", "{resident:.1f} KiB"),
    ("disk, each", "{disk:.1f} KiB"),
    ("idle, share of a core", "{idle:.3%}"),
    ("append that wakes, median", "{wake_us:.0f} us"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what idle logs of one runtime cost.")
    parser.add_argument("counts", nargs="*", type=int, default=[100, 1000, 10_000], metavar="COUNT")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long CPU time is measured")
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    parser.add_argument("--durability", default="appended", choices=["appended", "interval", "synced"])
    return print_table("benchmarks.idle_logs", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    config = pyreplog.LogConfig(segment_bytes=arguments.segment_bytes, durability=arguments.durability)
    paths = [arguments.directory / str(number) for number in range(count)]
    before = process_sizes()
    with LogRuntime(idle_ms=_IDLE_MS) as runtime:
        made_s, logs = _open(paths, config, runtime)
        for first in range(0, count, _AT_ONCE):
            for log in logs[first : first + _AT_ONCE]:
                log.append(bytes(100))
            _wait_dormant(logs[first : first + _AT_ONCE])
        for log in logs:
            log.close()
        del logs, log
    with LogRuntime(idle_ms=_IDLE_MS) as runtime:
        opened_s, logs = _open(paths, config, runtime)
        wakes = [_timed_append(log) for log in logs[:_WAKES]]
        _wait_dormant(logs)
        time.sleep(2 * _IDLE_MS / 1000)
        after, busy = process_sizes(), time.process_time()
        time.sleep(arguments.seconds)
        idle = (time.process_time() - busy) / arguments.seconds
        threads = threading.active_count()
        disk = sum(map(size_on_disk, paths)) / 1024
        for log in logs:
            assert log[0] == bytes(100)
            log.close()
    return {
        "logs": count, "made_s": made_s, "opened_us": opened_s / count * 1e6, "threads": threads,
        "descriptors": after["descriptors"], "maps": (after["maps"] - before["maps"]) / count,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count,
        "resident": (after["resident"] - before["resident"]) / count, "disk": disk / count, "idle": idle,
        "wake_us": statistics.median(wakes) * 1e6,
    }  # fmt: skip


def _open(paths: list[Path], config: pyreplog.LogConfig, runtime: LogRuntime) -> tuple[float, list[CommitLog]]:
    started = time.perf_counter()
    logs = [CommitLog(path, config, create=True, clock=None, files=None, runtime=runtime) for path in paths]
    return time.perf_counter() - started, logs


def _timed_append(log: CommitLog) -> float:
    started = time.perf_counter()
    log.append(bytes(100))
    return time.perf_counter() - started


def _wait_dormant(logs: list[CommitLog]) -> None:
    while not all(log.is_dormant for log in logs):
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
