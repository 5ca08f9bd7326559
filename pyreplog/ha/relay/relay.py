"""Relay: a relay log that receives from a master over TCP, with its applier."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Unpack

from pyreplog.clock import Clock, SystemClock
from pyreplog.config import LogConfig
from pyreplog.errors import NotAReplicaError, NotConnectedError
from pyreplog.ha import logs
from pyreplog.ha.config import NodeConfig
from pyreplog.ha.node_context import NodeContext
from pyreplog.ha.protocol.members import MembersFile
from pyreplog.ha.relay.applier import Applier
from pyreplog.ha.relay.apply_task import Apply
from pyreplog.ha.relay.config import ApplierConfig, ApplierSettings
from pyreplog.ha.relay.position import PositionStore
from pyreplog.ha.replica import Replica
from pyreplog.handles import Handle
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.replica import is_replica
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from pyreplog.stream.fields import NAME_BYTES_MAX
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import TermsFile

logger = logging.getLogger(__name__)

_LOG = LogConfig()


class Relay(Handle):
    """A relay log that receives from a master over TCP, and an applier that hands its entries to a function.

    A relay is an observer of the group: elections do not count it. The constructor waits until the master accepts it
    for the first time, at most `timeout` seconds. Later the master may be away, and its address may change (`follow`).
    Parts of the relay log that were lost, or removed with `discard`, are received again. Call `applier.start` to begin
    to apply.

    Args:
        path: directory of the relay log.
        master: address of the master, "host:port".
        apply: called with each batch; see `Apply`.
        store: stores the applied position: `SqlPosition` (exactly once) or `PositionFile` (at least once).
        name: name of the relay at the master, unique there; None: host and directory.
        log: settings of the relay log. Its segments have the size of the master's.
        start: number of the first entry to apply if no position is stored.
        timeout: seconds to wait for the master if there is no relay log yet.
        secret: the secret of the group; None: no authentication.
        tls: TLS context of a client; None: no TLS.
        limits: limits of connections.
        clock: source of time; None: the clock of the machine.
        files: access to the disk, which tests replace; None: the disk.
        settings: fields of `ApplierConfig` as keywords.

    Raises:
        NotConnectedError: there is no relay log yet, and the master cannot be reached.
        NotAReplicaError: the directory holds a log of its own.
        LockedError: another process has the relay log open.
        ConfigError: a setting is unknown or outside its bounds.
        ReplogError: as `Applier`.

    Example:
        ```python
        store = PositionFile("applied.pos")
        with Relay("relay/orders", master="host-a:7001", apply=apply, store=store) as relay:
            relay.applier.start()
            relay.applier.wait_applied(41, timeout=10.0)
        ```

    See docs/relay.md.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, master: str, apply: Apply, store: PositionStore,
        name: str | None = None, log: LogConfig = _LOG, start: int | None = None, timeout: float = 30.0,
        secret: bytes | None = None, tls: ssl.SSLContext | None = None, limits: Limits | None = None,
        clock: Clock | None = None, files: Files | None = None, **settings: Unpack[ApplierSettings],
    ) -> None:  # fmt: skip
        self._purges = ApplierConfig.of(settings).purge  # also checks the settings before a master is contacted
        address, directory, files = parse_address(master), Path(path), files or RealFiles()
        if checkpoints.load(directory) is not None and not is_replica(directory):
            raise NotAReplicaError(directory)
        self._context = NodeContext(
            path=directory, config=NodeConfig(name=name or _name(directory), log=log, observer=True), files=files,
            clock=clock or SystemClock(), terms=TermsFile(directory, files), members=MembersFile(directory, files),
            limits=limits or Limits(), secret=None if secret is None else Secret(secret), tls=(None, tls),
            reactor=Reactor(clock=clock),
        )  # fmt: skip
        super().__init__(f"relay in {directory}")
        self._applier: Applier | None = None
        self._failure: Exception | None = None
        self._applier_made = threading.Event()
        self._replica: Replica | None = None

        def make(log: MirrorLog) -> Applier:
            return Applier(log, apply, store, start=start, receiver=self._replica, clock=clock, **settings)

        self._make_applier = make
        try:
            self._replica = Replica(
                self._context, logs.open_mirror(self._context), None, self._on_log, on_landed=self._on_landed,
                holds=False,
            )  # fmt: skip
            if self._replica.log is not None:
                self._on_log(self._replica.log)
            self._context.reactor.start()
            self._replica.follow(address)
            self._wait(timeout, self._replica)
        except BaseException:
            self.close()
            raise

    def _on_log(self, log: MirrorLog) -> None:
        """Create the applier for a new log, before the log grows, so that the applier sees all growth."""
        if self._applier is not None:
            logger.error("%s begins anew, at entry %d: open this relay again", log.path, log.start)
            return
        if not self._purges:
            log.retention_floor = 1 << 62  # no floor; with `purge` the applier sets it
        try:
            self._applier = self._make_applier(log)
        except Exception as error:
            self._failure = error
        self._applier_made.set()

    def _wait(self, timeout: float, replica: Replica) -> None:
        if not self._applier_made.wait(timeout):
            raise NotConnectedError(
                f"{self._context.path}: there is no relay log yet, and the master was not reached in time: "
                f"{replica.trouble}"
            )
        if self._failure is not None:
            raise self._failure

    def _on_landed(self) -> None:
        replica, applier = self._replica, self._applier
        if applier is not None and replica is not None and replica.log is not None:
            applier.note_received(replica.log.received_end)

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def applier(self) -> Applier:
        """The applier, with the methods to start, stop and wait, and its progress."""
        self._check_open()
        assert self._applier is not None, "it is made before a relay is open"
        return self._applier

    @property
    def trouble(self) -> str:
        """Why the relay does not receive now; "": it receives."""
        return "" if self._replica is None else self._replica.trouble

    def follow(self, master: str) -> None:
        """Follow another master, or the same one at another address.

        Args:
            master: "host:port".

        Raises:
            InvalidArgumentError: the address is malformed.
            ClosedError: the relay was closed.
        """
        self._check_open()
        if self._replica is not None:
            self._replica.follow(parse_address(master))

    def _do_close(self) -> None:
        try:
            if self._applier is not None:
                self._applier.close()
        finally:
            try:
                if self._replica is not None:
                    self._replica.close()
            finally:
                self._context.reactor.close()


def _name(directory: Path) -> str:
    """Return the default name of a relay, which no other relay has."""
    return f"{socket.gethostname()}:{directory.absolute()}".encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")
