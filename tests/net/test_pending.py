"""Which of the connections that have not said hello makes room."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.net.pending_connections import PendingConnections


class Greeting:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def add(pending: PendingConnections, name: str, address: str) -> str | None:
    connection: Any = Greeting(name)
    former = pending.add(connection, address)
    return None if former is None else repr(former)


def names(pending: PendingConnections) -> list[str]:
    return [repr(connection) for connection in pending]


def test_the_oldest_of_the_address_that_has_most() -> None:
    pending = PendingConnections(4, 3)
    for name, address in (("slow", "10.0.0.1"), ("a", "10.0.0.2"), ("b", "10.0.0.2"), ("c", "10.0.0.2")):
        assert add(pending, name, address) is None
    assert add(pending, "d", "10.0.0.2") == "a"  # its own
    assert add(pending, "other", "10.0.0.3") == "b"
    assert names(pending) == ["slow", "c", "d", "other"] and len(pending) == 4


def test_discarded_connections_free_their_slots() -> None:
    pending = PendingConnections(2, 2)
    for name in "ab":
        add(pending, name, "10.0.0.1")
    for connection in pending:
        pending.discard(connection)
        pending.discard(connection)
    assert len(pending) == 0 and add(pending, "c", "10.0.0.1") is None
    pending.clear()
    assert add(pending, "d", "10.0.0.1") is None and names(pending) == ["d"]


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_ipv6_prefix_and_mapped_ipv4_addresses_count_as_one_address(name: str, other: str, same: bool) -> None:
    pending = PendingConnections(9, 1)
    assert add(pending, "one", name) is None
    assert add(pending, "other", other) == ("one" if same else None)
