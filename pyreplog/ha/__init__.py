"""Replica groups: a master streams its log to replicas, which hold the same bytes.

with ha.open_master("data/orders", name="a", port=7001, members=["a", "b"], sync_replicas=1) as node:
    node.append(b"value")                        # returns when b has it, too
with ha.open_replica("copy/orders", name="b", master="127.0.0.1:7001") as node:
    for record in node.log.follow(timeout=5.0): ...
    node.promote()                               # when a is gone
with ha.connect(["127.0.0.1:7001"]) as client:   # any process
    client.append(b"value")

| module | what it holds |
|---|---|
| `node` | `Node`: a log directory and its role; made by `open_master` and `open_replica` |
| `master` | the role of the master |
| `replica` | the role of a replica |
| `replica_stream` | the stream of a master to one replica |
| `cascade` | the streams of a replica to observers |
| `pending_commits` | appends that wait for the commit point |
| `producers` | the batches of clients in a log, for deduplication |
| `election_runner` | runs an election |
| `failover` | automatic failover with a metadata store |
| `service` | dispatches the messages that a node's server receives |
| `client_requests`, `long_polls` | serve clients; their reads that wait for the commit point |
| `commands`, `status` | commands of operators; the state of a node as JSON |
| `peers` | sends requests to other members |
| `remote_node` | sends commands to a node in another process |
| `group_client` | appends to a group, and reads it, from another process |
| `config` | settings of a node |
| `node_context` | what the parts of a node share |
| `logs` | opens the log of a node |
| `metrics` | metrics for Prometheus |
| `protocol` | messages and state machines, without I/O |
| `relay` | a copy of a log, and a callback that applies it |

docs/ha.md is the guide, docs/relay.md that of relay logs.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Unpack

from pyreplog.clock import Clock
from pyreplog.coroutines import opening_function
from pyreplog.ha.config import NodeConfig, NodeSettings
from pyreplog.ha.failover import Failover
from pyreplog.ha.group_client import GroupClient, GroupClientConfig, GroupClientSettings
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.master_machine import GroupConfig
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits
from pyreplog.stream.log_position import LogPosition

__all__ = [
    "Failover", "GroupClient", "GroupClientConfig", "GroupConfig", "GroupStats", "LogPosition", "Node", "NodeConfig",
    "connect", "open_master", "open_master_async", "open_replica", "open_replica_async",
]  # fmt: skip


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
    """Open a log as the master of a replica group.

    The log is new, had no replicas so far, or was led by this node before. The node listens for replicas, candidates
    and clients until it is closed. Blocks while the log is verified, and while an election runs.

    Args:
        path: directory of the log.
        members: names of the members of a new group, this node included. Later `Node.set_members` changes them.
        sync_replicas: replicas that an append waits for, in a new group. Later `Node.set_members` changes it.
        force: become master even if acknowledged records may be missing from this log.
        peers: addresses of other members, "host:port" by name. Elections ask them.
        secret: a secret that all nodes of the group share; None: no authentication.
        tls_server: TLS context for connections to this node; None: no TLS.
        tls_client: TLS context for connections from this node; None: no TLS.
        limits: limits of connections.
        busy_poll_us: microseconds that a waiting thread polls its connections before it sleeps.
        clock: source of time; None: the clock of the machine.
        settings: fields of `NodeConfig` as keywords; `name` is required.

    Returns:
        The open `Node`.

    Raises:
        ConfigError: a setting is unknown or outside its bounds.
        InvalidArgumentError: an address is malformed.
        ReplicaError: the log is a replica; promote it.
        PromotionRefusedError: the log may lack records that this node sent before a power cut, and no election was
            won.
        LockedError: another process has the log open for writing.
        ReplogError: as `pyreplog.open`.
        OSError: the address to listen at is in use.

    Example:
        ```python
        with ha.open_master("data/orders", name="a", port=7001, members=["a", "b"], sync_replicas=1) as node:
            node.append(b"order 1")  # returns when b has it, too
        ```

    See docs/ha.md.
    """
    node = Node(
        path, NodeConfig.of(settings), peers=peers, secret=secret, tls_server=tls_server, tls_client=tls_client,
        limits=limits, busy_poll_us=busy_poll_us, clock=clock,
    )  # fmt: skip
    try:
        node.open_as_master(members, sync_replicas, force=force)
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
    """Open a directory as a replica of a master.

    The directory is empty, holds a replica, or holds the log of a former master. Entries that the master does not have
    are cut from the log, and their bytes are kept in `aside/`.

    Args:
        path: directory of the log.
        master: address of the master, "host:port"; None: wait until a master is known.
        peers: addresses of other members, "host:port" by name. Elections ask them.
        secret: a secret that all nodes of the group share; None: no authentication.
        tls_server: TLS context for connections to this node; None: no TLS.
        tls_client: TLS context for connections from this node; None: no TLS.
        limits: limits of connections.
        busy_poll_us: microseconds that a waiting thread polls its connections before it sleeps.
        clock: source of time; None: the clock of the machine.
        settings: fields of `NodeConfig` as keywords; `name` is required.

    Returns:
        The open `Node`. Its `log` exists when the node has found its master for the first time.

    Raises:
        ConfigError: a setting is unknown or outside its bounds.
        InvalidArgumentError: an address is malformed, or is that of this node.
        LockedError: another process has the log open for writing.
        ReplogError: as `pyreplog.open`.
        OSError: the address to listen at is in use.

    Example:
        ```python
        with ha.open_replica("copy/orders", name="b", master="127.0.0.1:7001") as node:
            for record in node.log.follow(timeout=5.0):
                print(record.value)
            node.promote()  # when the master is gone
        ```

    See docs/ha.md.
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


open_master_async = opening_function(open_master)
"""Do what `open_master` does, in a coroutine. If the task is cancelled, the node is closed."""

open_replica_async = opening_function(open_replica)
"""Do what `open_replica` does, in a coroutine. If the task is cancelled, the node is closed."""


def connect(
    addresses: Iterable[str],
    *,
    secret: bytes | Secret | None = None,
    tls: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    **settings: Unpack[GroupClientSettings],
) -> GroupClient:
    """Connect to a replica group, to append and read from any process.

    Returns at once. The client looks for the master in the background, and calls wait for it.

    Args:
        addresses: "host:port" of nodes of the group. One running node is enough; the others are tried if it fails.
        secret: the secret that the nodes share; None: no authentication.
        tls: TLS context of a client; None: no TLS.
        limits: limits of connections; None: the defaults, except that a node is left after 3 s of silence.
        settings: fields of `GroupClientConfig` as keywords.

    Returns:
        A `GroupClient`.

    Raises:
        ConfigError: a setting is unknown or outside its bounds.
        InvalidArgumentError: an address is malformed, or there is none.

    Example:
        ```python
        with ha.connect(["host-a:7001", "host-b:7001"]) as client:
            client.append(b"order 1", key=b"customer 7")
        ```

    See docs/ha.md.
    """
    return GroupClient(addresses, GroupClientConfig.of(settings), secret=secret, tls=tls, limits=limits)
