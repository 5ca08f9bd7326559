"""TopicServer: answers for the topics of a cluster that its process owns, to other processes and machines."""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from typing import Protocol

from pyreplog.handles import Handle
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.topic.client.remote.connection_pool import LIMITS
from pyreplog.topic.model.wire.protocol import EXTENDED_FROM, VERSION
from pyreplog.topic.owner.ownership import LEASE_S
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic.server.service import SERVICE, TopicService


class OwnsTopics(Protocol):
    """What a TopicServer needs of a `Cluster`."""

    @property
    def topics(self) -> Topics: ...


class TopicServer(Handle):
    """Serves, in a thread of its own, from construction to `drain` or `close`. Topics are opened when clients ask for
    them; those that another process owns are told where that one answers. Any thread may call anything.

    cluster: whose topics have not been used yet; it is closed behind this. host, port (0: a free one), secret, tls,
    limits: as of net.Server. advertise: the address that clients are told (default: where it listens). lease_s: seconds
    after which others take the topics of a server that died.
    Errors: those of net.Server; InvalidArgumentError, topics are in use already.
    """

    def __init__(
        self,
        cluster: OwnsTopics,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._topics = cluster.topics
        self._service = TopicService(self._topics)
        with ExitStack() as undo:
            undo.callback(self._service.close)
            self._reactor = undo.enter_context(Reactor())
            self._server = undo.enter_context(
                Server(
                    self._reactor, self._service, host=host, port=port,
                    identity=NodeIdentity(service=SERVICE, version=VERSION, extended_from=EXTENDED_FROM),
                    secret=Secret.of(secret), tls=tls, limits=limits or LIMITS,
                )
            )  # fmt: skip
            at, bound = self._server.address
            self.address = advertise or (f"[{at}]:{bound}" if ":" in at else f"{at}:{bound}")
            self._topics.serve_at(self.address, lease_s=lease_s)
            undo.pop_all()
        super().__init__(f"topic server at {self.address}")
        self._reactor.start()

    @property
    def server(self) -> Server:
        """The server: its address and its connections. For tests and for operators."""
        return self._server

    @property
    def service(self) -> TopicService:
        """The requests and sessions of clients. For tests and for operators."""
        return self._service

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._server.connections)

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, answer those there are, for at most so many seconds, and close; returns whether all
        were answered. Consumers are told to go elsewhere; topics are given away when the cluster is closed."""
        self._check_open()
        self._service.leave()
        answered = self._server.drain(timeout_s)
        self.close()
        return answered

    def _let_go(self) -> None:
        with ExitStack() as rest:
            rest.callback(self._reactor.close)
            rest.callback(self._service.close)
            rest.callback(self._server.close)
