"""The drain of a bookie beside a copy of its files: `python -m benchmarks.drain`.

No part of `make bench`: by default 5 GiB are written. Bookies, the process that copies, and the operator's
`pyreplog cluster drain --wait` are processes of their own, synced. Four bookies are filled evenly; two more come, and
one of the four is drained. The other side reads as many bytes of that bookie's log and writes them again, with one
fsync per segment: what a disk allows that does both at once. In the end all copies of all entries are counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, report
from benchmarks.entries import BATCH, make_values
from benchmarks.ledgers import WINDOW_BYTES, verify_ledger
from benchmarks.peers.bookkeeper.recovery import answer_of, data_folder, start_process
from benchmarks.proc import Load
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.worker_status import WorkerStatus, list_workers
from pyreplog.config import LogConfig
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store

_SIZE = 1024
_FILLED = 4
_SPARES = 2
_COPIES = 2
_POLL_S = 0.02
_CHUNK = 8 << 20
_TOLD_S = 15.0


@dataclass(frozen=True)
class Drained:
    """What was found.

    bytes: of values that the bookie held. copied: those that workers copied. seconds: of the command. kills: workers
    that were killed meanwhile. copy_s: of a copy of the bookie's files. read_back: entries, of which each has all its
    copies. others: share of the cores that other processes used.
    """

    bytes: int
    copied: int
    seconds: float
    kills: int
    copy_s: float
    read_back: int
    others: float = 0.0


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="that the bookie holds (default 1024)")
    parser.add_argument("--ledgers", type=int, default=32)
    parser.add_argument("--kills", type=int, default=0, help="workers that are killed while they copy (default 0)")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    print(report.header(machine.describe(data_folder())), flush=True)
    rows = []
    for _ in range(options.repeat):
        found = drain(options.megabytes << 20, options.ledgers, options.kills)
        rows.append([
            f"{found.bytes / (1 << 20):.0f} MiB", f"{found.copied / found.bytes:.3f}", str(found.kills),
            f"{found.seconds:.1f} s", f"{found.bytes / found.seconds / 1e6:.0f} MB/s", f"{found.copy_s:.1f} s",
            f"{found.seconds / found.copy_s:.1f}", f"{found.read_back:,}", f"{found.others:.0%}",
        ])  # fmt: skip
    columns = ["bookie", "copied / needed", "workers killed", "drain", "", "copy of its files", "times as long",
               "entries with all copies", "others"]  # fmt: skip
    print("\n" + report.table(columns, rows), flush=True)


def drain(
    bookie_bytes: int, ledgers: int, kills: int = 0, segment_bytes: int = LogConfig.default_segment_bytes
) -> Drained:
    """Fill bookies and drain one.

    Args:
        bookie_bytes: bytes of values that each of the filled bookies holds, about.
        ledgers: number of ledgers.
        kills: how many workers are killed, each after it has copied an equal part.
        segment_bytes: size of the files of the bookies' logs.
    """
    load = Load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drain-", dir=data_folder())))
        found = _drain(folder, stack, bookie_bytes, ledgers, kills, segment_bytes)
    return Drained(*found, load.others())  # all processes have ended, so that theirs is not others'


def _drain(
    folder: Path, stack: ExitStack, bookie_bytes: int, ledgers: int, kills: int, segment_bytes: int
) -> tuple[int, int, float, int, float, int]:
    url = f"sqlite://{folder / 'metadata.db'}"
    victim, *_ = [_start_bookie(folder / f"b{number}", url, segment_bytes, stack) for number in range(_FILLED)]
    store = stack.enter_context(open_store(url))
    change_config(store, {"settle_ms": 0, "round_ms": 500})
    unit = _FILLED * BATCH
    entries = max(bookie_bytes * _FILLED // _COPIES // ledgers // _SIZE // unit, 1) * unit
    with LedgerCluster.connect(url) as cluster:
        made = [_fill(cluster, entries) for _ in range(ledgers)]
    for number in range(_SPARES):
        _start_bookie(folder / f"b{_FILLED + number}", url, segment_bytes, stack)
    needed = ledgers * entries * _SIZE * _COPIES // _FILLED
    copy_s = _copy(folder / "b0" / "log", folder / "copy", needed)
    recovery = [sys.executable, "-m", "pyreplog", "autorecovery", "run", url]
    worker = start_process(stack, recovery, folder / "autorecovery.log")
    statuses: dict[str, WorkerStatus] = {}
    begin, killed = time.perf_counter(), 0
    cluster_command = ["env", f"PYREPLOG_CLUSTER={url}", sys.executable, "-m", "pyreplog", "cluster"]
    operator = start_process(stack, [*cluster_command, "drain", victim, "--wait"], folder / "drain.log")
    while operator.poll() is None:
        statuses.update(list_workers(store))
        if killed < kills and _copied(statuses) > needed * (killed + 1) // (kills + 1):
            killed += 1
            worker.kill()
            worker.wait()
            worker = start_process(stack, recovery, folder / f"autorecovery{killed}.log")
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - begin
    if operator.returncode:
        said = (folder / "drain.log").read_text()
        raise ChildProcessError(f"{operator.args!r} ended with status {operator.returncode}: {said}")
    return (
        needed,
        _wait_for_workers(store, statuses, needed),
        seconds,
        killed,
        copy_s,
        _verify(url, victim, made, entries),
    )


def _start_bookie(folder: Path, url: str, segment_bytes: int, stack: ExitStack) -> str:
    """Start a bookie; returns its id."""
    command = [sys.executable, "-m", "pyreplog", "bookie", "--json", "--metadata", url, "--durability", "synced"]
    command += ["--segment-bytes", str(segment_bytes)]
    process = start_process(stack, [*command, str(folder)], folder.with_suffix(".log"), pipes=True)
    return str(answer_of(process)["bookie"])


def _fill(cluster: LedgerCluster, entries: int) -> int:
    """Return the number of a ledger that is closed."""
    values = make_values(_SIZE)
    batch = values * (BATCH // len(values))
    with cluster.create_ledger(_FILLED, _COPIES, _COPIES, window_bytes=WINDOW_BYTES) as ledger:
        for _ in range(entries // BATCH):
            ledger.submit_batch(batch)
    return ledger.id


def _copy(log: Path, target: Path, count: int) -> float:
    """Copy so many bytes of a log, with one fsync per segment; returns the seconds that it took."""
    target.mkdir()
    begin = time.perf_counter()
    for path in sorted(log.glob("*.log")):
        with path.open("rb", buffering=0) as reader, (target / path.name).open("wb", buffering=0) as writer:
            while chunk := reader.read(min(_CHUNK, count)):
                count -= writer.write(chunk)
            os.fsync(writer.fileno())
    return time.perf_counter() - begin


def _copied(statuses: dict[str, WorkerStatus]) -> int:
    return sum(status.copied_entries for status in statuses.values()) * _SIZE


def _wait_for_workers(store: MetadataStore, statuses: dict[str, WorkerStatus], needed: int) -> int:
    """Return the bytes that workers have told of, when they have told of all. A killed one may have copied more."""
    deadline = time.monotonic() + _TOLD_S
    while _copied(statuses) < needed and time.monotonic() < deadline:
        statuses.update(list_workers(store))
        time.sleep(_POLL_S)
    return _copied(statuses)


def _verify(url: str, victim: str, ledgers: list[int], entries: int) -> int:
    """Read everything back, and count the copies; returns the number of entries."""
    read_back = 0
    with LedgerCluster.connect(url) as cluster:
        for ledger in ledgers:
            read_back += verify_ledger(cluster, ledger, make_values(_SIZE), entries)
            if victim in cluster.ledger_metadata(ledger).bookies():
                raise ValueError(f"ledger {ledger} still names {victim}")
            if (fewest := int(cluster.count_copies(ledger).min())) != _COPIES:
                raise ValueError(f"ledger {ledger} has an entry with {fewest} copies, expected {_COPIES}")
    return read_back


if __name__ == "__main__":
    main()
