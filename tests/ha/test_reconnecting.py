"""Useless connections are not repeated without a delay: two replicas of one name, a master whose disk is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog import ha
from pyreplog.errors import ReplogError
from pyreplog.ha.relay import Relay
from pyreplog.ha.replica import Replica
from pyreplog.log import names
from pyreplog.net.dialer import ReconnectingConnection
from tests.ha.nodes import SEGMENT_BYTES, Lab, level, until, values
from tests.ha.relay.lab import Memory


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def successes(monkeypatch: pytest.MonkeyPatch) -> list[ReconnectingConnection]:
    """Connections that were noted as useful, which resets their delay."""
    reconnecting_connections: list[ReconnectingConnection] = []
    succeeded = ReconnectingConnection.succeeded

    def noted(self: ReconnectingConnection) -> None:
        reconnecting_connections.append(self)
        succeeded(self)

    monkeypatch.setattr(ReconnectingConnection, "succeeded", noted)
    return reconnecting_connections


def test_two_of_one_name_do_not_chase_each_other(
    lab: Lab, successes: list[ReconnectingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[ReplogError] = []
    note_usefulness = Replica._note_usefulness
    monkeypatch.setattr(
        Replica, "_note_usefulness", lambda self, error: (ends.append(error), note_usefulness(self, error))
    )
    master = lab.master(members="a", sync_replicas=0)
    replica = lab.replica("o", master, observer=True)
    master.append(b"one")
    level(master, replica)
    settings = lab.settings({"observer": True})
    with ha.open_replica(lab.folder / "other", name="o", master=master.address, **settings) as other:
        until(
            lambda: (
                "two have the same name" in replica.stats()["trouble"]
                or "two have the same name" in other.stats()["trouble"]
            )
        )
        until(lambda: len(ends) > 7)
        assert len(successes) < 5, "each of them at first, not each time"
    level(master, replica)


def test_a_damaged_record_is_not_fetched_over_and_over(lab: Lab, successes: list[ReconnectingConnection]) -> None:
    master = lab.master(members="ab", sync_replicas=0)
    master.append_batch([b"." * 1000] * 100)
    path = names.segment_path(master.log.path, SEGMENT_BYTES)
    intact = path.read_bytes()[30_000:30_008]
    write_at(path, 30_000, b"damaged!")
    replica = lab.replica("b", master)
    until(lambda: "expected CRC-32C" in replica.stats()["trouble"])
    reports = master.replication().reports
    until(lambda: master.replication().reports > reports + 3)
    assert len(successes) <= 2, "the first one, and the next: the first had brought something"
    write_at(path, 30_000, intact)
    level(master, replica)
    assert values(replica) == values(master)


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("rb+") as file:
        file.seek(offset)
        file.write(data)


def test_relays_of_one_master_have_names_of_their_own(lab: Lab, tmp_path: Path) -> None:
    master = lab.master(members="a", sync_replicas=0)
    memories = Memory(), Memory()
    folders = tmp_path / "relay", tmp_path / ("ö" * 100) / "relay"
    folders[1].parent.mkdir()
    with ExitStack() as stack:
        for memory, folder in zip(memories, folders, strict=True):
            relay = stack.enter_context(Relay(folder, master=master.address, apply=memory.apply, store=memory))
            relay.applier.start()
        until(lambda: len(master.replication().replicas) == 2)
        master.append(b"1")
        until(lambda: all(memory.values == [b"1"] for memory in memories))
        assert all(each.name.endswith("relay") for each in master.replication().replicas)
