"""A connected client follows the registrations of bookies: names and values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.registration import AVAILABLE, Availability, availability_key
from pyreplog.errors import MetadataUnavailableError
from pyreplog.ledger.registrations import Registrations
from pyreplog.metadata import MetadataStore, open_store
from pyreplog.metadata.memory import MemoryStore
from tests.ledger.fault_injection import FailingStore
from tests.waiting import until


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    urls: dict[str, Callable[[], Any]] = {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:{tmp_path / 'metadata'}",
        "zookeeper": lambda: request.getfixturevalue("zookeeper_url"),
    }
    with open_store(urls[request.param]()) as store:
        yield store


class Follower:
    """Follows registrations, and keeps the values that were reported."""

    def __init__(self, store: Any) -> None:
        self.changed: list[Set[str]] = []
        self.again: list[Callable[[], None]] = []
        self.registrations = Registrations(store, self.changed.append, self.again.append)

    def knows(self, **expected: Availability) -> bool:
        return dict(self.registrations.items()) == expected


@pytest.fixture
def follower(store: MetadataStore) -> Iterator[Follower]:
    follower = Follower(store)
    assert follower.registrations.wait(30)
    yield follower
    follower.registrations.close()


def put(store: MetadataStore, bookie: str, value: Availability) -> None:
    stored = store.get(availability_key(bookie))
    assert stored is not None
    store.put(availability_key(bookie), value.encode(), stored.version)


def test_a_value_that_changes_is_read_again(store: MetadataStore, follower: Follower) -> None:
    """A bookie becomes read-only and writable again any number of times; its free space is followed, too."""
    first, other = Availability("one:1", free_bytes=1 << 30), Availability("other:1", free_bytes=1 << 30)
    store.create(availability_key("one"), first.encode())
    store.create(availability_key("other"), other.encode())
    until(lambda: follower.knows(one=first, other=other))
    for read_only in (True, False, True, False):
        value = Availability("one:1", read_only=read_only, free_bytes=1 << 20 if read_only else 1 << 30)
        put(store, "one", value)
        until(partial(follower.knows, one=value, other=other))
    assert {"one"} in follower.changed


def test_registration_that_was_deleted_and_created_again_is_followed(store: MetadataStore, follower: Follower) -> None:
    key, before, after = availability_key("one"), Availability("here:1"), Availability("there:1")
    store.create(key, before.encode())
    until(lambda: follower.knows(one=before))
    stored = store.get(key)
    assert stored is not None
    store.delete(key, stored.version)
    until(follower.knows)
    store.create(key, before.encode())
    until(lambda: follower.knows(one=before))
    put(store, "one", after)
    until(lambda: follower.knows(one=after))


def test_registration_that_cannot_be_read_is_kept_and_read_again() -> None:
    with MemoryStore() as memory:
        store = FailingStore(memory)
        availability = Availability("one:1")
        memory.create(availability_key("one"), availability.encode())
        follower = Follower(store)
        until(lambda: follower.knows(one=availability))
        settled = threading.Event()  # the first call of the watch of this value has ended
        with memory.watch(AVAILABLE, lambda _: settled.set()):
            assert settled.wait(30)
        store.fail("get_many", *[MetadataUnavailableError("away")] * 2)
        memory.create(availability_key("two"), availability.encode())
        until(lambda: follower.again)
        assert follower.knows(one=availability)
        while not follower.knows(one=availability, two=availability):
            until(lambda: follower.again).pop(0)()
        follower.registrations.close()
