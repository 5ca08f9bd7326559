"""BookieNode: a bookie process with its directory, port, registration and garbage collection."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator

from pyreplog.arguments import as_int
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledger_list import LedgerList, LedgerMetadataView
from pyreplog.bookie.metrics import bookie_metrics
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import FEATURES
from pyreplog.bookie.registration import Availability, Registration
from pyreplog.bookie.scrub import ScrubProgress
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
from pyreplog.net.sockets import address_text

logger = logging.getLogger(__name__)

_STEPS_MAX = 16


class BookieNode(Handle):
    """A bookie that serves over TCP, on a thread of its own, until `drain` or `close`.

    Call `maintain` about every second.

    Args:
        path: directory of the bookie.
        name: name of the bookie in the metadata.
        store: metadata store; the caller closes it.
        config: settings; None: the defaults.
        ledgers: metadata of ledgers in the same store.
        host: address to listen at.
        port: port to listen at; 0: a free one.
        advertise: "host:port" that clients connect to; None: `host` and `port`.
        rack: rack of the bookie, for placement; "": none.
        make_new: let a bookie whose directory was lost start anew, without its entries.
        older_metadata: go on with metadata from a backup, and lose the ledgers that were created since.
        lease_ms: milliseconds for which a dead bookie counts as available.
        secret: secret of the cluster; None: no authentication.
        tls: TLS context of a server; None: no TLS.
        limits: limits of connections; None: the defaults.
        busy_poll_us: microseconds that the thread polls its connections before it sleeps.
        clock: source of time; None: the clock of the machine.

    Raises:
        InvalidArgumentError: `rack` cannot be printed, or an argument is out of range.
        ReplogError: as `open_bookie`, and as the metadata store.
        OSError: the address to listen at is in use.
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
        lease_ms: int = 10_000,
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
            self.bookie.log, self.bookie.config, listed, self.bookie.with_bookie,
            on_metadata_read=self.bookie.on_metadata_read, damaged=self.bookie.scrubber.damaged,
        )  # fmt: skip
        self._collect_us = self._clock.monotonic_us() + self.bookie.config.collect_interval_ms * 1000
        self._scrub_us = self._verified_since_us = 0
        self._reactor = Reactor(clock=clock, busy_poll_us=busy_poll_us)
        self._service = BookieService(self._reactor, self.bookie, ledgers)
        try:
            self._server = Server(
                self._reactor, self._service, host=host, port=port, identity=self._hello(), secret=secret, tls=tls,
                limits=limits,
            )  # fmt: skip
        except BaseException:
            self._reactor.close()
            self.bookie.close()
            raise
        self._registration = Registration(
            store, self.identity.id, self._availability, as_int("lease_ms", lease_ms) / 1000
        )
        super().__init__(f"bookie {self.identity.id}")
        self._reactor.start()
        try:
            self._registration.refresh()
        except BaseException:
            self.close()
            raise

    def _hello(self) -> NodeIdentity:
        own = self.identity
        return NodeIdentity(
            node=own.name, incarnation=own.incarnation, cluster=own.cluster.hex(), service=SERVICE, features=FEATURES
        )

    @property
    def address(self) -> str:
        """The address that clients connect to, "host:port"."""
        if self._advertise is not None:
            return self._advertise
        return address_text(self._server.address)

    @property
    def server(self) -> Server:
        """The server: its address and its connections. For tests and for operators."""
        return self._server

    @property
    def service(self) -> BookieService:
        """The requests that wait. For tests and for operators."""
        return self._service

    def _availability(self) -> Availability:
        since_us = self._verified_since_us = self.bookie.scrubber.verified_since_us(self._verified_since_us)
        return Availability(
            self.address,
            self._rack,
            self.bookie.read_only,
            self.bookie.free_bytes,
            verified_since_us=since_us,
            scrub=self.bookie.scrubber.report().last,
        )

    def metrics(self) -> Iterator[Metric]:
        """Return the metrics of the bookie, for `pyreplog.metrics`. Any thread. Raises ClosedError and ForkedError."""
        self._check_open()
        return bookie_metrics(self.identity.id, self.bookie, self._collector, self._server)

    # ---- while it runs --------------------------------------------------------------------------------------

    def scrub_now(self, bytes_per_s: int | None = None) -> None:
        """Verify all segments now; the next calls of `maintain` do that. Raises ClosedError and ForkedError.

        bytes_per_s: bytes of segments in a second; None: the highest rate, `scrub_bytes_per_s`.
        """
        self._check_open()
        self.bookie.scrubber.scrub_now(bytes_per_s)

    def scrub_progress(self) -> ScrubProgress:
        """Return the progress of the verification of the segments. Any thread. Raises ClosedError and ForkedError."""
        self._check_open()
        return self.bookie.scrubber.progress()

    def maintain(self) -> None:
        """Update the registration, collect garbage and verify segments.

        Call it about every second, always on the same thread. Errors of the metadata store are logged, and the next
        call tries again.

        Raises:
            PoisonedError: the disk failed; close this bookie, so that others replace it.
            ClosedError: the bookie was closed.
        """
        self._check_open()
        if self.bookie.failure is not None:
            raise PoisonedError(self.bookie.failure)
        try:
            self._registration.refresh()
            if self._clock.monotonic_us() >= self._collect_us:
                self._collect()
        except ReplogError as error:
            logger.warning("%s: %s", self._label, error)
        if self._clock.monotonic_us() >= self._scrub_us or self.bookie.scrubber.is_requested:
            self._scrub_us = self._clock.monotonic_us() + int(self.bookie.scrubber.step() * 1e6)

    def _collect(self) -> None:
        """Run a few steps of garbage collection. The next call continues; the next round begins after the interval."""
        for _ in range(_STEPS_MAX):
            if not self._collector.step():
                self._collect_us = self._clock.monotonic_us() + self.bookie.config.collect_interval_ms * 1000
                return

    # ---- closing --------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Refuse new requests, answer the pending ones, and close.

        Args:
            timeout: seconds for the answers.

        Returns:
            Whether all requests were answered.
        """
        self._check_open()
        self._registration.close()
        self.bookie.with_bookie(lambda bookie: bookie.end_polls())
        answered = self._server.drain(timeout)
        self.close()
        return answered

    def _do_close(self) -> None:
        self._registration.close()
        self._server.close()
        self._service.close()
        self._reactor.close()
        self.bookie.close()
