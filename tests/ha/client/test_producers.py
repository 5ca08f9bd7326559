"""A master appends each batch of a client once: while it runs, after it was opened again, and after another master was
elected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

import pyreplog
from pyreplog._native.ha.client_batch import append_received, encode_records
from pyreplog.errors import DisconnectedError
from pyreplog.ha import producers as producers_module
from pyreplog.ha.producers import ProducerStateManager, batch_control
from pyreplog.ha.protocol.client_messages import (
    Appended,
    ClientRefusal,
    CommittedEntries,
    Read,
    Refused,
    Run,
    encode_append,
    encode_read,
)
from pyreplog.log.commit_log import CommitLog
from tests.ha.client.wire import Wire
from tests.ha.nodes import Lab, level, until, values

ONE, TWO = b"1" * 16, b"2" * 16


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as opened:
        yield opened


def put(log: CommitLog, client: bytes, sequence: int, entries: int) -> None:
    data, count = encode_records([b"%d" % number for number in range(sequence, sequence + entries)])
    append_received(log, data, count, 0, batch_control(client, sequence, count))


def test_repeated_batch_is_answered_without_being_appended(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0)
    with Wire(master.address) as wire:
        assert wire.append(ONE, 0, [b"a", b"b"]) == Appended((Run(0, 2),))
        assert wire.append(TWO, 0, [b"other"]) == Appended((Run(2, 1),))
        assert wire.append(ONE, 0, [b"a", b"b"]) == Appended((Run(0, 2),))
        assert wire.append(ONE, 1, [b"b"]) == Appended((Run(1, 1),))
        assert wire.append(ONE, 1, [b"b", b"c"]) == Appended((Run(1, 1), Run(3, 1)))
        assert wire.append(ONE, 0, [b"a", b"b", b"c"]) == Appended((Run(0, 2), Run(3, 1)))
        for client, sequence, code in (
            (ONE, 4, ClientRefusal.OUT_OF_ORDER),
            (b"3" * 16, 1, ClientRefusal.UNKNOWN_CLIENT),
        ):
            refused = wire.append(client, sequence, [b"x"])
            assert isinstance(refused, Refused) and refused.code == code
    assert values(master) == [b"a", b"b", b"other", b"c"]


def test_a_damaged_batch_is_refused_and_its_numbers_are_free(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0)
    data, count = encode_records([b"a", b"b"])
    with Wire(master.address) as wire:
        refused = wire.end(wire.begin(encode_append(ONE, 0, count), data[:-8] + b"xxxxxxxx"))
        assert isinstance(refused, Refused) and refused.code == ClientRefusal.INVALID
        assert wire.append(ONE, 0, [b"a"]) == Appended((Run(0, 1),))


def test_append_to_a_replica_is_refused_with_the_address_of_the_master(lab: Lab) -> None:
    master = lab.master(members="ab")
    replica = lab.replica("b", master)
    master.append(b"x")
    level(master, replica)
    with Wire(replica.address) as wire:
        refused = wire.append(ONE, 0, [b"a"])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.master) == (ClientRefusal.NOT_MASTER, master.address)
        read = wire.read(0)
        assert isinstance(read, CommittedEntries) and (read.start, read.end, read.first) == (0, 1, 0)


def test_a_long_poll_ends_in_time(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0)
    with Wire(master.address) as wire:
        read = wire.read(0, wait_ms=20)
        assert isinstance(read, CommittedEntries) and (read.start, read.end, read.first) == (0, 0, -1)
        began = monotonic()
        poll = wire.begin(encode_read(Read(0, -1, 1 << 20, 60_000)))
        with Wire(master.address) as other:
            other.append(ONE, 0, [b"x"])
        read = wire.end(poll)
        assert isinstance(read, CommittedEntries) and read.first == 0
        assert monotonic() - began < 40.0  # the poll is woken by an append


def test_a_connection_of_the_older_version_takes_no_requests(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0)
    with Wire(master.address, version=1) as wire, pytest.raises(DisconnectedError):
        wire.append(ONE, 0, [b"a"])
    assert master.log.tail.end_entry == 0


def test_a_reopened_master_knows_batches_of_producers(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0)
    with Wire(master.address) as wire:
        wire.append(ONE, 0, [b"a", b"b"])
    lab.close(master)
    master = lab.master(members="a", sync_replicas=0)
    master.append(b"own")
    # the value "own" belongs to no batch
    assert [record.value[:7] for record in master.log.control_records()][-1] == b"RPCLNT\x02"
    with Wire(master.address) as wire:
        assert wire.append(ONE, 0, [b"a", b"b"]) == Appended((Run(0, 2),))
        assert wire.append(ONE, 2, [b"c"]) == Appended((Run(3, 1),))
    assert values(master) == [b"a", b"b", b"own", b"c"]


def test_an_elected_master_knows_batches_of_producers(lab: Lab) -> None:
    master = lab.master(members="ab")
    replica = lab.replica("b", master)
    with Wire(master.address) as wire:
        wire.append(ONE, 0, [b"a", b"b"])
    until(lambda: replica.members is not None)
    replica.promote()
    with Wire(replica.address) as wire:
        assert wire.append(ONE, 0, [b"a", b"b"]) == Appended((Run(0, 2),))
        assert wire.append(ONE, 1, [b"b", b"c"]) == Appended((Run(1, 1), Run(2, 1)))
    assert values(replica) == [b"a", b"b", b"c"]


def test_answers_to_repeated_batches_wait_for_replicas(lab: Lab) -> None:
    """A repeated batch waits as well, as it may be stored and not committed."""
    master = lab.master(members="ab", ack_timeout_ms=300)
    with Wire(master.address) as wire:
        for _ in range(2):
            refused = wire.append(ONE, 0, [b"a"])
            assert isinstance(refused, Refused) and refused.code == ClientRefusal.TIMED_OUT
        lab.replica("b", master)
        until(lambda: isinstance(wire.append(ONE, 0, [b"a"]), Appended))
    assert values(master) == [b"a"]


def test_a_scan_of_the_log_restores_batches_of_producers(log: CommitLog) -> None:
    put(log, ONE, 0, 3)
    put(log, TWO, 0, 2)
    log.append(b"own")
    put(log, ONE, 3, 2)
    known = ProducerStateManager.of(log)
    first, two = known.get(ONE), known.get(TWO)
    assert first is not None and two is not None
    assert (first.next, first.numbers(0, 5), first.numbers(2, 2)) == (5, (Run(0, 3), Run(6, 2)), (Run(2, 1), Run(6, 1)))
    assert (two.next, two.numbers(1, 1), two.numbers(1, 2)) == (2, (Run(4, 1),), None)
    assert first.position == log.end_position


def test_entries_behind_a_batch_do_not_belong_to_it(log: CommitLog) -> None:
    put(log, ONE, 0, 2)
    log.append_batch([b"own"] * 3)
    producer = ProducerStateManager.of(log).get(ONE)
    assert producer is not None and producer.next == 2


def test_a_batch_that_was_cut(log: CommitLog) -> None:
    """A snapshot ends the batch: later entries do not belong to it."""
    put(log, ONE, 0, 5)
    log.truncate(3)
    known = ProducerStateManager.of(log)
    producer = known.get(ONE)
    assert producer is not None and producer.next == 3
    log.append_batch([b"own"] * 3, control=known.snapshot())
    producer = ProducerStateManager.of(log).get(ONE)
    assert producer is not None and (producer.next, producer.numbers(0, 3)) == (3, (Run(0, 3),))


def test_a_snapshot_stands_for_what_is_not_read(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    put(log, ONE, 0, 2)
    put(log, TWO, 0, 1)
    log.append_batch([], control=ProducerStateManager.of(log).snapshot())
    log.append_batch([b"x" * 1000] * 500)
    put(log, TWO, 1, 1)
    monkeypatch.setattr(producers_module, "SCAN_BYTES", 1000)
    assert ProducerStateManager.of(log).get(ONE) is None
    monkeypatch.setattr(producers_module, "SCAN_BYTES", 1 << 20)
    expected = {client: ProducerStateManager.of(log).get(client) for client in (ONE, TWO)}
    log.trim(400)
    assert log.start > 3
    # the snapshot is of the records that are left
    log.append_batch([b"own"], control=ProducerStateManager.of(log).snapshot())
    assert expected[ONE] is not None and expected[ONE].numbers(0, 2) == (Run(0, 2),)
    assert expected[TWO] is not None and expected[TWO].numbers(0, 2) == (Run(2, 1), Run(503, 1))


def test_the_oldest_client_is_forgotten() -> None:
    known = ProducerStateManager(2)
    for client in (ONE, TWO, ONE, b"3" * 16):
        known.use(client)
    assert known.get(TWO) is None and known.get(ONE) is not None and len(known) == 2


def test_control_records_of_others_and_of_later_versions(log: CommitLog) -> None:
    put(log, ONE, 0, 1)
    for control in (b"RPTERM", b"RPCLNT", b"RPCLNT\x01\x01short", b"RPCLNT\x02\x01short", b"RPCLNT\x09\x01later", b""):
        log.append_batch([b"own"], control=control)
    producer = ProducerStateManager.of(log).get(ONE)
    assert producer is not None and producer.next == 1


def test_snapshots_come_while_a_log_grows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.ha.master.SNAPSHOT_BYTES", 20_000)
    master = lab.master(members="a", sync_replicas=0)
    with Wire(master.address) as wire:
        wire.append(ONE, 0, [b"a"])
        master.append_batch([b"x" * 1000] * 40)

        def snapshots() -> int:
            return sum(record.value[:7] == b"RPCLNT\x02" for record in master.log.control_records())

        until(lambda: snapshots() == 1)
        assert wire.append(ONE, 1, [b"b" * 25_000]) == Appended((Run(41, 1),))
        assert snapshots() == 2
