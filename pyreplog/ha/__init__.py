"""Replica groups: a master streams its log to replicas, which hold the same bytes.

with ha.open_master("data/orders", name="a", port=7001, members=["a", "b"], sync_replicas=1) as node:
    node.append(b"value")                        # returns when b has it, too
with ha.open_replica("copy/orders", name="b", master="127.0.0.1:7001") as node:
    for record in node.log.follow(timeout=5.0): ...
    node.promote()                               # when a is gone

| modules | what they are |
|---|---|
| `node` | what user code opens: a log directory and its role |
| `master`, `pending_commits` | a node as master; appends that wait for the commit point |
| `replica` | a node as replica |
| `election_runner`, `failover` | running an election; automatic failover |
| `service`, `commands`, `status` | what a node's server brings: what it is told to do; how it is |
| `peers`, `remote` | asking others of the group; asking any node |
| `config`, `node_context`, `logs` | settings; what the parts of a node share; opening its log; for Prometheus |
| `metrics` | as above |
| `protocol` | what nodes say and decide, without I/O |
| `replica_stream`, `cascade` | one replica of a master; replicas of a replica |
| `relay` | a copy of a log, and a callback that applies it |

docs/ha.md is the guide, docs/relay.md that of relay logs.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Unpack

from pyreplog.clock import Clock
from pyreplog.ha.config import NodeConfig, NodeSettings
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits
from pyreplog.stream.log_position import LogPosition

__all__ = ["GroupConfig", "GroupStats", "LogPosition", "Node", "NodeConfig", "open_master", "open_replica"]


def open_master(
    path: str | os.PathLike[str],
    *,
    members: Iterable[str] = (),
    sync_replicas: int = 0,
    force: bool = False,
    peers: Mapping[str, str] | None = None,
    secret: bytes | Secret | None = None,
    tls_server: ssl.SSLContext | None = None,
    tls_client: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    busy_poll_us: int = 0,
    clock: Clock | None = None,
    **settings: Unpack[NodeSettings],
) -> Node:
    """Open a log as master: a new one, one that had no replicas so far, or one that this node led before.

    members, sync_replicas: names, and how many besides the master an append waits for; of a new group, afterwards
    `Node.set_members` changes them. force: be master though acknowledged records may be missing here. peers: addresses
    of members. secret: all nodes share it. tls_server, tls_client: contexts. limits: of connections. settings: fields
    of NodeConfig.

    Errors: those of `pyreplog.open`; ReplicaError, it is a copy: promote it; PromotionRefusedError, it may lack what it
    had sent before a power cut, and is not elected; ConfigError; InvalidArgumentError, an address is none.
    """
    node = Node(
        path, NodeConfig.of(settings), peers=peers, secret=secret, tls_server=tls_server, tls_client=tls_client,
        limits=limits, busy_poll_us=busy_poll_us, clock=clock,
    )  # fmt: skip
    try:
        node.lead(members, sync_replicas, force=force)
    except BaseException:
        node.close()
        raise
    return node


def open_replica(
    path: str | os.PathLike[str],
    *,
    master: str | None = None,
    peers: Mapping[str, str] | None = None,
    secret: bytes | Secret | None = None,
    tls_server: ssl.SSLContext | None = None,
    tls_client: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    busy_poll_us: int = 0,
    clock: Clock | None = None,
    **settings: Unpack[NodeSettings],
) -> Node:
    """Open a directory as a replica of the master at "host:port"; it is empty, a copy, or was that of a master.

    Other arguments and errors as open_master. What the master does not have of this log is cut, and kept aside.
    """
    node = Node(
        path, NodeConfig.of(settings), peers=peers, secret=secret, tls_server=tls_server, tls_client=tls_client,
        limits=limits, busy_poll_us=busy_poll_us, clock=clock,
    )  # fmt: skip
    try:
        node.follow(master)
    except BaseException:
        node.close()
        raise
    return node
