"""The applier with real threads: order, batches, until, delay, errors, skips, waiters, space, purge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import pyreplog
from pyreplog import AppendFuture, ManualClock, RecordBatch
from pyreplog.errors import (
    ApplyError,
    ClosedError,
    ConfigError,
    InvalidArgumentError,
    LockedError,
    PositionError,
    TrimmedError,
    WrongTypeError,
)
from pyreplog.ha.relay import Advance, Applied, Applier, ApplierState, PositionFile
from pyreplog.ha.relay.space_limit import incoming_bytes
from tests.waiting import until

from .lab import SEGMENT_BYTES, Memory, Table, fill, relay_log

WAIT_S = 60


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[pyreplog.CommitLog]:
    with relay_log(tmp_path / "relay") as log:
        yield log


@pytest.fixture(params=[1, 4], ids=["one worker", "four workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def applier_of(relay: pyreplog.CommitLog, memory: Memory, workers: int = 1, **settings: object) -> Applier:
    apply = memory.apply if workers == 1 else memory.apply_in_two
    return Applier(relay, apply, memory, workers=workers, **settings)


def test_a_log_that_was_opened_for_reading(relay, workers) -> None:
    """The applier applies new records, removes nothing, and its position is one of the log."""
    memory = Memory()
    fill(relay, 200)
    with pyreplog.open(relay.path, mode="r") as reader, applier_of(reader, memory, workers) as applier:
        applier.start()
        applier.wait_applied(199, WAIT_S)
        fill(relay, 300)
        applier.wait_applied(499, WAIT_S)
        stats = applier.stats()
        assert (stats.applied_entry, stats.lag_entries, stats.lag_bytes) == (500, 0, 0)
        applier.stop()
    assert relay.start == 0 and len(memory.values) == 500
    with pyreplog.open(relay.path, mode="r") as reader, applier_of(reader, memory, workers) as applier:
        assert applier.position.entry == 500


def test_a_cursor_keeps_what_is_not_applied(relay, workers) -> None:
    """The cursor holds back the retention of the process that writes the log, until the cursor is deleted."""
    memory = Memory()
    fill(relay, 5000)
    segments = relay.stats().segments
    assert segments > 3
    with pyreplog.open(relay.path, mode="r") as reader:
        with applier_of(reader, memory, workers, cursor="applier") as applier:
            assert reader.cursors() == {"applier": 0} and relay.trim(5000) == 0
            with pytest.raises(LockedError):
                applier_of(reader, Memory(), cursor="applier")
            applier.start(until_entry=3000)
            assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
        first = relay.trim(5000)
        assert 0 < reader.cursors()["applier"] <= 3000 and 0 < first <= 3000
        with applier_of(reader, memory, workers, cursor="applier") as applier:
            applier.start()
            applier.wait_applied(4999, WAIT_S)
    assert len(memory.values) == 5000 and relay.trim(5000) > 3000


def test_a_cursor_beyond_the_stored_position_goes_back(relay) -> None:
    """A database was restored from a backup: the records that it lacks are applied again, and kept until then."""
    fill(relay, 5000)
    relay.cursor("applier", 4000).close()
    memory = Memory()
    with applier_of(relay, memory, cursor="applier", purge=False) as applier:
        assert relay.cursors() == {"applier": 0}
        applier.start()
        applier.wait_applied(4999, WAIT_S)
    assert len(memory.values) == 5000


@pytest.mark.parametrize("transactional", [True, False])
def test_applies_what_there_is_and_what_comes(relay, workers, transactional):
    memory = Memory(transactional=transactional)
    fill(relay, 500)
    with applier_of(relay, memory, workers, batch_entries=16) as applier:
        applier.start()
        applier.wait_applied(499, WAIT_S)
        for _ in range(20):
            fill(relay, 25)
        applier.wait_applied(999, WAIT_S)
        assert applier.position == memory.position
    assert memory.numbers() == list(range(1000))
    assert max(end - begin for begin, end in memory.batches) <= 16


def test_batches_are_bounded_in_bytes(relay):
    memory = Memory()
    fill(relay, 100, size=1000)
    with applier_of(relay, memory, batch_bytes=5000) as applier:
        applier.start(until_entry=100)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
    assert memory.numbers() == list(range(100))
    assert 1 < max(end - begin for begin, end in memory.batches) < 10


def test_positions_are_those_of_the_log(relay):
    memory = Memory()
    fill(relay, 10)
    with applier_of(relay, memory, batch_entries=4) as applier:
        applier.start(until_entry=8)
        applier.wait_ended(WAIT_S)
        assert (applier.position.log, applier.position.entry) == (relay.uuid, 8)
        assert applier.position.position == relay.position_of(8)


# ---- ends ------------------------------------------------------------------------------------------------------


def test_an_applier_finishes_before_the_entry_of_until(relay, workers):
    memory = Memory()
    fill(relay, 100)
    with applier_of(relay, memory, workers, batch_entries=7) as applier:
        applier.start(until_entry=50)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
        assert memory.numbers() == list(range(50))
        applier.start(until_entry=20)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
        assert memory.numbers() == list(range(50))
        applier.start(until_entry=100)
        applier.wait_ended(WAIT_S)
        assert memory.numbers() == list(range(100))


@pytest.mark.parametrize("end", [10**15 + 1_000_000, datetime(2001, 9, 9, 1, 46, 41, tzinfo=UTC)], ids=str)
def test_an_applier_finishes_before_the_time_of_until(tmp_path, end):
    clock = ManualClock(10**15)
    memory = Memory()
    with relay_log(tmp_path / "relay", clock=clock) as relay:
        for _ in range(3):
            fill(relay, 10)
            clock.advance(1_000_000)
        with applier_of(relay, memory, clock=clock) as applier:
            applier.start(until_time=end)
            assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
            assert memory.numbers() == list(range(10))


def test_stop_leaves_no_gap_and_start_goes_on(relay, workers):
    memory = Memory()
    fill(relay, 300)
    with applier_of(relay, memory, workers, batch_entries=3) as applier:
        for _ in range(10):
            applier.start()
            applier.stop()
            assert applier.state is ApplierState.STOPPED
            assert memory.numbers() == list(range(applier.position.entry))
        applier.start(until_entry=300)
        applier.wait_ended(WAIT_S)
    assert memory.numbers() == list(range(300))


def test_an_applier_is_stopped_from_its_callback(relay, workers):
    memory = Memory()

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        yield
        memory.commit(batch, advance)
        applier.stop()

    fill(relay, 20)
    with Applier(relay, apply, memory, workers=workers, batch_entries=5) as applier:
        applier.start()
        assert applier.wait_ended(WAIT_S) is ApplierState.STOPPED
        assert memory.numbers() == list(range(applier.position.entry))


def test_no_other_command_from_the_callback(relay):
    def apply(batch: RecordBatch, advance: Advance) -> None:
        applier.stop()
        applier.start()

    fill(relay, 1)
    with Applier(relay, apply, Memory()) as applier:
        applier.start()
        with pytest.raises(ApplyError, match="cannot be commanded by its own callback"):
            applier.wait_applied(0, WAIT_S)


def test_only_one_start_at_a_time(relay):
    with applier_of(relay, Memory()) as applier:
        applier.start()
        with pytest.raises(InvalidArgumentError, match="stop it first"):
            applier.start()
        with pytest.raises(InvalidArgumentError, match="stop it first"):
            applier.skip(0)


def test_an_applier_that_was_closed(relay):
    fill(relay, 1)
    applier = applier_of(relay, Memory())
    waiting = applier.applied(0)
    applier.close()
    with pytest.raises(ClosedError):
        waiting.result(0)
    with pytest.raises(ClosedError):
        applier.start()
    with pytest.raises(TypeError):
        applier.__reduce__()


def test_a_relay_log_that_is_closed_first(relay):
    with applier_of(relay, Memory()) as applier:
        applier.start()
        waiting = applier.applied(0)
        relay.close()
        with pytest.raises(ClosedError):
            waiting.result(WAIT_S)
        assert applier.state is ApplierState.FAILED


# ---- delay -----------------------------------------------------------------------------------------------------


def test_a_delayed_applier_applies_what_is_old_enough(tmp_path, workers):
    clock = ManualClock(10**15)
    memory = Memory()
    with relay_log(tmp_path / "relay", clock=clock) as relay:
        fill(relay, 10)
        clock.advance(5_000_000)
        fill(relay, 10)
        clock.advance(5_000_000)
        with applier_of(relay, memory, workers, delay_ms=10_000, clock=clock) as applier:
            applier.start()
            applier.wait_applied(9, WAIT_S)
            assert memory.numbers() == list(range(10))
            assert applier.stats().lag_us == 5_000_000
            clock.advance(4_999_999)
            applier.stop()
            applier.start()
            assert not applier.applied(10).done()
            clock.advance(1)
            applier.wait_applied(19, WAIT_S)
    assert memory.numbers() == list(range(20))


# ---- errors ----------------------------------------------------------------------------------------------------


def test_a_refused_entry_stops_the_applier_and_is_named(relay, workers):
    memory = Memory()
    memory.bad[b"42"] = 1000
    fill(relay, 100)
    with applier_of(relay, memory, workers, batch_entries=10) as applier:
        waiting = applier.applied(99)
        applier.start()
        with pytest.raises(ApplyError, match=r"entry 42 .*ValueError: refused 42") as caught:
            waiting.result(WAIT_S)
        applier.wait_ended(WAIT_S)
        assert (caught.value.entry, caught.value.position) == (42, relay.position_of(42))
        assert isinstance(caught.value.__cause__, ValueError)
        assert applier.state is ApplierState.FAILED
        assert "entry 42" in applier.stats().error
        assert memory.numbers() == list(range(42))
        fill(relay, 10)  # records are still received
        assert applier.stats().lag_entries == 110 - 42
        with pytest.raises(InvalidArgumentError, match="the next one is 42"):
            applier.skip(43)
        applier.skip(42)
        applier.start(until_entry=110)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
        assert applier.error is None
    assert memory.numbers() == [n for n in range(110) if n != 42]


def test_a_restarted_applier_retries_the_failed_entry(relay, workers):
    memory = Memory()
    memory.bad[b"5"] = 2
    fill(relay, 10)
    with applier_of(relay, memory, workers) as applier:
        applier.start()
        with pytest.raises(ApplyError):
            applier.wait_applied(9, WAIT_S)
        applier.start()
        applier.wait_applied(9, WAIT_S)
    assert memory.numbers() == list(range(10))


def test_trouble_that_passes_stops_nothing(relay, workers):
    memory = Memory()
    memory.bad.update({b"%d" % n: 1 for n in (3, 33, 77, 99)})
    fill(relay, 100)
    with applier_of(relay, memory, workers, batch_entries=10) as applier:
        applier.start(until_entry=100)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
        assert 1 <= applier.stats().retried <= 4
    assert memory.numbers() == list(range(100))


def test_base_exception_of_apply_stops_the_applier(relay):
    def apply(batch: RecordBatch, advance: Advance) -> None:
        raise SystemExit

    fill(relay, 10)
    with Applier(relay, apply, Memory()) as applier:
        applier.start()
        with pytest.raises(PositionError, match="SystemExit"):
            applier.wait_applied(0, WAIT_S)
        assert applier.wait_ended(WAIT_S) is ApplierState.FAILED
        assert applier.position.entry == 0


class _FullDisk(Memory):
    def save(self, advance: Advance) -> None:
        raise OSError(28, "no space")


def test_a_position_that_cannot_be_stored_stops_the_applier(relay):
    memory = _FullDisk()
    fill(relay, 10)
    with applier_of(relay, memory) as applier:
        applier.start()
        with pytest.raises(PositionError, match="no space"):
            applier.wait_applied(0, WAIT_S)
        assert (applier.position.entry, len(memory.batches)) == (0, 1)


def test_a_callback_that_does_not_store_its_position(relay):
    memory = Memory(transactional=True)
    fill(relay, 10)
    with Applier(relay, lambda batch, advance: None, memory) as applier:
        applier.start()
        with pytest.raises(PositionError, match="without storing entry 10"):
            applier.wait_applied(0, WAIT_S)


def test_a_commit_that_fails_and_has_happened(relay):
    """The connection is lost during the commit; the applier reads the stored position to learn the outcome."""
    memory = Memory(transactional=True)

    def apply(batch: RecordBatch, advance: Advance) -> None:
        memory.commit(batch, advance)
        raise ConnectionError("lost")

    fill(relay, 30)
    with Applier(relay, apply, memory, batch_entries=10) as applier:
        applier.start(until_entry=30)
        assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
    assert memory.batches == [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize("yields", [0, 2])
def test_a_callback_that_does_not_yield_once(relay, yields):
    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        for _ in range(yields):
            yield

    fill(relay, 1)
    with Applier(relay, apply, Memory(), workers=2) as applier:
        applier.start()
        with pytest.raises(ApplyError, match="yield"):
            applier.wait_applied(0, WAIT_S)


def test_several_workers_need_a_callback_that_yields(relay):
    memory = Memory()
    with pytest.raises(InvalidArgumentError, match="generator function"):
        Applier(relay, memory.apply, memory, workers=2)


def test_an_applier_refuses_bad_settings(relay):
    with pytest.raises(ConfigError, match="unknown setting 'batch_entrees'"):
        applier_of(relay, Memory(), batch_entrees=3)
    with pytest.raises(ConfigError, match="workers"):
        Applier(relay, Memory().apply, Memory(), workers=0)
    with pytest.raises(InvalidArgumentError, match="at least two segments"):
        applier_of(relay, Memory(), space_limit_bytes=2 * SEGMENT_BYTES)


# ---- side by side ----------------------------------------------------------------------------------------------


def test_groups_without_a_key_in_common_are_prepared_side_by_side(relay):
    memory, both = Memory(), threading.Barrier(2)

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        both.wait(WAIT_S)  # each callback waits until the other one is being prepared, too
        yield
        memory.commit(batch, advance)

    relay.append_batch([b"0", b"1"], [b"a", b"b"])
    with Applier(relay, apply, memory, workers=2, batch_entries=1) as applier:
        applier.start()
        applier.wait_applied(1, WAIT_S)
    assert memory.numbers() == [0, 1]


def test_records_of_one_key_are_prepared_in_order(relay):
    """A later group with the same key is prepared after the earlier one has committed."""
    state: dict[bytes, int] = {}
    memory = Memory()

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        seen = {record.key: state.get(record.key, 0) for record in batch}
        yield
        for key, count in seen.items():
            assert state.get(key, 0) == count, "a group of this key committed since"
            state[key] = count + 1
        memory.commit(batch, advance)

    fill(relay, 400, keys=3)
    with Applier(relay, apply, memory, workers=4, batch_entries=1) as applier:
        applier.start()
        applier.wait_applied(399, WAIT_S)
    assert state == {b"key 0": 134, b"key 1": 133, b"key 2": 133}


def test_groups_after_a_failed_one_are_rolled_back(relay):
    memory, prepared, undone = Memory(), threading.Event(), []

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        if advance.before.entry == 0:
            prepared.wait(WAIT_S)
            raise ValueError("no")
        prepared.set()
        try:
            yield
        except GeneratorExit:
            undone.append(advance.before.entry)
            raise
        memory.commit(batch, advance)

    relay.append_batch([b"0", b"1"], [b"a", b"b"])
    with Applier(relay, apply, memory, workers=2, batch_entries=1) as applier:
        applier.start()
        with pytest.raises(ApplyError, match="entry 0"):
            applier.wait_applied(1, WAIT_S)
        applier.wait_ended(WAIT_S)
    assert (memory.values, undone) == ([], [1])


# ---- waiting ---------------------------------------------------------------------------------------------------


def test_asyncio_waits_for_progress(relay):
    memory = Memory()

    async def wait(applier: Applier) -> int:
        waiting: list[AppendFuture[int]] = [applier.applied(n) for n in range(100)]
        fill(relay, 100)
        return sum([await future for future in waiting])

    with applier_of(relay, memory) as applier:
        applier.start()
        assert asyncio.run(wait(applier)) == sum(range(100))


def test_a_wait_that_runs_out(relay):
    with applier_of(relay, Memory()) as applier:
        applier.start()
        with pytest.raises(pyreplog.OutcomeUnknownError):
            applier.wait_applied(0, 0.01)


# ---- where it begins -------------------------------------------------------------------------------------------


def test_applier_resumes_at_the_stored_position(relay, tmp_path):
    fill(relay, 100)
    first, second = Memory(), Memory()
    with Applier(relay, first.apply, PositionFile(tmp_path / "position"), batch_entries=8) as applier:
        applier.start(until_entry=37)
        applier.wait_ended(WAIT_S)
    with Applier(relay, second.apply, PositionFile(tmp_path / "position")) as applier:
        applier.start(until_entry=100)
        applier.wait_ended(WAIT_S)
    assert first.numbers() + second.numbers() == list(range(100))


def test_a_relay_log_that_begins_too_late(relay):
    fill(relay, 400, size=1000)
    relay.trim(200)
    assert relay.start > 0
    with pytest.raises(TrimmedError, match=f"start={relay.start}"):
        applier_of(relay, Memory())
    memory = Memory()
    with applier_of(relay, memory, start=relay.start) as applier:
        applier.start(until_entry=400)
        applier.wait_ended(WAIT_S)
        assert memory.numbers() == list(range(400))[-len(memory.values) :]
    behind = Memory()
    behind.position = Applied(relay.uuid, 0, 0)
    with applier_of(relay, behind) as applier:
        applier.start()
        with pytest.raises(TrimmedError, match="receive again"):
            applier.wait_applied(0, WAIT_S)


def test_a_position_of_another_log(relay):
    memory = Memory()
    memory.position = Applied(bytes(16), 0, 0)
    with pytest.raises(PositionError, match="is log"):
        applier_of(relay, memory)


@pytest.mark.parametrize("restarted", [True, False])
def test_entries_that_were_applied_and_then_cut(relay, restarted):
    """A failover removed the end of the log: the entry with this number is another one."""
    memory = Memory()
    fill(relay, 10)
    applier = applier_of(relay, memory)
    applier.start()
    applier.wait_applied(9, WAIT_S)
    if restarted:
        applier.close()
    relay.truncate(8)
    relay.append_batch([b"108", b"109", b"110"])
    if restarted:
        applier = applier_of(relay, memory)
        applier.start()
    with pytest.raises(pyreplog.TruncatedError, match="another history"):
        applier.wait_applied(10, WAIT_S)
    applier.close()
    assert memory.numbers() == list(range(10))


def test_a_relay_log_that_is_behind_what_is_applied_catches_up(relay):
    """A relay log lost its end in a power cut, and receives it again."""
    memory = Memory()
    fill(relay, 10)
    with applier_of(relay, memory) as applier:
        applier.start()
        applier.wait_applied(9, WAIT_S)
    position = memory.position
    relay.truncate(5)
    assert position is not None
    # these records are appended here, and have other stamps than those of a master
    memory.position = position._replace(check=0)
    with applier_of(relay, memory) as applier:
        applier.start()
        fill(relay, 10)
        applier.wait_applied(14, WAIT_S)
        assert applier.stats().lag_bytes == 0
    assert memory.numbers() == list(range(15))


# ---- space -----------------------------------------------------------------------------------------------------


class Tap:
    """A receiver. `await_pause` lets the callback wait until the receiver is paused, so that applying is slower than
    receiving."""

    def __init__(self) -> None:
        self.open, self.ended = threading.Event(), threading.Event()
        self.open.set()

    def await_pause(self) -> None:
        until(lambda: not self.open.is_set() or self.ended.is_set())

    def pause(self) -> None:
        self.open.clear()

    def resume(self) -> None:
        self.open.set()


def test_the_space_limit_holds_while_the_applier_is_slow(relay, workers):
    memory, tap = Memory(), Tap()
    limit = 2 * SEGMENT_BYTES + incoming_bytes(SEGMENT_BYTES)

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        tap.await_pause()
        yield from memory.apply_in_two(batch, advance)

    with Applier(
        relay, apply, memory, workers=workers, space_limit_bytes=limit, receiver=tap, batch_entries=5
    ) as applier:
        while tap.open.is_set():
            fill(relay, 20, size=500)
            applier.note_received(relay.tail.end)
        assert applier.stats().paused
        used = []
        applier.start()
        while relay.end < 4000:
            assert tap.open.wait(WAIT_S)
            fill(relay, 20, size=500)
            applier.note_received(relay.tail.end)
            used.append(relay.tail.end - relay.start_position)
        tap.ended.set()
        applier.wait_applied(3999, WAIT_S)
        stats = applier.stats()
    assert max(used) <= limit
    assert stats.pauses > 5
    assert stats.relay_bytes <= SEGMENT_BYTES + 20 * 600
    assert memory.numbers() == list(range(4000))


def test_relay_log_is_purged_only_up_to_the_applied_position(relay):
    memory = Memory()
    fill(relay, 400, size=1000)
    with applier_of(relay, memory) as applier:
        applier.start(until_entry=200)
        applier.wait_ended(WAIT_S)
        applier.stop()
        assert 0 < relay.start <= 200
        assert relay.retention_floor == applier.position.position


def test_without_purge_nothing_is_removed(relay):
    fill(relay, 400, size=1000)
    with applier_of(relay, Memory(), purge=False) as applier:
        applier.start(until_entry=400)
        applier.wait_ended(WAIT_S)
        applier.stop()
        assert (relay.start, relay.retention_floor) == (0, 1 << 62)


def test_an_applier_applies_each_entry_once_in_sqlite(relay, tmp_path):
    table = Table(tmp_path / "table")
    fill(relay, 300)
    with Applier(relay, table.apply, table.positions, batch_entries=32) as applier:
        applier.start()
        applier.wait_applied(299, WAIT_S)
        stored = table.positions.load()
        assert stored == applier.position
    assert table.numbers() == list(range(300))


@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("until_entry", "7", WrongTypeError),
        ("until_time", 1.5, WrongTypeError),
        ("until_time", datetime(2001, 9, 9), InvalidArgumentError),
    ],
)
def test_an_applier_refuses_a_malformed_end(relay, name, wrong, error):
    with applier_of(relay, Memory()) as applier:
        with pytest.raises(error, match=name):
            applier.start(**{name: wrong})
        applier.start()
