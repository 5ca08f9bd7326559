"""RocketMQ's own store and HA classes, master and slave, in the same run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.replicated.peer import free_ports
from benchmarks.peers.rocketmq import store
from benchmarks.peers.rocketmq.store import Store

_FILE_BYTES = 1 << 30
_BODY = 4096
_RECORD_BYTES = _BODY + 150


def rocketmq_rate(folder: Path, size: int) -> float:
    """Bytes per second of a slave that starts with nothing and takes a log of about `size` bytes."""
    store.build()
    ports = free_ports(2)
    with Store("master", folder / "their-master", ports[0], _FILE_BYTES) as master:
        end = master.put(size // _RECORD_BYTES, _BODY)
        with Store("slave", folder / "their-slave", ports[1], _FILE_BYTES) as slave:
            slave.call(f"follow 127.0.0.1:{ports[0]}")
            return end / (int(slave.call(f"await {end}")) / 1e9)
