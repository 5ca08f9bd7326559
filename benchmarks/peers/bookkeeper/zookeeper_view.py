"""What a measurement asks ZooKeeper itself: which ledgers name a bookie, since when none does, how many requests."""

from __future__ import annotations

import time
from typing import NamedTuple

from kazoo.client import KazooClient

from benchmarks.metadata_scan import counters

_CHUNK = 64
_PAUSE_S = 0.1
_CALL_S = 60.0
_SESSION_S = 20.0


class Requests(NamedTuple):
    """requests: packets that the server has received, those of this view left out. writes: its transactions."""

    requests: int
    writes: int


class ZooKeeperView:
    """Reads nodes as they are, of BookKeeper and of pyreplog. hosts: "host:port" of one server of this machine."""

    def __init__(self, hosts: str) -> None:
        self._port = int(hosts.rpartition(":")[2])
        self._zk = KazooClient(hosts, timeout=_SESSION_S)
        self._own = 0
        self._zk.start(_CALL_S)

    def close(self) -> None:
        self._zk.stop()
        self._zk.close()

    def delete(self, path: str) -> None:
        """Delete a node, perhaps one of a session that will expire."""
        self._own += 1
        self._zk.delete(path)

    def version(self, path: str) -> int:
        """How often a node was changed; -1: there is none."""
        stat = self._zk.exists(path)
        return -1 if stat is None else int(stat.version)

    def leaves(self, root: str) -> list[str]:
        """Paths of the nodes below the root that have none below them."""
        below = self._zk.get_children(root)
        return [leaf for name in below for leaf in self.leaves(f"{root}/{name}")] if below else [root]

    def requests(self) -> Requests:
        """The server's own counters."""
        received = int(float(counters(self._port)["zk_packets_received"]))
        self._zk.sync("/")
        self._own += 1
        return Requests(received - self._own, self._zk.last_zxid & 0xFFFFFFFF)

    def naming(self, root: str, depth: int, bookie: str) -> list[str]:
        """Paths of the nodes so many levels below the root that name a bookie; all names end with a digit."""
        paths = [root]
        for _ in range(depth):
            paths = [f"{path}/{name}" for path in paths for name in self._zk.get_children(path) if name[-1:].isdigit()]
        return [path for path, value, _ in self._read(sorted(paths)) if bookie.encode() in value]

    def until_none_names(self, paths: list[str], bookie: str, limit_s: float) -> tuple[int, int]:
        """Wait until none of the nodes names a bookie.

        Returns:
            When the last one was changed, in milliseconds of ZooKeeper's clock; and how many still name it.
        """
        left, name, end = list(paths), bookie.encode(), time.monotonic() + limit_s
        while left and time.monotonic() < end:
            chunk = left[-_CHUNK:]
            still = [path for path, value, _ in self._read(chunk) if name in value]
            left[-len(chunk) :] = still
            if still:
                time.sleep(_PAUSE_S)
        times = [changed for path, _, changed in self._read(paths)]
        return max(times), len(left)

    def _read(self, paths: list[str]) -> list[tuple[str, bytes, int]]:
        """Paths, values, and when they were changed."""
        self._own += len(paths)
        found = []
        for start in range(0, len(paths), 1000):
            chunk = paths[start : start + 1000]
            for path, asked in zip(chunk, [self._zk.get_async(path) for path in chunk], strict=True):
                value, stat = asked.get(timeout=_CALL_S)
                found.append((path, value, int(stat.mtime)))
        return found
