"""Nodes of a replica group in the process of a test."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.log import names
from tests.ha.inside import has_log
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

SEGMENT_BYTES = 64 << 10


class Lab:
    """A group of nodes in folders of one directory. All are closed at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.nodes: dict[str, Node] = {}

    def master(self, name: str = "a", *, members: str = "abc", sync_replicas: int = 1, **settings: Any) -> Node:
        settings = self.settings(settings)
        node = ha.open_master(
            self.folder / name, name=name, members=list(members), sync_replicas=sync_replicas, **settings
        )
        return self.opened(node)

    def replica(self, name: str, master: Node | str | None = None, **settings: Any) -> Node:
        address = master.address if isinstance(master, Node) else master
        node = ha.open_replica(self.folder / name, name=name, master=address, **self.settings(settings))
        return self.opened(node)

    def opened(self, node: Node) -> Node:
        self._stack.callback(node.close)
        self.nodes[node.name] = node
        for other in self.nodes.values():
            other.learn_peers(
                {name: each_node.address for name, each_node in self.nodes.items() if each_node is not other}
            )
        return node

    def close(self, node: Node) -> None:
        node.close()
        del self.nodes[node.name]

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        durability = settings.pop("durability", "appended")
        log = {"segment_bytes": SEGMENT_BYTES, "durability": durability, **settings.pop("log", {})}
        group = {"ack": "synced" if durability == "synced" else "received", **settings.pop("group", {})}
        # long time-outs, so that no result depends on the machine's speed
        patience = {"ack_timeout_ms": 60_000, "election_timeout_ms": 30_000}
        return {"log": LogConfig(**log), "group": GroupConfig(**group), **patience, **settings}


def values(node: Node) -> list[bytes]:
    """Return the values that readers of a node see."""
    return [record.value for batch in node.log.read() for record in batch]


def level(master: Node, *replicas: Node) -> None:
    """Wait until the replicas have and show all records that their master shows."""
    for replica in replicas:
        until(lambda replica=replica: has_log(replica) and replica.log.end == master.log.end)  # type: ignore[misc]


def assert_same_files(master: Node, replica: Node) -> None:
    """Compare segments byte by byte, up to the end of the log."""
    ours, end = master.log.path, master.log.tail.end
    theirs = replica.log.path
    until(lambda: replica.log.tail.end == end)
    for base in names.segment_bases(ours):
        stop = min(end - base, SEGMENT_BYTES)
        if stop > 4096:
            expected = names.segment_path(ours, base).read_bytes()[:stop]
            assert names.segment_path(theirs, base).read_bytes()[:stop] == expected, f"segment {base}"
