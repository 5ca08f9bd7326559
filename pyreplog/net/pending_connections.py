"""Connections whose hello is not over: nobody knows yet who they are, so they may take no room of those who said so."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pyreplog.net.pending_connection import PendingConnection

_NETWORK_BITS = 64


class PendingConnections:
    """At most `limit` of them, and `address_limit` of one address. Not thread-safe.

    The newest is always admitted; who has waited longest, at the address that has most, makes room: the hello of a peer
    that means to say it takes a round trip or two, that of one that does not takes until its time is up.
    """

    def __init__(self, limit: int, address_limit: int) -> None:
        self._limit, self._address_limit = limit, address_limit
        self._places: dict[PendingConnection, str] = {}
        self._addresses: dict[str, dict[PendingConnection, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[PendingConnection]:
        return iter(list(self._places))

    def add(self, connection: PendingConnection, address: str) -> PendingConnection | None:
        """The one that has to make room; it is not among them any more."""
        place = _place_of(address)
        here = self._addresses.get(place, {})
        former = None
        if len(here) >= self._address_limit:
            former = next(iter(here))
        elif len(self._places) >= self._limit:
            most = max(self._addresses.values(), key=len)
            former = next(iter(most))
        if former is not None:
            self.discard(former)
        self._places[connection] = place
        self._addresses.setdefault(place, {})[connection] = None
        return former

    def discard(self, connection: PendingConnection) -> None:
        """It is over."""
        place = self._places.pop(connection, None)
        if place is None:
            return
        here = self._addresses[place]
        del here[connection]
        if not here:
            del self._addresses[place]

    def clear(self) -> None:
        self._places.clear()
        self._addresses.clear()


def _place_of(address: str) -> str:
    """What counts as one address: of IPv6 a network, in which a host may have any number of them."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - _NETWORK_BITS))
