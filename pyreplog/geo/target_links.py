"""TargetLinks: the connections of one process to all target clusters, and the making of replicators on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from pyreplog.errors import ClosedError, DisconnectedError, GeoError, HandshakeError, NotConnectedError
from pyreplog.geo.clusters import RemoteCluster, connection_error
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import TargetLink
from pyreplog.net.handshake import Secret
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Seconds within which a server of a target has to answer the opening of a session."""


class _OpenLink(NamedTuple):
    cluster: RemoteCluster
    link: TargetLink
    secret: Secret | None


class TargetLinks:
    """One link to each target cluster, which the topics of this process share; implements `keeper.MakeReplicator`.

    Any thread may use it. Close it after the replicators.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._links: dict[str, _OpenLink] = {}
        self._ids: dict[str, bytes] = {}  # of clusters, by name
        self._is_closed = False

    def __call__(
        self, topic: Topic, target: str, cluster: RemoteCluster, policy: ReplicationPolicy, partitions: int | None
    ) -> Replicator:
        """Make the replicator of a topic and a target, see `keeper.MakeReplicator`.

        Raises ClusterCredentialsError if a file with credentials cannot be used; ClosedError.
        """
        return Replicator(
            topic, target, self.link(target, cluster), policy, cluster_ids=self._cluster_ids,
            partitions=partitions or 0, explain=partial(explained, target, cluster),
        )  # fmt: skip

    def link(self, target: str, cluster: RemoteCluster) -> TargetLink:
        """Return the link to a target; it is made if there is none, or if the cluster has changed.

        Raises ClusterCredentialsError if a file with credentials cannot be used; ClosedError.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("the cluster was closed")
            known = self._links.get(target)
            if known is not None and known.cluster == cluster:
                return known.link
            secret, tls = cluster.secret(target), cluster.tls(target)
            client = connect(cluster.url, secret=secret, tls=tls, timeout=TIMEOUT_S, cluster=cluster.id)
            link = TargetLink(client)
            self._links[target] = _OpenLink(cluster, link, secret)
        if known is not None:
            known.link.close()
        return link

    def _cluster_ids(self, names: Sequence[str]) -> frozenset[bytes]:
        with self._lock:
            return frozenset(self._ids[name] for name in names if name in self._ids)

    def retain(self, clusters: Mapping[str, RemoteCluster]) -> None:
        """Close the links to clusters that were removed, and read the files with secrets again.

        Args:
            clusters: the clusters that there are, by name.
        """
        with self._lock:
            self._ids = {name: cluster.id for name, cluster in clusters.items()}
            removed = [self._links.pop(name).link for name in self._links.keys() - clusters.keys()]
            links = dict(self._links)
        for link in removed:
            link.close()
        for name, opened in links.items():
            try:
                renewed = opened.cluster.secret(name)
            except GeoError as error:  # the one that was read before may still be good
                logger.warning("%s", error)
                continue
            if renewed is not None and opened.secret is not None:
                opened.secret.take(renewed)

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._is_closed = True
            links, self._links = list(self._links.values()), {}
        with ExitStack() as stack:
            for opened in links:
                stack.callback(opened.link.close)


def explained(target: str, cluster: RemoteCluster, error: Exception) -> str:
    """Return the text of an error of a replicator; that of a refused connection names the file with the secret."""
    if isinstance(error, HandshakeError | NotConnectedError | DisconnectedError):
        return str(connection_error(target, cluster, error))
    return str(error)
