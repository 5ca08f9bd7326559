"""A byte flips on the disk of one bookie: who finds it? `python -m benchmarks.peers.bookkeeper.flipped_byte`.

pyreplog: the bookie is told to scrub at once, at its highest rate; auto-recovery runs. BookKeeper: the bookie is
started again, so that it has no copy in memory, and the auditor checks all ledgers twice, every entry of each
(auditorLedgerVerificationPercentage=100); the worker runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.entries import BATCH, make_values
from benchmarks.ledgers import verify_ledger
from benchmarks.metadata_scan import zookeeper
from benchmarks.peers import java
from benchmarks.peers.bookkeeper.cluster import SERVER_MEMORY, build, configure, java_command
from benchmarks.peers.bookkeeper.recovery import answer_of, data_folder, start_process
from benchmarks.peers.bookkeeper.zookeeper_view import ZooKeeperView
from benchmarks.peers.replicated.peer import Servers, free_ports
from benchmarks.proc import job
from pyreplog.autorecovery.config import change_config
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.repair_notes import repairs
from pyreplog.log import names
from pyreplog.metadata.url import open_store

_HEAP_MB = 256
_LIMIT_S = 120.0
_SIZE = 1024
_SEGMENT_BYTES = 1 << 20
_ENTRIES = 4 * BATCH
_LEDGERS = 100
_CHECK_S = 10
_CHECKED = "/ledgers/underreplication/checkallledgersctime"
_MARKS = "/ledgers/underreplication/ledgers"
_BOOKKEEPER = f"""lostBookieRecoveryDelay=3600
auditorPeriodicCheckInterval={_CHECK_S}
auditorLedgerVerificationPercentage=100
"""


@dataclass(frozen=True)
class Flipped:
    """found: whether anybody noticed. mended: whether the bad copy was replaced by a good one. seconds: until then, or
    until all had been checked in vain. read: entries that were then read from the bookie alone, and compared. bad:
    those that could not be read there."""

    found: bool
    mended: bool
    seconds: float
    read: int
    bad: int


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.bookkeeper.flipped_byte", description=__doc__)
    parser.add_argument("--side", choices=["bookkeeper", "pyreplog"], action="append", help="only this one")
    for side in parser.parse_args().side or ["bookkeeper", "pyreplog"]:
        print(json.dumps({"side": side, **asdict(measure(side))}), flush=True)


def measure(side: str) -> Flipped:
    """One run of one side."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flipped-", dir=data_folder())))
        hosts = stack.enter_context(zookeeper(_HEAP_MB))
        return _bookkeeper(folder, hosts, stack) if side == "bookkeeper" else _ours(folder, hosts, stack)


def _flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
        os.fsync(fd)
    finally:
        os.close(fd)


def _until(ready: Callable[[], bool]) -> bool:
    """Whether something became true in time."""
    end = time.monotonic() + _LIMIT_S
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _ours(folder: Path, hosts: str, stack: ExitStack) -> Flipped:
    url = f"zk://{hosts}/pyreplog"
    settings = {"durability": "synced", "segment_bytes": _SEGMENT_BYTES}
    bookies = [
        stack.enter_context(job("bookie", str(folder / name), url, name, settings, 0)) for name in ("b0", "b1", "b2")
    ]
    for bookie in bookies:
        bookie.answer()
    store = stack.enter_context(open_store(url))
    change_config(store, {"round_ms": 500})
    command = [sys.executable, "-m", "pyreplog", "autorecovery", "run", url]
    start_process(stack, command, folder / "autorecovery.log")
    values = make_values(_SIZE)
    with LedgerCluster.connect(url) as cluster, cluster.create_ledger(3, 3, 2) as ledger:
        for _ in range(_ENTRIES // BATCH):
            ledger.submit_batch(values * (BATCH // len(values)))
    bookies[0].ask("sync")
    bookies[0].answer()
    log = folder / "b0" / "log"
    _flip(names.segment_path(log, names.segment_bases(log)[0]), _SEGMENT_BYTES // 2)
    begin = time.monotonic()
    bookies[0].ask("scrub")
    bookies[0].answer()
    with LedgerCluster.connect(url) as cluster:
        # The note of the bad copy may be gone before anybody lists the notes; the report of the scrub stays.
        found = _until(lambda: any(bookie.scrub and bookie.scrub.bad_records for bookie in cluster.status().bookies))
    mended = found and _until(lambda: not repairs(store)[0])
    seconds = time.monotonic() - begin
    for bookie in bookies[1:]:
        bookie.close()
    with LedgerCluster.connect(url) as cluster:
        read = verify_ledger(cluster, ledger.id, values, _ENTRIES)
    return Flipped(found, mended, seconds, read, 0)


def _bookkeeper(folder: Path, hosts: str, stack: ExitStack) -> Flipped:
    build()
    servers = Servers()
    stack.callback(servers.close)
    uri, ports = f"zk+hierarchical://{hosts}/ledgers", free_ports(4)
    paths = [configure(folder / str(port), uri, port, "synced", _BOOKKEEPER) for port in ports]
    shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(paths[0]))
    java.run(java_command(*shell, "metaformat", "-nonInteractive", "-force"))
    server = "org.apache.bookkeeper.server.Main"
    commands = [java_command(*SERVER_MEMORY, server, "--conf", str(path)) for path in paths]
    bookie, *others = [
        start_process(stack, command, path.with_suffix(".log")) for command, path in zip(commands, paths, strict=True)
    ]
    for port in ports:
        servers.until(partial(java.listens, port), ConnectionRefusedError)
    numbers = (3, 3, 2, _LEDGERS, 30, _SIZE)
    load = java_command("-Xmx512m", "pyreplog.Recover", uri, *map(str, numbers))
    client = start_process(stack, load, folder / "client.log", pipes=True)
    answer_of(client)
    bookie.terminate()  # it writes all that it has in memory
    bookie.wait()
    log = max(paths[0].parent.glob("ledgers/current/*.log"), key=lambda path: path.stat().st_size)
    _flip(log, log.stat().st_size // 2)
    start_process(stack, commands[0], paths[0].with_suffix(".again"))
    servers.until(partial(java.listens, ports[0]), ConnectionRefusedError)
    view = ZooKeeperView(hosts)
    stack.callback(view.close)
    ledgers = [path for path in view.leaves("/ledgers") if path.rpartition("/")[2].startswith("L0")]
    before = {path: view.version(path) for path in ledgers}
    main = ("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(paths[0]))
    begin, checks = time.monotonic(), view.version(_CHECKED)
    start_process(stack, java_command("-Xmx512m", *main), folder / "autorecovery.log")
    marked = False

    def is_over() -> bool:
        nonlocal marked
        marked = marked or (view.version(_MARKS) >= 0 and view.leaves(_MARKS) != [_MARKS])
        return view.version(_CHECKED) >= checks + 2 or marked

    if not _until(is_over):
        raise TimeoutError(f"the auditor has not checked all ledgers twice within {_LIMIT_S} s")
    moved = {path: view.version(path) for path in ledgers} != before
    if marked and not moved:
        moved = _until(lambda: {path: view.version(path) for path in ledgers} != before)
    seconds = time.monotonic() - begin
    for other in others:
        other.kill()
        other.wait()
    found = answer_of(client, f"read 127.0.0.1:{ports[0]}")
    return Flipped(marked or moved, moved, seconds, found["read"], found["bad"])


if __name__ == "__main__":
    main()
