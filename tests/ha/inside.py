"""Access to private parts of a node. Tests use these functions only, so that each private name stands here once."""

from __future__ import annotations

from pyreplog.errors import NotMasterError
from pyreplog.ha.master import Master
from pyreplog.ha.node import Node
from pyreplog.ha.node_context import NodeContext
from pyreplog.ha.peers import Peers
from pyreplog.ha.replica import Replica
from pyreplog.ha.replica_stream import ReplicaStream
from pyreplog.net.channel import Channel
from pyreplog.net.connection import Connection
from pyreplog.net.server import Server


def master_of(node: Node) -> Master:
    """Return the part of a node that is the master now."""
    assert node._master is not None, f"{node.name} is no master"
    return node._master


def followers_of(node: Node) -> dict[Connection, ReplicaStream]:
    """Return the connections to which a master streams."""
    return master_of(node)._followers


def replica_of(node: Node) -> Replica:
    """Return the part of a node that is a replica now."""
    assert node._replica is not None, f"{node.name} is no replica"
    return node._replica


def peers_of(node: Node) -> Peers:
    """Return the part of a node that asks other nodes."""
    return node._peers


def context_of(node: Node) -> NodeContext:
    """Return the lock, the clock and the reactor of a node."""
    return node._context


def channels_of(node: Node) -> dict[str, Channel]:
    """Return the channels to other nodes, by their names."""
    return node._peers._channels


def server_of(node: Node) -> Server:
    """Return the server to which other nodes connect."""
    return node._server


def has_log(node: Node) -> bool:
    """Return whether a node has a log, or had one before its role began to change."""
    try:
        return bool(node.log)
    except NotMasterError:
        return False


def commands_pending(node: Node) -> int:
    """Return how many commands to a node wait or run."""
    return node._commands.pending
