"""The servers of this cluster that replicate topics: each registers a key under a lease, which the others read."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import mmh3

from pyreplog.errors import ClosedError, InvalidMetadataError, KeyExistsError, LeaseLostError, OutcomeUnknownError
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number

SERVERS = "/geo/servers"
LEASE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class GeoServer(MetadataValue):
    """A process that replicates topics.

    Attributes:
        address: "host:port" of its topic server; "": only code in its process reaches its topics.
        host: name of its host.
        pid: id of its process.
    """

    KIND: ClassVar[str] = "server of geo-replication"

    address: str
    host: str
    pid: int

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"address": field(fields, "address", str), "host": field(fields, "host", str),
                "pid": number(fields, "pid")}  # fmt: skip


def list_servers(store: MetadataStore) -> dict[str, GeoServer]:
    """Return the live servers by their names, without those whose values cannot be read.

    Raises:
        ReplogError: errors of the store.
    """
    names = store.list(SERVERS)
    servers = {}
    for name, stored in zip(names, store.get_many([f"{SERVERS}/{name}" for name in names]), strict=True):
        with suppress(InvalidMetadataError):
            if stored is not None:
                servers[name] = GeoServer.decode(stored.value)
    return servers


def choose_server(topic: str, servers: Iterable[str]) -> str:
    """Return the server that opens a topic without an owner, by rendezvous hashing.

    All servers choose the same one. When a server leaves, only its topics move to the others, and evenly.

    Args:
        topic: name of the topic.
        servers: names of the live servers, at least one.
    """
    return max(servers, key=lambda server: (mmh3.hash64(f"{server}/{topic}", signed=False)[0], server))


class ServerRegistration(Handle):
    """The key of this process. Any thread may use it; calls wait for the metadata store.

    Args:
        store: metadata store. Close this object first.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.name = uuid.uuid4().hex
        """Name of the key, unique to this process."""
        self._lock = threading.Lock()  # held while the lease is made
        self._lease: Lease | None = None
        self._address: str | None = None
        super().__init__("registration for geo-replication")

    def keep(self, address: str) -> bool:
        """Create the key; create it again after its lease was lost or the address changed.

        Args:
            address: "host:port" of the topic server of this process, or "".

        Returns:
            Whether the key was created just now.

        Raises:
            LeaseLostError: the lease was lost as soon as it was made. Call `keep` again later.
            ReplogError: errors of the store.
        """
        with self._lock:
            self._check_open()
            if self._address == address and self._state() is not LeaseState.LOST:
                return False
            if self._lease is not None:
                self._lease.close()
            self._lease, self._address = self._store.lease(LEASE_S), None
            make_part_of(self._lease, self)
            server = GeoServer(address=address, host=socket.gethostname(), pid=os.getpid())
            key = f"{SERVERS}/{self.name}"
            try:
                self._lease.create(key, server.encode())
            except KeyExistsError:  # of the former lease, which ends
                raise LeaseLostError(f"{key} still exists under a former lease; it will vanish") from None
            except OutcomeUnknownError:
                if self._store.get(key) is None:
                    raise
            self._address = address
            return True

    def _state(self) -> LeaseState:
        try:
            return LeaseState.LOST if self._lease is None else self._lease.state
        except ClosedError:
            return LeaseState.LOST

    def _do_close(self) -> None:
        with self._lock:
            if self._lease is not None:
                self._lease.close()
