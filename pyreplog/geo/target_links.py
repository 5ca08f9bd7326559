"""TargetLinks: the connections of one process to all target clusters; makes the replicators that use them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    GeoError,
    HandshakeError,
    InvalidMessageError,
    NotConnectedError,
    TopicExistsError,
)
from pyreplog.geo.clusters import RemoteCluster, connection_error, lasting_error
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import TargetLink
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.net.handshake import Secret
from pyreplog.net.tls import TlsContext
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Seconds within which a server of a target has to answer the opening of a session."""
THREADS = 4
"""Most replicators that read their stored positions at a time: the others do not wait for a few that take long."""
CLOSE_S = 5.0


class _OpenLink(NamedTuple):
    """An open link, with the credentials that it was made with."""

    cluster: RemoteCluster
    link: TargetLink
    secret: Secret | None
    tls: TlsContext | None
    stamps: tuple[object, ...]  # of its credential files when they were read


class TargetLinks:
    """One link to each target cluster, which the topics of this process share.

    Implements `replicator_manager.ReplicatorFactory`. Any thread may use it. Close it after the replicators.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the attributes below
        self._links: dict[str, _OpenLink] = {}
        self._ids: dict[str, bytes] = {}  # of clusters, by name
        self._pool: ThreadPool | None = None
        self._is_closed = False

    def make(
        self, topic: Topic, target: str, cluster: RemoteCluster, policy: ReplicationPolicy, partitions: int | None
    ) -> Replicator:
        """Make the replicator of a topic and a target; see `replicator_manager.ReplicatorFactory`.

        Raises ClusterCredentialsError if a file with credentials cannot be used; ClosedError.
        """
        return Replicator(
            topic, target, self.link(target, cluster), policy, cluster_ids=self._cluster_ids,
            partitions=partitions or 0, explain=partial(explained, target, cluster), work=self._work,
            cluster=cluster.id,
        )  # fmt: skip

    def _work(self, job: Callable[[], object]) -> None:
        """Run a job of a replicator, which waits for metadata and ledgers; after `close` it is dropped."""
        with self._lock:
            if self._is_closed:
                return
            if self._pool is None:
                self._pool = ThreadPool(THREADS, "pyreplog-replicators")
            self._pool.submit(job)

    def link(self, target: str, cluster: RemoteCluster) -> TargetLink:
        """Return the link to a target; make one if none is open, or if the cluster's description has changed.

        Raises ClusterCredentialsError if a file with credentials cannot be used; ClosedError.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("the cluster was closed")
            known = self._links.get(target)
            if known is not None and known.cluster == cluster:
                return known.link
            stamps, secret, context = cluster.file_stamps(), cluster.secret(target), cluster.tls(target)
            tls = None if context is None else TlsContext(context)
            client = connect(cluster.url, secret=secret, tls=tls, timeout=TIMEOUT_S, cluster=cluster.id)
            link = TargetLink(client)
            self._links[target] = _OpenLink(cluster, link, secret, tls, stamps)
        if known is not None:
            known.link.close()
        return link

    def _cluster_ids(self, names: Sequence[str]) -> frozenset[bytes]:
        with self._lock:
            return frozenset(self._ids[name] for name in names if name in self._ids)

    def retain(self, clusters: Mapping[str, RemoteCluster]) -> None:
        """Close the links to clusters that are not in `clusters`, and note the ids of the others.

        Args:
            clusters: the known clusters, by name.
        """
        with self._lock:
            self._ids = {name: cluster.id for name, cluster in clusters.items()}
            removed = [self._links.pop(name).link for name in self._links.keys() - clusters.keys()]
        for link in removed:
            link.close()

    def renew(self) -> None:
        """Read changed credential files again, for later connections.

        If a file cannot be used, the error is logged, and the credentials that were read before stay in use.
        """
        with self._lock:
            links = dict(self._links)
        for name, opened in links.items():
            stamps = opened.cluster.file_stamps()
            if stamps == opened.stamps:
                continue
            try:
                secret, tls = opened.cluster.secret(name), opened.cluster.tls(name)
            except GeoError as error:
                logger.warning("%s", error)
                continue
            if secret is not None and opened.secret is not None:
                opened.secret.take(secret)
            if tls is not None and opened.tls is not None:
                opened.tls.replace(tls)
            logger.info("cluster %s: its credential files were read again; new connections use them", name)
            with self._lock:
                if self._links.get(name) is opened:
                    self._links[name] = opened._replace(stamps=stamps)

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._is_closed = True
            links, self._links = list(self._links.values()), {}
            pool, self._pool = self._pool, None
        with ExitStack() as stack:
            if pool is not None:
                stack.callback(pool.close, CLOSE_S)
            for opened in links:
                stack.callback(opened.link.close)


def explained(target: str, cluster: RemoteCluster, error: Exception) -> str:
    """Return the text of a replicator's error, with the remedy; for a refused connection it names the file with the
    secret.
    """
    if isinstance(error, TopicExistsError):
        return (
            f"cluster {target}: {error}. A topic has partitions in both clusters or in none: delete it in one of them, "
            f"or take {target} off its targets (`geo set`)"
        )
    if isinstance(error, HandshakeError | NotConnectedError | DisconnectedError):
        return str(connection_error(target, cluster, error))
    if isinstance(error, InvalidMessageError) and lasting_error(error) is not None:
        return (
            f"cluster {target}: a server at {cluster.url} gave a malformed answer: {error}. Check the URL, and the "
            "version of its servers"
        )
    return str(error)
