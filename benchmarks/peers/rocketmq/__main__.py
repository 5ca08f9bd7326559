"""RocketMQ's store and our ends of its protocol: byte-identical files both ways, then how fast each pair streams."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import machine, report
from benchmarks.limits.build import ROOT
from benchmarks.peers.replicated.peer import free_ports
from benchmarks.peers.rocketmq import ours, store
from benchmarks.peers.rocketmq.ours import Copied
from benchmarks.peers.rocketmq.store import Store
from benchmarks.plan import Plan
from benchmarks.proc import cpu_ns
from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQMaster, RocketMQMessage

_SMALL_FILE = 1 << 20
_LARGE_FILE = 1 << 30
_BODY = 4096
_TIMEOUT_S = 60.0


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.rocketmq", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="of log to stream, at most 1000")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "bench-data")
    options = parser.parse_args()
    plan = Plan(directory=options.directory)
    print(report.header(machine.describe(plan.directory)), flush=True)
    print(f"- RocketMQ: rocketmq-store {store.version()}, default HA\n", flush=True)
    store.build()
    with plan.folder() as folder:
        _pull(folder)
        _feed(folder)
    with plan.folder() as folder:
        _stream(folder, options.mib << 20)


# ---- identical files ------------------------------------------------------------------------------------------------


def _pull(folder: Path) -> None:
    """Our slaves copy from RocketMQ's store: all of it, and the last file."""
    (port,) = free_ports(1)
    with Store("master", folder / "theirs", port, _SMALL_FILE) as master:
        end = master.put(3000, 1000)
        ours.copy(folder / "all", port, end, start=0, file_bytes=_SMALL_FILE)
        ours.copy(folder / "last", port, end, file_bytes=_SMALL_FILE)
        end = master.put(2000, 1000)
        for name in ("all", "last"):
            ours.copy(folder / name, port, end, file_bytes=_SMALL_FILE)
    for name in ("all", "last"):
        count = _compare(folder / name, folder / "theirs")
        print(f"our slave of RocketMQ's store, {name}: {count} files identical", flush=True)


def _feed(folder: Path) -> None:
    """Our master feeds RocketMQ's slave from an empty log on; then RocketMQ's store starts on our files."""
    (port,) = free_ports(1)
    with (
        Reactor() as reactor,
        RawLog(folder / "ours", file_bytes=_SMALL_FILE) as log,
        RocketMQMaster(reactor, log) as master,
        Store("slave", folder / "fed", port, _SMALL_FILE) as slave,
    ):
        reactor.start()
        slave.call(f"follow 127.0.0.1:{master.address[1]}")
        reactor.drive(lambda: any(fed.sent is not None for fed in master.slaves()), _TIMEOUT_S)
        for number in range(5000):
            master.put(_message(number, 1000))
        master.submit(_message(5000, 10), _TIMEOUT_S).result(_TIMEOUT_S)
        _until(lambda: slave.call("dispatched") == "0 5001")
    print(f"RocketMQ's slave of our master: {_compare(folder / 'fed', folder / 'ours')} files identical, ", end="")
    print("5001 messages in its queue", flush=True)
    with Store("master", folder / "ours", port, _SMALL_FILE) as again:
        end = again.put(10, 1000)
        _until(lambda: again.call("dispatched") == "0 5011")
    with RawLog(folder / "ours") as log:
        if (log.end, sum(1 for _ in log.records())) != (end, 5011):
            raise AssertionError(f"our log ends at {log.end}, RocketMQ's at {end}")
    print("RocketMQ's store on our files, and ours on what it made of them: 5011 messages", flush=True)


def _message(number: int, size: int) -> RocketMQMessage:
    now_ms = time.time_ns() // 1_000_000
    return RocketMQMessage(
        topic="pyreplog",
        body=os.urandom(size),
        properties={"KEYS": f"key{number}"},
        queue_offset=number,
        born_ms=now_ms,
        stored_ms=now_ms,
        born_host=("127.0.0.1", 10911),
        store_host=("127.0.0.1", 10911),
    )


def _compare(copy: Path, source: Path) -> int:
    """How many files are identical. AssertionError: one is not."""
    paths = sorted((copy / "commitlog").iterdir())
    for path in paths:
        other = source / "commitlog" / path.name
        if other.exists() and path.read_bytes() != other.read_bytes():
            raise AssertionError(f"{path} is not identical with {other}")
        if not other.exists() and any(path.read_bytes()):
            raise AssertionError(f"{path} has no original")
    return sum((source / "commitlog" / path.name).exists() for path in paths)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("RocketMQ's queues are not built")
        time.sleep(0.1)


# ---- figures --------------------------------------------------------------------------------------------------------


def _stream(folder: Path, size: int) -> None:
    """Every pair of master and slave, one behind the other: a slave that starts empty, all in one file."""
    print(
        f"\n| master | slave | {size >> 20} MiB at | CPU s/GiB master | CPU s/GiB slave |\n|---|---|---|---|---|",
        flush=True,
    )
    ports = free_ports(3)
    with Store("master", folder / "theirs", ports[0], _LARGE_FILE) as master:
        end = master.put(size // (_BODY + 150), _BODY)
        _until(lambda: master.call("dispatched").startswith("0 "))
        before = master.cpu_s()
        _row("RocketMQ", "RocketMQ", _their_copy(folder / "1", ports[1], ports[0], end), master.cpu_s() - before)
        before = master.cpu_s()
        copied = ours.copy(folder / "ours", ports[0], end, file_bytes=_LARGE_FILE)
        _row("RocketMQ", "ours", copied, master.cpu_s() - before)
    with ours.master(folder / "ours") as (port, pid):
        before = cpu_ns(pid)
        _row("ours", "RocketMQ", _their_copy(folder / "2", ports[2], port, end), (cpu_ns(pid) - before) / 1e9)
        before = cpu_ns(pid)
        _row(
            "ours", "ours", ours.copy(folder / "again", port, end, file_bytes=_LARGE_FILE), (cpu_ns(pid) - before) / 1e9
        )
    for name in ("1", "ours", "2", "again"):
        _compare(folder / name, folder / "theirs")


def _their_copy(folder: Path, port: int, master: int, end: int) -> Copied:
    with Store("slave", folder, port, _LARGE_FILE) as slave:
        before = slave.cpu_s()
        slave.call(f"follow 127.0.0.1:{master}")
        seconds = int(slave.call(f"await {end}")) / 1e9
        return Copied(end, seconds, slave.cpu_s() - before)


def _row(master: str, slave: str, copied: Copied, master_cpu_s: float) -> None:
    gib = copied.size / (1 << 30)
    rate = f"{copied.size / copied.seconds / 1e6:.0f} MB/s"
    print(f"| {master} | {slave} | {rate} | {master_cpu_s / gib:.2f} | {copied.slave_cpu_s / gib:.2f} |", flush=True)


if __name__ == "__main__":
    main()
