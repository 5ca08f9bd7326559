"""The upgrade of a replica group, one node at a time, in the order of docs/operations.md."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog import ha
from pyreplog.errors import CommandRefusedError
from pyreplog.ha.remote_node import RemoteNode
from tests.ports import free_ports
from tests.waiting import until

from .build import PATIENCE_S, Build, expect

_MEMBERS = "abc"
_SERVICE = Path(__file__).with_name("service.py")


class Node:
    """A member of a group: its directory and address, and the process that runs it."""

    def __init__(self, folder: Path, port: int, build: Build) -> None:
        self.name, self.folder, self.build = folder.name, folder, build
        self.address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        """Run a service that has the node as master of a new group."""
        self._start(str(_SERVICE), str(self.folder), self.address, ",".join(_MEMBERS))

    def append(self, first: int, end: int) -> None:
        """Have the service append some entries, and wait until they are acknowledged."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{first} {end}\n")
        self._process.stdin.flush()
        self._said("entries")

    def follow(self, master: Node, members: list[Node]) -> None:
        """Run `pyreplog ha replica`."""
        peers = [option for peer in members if peer is not self for option in ("--peer", f"{peer.name}={peer.address}")]
        self._start(
            "-m", "pyreplog", "ha", "--json", "replica", str(self.folder), "--listen", self.address,
            "--master", master.address, *peers,
        )  # fmt: skip

    def _start(self, *arguments: str) -> None:
        self._process = self.build.start(*arguments)
        self._said("address")

    def _said(self, field: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line or field not in json.loads(line):
            raise SystemExit(f"node {self.name} of {self.build.name}: expected a line with {field}, found {line!r}")

    def status(self) -> dict[str, Any]:
        with RemoteNode(self.address) as node:
            return node.status()

    def has_in_sync(self, name: str) -> bool:
        """Return whether the node is the master, and has a replica in sync."""
        return any(replica["name"] == name and replica["in_sync"] for replica in self.status().get("replicas", ()))

    def promote(self) -> bool:
        """Promote the node as `pyreplog ha promote` does; return whether it is master. If not, another one has more entries."""
        with RemoteNode(self.address) as node:
            try:
                return bool(node.ask("promote")["role"] == "master")
            except CommandRefusedError:
                return False

    def values(self) -> list[int]:
        with pyreplog.open(self.folder, "r") as log:
            return [int(value) for value in log[:]]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process: with its input, and with a signal."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.send_signal(number)
            process.wait(PATIENCE_S)
            process.stdout.close()


def upgrade_group(older: Build, newer: Build, folder: Path, *, same_protocol: bool = True) -> None:
    """Upgrade a group of three while entries are appended: first the replicas, then the master.

    same_protocol: whether nodes of the two versions follow each other. If not, appends wait from the upgrade of the last
    replica on until one of them is master.
    """
    members = [Node(folder / name, port, older) for name, port in zip(_MEMBERS, free_ports(3), strict=True)]
    try:
        _upgrade(members, newer, same_protocol)
    finally:
        for node in members:
            node.stop(signal.SIGKILL)


def _upgrade(members: list[Node], newer: Build, same_protocol: bool) -> None:
    a, b, c = members
    a.serve()
    for replica in (b, c):
        replica.follow(a, members)
        until(lambda replica=replica: a.has_in_sync(replica.name), PATIENCE_S)
    a.append(0, 10)
    for replica, end in ((b, 20), (c, 30)):
        replica.stop()
        replica.build = newer
        replica.follow(a, members)
        if same_protocol:
            until(lambda replica=replica: a.has_in_sync(replica.name), PATIENCE_S)
        if same_protocol or replica is b:
            a.append(end - 10, end)
    a.stop()
    a.build = newer
    master = b if b.promote() else c
    if master is c and not c.promote():
        raise SystemExit(f"{newer.name}: neither b nor c is elected: {b.status()}, {c.status()}")
    a.follow(master, members)
    until(lambda: master.has_in_sync("a") and master.has_in_sync("b" if master is c else "c"), PATIENCE_S)
    with ha.connect([master.address]) as client:
        client.append_batch([b"30", b"31"])
    until(lambda: all(node.status()["committed"] == master.status()["received"] for node in members), PATIENCE_S)
    expected = {*range(30 if same_protocol else 20), 30, 31}
    for node in members:
        expect(node.values(), expected, f"on {node.name} after the upgrade of the group")
