"""A bookie as a process runs it: its directory, its port, its registration, its garbage collection."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator

from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledgerlist import LedgerList, LedgerMetadataView
from pyreplog.bookie.metrics import bookie_metrics
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.registration import Availability, Registration
from pyreplog.bookie.service import SERVICE, BookieService
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import InvalidArgumentError, PoisonedError, ReplogError
from pyreplog.handles import Handle
from pyreplog.metadata.store import MetadataStore
from pyreplog.metrics import Metric
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server

logger = logging.getLogger(__name__)

_STEPS_MAX = 16


class BookieNode(Handle):
    """Serves, in a thread of its own, from construction to `drain` or `close`.

    path, name, store, config, ledgers, make_new, older_metadata: as of `open_bookie`. host, port (0: a free one),
    secret, tls, limits: as of net.Server. advertise: the address that clients are told (default: where it listens).
    rack: for placement.
    lease_s: seconds for which a dead bookie counts as available. Errors: those of `open_bookie`, of net.Server, and of
    the store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        store: MetadataStore,
        config: BookieConfig | None = None,
        *,
        ledgers: LedgerMetadataView,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        rack: str = "",
        make_new: bool = False,
        older_metadata: bool = False,
        lease_s: float = 10.0,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        busy_poll_us: int = 0,
        clock: Clock | None = None,
    ) -> None:
        if not rack.isprintable():
            raise InvalidArgumentError(f"rack: expected a name that can be printed, found {rack!r}")
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._rack, self._advertise = rack, advertise
        self.identity, self.bookie = open_bookie(
            path, name, store, config, ledgers=ledgers, make_new=make_new, older_metadata=older_metadata, clock=clock
        )
        listed = LedgerList(store, ledgers, self.identity)
        self._collector = Collector(
            self.bookie.log, self.bookie.config, listed, self.bookie.with_bookie, on_look=self.bookie.when_collected
        )
        self._collect_us = self._clock.monotonic_us() + self.bookie.config.collect_interval_ms * 1000
        self._reactor = Reactor(clock=clock, busy_poll_us=busy_poll_us)
        self._service = BookieService(self._reactor, self.bookie, ledgers.admits)
        try:
            self._server = Server(
                self._reactor, self._service, host=host, port=port, identity=self._hello(), secret=secret, tls=tls,
                limits=limits,
            )  # fmt: skip
        except BaseException:
            self._reactor.close()
            self.bookie.close()
            raise
        self._registration = Registration(store, self.identity.id, self._availability, lease_s)
        super().__init__(f"bookie {self.identity.id}")
        self._reactor.start()
        try:
            self._registration.refresh()
        except BaseException:
            self.close()
            raise

    def _hello(self) -> NodeIdentity:
        mine = self.identity
        return NodeIdentity(node=mine.name, incarnation=mine.incarnation, cluster=mine.cluster.hex(), service=SERVICE)

    @property
    def address(self) -> str:
        """As clients are told: host:port."""
        if self._advertise is not None:
            return self._advertise
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def server(self) -> Server:
        """The server: its address and its connections. For tests and for operators."""
        return self._server

    @property
    def service(self) -> BookieService:
        """The requests that wait. For tests and for operators."""
        return self._service

    def _availability(self) -> Availability:
        return Availability(self.address, self._rack, self.bookie.read_only, self.bookie.free_bytes)

    def metrics(self) -> Iterator[Metric]:
        """Its numbers, for `pyreplog.metrics`. Any thread. Errors: ClosedError, ForkedError."""
        self._check_open()
        return bookie_metrics(self.identity.id, self.bookie, self._collector, self._server)

    # ---- while it runs --------------------------------------------------------------------------------------

    def keep(self) -> None:
        """To be called about every second, by one thread: what has changed is registered, garbage is collected.

        Trouble with the metadata is logged and tried again. Errors: PoisonedError, the disk failed: this bookie is to
        be closed, so that others take its place.
        """
        self._check_open()
        if self.bookie.failure is not None:
            raise PoisonedError(self.bookie.failure)
        try:
            self._registration.refresh()
            if self._clock.monotonic_us() >= self._collect_us:
                self._collect()
        except ReplogError as error:
            logger.warning("%s: %s", self._what, error)

    def _collect(self) -> None:
        """A few steps; the round goes on in the next call, or another one begins after the interval."""
        for _ in range(_STEPS_MAX):
            if not self._collector.step():
                self._collect_us = self._clock.monotonic_us() + self.bookie.config.collect_interval_ms * 1000
                return

    # ---- the end --------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, answer those there are, for at most so many seconds, and close.

        Returns whether all were answered.
        """
        self._check_open()
        self._registration.close()
        self.bookie.with_bookie(lambda bookie: bookie.end_polls())
        answered = self._server.drain(timeout_s)
        self.close()
        return answered

    def _let_go(self) -> None:
        self._registration.close()
        self._server.close()
        self._service.close()
        self._reactor.close()
        self.bookie.close()
