"""What runs in processes of its own: `python -m benchmarks.jobs NAME ARGUMENTS`, answers as lines of JSON."""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyreplog
from benchmarks.entries import BATCH, in_turn, make_values, stride
from benchmarks.logs import fill
from benchmarks.proc import anonymous_bytes

if TYPE_CHECKING:
    from benchmarks.limits.bare import Bell
    from pyreplog.bookie.node import BookieNode

_SEGMENTS_BEFORE = 4


def follow(path: str, count: int, slice_ns: int) -> None:
    """Follow a log; nanoseconds from the stamp in each of `count` entries to having it. slice_ns: asked of the
    scheduler; 0: its default."""
    clock, taken = time.monotonic_ns, []
    _set_slice(slice_ns)
    with pyreplog.open(path, "r") as reader:
        records = reader.follow(reader.end)
        _report("ready")
        for record in records:
            taken.append(clock() - int.from_bytes(record.value, "little"))
            if len(taken) == count:
                break
    _report(taken)


def hear(path: str, count: int, slice_ns: int) -> None:
    """Sleep on a bare futex; nanoseconds from each of `count` ringings to being awake. slice_ns: as of `follow`."""
    bell = _bell(path)
    _set_slice(slice_ns)
    _report("ready")
    _report([bell.hear(seen) for seen in range(count)])


def hear_stamps(path: str, count: int, slice_ns: int) -> None:
    """As `hear`, with Python's clock, from a stamp that Python put behind the bell."""
    clock, taken, bell = time.monotonic_ns, [], _bell(path)
    _set_slice(slice_ns)
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ) as page:
        _report("ready")
        for seen in range(count):
            bell.hear(seen)
            taken.append(clock() - int.from_bytes(page[-8:], "little"))
    _report(taken)


def crash(path: str, size: int, count: int, segment_bytes: int) -> NoReturn:
    """Append `count` entries, tell where they begin and end, and die of SIGKILL."""
    log = pyreplog.open(path, segment_bytes=segment_bytes)
    start = log.end_position
    fill(log, make_values(size), count)
    _report({"start": start, "end": log.end_position})
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def grow(path: str, size: int, segments: int, segment_bytes: int) -> None:
    """Write so many segments, and as many again; private memory and state at first, and after each half."""
    per_segment = segment_bytes // stride(size) // BATCH * BATCH
    entries = in_turn(make_values(size), BATCH)
    with pyreplog.open(path, segment_bytes=segment_bytes) as log:

        def write(segments: int) -> dict[str, int]:
            for _ in range(segments * per_segment // BATCH):
                log.append_batch(entries)
            log.sync()  # seals, indexes and unmaps what is behind the active segment
            return {"private": anonymous_bytes([os.getpid()]), "state": log.stats().state_bytes, "entries": log.end}

        first, before, after = write(_SEGMENTS_BEFORE), write(segments), write(segments)
    mapped = sum(index.stat().st_size for index in Path(path).glob("*.idx"))
    _report({"first": first, "before": before, "after": after, "mapped": mapped})


def load_peer(name: str, path: str, size: int, count: int, seconds: float, segment_bytes: int) -> NoReturn:
    """Fill a peer without syncs, tell what it holds, and kill it and its servers. segment_bytes: pyreplog's."""
    from benchmarks.peers import PEERS, Pyreplog, load

    Pyreplog.segment_bytes = segment_bytes
    peer = PEERS[name](Path(path), synced=False)
    before = anonymous_bytes([os.getpid(), *peer.servers()])
    keys = load(peer, make_values(size), count, seconds)
    grown = anonymous_bytes([os.getpid(), *peer.servers()]) - before
    _report({"count": len(keys), "private": grown})
    for pid in (*peer.servers(), os.getpid()):
        os.kill(pid, signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def bookie(path: str, url: str, name: str, settings: dict[str, Any], busy_poll_us: int) -> None:
    """A bookie, until standard input ends; each line there asks it to "collect" garbage, to "sync" its log, or to begin
    with a "scrub" of all segments, and to say when it has."""
    from pyreplog.bookie.config import BookieConfig
    from pyreplog.bookie.node import BookieNode
    from pyreplog.ledger.ledger_store import StoredLedgers
    from pyreplog.metadata.url import open_store

    with (
        open_store(url) as store,
        BookieNode(
            path, name, store, BookieConfig.of(settings), ledgers=StoredLedgers(store), busy_poll_us=busy_poll_us
        ) as node,
    ):
        _report(node.address)
        while True:
            asked = select.select([sys.stdin], [], [], 1.0)[0]
            node.maintain()
            if asked:
                word = sys.stdin.readline().strip()
                if not word:
                    return
                node.bookie.log.sync()
                if word == "collect":
                    _settle(node)
                elif word == "scrub":
                    node.scrub_now()
                _report(word)


def _settle(node: BookieNode) -> None:
    """Until a round of garbage collection frees nothing, and the next segments are ready."""
    log, spares = node.bookie.log.log, node.bookie.config.spare_segments
    start = -1
    while log.start_position != start or log._log.stats().ready_segments < spares:
        start = log.start_position
        node.maintain()
        time.sleep(0.002)


def bare_bookie(path: str, size: int, log_bytes: int, synced: bool, spin: bool) -> None:
    """The bare limit's bookie: serves one client, then checks what its log holds of values of this size."""
    from benchmarks.limits import quorum

    with Path(path).open("w+b") as file, socket.create_server(("127.0.0.1", 0)) as server:
        file.write(bytes(log_bytes))  # pre-zeroed: no block is allocated, no extent converted while it is measured
        file.flush()
        os.fsync(file.fileno())
        log = quorum.Log(file.fileno(), log_bytes, synced=synced)
        _report(server.getsockname()[1])
        client, _ = server.accept()
        with client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            log.serve(client.fileno(), spin=spin)
        _report({"records": log.records, "checked": log.check(quorum.Values(make_values(size)))})


def pour(size: int) -> None:
    """Send so many bytes to whoever connects, until standard input ends."""
    data = mmap.mmap(-1, size)
    data.write(os.urandom(1 << 10) * (size >> 10))
    with socket.create_server(("127.0.0.1", 0)) as server:
        _report(server.getsockname()[1])
        while sys.stdin not in (ready := select.select([sys.stdin, server], [], [])[0]) and server in ready:
            client, _ = server.accept()
            with client, memoryview(data) as view:
                for start in range(0, size, 1 << 20):
                    client.sendall(view[start : start + (1 << 20)])


def echo(spin: bool) -> None:
    """Answer requests as bare sockets do: benchmarks.bounds.roundtrip."""
    from benchmarks.bounds.roundtrip import serve

    _report(serve(spin=spin))


def keep(path: str, segment_bytes: int) -> None:
    """Keep what is sent: benchmarks.bounds.pipeline."""
    from benchmarks.bounds.pipeline import keep as serve

    serve(path, segment_bytes)


def io_threads_bookie(path: str, threads: int, settings: dict[str, Any], timed: bool) -> None:
    """A bookie with so many I/O threads, until standard input ends: benchmarks.bounds.io_threads."""
    from benchmarks.bounds.io_threads import serve_bookie

    serve_bookie(path, threads, settings, _report, timed=timed)


def io_threads_bare(log_bytes: int, size: int, clients: int, threads: int, locked: str, gil: bool) -> None:
    """The bare path of an ADD with so many I/O threads, until standard input ends: benchmarks.bounds.io_threads."""
    from benchmarks.bounds.io_threads import serve_bare

    serve_bare(log_bytes, size, clients, threads, _report, locked=locked, gil=gil)


def abandon(url: str, size: int, entries: int, tail: int) -> NoReturn:
    """Write a ledger of so many entries, tell its id, and die. The last `tail` are a batch that carries the LAC before
    it: of their own confirmation no bookie was told."""
    from pyreplog.ledger.cluster import LedgerCluster

    values = in_turn(make_values(size), tail)
    ledger = LedgerCluster.connect(url).create_ledger(3, 3, 2, durability="appended")
    for _ in range(entries // tail - 1):
        ledger.submit_batch(values)
    ledger.append_batch(values[: entries % tail])
    ledger.append_batch(in_turn(values[entries % len(values) :] + values[: entries % len(values)], tail))
    _report(ledger.id)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def load_ledger(url: str, size: int, window_bytes: int) -> None:
    """Write to a ledger without a pause, and without giving up on a bookie, until told to stop; says how many entries
    that were."""
    from pyreplog.ledger.cluster import LedgerCluster
    from pyreplog.net.limits import Limits

    values, entries = make_values(size), 0
    patient = Limits(silence_ms=600_000, stall_ms=600_000)
    with LedgerCluster.connect(url, limits=patient, request_timeout_ms=600_000) as cluster:
        with cluster.create_ledger(3, 3, 3, durability="appended") as connecting:
            connecting.append_batch(values)  # confirmed: there is a connection to each bookie
        with cluster.create_ledger(3, 3, 2, durability="appended", window_bytes=window_bytes) as ledger:
            _report(ledger.id)
            while not select.select([sys.stdin], [], [], 0)[0]:
                ledger.submit_batch(values)
                entries += len(values)
        _report(entries)


def ha_node(path: str, name: str, master: str | None, settings: dict[str, Any], busy_poll_us: int) -> None:
    """A node of a replica group, until standard input ends: benchmarks.rows.ha.node."""
    from benchmarks.rows.ha.node import serve

    serve(path, name, master, settings, busy_poll_us)


def broker(directory: str, name: str, url: str, segment_bytes: int) -> None:
    """A broker of partitions, until standard input ends: benchmarks.rows.partitions.node."""
    from benchmarks.rows.partitions.node import serve

    serve(directory, name, url, segment_bytes)


def warm_spark(folder: str, is_long: bool) -> None:
    """A Spark, until told to stop: benchmarks.rows.spark.warm."""
    from benchmarks.rows.spark.warm import serve

    serve(folder, is_long)


def read_task(path: str) -> None:
    """Read keys and values of a log as one task of Spark does: how many rows there were, and the most private memory
    that this process had meanwhile."""
    from pyreplog.tables import schema
    from pyreplog.tables.options import ReadOptions
    from pyreplog.tables.planning import plan
    from pyreplog.tables.reading import read

    options = ReadOptions(paths=(path,), columns=("key", "value"), max_partition_bytes=1 << 40)
    rows = peak = 0
    for task in plan(options):
        for batch in read(task, schema.default_columns(options), options):
            rows += batch.num_rows
            peak = max(peak, anonymous_bytes([os.getpid()]))
    _report([rows, peak])


def delay(address: str, delay_s: float) -> NoReturn:
    """A proxy to a server that passes on bytes late; tell its address."""
    from benchmarks.delayed_link import DelayedLink

    link = DelayedLink(address, delay_s)
    _report(link.address)
    link.run()


def write_synced(path: str, rate_bytes: int, write_bytes: int, file_bytes: int, into: str) -> NoReturn:
    """Write to a file, and sync each write, at a rate in bytes per second, until it is killed.

    Args:
        path: of the file.
        rate_bytes: bytes per second.
        write_bytes: bytes of a write.
        file_bytes: size of the file, after which it is begun anew.
        into: "old": the same blocks are written over again and again; "new": each time, the file is made anew, and all
            its blocks are allocated ahead.
    """
    data = os.urandom(1 << 10) * (write_bytes >> 10)
    at = 0.0
    while True:
        if into == "new" or not at:
            Path(path).unlink(missing_ok=True)
            Path(path).touch()
        with Path(path).open("r+b", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, file_bytes)
            if into == "old" and not at:
                for _ in range(file_bytes // write_bytes):
                    file.write(data)
                os.fsync(file.fileno())
                file.seek(0)
            if not at:
                _report("ready")
                at = time.perf_counter()
            for _ in range(file_bytes // write_bytes):
                file.write(data)
                os.fdatasync(file.fileno())
                at = max(at + write_bytes / rate_bytes, time.perf_counter() - 1.0)
                time.sleep(max(at - time.perf_counter(), 0.0))


def topic_server(folder: str) -> NoReturn:
    """A cluster of one bookie, and a server of its topics; tell its address."""
    from pyreplog.cluster import Cluster
    from pyreplog.topic.server.topic_server import TopicServer

    with Cluster.embedded(Path(folder), bookies=1) as cluster, TopicServer(cluster) as server:
        _report(str(server.address))
        while True:
            signal.pause()


def geo_region(folder: str, messages: int, acks: int, seed: int) -> None:
    """A cluster whose consumer acknowledges until it is killed; see `benchmarks.rows.geo.region`."""
    from benchmarks.rows.geo.region import run

    run(folder, messages, acks, seed, _report)


def _bell(path: str) -> Bell:
    from benchmarks.limits import bare

    with Path(path).open("r+b") as file:
        return bare.Bell(file.fileno())


def _set_slice(slice_ns: int) -> None:
    if slice_ns:
        from benchmarks.limits import bare

        bare.set_slice(slice_ns)


def _report(what: Any) -> None:
    print(json.dumps(what), flush=True)


_JOBS = {
    job.__name__: job
    for job in (
        follow, hear, hear_stamps, crash, grow, load_peer, bookie, bare_bookie, pour, echo, keep,
        io_threads_bookie, io_threads_bare, abandon, load_ledger,
        ha_node, broker, warm_spark, read_task, delay, write_synced,
        topic_server, geo_region,
    )
}  # fmt: skip

if __name__ == "__main__":
    _JOBS[sys.argv[1]](*json.loads(sys.argv[2]))
