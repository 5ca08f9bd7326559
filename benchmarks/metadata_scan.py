"""An auditor's scan of very many ledgers in a real ZooKeeper: `python -m benchmarks.metadata_scan --ledgers 100000`.

No part of `make bench`: 10^6 ledgers take minutes, and 2 GB of ZooKeeper's memory. The server is the one whose jars
pyspark carries; the scan runs in a process of its own, whose memory is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from benchmarks.limits.build import ROOT
from benchmarks.peers import java
from benchmarks.peers.replicated.peer import Servers, free_ports
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key, metadata_key
from pyreplog.metadata.store import Versioned
from pyreplog.metadata.zookeeper import ZooKeeperStore

_WINDOW = 4000
_BOOKIES = 1000
_SESSION_S = 60.0  # a snapshot of so many nodes, on cores that others use
_ASK_S = 5.0  # a server that has just begun to listen may never answer the first question
_JARS = ("zookeeper-", "slf4j-api-", "log4j-", "netty-", "metrics-core-", "snappy-java-", "commons-io-", "commons-cli-")
_KEY = ledger_key(b"")


@contextmanager
def zookeeper(heap_mb: int) -> Iterator[str]:
    """Run a ZooKeeper server in a folder of its own; yields host:port."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise FileNotFoundError("pyspark: install it (pip install pyspark): its jars have ZooKeeper")
    jars = [str(jar) for jar in sorted((Path(package.origin).parent / "jars").iterdir()) if jar.name.startswith(_JARS)]
    (port,) = free_ports(1)
    servers = Servers()
    with tempfile.TemporaryDirectory(prefix="metadata-scan-") as folder:
        options = (
            f"-Xmx{heap_mb}m", "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.forceSync=no",
            "-Dzookeeper.4lw.commands.whitelist=mntr",
        )  # fmt: skip
        main = ("org.apache.zookeeper.server.ZooKeeperServerMain", str(port), f"{folder}/data")
        try:
            servers.start(java.command(":".join(jars), *options, *main), Path(folder) / "log")
            servers.until(lambda: "zk_packets_received" in counters(port) or None, ConnectionError, TimeoutError)
            yield f"127.0.0.1:{port}"
        finally:
            servers.close()


def counters(port: int) -> dict[str, str]:
    """Return what a ZooKeeper on this machine says of itself; before it serves, nothing."""
    with socket.create_connection(("127.0.0.1", port), _ASK_S) as stream:
        stream.sendall(b"mntr")
        said = b"".join(iter(lambda: stream.recv(65536), b"")).decode()
    return dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)


def create(hosts: str, ledgers: int) -> float:
    """Create the metadata of so many closed ledgers, pipelined; returns the seconds that it took."""
    client = KazooClient(hosts, timeout=_SESSION_S)
    client.start(30)
    try:
        begin = time.monotonic()
        for shard in sorted({metadata_key(ledger).rpartition("/")[0] for ledger in range(0, ledgers, 4096)}):
            client.ensure_path(shard)
        sample = _metadata(0)
        pending: deque[Any] = deque()
        for ledger in range(ledgers):
            members = tuple(f"bookie-{(ledger * 7 + place * 337) % _BOOKIES:04}@0123456789ab" for place in range(3))
            value = dataclasses.replace(sample, ledger=ledger, fragments=(Fragment(0, members),)).encode()
            if len(pending) == _WINDOW:
                pending.popleft().get(60)
            pending.append(client.create_async(metadata_key(ledger), value))
        while pending:
            pending.popleft().get(60)
        return time.monotonic() - begin
    finally:
        client.stop()
        client.close()


def _metadata(ledger: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger=ledger, ensemble_size=3, write_quorum=3, ack_quorum=2, fragments=(Fragment(0, ("a", "b", "c")),),
        proof=key_proof(_KEY), state=State.CLOSED, last_entry=999, length=1 << 20, messages=1000,
        created_us=1_700_000_000_000_000, token="0123456789abcdef0123456789abcdef",
    )  # fmt: skip


class CountingStore(ZooKeeperStore):
    """Counts what is read."""

    def __init__(self, hosts: str) -> None:
        self.listings = self.reads = self.read_bytes = 0
        super().__init__(hosts, timeout=60.0, session_timeout=_SESSION_S)

    def _list(self, key: str) -> list[str]:
        names = super()._list(key)
        self.listings += 1
        self.read_bytes += sum(map(len, names))
        return names

    def _get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        found = super()._get_many(keys)
        self.reads += len(keys)
        self.read_bytes += sum(len(key) for key in keys) + sum(len(one.value) for one in found if one is not None)
        return found

    def take(self) -> dict[str, int]:
        """Return the counts, and begin anew."""
        counts = {"listings": self.listings, "reads": self.reads, "bytes": self.read_bytes}
        self.listings = self.reads = self.read_bytes = 0
        return counts


def measure(hosts: str) -> dict[str, Any]:
    """Scan all ledgers, then look for changes twice; seconds, bytes, and memory above that of before the scan."""
    with CountingStore(hosts) as store:
        store.list("/ledgers")
        store.take()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _memory("VmRSS")
        scan = LedgerScan(store)
        found: dict[str, Any] = {"scan": _timed(scan.scan, store)}
        found["scan"]["memory"] = _memory("VmHWM") - before
        found["index_bytes"] = scan.nbytes
        found["first_round"] = _timed(scan.refresh, store)
        found["round"] = _timed(scan.refresh, store)
        found["ledgers"] = found["scan"]["reads"]
        found["bookies"] = len(scan.named())
        return found


def _timed(work: Any, store: CountingStore) -> dict[str, Any]:
    begin, cpu = time.monotonic(), time.process_time()
    work()
    return {"seconds": time.monotonic() - begin, "cpu_seconds": time.process_time() - cpu, **store.take()}


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {name}")


def run(hosts: str, ledgers: int) -> dict[str, Any]:
    """Create so many ledgers in a ZooKeeper without any, and measure in a process of its own."""
    created_s = create(hosts, ledgers)
    command = [sys.executable, "-m", "benchmarks.metadata_scan", "--measure", hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the scan failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = {"created_s": created_s, **json.loads(done.stdout)}
    return found


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metadata_scan", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--heap-mb", type=int, default=3000, help="of ZooKeeper (default 3000)")
    parser.add_argument("--hosts", help="a ZooKeeper without ledgers, in place of one that is started here")
    parser.add_argument("--measure", metavar="HOSTS", help="only scan the ledgers that this ZooKeeper has")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
    elif options.hosts:
        print(json.dumps(run(options.hosts, options.ledgers), indent=1))
    else:
        with zookeeper(options.heap_mb) as hosts:
            print(json.dumps(run(hosts, options.ledgers), indent=1))


if __name__ == "__main__":
    main()
