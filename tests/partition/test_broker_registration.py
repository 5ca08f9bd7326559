"""Brokers register: incarnations, directories that are not theirs, stores that are not theirs, leases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import (
    CorruptionError,
    ForeignDirectoryError,
    FormatVersionError,
    InvalidArgumentError,
    InvalidMetadataError,
    MetadataUnavailableError,
    MissingIdentityError,
    OutcomeUnknownError,
    StaleDirectoryError,
    UnknownBrokerError,
    WrongIncarnationError,
)
from pyreplog.log import unclean_shutdown_marker
from pyreplog.log.files import RealFiles
from pyreplog.log.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.memory import MemoryStore
from pyreplog.partition.metadata.broker_registration import (
    IDENTITY,
    BrokerAvailability,
    BrokerLease,
    BrokerMetadata,
    available_key,
    broker_key,
    find_identity,
    register_broker,
    registrations_of,
)
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member

FILES = RealFiles()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "broker"
    directory.mkdir()
    return directory


def start(directory: Path, store: MemoryStore, name: str = "a", *, replaces: bool = False) -> Member:
    return register_broker(directory, name, store, FILES, replaces=replaces)


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the machine is in another boot."""
    monkeypatch.setattr(unclean_shutdown_marker, "boot_id", lambda: b"another boot of it")


def test_a_kill_keeps_the_incarnation(directory: Path, store: MemoryStore) -> None:
    """The pages of its logs stay in the system's cache."""
    assert [start(directory, store) for _ in range(3)] == [Member("a", 1)] * 3


def test_a_power_cut_makes_another_one(directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    start(directory, store)
    reboot(monkeypatch)
    assert [start(directory, store) for _ in range(2)] == [Member("a", 2)] * 2


def test_a_clean_stop_keeps_the_incarnation_over_a_reboot(
    directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(directory, store)
    UncleanShutdownMarker(directory, FILES).remove()
    reboot(monkeypatch)
    assert start(directory, store) == Member("a", 1)


def test_power_cut_while_logs_are_loaded_after_a_clean_stop_makes_another_incarnation(
    directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a broker is registered others count its records, so the proof of the clean stop must be gone by then."""
    assert start(directory, store) == Member("a", 1)
    UncleanShutdownMarker(directory, FILES).remove()
    assert start(directory, store) == Member("a", 1)
    reboot(monkeypatch)
    assert start(directory, store) == Member("a", 2)


class Failing(RealFiles):
    """The disk of a machine that goes down at one of the replacements of files."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def replace_small(self, path: Path, data: bytes) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise OSError("the machine went down")
        super().replace_small(path, data)


@pytest.mark.parametrize("is_first", [True, False])
def test_no_crash_on_the_way_keeps_an_incarnation_that_lost_something(
    directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """Again and again, at each replacement of a file: each start that succeeds is later than all that lost something."""
    known = 0 if is_first else start(directory, store).incarnation
    for _ in range(3):
        for calls in range(3):
            boot = b"boot %d of %d" % (calls, known)
            monkeypatch.setattr(unclean_shutdown_marker, "boot_id", lambda boot=boot: boot)
            with pytest.raises(OSError, match="went down"):
                register_broker(directory, "a", store, Failing(calls))
        after = start(directory, store).incarnation
        assert after > known
        stored = store.get(broker_key("a"))
        assert stored is not None and BrokerMetadata.decode(stored.value).incarnation == after
        known = after


class Lossy(MemoryStore):
    """Loses the replies to writes, of which it does every second one."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    def create(self, key: str, value: bytes | bytearray | memoryview) -> int:
        return self._lose(lambda: super(Lossy, self).create(key, value))

    def put(self, key: str, value: bytes | bytearray | memoryview, version: int) -> int:
        return self._lose(lambda: super(Lossy, self).put(key, value, version))

    def _lose(self, write: Callable[[], int]) -> int:
        self.lost -= 1
        if self.lost < 0:
            return write()
        if self.lost % 2:
            write()
        raise OutcomeUnknownError("the reply was lost")


def test_a_registration_survives_lost_replies_of_the_store(directory: Path) -> None:
    with Lossy() as store:
        cluster_id(store)
        store.lost = 4
        member = start(directory, store)
        stored = store.get(broker_key("a"))
        assert stored is not None and BrokerMetadata.decode(stored.value).incarnation == member.incarnation
        assert start(directory, store) == member


def test_another_directory_is_refused_and_may_replace_it(tmp_path: Path, directory: Path, store: MemoryStore) -> None:
    start(directory, store)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(WrongIncarnationError, match="made with another directory"):
        start(other, store)
    assert start(other, store, replaces=True) == Member("a", 2)
    with pytest.raises(WrongIncarnationError):
        start(directory, store)
    with pytest.raises(WrongIncarnationError):
        start(directory, store, replaces=True)
    assert start(other, store) == Member("a", 2)


def test_an_older_copy_of_the_directory_is_refused(
    tmp_path: Path, directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(directory, store)
    shutil.copytree(directory, tmp_path / "copy")
    reboot(monkeypatch)
    start(directory, store)
    with pytest.raises(StaleDirectoryError, match=r"in incarnation 1 there, and is in 2 by now"):
        start(tmp_path / "copy", store)


def test_a_store_that_does_not_know_the_broker_is_refused(directory: Path, store: MemoryStore) -> None:
    start(directory, store)
    stored = store.get(broker_key("a"))
    assert stored is not None
    store.delete(broker_key("a"), stored.version)
    with pytest.raises(UnknownBrokerError, match="does not know it"):
        start(directory, store)
    with MemoryStore() as other, pytest.raises(ForeignDirectoryError):
        start(directory, other)


def test_names_and_content_of_others(directory: Path, store: MemoryStore) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 1 to 100 letters"):
        start(directory, store, "a/b")
    (directory / "flights-0").mkdir()
    with pytest.raises(MissingIdentityError, match="flights-0"):
        start(directory, store)
    (directory / "flights-0").rmdir()
    start(directory, store)
    with pytest.raises(WrongIncarnationError, match="is of broker a, not of b"):
        start(directory, store, "b")


def test_every_damaged_byte_of_the_identity_is_noticed(directory: Path, store: MemoryStore) -> None:
    start(directory, store)
    path = directory / IDENTITY
    data, identity = path.read_bytes(), find_identity(directory)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with suppress(CorruptionError, FormatVersionError):
            assert find_identity(directory) == identity, "white space is no content"
    for size in range(len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptionError):
            find_identity(directory)


@pytest.mark.parametrize(
    "change",
    [{"incarnation": 0}, {"incarnation": -1}, {"incarnation": 1 << 63}, {"incarnation": "1"}, {"directory": "x"},
     {"rack": 3}, {"version": 0}],
    ids=str,
)  # fmt: skip
def test_damaged_metadata_are_refused(directory: Path, store: MemoryStore, change: dict[str, object]) -> None:
    start(directory, store)
    stored = store.get(broker_key("a"))
    assert stored is not None
    store.put(broker_key("a"), json.dumps({**json.loads(stored.value), **change}).encode(), stored.version)
    with pytest.raises(InvalidMetadataError):
        start(directory, store)


def test_fields_of_newer_builds_stay(directory: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    start(directory, store)
    stored = store.get(broker_key("a"))
    assert stored is not None
    store.put(broker_key("a"), json.dumps({**json.loads(stored.value), "zone": "z"}).encode(), stored.version)
    reboot(monkeypatch)
    start(directory, store)
    stored = store.get(broker_key("a"))
    assert stored is not None and json.loads(stored.value)["zone"] == "z"


def test_a_broker_lives_while_its_lease_is_held(store: MemoryStore) -> None:
    lease = BrokerLease(store, Member("a", 3), 60.0)
    lease.refresh(address="127.0.0.1:9")
    assert lease.is_held
    stored = store.get(available_key("a"))
    assert stored is not None
    living = BrokerAvailability.decode(stored.value)
    assert living == BrokerAvailability(incarnation=3, address="127.0.0.1:9")
    lease.refresh(is_stopping=True)
    stored = store.get(available_key("a"))
    assert stored is not None and BrokerAvailability.decode(stored.value).is_stopping
    lease.close()
    assert store.get(available_key("a")) is None


def test_the_key_of_an_earlier_process_is_taken_over(store: MemoryStore) -> None:
    first = BrokerLease(store, Member("a", 1), 60.0)
    first.refresh(address="127.0.0.1:1")
    second = BrokerLease(store, Member("a", 1), 60.0)
    second.refresh(address="127.0.0.1:2")
    stored = store.get(available_key("a"))
    assert stored is not None and BrokerAvailability.decode(stored.value).address == "127.0.0.1:2"
    second.close()
    first.close()


def test_one_registered_broker_at_a_time_is_the_controller(store: MemoryStore) -> None:
    leases = [BrokerLease(store, Member(name, 1), 60.0) for name in "abc"]
    assert not any(lease.take_controller() for lease in leases), "none is registered"
    for lease in leases:
        lease.refresh()
    assert [lease.take_controller() for lease in leases] == [True, False, False]
    assert leases[0].take_controller()
    leases[0].close()
    assert [lease.take_controller() for lease in leases[1:]] == [True, False]
    for lease in leases[1:]:
        lease.close()


def test_a_store_that_is_away_is_asked_again(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = BrokerLease(store, Member("a", 1), 60.0)

    def away(*_: object) -> None:
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "lease", away)
        with pytest.raises(MetadataUnavailableError):
            lease.refresh(address="127.0.0.1:5")
    assert not lease.is_held
    lease.refresh()
    stored = store.get(available_key("a"))
    assert stored is not None and BrokerAvailability.decode(stored.value).address == "127.0.0.1:5"
    lease.close()


def test_a_lease_that_is_lost_while_the_store_is_away_is_taken_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    take = store.lease
    monkeypatch.setattr(store, "lease", lambda *args: lost.append(take(*args)) or lost[-1])
    lease = BrokerLease(store, Member("a", 1), 60.0)
    lease.refresh(address="127.0.0.1:5")

    def away(*_: object) -> None:
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "lease", away)
        lost[0].expire()
        for _ in range(3):
            with pytest.raises(MetadataUnavailableError):
                lease.refresh()
            assert not lease.is_held and not lease.take_controller()
    lease.refresh()
    stored = store.get(available_key("a"))
    assert stored is not None and BrokerAvailability.decode(stored.value).address == "127.0.0.1:5"
    assert lease.is_held and lease.take_controller()
    lease.close()


def test_registrations_combine_metadata_with_availability() -> None:
    brokers = {
        name: BrokerMetadata(directory="0" * 32, incarnation=incarnation)
        for name, incarnation in (("a", 2), ("b", 1), ("c", 4), ("d", 1))
    }
    available = {
        "a": BrokerAvailability(incarnation=2),
        "b": BrokerAvailability(incarnation=1, is_stopping=True),
        "c": BrokerAvailability(incarnation=3),  # of an earlier process
    }
    assert registrations_of(brokers, available) == {
        "a": BrokerRegistration(2),
        "b": BrokerRegistration(1, is_stopping=True),
        "c": BrokerRegistration(4, is_fenced=True),
        "d": BrokerRegistration(1, is_fenced=True),
    }
