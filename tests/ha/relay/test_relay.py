"""Relay: the log of a master is received over TCP and applied, with slow appliers, changes of the master and kills."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog import RecordBatch
from pyreplog.errors import (
    ApplyError,
    ConfigError,
    InvalidArgumentError,
    NotAReplicaError,
    NotConnectedError,
    TrimmedError,
)
from pyreplog.ha.node import Node
from pyreplog.ha.relay import Advance, ApplierState, Relay, discard
from pyreplog.ha.relay.space_limit import incoming_bytes
from pyreplog.net.connection import ASKED, Connection
from tests.crash.process import in_background
from tests.ha.nodes import SEGMENT_BYTES, Lab, until
from tests.ha.streams import values

from .lab import Memory, Table, paced_pipe

WAIT_S = 60
ENTRIES, BATCH, KILLS = 3000, 20, 5


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def first_of(values: list[bytes]) -> list[int]:
    return [int(value.partition(b",")[0]) for value in values]


def test_relay_applies_records_once_they_are_committed(lab: Lab, tmp_path: Path) -> None:
    """An append that no replica has yet is not applied."""
    memory, master = Memory(), lab.master(sync_replicas=1, ack_timeout_ms=50)
    with pytest.raises(pyreplog.OutcomeUnknownError):
        master.append_batch(values(50))
    with Relay(tmp_path / "relay", master=master.address, apply=memory.apply, store=memory) as relay:
        relay.applier.start()
        until(lambda: relay.applier.stats().received_entry == 50)
        assert relay.applier.stats().visible_entry == 0 and memory.values == []
        assert master.replication().replicas[0].observer
        lab.replica("b", master)
        relay.applier.wait_applied(49, WAIT_S)
        assert first_of(memory.values) == list(range(50))


def test_receiving_goes_on_when_the_applier_has_failed(lab: Lab, tmp_path: Path) -> None:
    memory, master = Memory(), lab.master(members="a", sync_replicas=0)
    written = values(300)
    memory.bad[written[42]] = 1000
    master.append_batch(written[:100])
    with Relay(tmp_path / "relay", master=master.address, apply=memory.apply, store=memory) as relay:
        relay.applier.start()
        with pytest.raises(ApplyError, match="entry 42 "):
            relay.applier.wait_applied(99, WAIT_S)
        assert relay.applier.wait_ended(WAIT_S) is ApplierState.FAILED
        master.append_batch(written[100:])
        until(lambda: relay.applier.stats().received_entry == 300)
        assert (relay.applier.state, relay.applier.position.entry, relay.trouble) == (ApplierState.FAILED, 42, "")
        memory.bad.clear()
        relay.applier.start()
        relay.applier.wait_applied(299, WAIT_S)
    assert memory.values == written


def is_held(connection: Connection | None, *, former: Connection) -> bool:
    """Return whether there is a new connection, which is paused."""
    return connection is not None and connection is not former and bool(connection.reasons & ASKED)


@pytest.mark.parametrize("loses_connection", [False, True])
def test_a_slow_applier_holds_the_master_back(lab: Lab, tmp_path: Path, loses_connection: bool) -> None:
    """The relay log never exceeds its limit, also not after a new connection."""
    memory, master, limit = (
        Memory(),
        lab.master(members="a", sync_replicas=0),
        2 * SEGMENT_BYTES + incoming_bytes(SEGMENT_BYTES),
    )
    master.append_batch(values(2000))
    may_apply, used = threading.Event(), []

    def is_behind() -> bool:
        """Return whether the applier is slower than the master; the test would not exercise the limit otherwise."""
        stats = relay.applier.stats()
        used.append(stats.relay_bytes)
        return may_apply.is_set() and (stats.paused or stats.received_entry >= 2000)

    def apply(batch: RecordBatch, advance: Advance) -> None:
        until(is_behind)
        memory.apply(batch, advance)

    with Relay(
        tmp_path / "relay", master=master.address, apply=apply, store=memory, space_limit_bytes=limit, batch_entries=25
    ) as relay:
        relay.applier.start()
        until(lambda: relay.applier.stats().paused)
        if loses_connection:
            connection = relay._replica._receiver._connection
            connection.close()
            until(lambda: is_held(relay._replica._receiver._connection, former=connection))
        may_apply.set()
        relay.applier.wait_applied(1999, WAIT_S)
        stats = relay.applier.stats()
        assert stats.pauses > 1 and max(used) <= limit
        assert relay.trouble == ""
        master.append_batch(values(10, 2000))
        relay.applier.wait_applied(2009, WAIT_S)
    assert first_of(memory.values) == list(range(2010))


def test_a_relay_applies_each_entry_once_over_a_failover(lab: Lab, tmp_path: Path) -> None:
    memory, a = Memory(), lab.master(members="ab", sync_replicas=1)
    b = lab.replica("b", a)
    a.append_batch(values(100))
    with Relay(tmp_path / "relay", master=a.address, apply=memory.apply, store=memory) as relay:
        relay.applier.start()
        relay.applier.wait_applied(99, WAIT_S)
        lab.close(a)
        b.promote()
        b.set_members(["b"], 0, force=True)
        relay.follow(b.address)
        b.append_batch(values(100, 100))
        relay.applier.wait_applied(199, WAIT_S)
    with Relay(tmp_path / "relay", master="127.0.0.1:1", apply=memory.apply, store=memory) as relay:
        assert relay.applier.position.entry == 200, "it is there without a master, too"
    assert first_of(memory.values) == list(range(200))


def test_records_received_again_after_they_were_applied_take_no_space(lab: Lab, tmp_path: Path) -> None:
    """A relay log that was discarded begins where the master's log does. Records that were applied before are removed
    as they arrive."""
    memory, master = Memory(), lab.master(members="a", sync_replicas=0)
    master.append_batch(values(1000))
    with open_relay(tmp_path, master, memory) as relay:
        relay.applier.start(until_entry=990)
        assert relay.applier.wait_ended(WAIT_S) is ApplierState.FINISHED
    discard(tmp_path / "relay")
    with open_relay(tmp_path, master, memory) as relay:
        until(lambda: relay.applier.stats().received_entry == 1000)
        assert relay.applier.stats().relay_bytes < 10 * SEGMENT_BYTES, "of 24"
        relay.applier.start()
        relay.applier.wait_applied(999, WAIT_S)
    assert first_of(memory.values) == list(range(1000))


def test_a_master_that_has_not_everything_any_more(lab: Lab, tmp_path: Path) -> None:
    memory, master = Memory(), lab.master(members="a", sync_replicas=0)
    master.append_batch(values(500))
    until(lambda: master.log.trim(300))  # the master trims once it knows that no replica needs the records
    begins = master.log.start
    with pytest.raises(TrimmedError, match=f"begins at entry {begins}"):
        open_relay(tmp_path, master, memory)
    with open_relay(tmp_path, master, memory, start=begins) as relay:
        relay.applier.start()
        relay.applier.wait_applied(499, WAIT_S)
    assert first_of(memory.values) == list(range(begins, 500))


def test_relay_refuses_invalid_arguments_and_logs_of_its_own(lab: Lab, tmp_path: Path) -> None:
    memory, master = Memory(), lab.master(members="a", sync_replicas=0)
    with pytest.raises(NotConnectedError, match="no relay log yet"):
        Relay(tmp_path / "relay", master="127.0.0.1:1", apply=memory.apply, store=memory, timeout=0.1)
    with pytest.raises(ConfigError, match="workers"):
        Relay(tmp_path / "relay", master="127.0.0.1:1", apply=memory.apply, store=memory, workers=0)
    with pytest.raises(InvalidArgumentError, match="two segments"):
        open_relay(tmp_path, master, memory, space_limit_bytes=SEGMENT_BYTES)
    pyreplog.open(tmp_path / "own").close()
    with pytest.raises(NotAReplicaError):
        Relay(tmp_path / "own", master=master.address, apply=memory.apply, store=memory)


def open_relay(folder: Path, master: Node, memory: Memory, **settings: int) -> Relay:
    return Relay(folder / "relay", master=master.address, apply=memory.apply, store=memory, **settings)  # type: ignore[arg-type]


# ---- kill -9 --------------------------------------------------------------------------------------------------------


class Life:
    """A process that receives and applies until it is killed, or has applied all. It writes a byte to `pipe` before and
    after each commit."""

    def __init__(self, directory: Path, master: str, pipe: int, *, begins_anew: bool = False) -> None:
        self._directory, self._master, self._pipe, self._begins_anew = directory, master, pipe, begins_anew
        self._table = Table(directory / "table")

    def apply(self, batch: RecordBatch, advance: Advance) -> None:
        database = self._table.connect()
        try:
            with database:
                self._table.insert(database, batch)
                self._table.positions.store(database.cursor(), advance)
                os.write(self._pipe, b"?")
            os.write(self._pipe, b"!")
        finally:
            database.close()

    def run(self) -> None:
        if self._begins_anew:
            discard(self._directory / "relay")
        with Relay(
            self._directory / "relay", master=self._master, apply=self.apply, store=self._table.positions,
            batch_entries=BATCH, space_limit_bytes=2 * SEGMENT_BYTES + incoming_bytes(SEGMENT_BYTES),
        ) as relay:  # fmt: skip
            relay.applier.start(until_entry=ENTRIES)
            assert relay.applier.wait_ended(60) is ApplierState.FINISHED, relay.applier.error


def test_a_relay_that_is_killed_repeatedly_applies_each_entry_once(lab: Lab, tmp_path: Path, seed: int) -> None:
    """Each record is applied exactly once. The process that receives is killed too, and the relay log is sometimes
    discarded."""
    rng, master = Random(seed), lab.master(members="a", sync_replicas=0)
    master.append_batch([b"%d" % n + bytes(200) for n in range(ENTRIES)])
    Table(tmp_path / "table")
    for number in range(KILLS):
        reader, writer = paced_pipe()
        life = Life(tmp_path, master.address, writer, begins_anew=number % 2 == 1)
        with in_background(life.run, tmp_path / "report") as pid, open(reader, "rb", buffering=0) as pipe:
            os.close(writer)
            for _ in range(rng.randrange(1, 2 * ENTRIES // BATCH // KILLS)):
                assert pipe.read(1), f"life {number} was over too soon"
            os.kill(pid, signal.SIGKILL)
    with open(os.devnull, "wb") as null:
        Life(tmp_path, master.address, null.fileno()).run()
    assert Table(tmp_path / "table").numbers() == list(range(ENTRIES))
