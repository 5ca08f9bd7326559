"""PendingConnections: unauthenticated connections, limited so that they do not displace authenticated ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pyreplog.net.pending_connection import PendingConnection

_NETWORK_BITS = 64


class PendingConnections:
    """At most `limit` pending connections, and `address_limit` of one address. Not thread-safe.

    The newest is always admitted. The one that has waited longest, at the address that has most, is closed instead: the
    hello of an honest peer takes a round trip or two, that of any other takes until the timeout.
    """

    def __init__(self, limit: int, address_limit: int) -> None:
        self._limit, self._address_limit = limit, address_limit
        self._places: dict[PendingConnection, str] = {}
        self._addresses: dict[str, dict[PendingConnection, None]] = {}  # ordered by age, the oldest first

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[PendingConnection]:
        return iter(list(self._places))

    def add(self, connection: PendingConnection, address: str) -> PendingConnection | None:
        """Add a connection; return the one that was removed in its place and has to be closed, or None."""
        place = _place_of(address)
        connections = self._addresses.get(place, {})
        former = None
        if len(connections) >= self._address_limit:
            former = next(iter(connections))
        elif len(self._places) >= self._limit:
            most = max(self._addresses.values(), key=len)
            former = next(iter(most))
        if former is not None:
            self.discard(former)
        self._places[connection] = place
        self._addresses.setdefault(place, {})[connection] = None
        return former

    def discard(self, connection: PendingConnection) -> None:
        """Remove a connection whose hello has ended."""
        place = self._places.pop(connection, None)
        if place is None:
            return
        connections = self._addresses[place]
        del connections[connection]
        if not connections:
            del self._addresses[place]

    def clear(self) -> None:
        """Remove all connections."""
        self._places.clear()
        self._addresses.clear()


def _place_of(address: str) -> str:
    """Return the unit that counts as one address: for IPv6 the network, in which a host may have any number of
    addresses."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(int(parsed) >> (128 - _NETWORK_BITS))
