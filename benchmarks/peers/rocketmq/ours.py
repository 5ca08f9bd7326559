"""Our end of RocketMQ's protocol, as the benchmark runs it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.limits.build import ROOT
from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQMaster, RocketMQSlave

_TIMEOUT_S = 120.0


class Copied(NamedTuple):
    """A log that was streamed: its bytes, seconds from the first byte to the last, CPU seconds of the slave."""

    size: int
    seconds: float
    slave_cpu_s: float


def copy(folder: Path, port: int, end: int, *, start: int | None = None, file_bytes: int) -> Copied:
    """Stream a master's log into a new one in `folder`, and have it on disk."""
    begun: list[float] = []
    with Reactor() as reactor, RawLog(folder, file_bytes=file_bytes) as log:
        reactor.start()

        def landed() -> None:
            if not begun:
                begun.append(time.perf_counter())

        cpu_s = time.process_time()
        with RocketMQSlave(reactor, log, ("127.0.0.1", port), start=start, landed=landed) as slave:
            if not reactor.drive(lambda: log.end >= end, _TIMEOUT_S):
                raise TimeoutError(f"our slave is at {log.end} of {end}, {slave.state}: {slave.error}")
            seconds = time.perf_counter() - begun[0]
            cpu_s = time.process_time() - cpu_s
        return Copied(log.end - log.start, seconds, cpu_s)


@contextmanager
def master(folder: Path) -> Iterator[tuple[int, int]]:
    """A process that serves the raw log in `folder`: its port and process id."""
    command = [sys.executable, "-m", "benchmarks.peers.rocketmq.ours", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.communicate("stop\n")


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    with Reactor() as reactor, RawLog(parser.parse_args().folder) as log:
        reactor.start()
        with RocketMQMaster(reactor, log) as serving:
            print(serving.address[1], flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main()
