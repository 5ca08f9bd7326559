"""Neighbours: the other clusters that a topic's subscriptions are replicated with, and the connection to each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyreplog.geo.acks.subscription_state import NO_CLUSTER, SubscriptionState
from pyreplog.geo.exchange_connection import ConnectionOwner, ExchangeConnection
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.origins.origin import Origin
from pyreplog.topic.owner.topic import Topic


class Neighbour(NamedTuple):
    """Another cluster that the topic is replicated to or from.

    Attributes:
        name: its name in policies.
        cluster: its id.
        link: the connection to it.
        target_position: returns the other cluster's last confirmed position in this topic, as the replicator noted it;
            None: this topic was never sent there.
        forwarded: returns the offset at another origin below which the other cluster has confirmed everything; None:
            messages of that origin are not forwarded to it, and come from elsewhere, or not at all.
        sent: returns the offset at an origin below which messages were sent that the other cluster may store.
    """

    name: str
    cluster: bytes
    link: ExchangeLink
    target_position: Callable[[], TargetPosition | None]
    forwarded: Callable[[Origin], int | None] = lambda _: None
    sent: Callable[[Origin], int] = lambda _: 0


class Neighbours:
    """The neighbours of one topic with their connections and alarms; a step of the owner's queue calls it.

    Only `clusters` and the names may be asked for by any thread.

    Args:
        topic: the topic.
        owner: gets the events of the connections.

    Attributes:
        clusters: the neighbours by id; replaced, never changed.
        connections: connections by the id of the neighbour.
        alarms: errors that need a person, by the id of the neighbour.
    """

    def __init__(self, topic: Topic, owner: ConnectionOwner) -> None:
        self._topic, self._owner = topic, owner
        self.clusters: Mapping[bytes, Neighbour] = {}
        self.connections: dict[bytes, ExchangeConnection] = {}
        self.alarms: dict[bytes, str] = {}

    def configure(self, neighbours: Iterable[Neighbour]) -> None:
        """Replace the neighbours, and close the connections to former ones."""
        self.clusters = {neighbour.cluster: neighbour for neighbour in neighbours}
        for peer, connection in list(self.connections.items()):
            neighbour = self.clusters.get(peer)
            if neighbour is None or neighbour.link is not connection.link:
                connection.close()
                del self.connections[peer]

    def connect(self) -> None:
        """Connect to each neighbour that has no connection."""
        for peer, neighbour in self.clusters.items():
            if peer not in self.connections:
                self.connections[peer] = ExchangeConnection(
                    self._topic, self._owner, peer, neighbour.link, neighbour.target_position
                )
                self.connections[peer].start()

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections.values():
            connection.close()

    @property
    def is_any_connected(self) -> bool:
        """Whether a session with any neighbour is open."""
        return any(connection.is_connected for connection in self.connections.values())

    def send(self, peer: bytes, session: int, data: bytes) -> None:
        """Send a message to a neighbour, if it has a connection."""
        if (connection := self.connections.get(peer)) is not None:
            connection.send(session, data)

    def send_due(self) -> None:
        """Send the requests that are due on each connection."""
        for connection in list(self.connections.values()):
            connection.send_due()

    def named(self, name: str) -> Neighbour | None:
        """Return the neighbour of a name; None: there is none."""
        return next((neighbour for neighbour in self.clusters.values() if neighbour.name == name), None)

    def name_of(self, cluster: bytes) -> str:
        """Return the name of a cluster; "": this one. A cluster without a name is named by its id."""
        if cluster == self._topic.origin.cluster:
            return ""
        neighbour = self.clusters.get(cluster)
        return cluster.hex() if neighbour is None else neighbour.name

    def home_of(self, state: SubscriptionState) -> str | None:
        """Return the name of the only cluster whose consumers get messages; "": this one; None: all deliver."""
        return None if state.home.cluster == NO_CLUSTER else self.name_of(state.home.cluster)

    def why_not_connected(self, peer: bytes) -> str:
        """Return why a neighbour is not connected; "": it is, or it has no connection yet."""
        connection = self.connections.get(peer)
        if connection is None or connection.is_connected:
            return ""
        return str(connection.error or "the other cluster has not connected yet: it needs such a policy, too")
