"""A member of a replica group that appends while it is master, and prints the value of each append that is acknowledged.

`python -m tests.chaos.member FOLDER NAME PORT METADATA LEASE_S NAME=PORT,...`: the last names all members; the first of
them is master of a new group.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.errors import PromotionRefusedError, ReplogError
from pyreplog.ha.failover import Failover
from pyreplog.ha.node import Node
from pyreplog.log.replica import is_replica
from pyreplog.metadata import open_store

PAUSE_S = 0.005
ACK_TIMEOUT_MS = 5_000


def open_node(folder: Path, name: str, port: int, members: dict[str, str]) -> Node:
    """Open a member in the role that its directory allows."""
    peers = {peer: address for peer, address in members.items() if peer != name}
    log = LogConfig(segment_bytes=1 << 20)
    if name == next(iter(members)) and not is_replica(folder):
        try:
            return ha.open_master(
                folder, members=list(members), sync_replicas=1, peers=peers, name=name, port=port, log=log,
                ack_timeout_ms=ACK_TIMEOUT_MS,
            )  # fmt: skip
        except PromotionRefusedError:
            pass
    return ha.open_replica(folder, peers=peers, name=name, port=port, log=log, ack_timeout_ms=ACK_TIMEOUT_MS)


def main() -> None:
    folder, name, port, metadata, lease_s, pairs = sys.argv[1:]
    members = {member: f"127.0.0.1:{at}" for member, at in (pair.split("=") for pair in pairs.split(","))}
    with (
        open_node(Path(folder), name, int(port), members) as node,
        open_store(metadata) as store,
        Failover(node, store, "chaos", lease_ms=round(float(lease_s) * 1000)),
    ):
        print(json.dumps({"address": node.address}), flush=True)
        number, pause = 0, threading.Event()  # libfaketime breaks time.sleep
        while True:
            if node.role == "master":
                value = f"{name}/{os.getpid()}/{number}"
                number += 1
                try:
                    node.append(value.encode())
                    print(json.dumps({"acknowledged": value}), flush=True)
                except ReplogError as error:
                    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            pause.wait(PAUSE_S)


if __name__ == "__main__":
    main()
