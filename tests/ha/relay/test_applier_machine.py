"""The state machine of the applier, one decision at a time."""

from __future__ import annotations

import pytest

from pyreplog.errors import ApplyError, InvalidArgumentError
from pyreplog.ha.relay import Applied, ApplierState
from pyreplog.ha.relay.applier_machine import Allowance, ApplierMachine, ApplyGroup, StopBefore
from pyreplog.ha.relay.space_limit import FRAME_BYTES, SpaceLimit, incoming_bytes, reach

ERROR = ApplyError(0, 0, "no")
NO_KEYS: frozenset[bytes | None] = frozenset()


def at(entry: int) -> Applied:
    return Applied(b"", 100 * entry, entry)


def started(workers: int = 1, delay_us: int = 0, **until: int) -> ApplierMachine:
    machine = ApplierMachine(at(0), workers=workers, batch_entries=10, delay_us=delay_us)
    machine.start(at(0), StopBefore(**until))
    return machine


def take(machine: ApplierMachine, entries: int, *keys: bytes) -> ApplyGroup:
    return machine.take(at(machine.next.entry + entries), frozenset(keys))


def test_groups_commit_in_the_order_of_the_log():
    machine = started(workers=3)
    a, b, c = take(machine, 2, b"a"), take(machine, 2, b"b"), take(machine, 2, b"c")
    assert [machine.is_turn(group) for group in (a, b, c)] == [True, False, False]
    machine.committed(a)
    assert machine.applied == at(2)
    assert [machine.is_turn(group) for group in (b, c)] == [True, False]
    assert [group.advance.before.entry for group in (a, b, c)] == [0, 2, 4]


def test_a_group_waits_for_its_keys():
    machine = started(workers=3)
    a = take(machine, 1, b"a", b"b")
    assert machine.conflicts(frozenset([b"b", b"c"]))
    assert not machine.conflicts(frozenset([b"c"]))
    machine.committed(a)
    assert not machine.conflicts(frozenset([b"b"]))


def test_room_is_for_as_many_groups_as_workers():
    machine = started(workers=2)
    take(machine, 1)
    assert machine.has_room
    take(machine, 1)
    assert not machine.has_room


def test_a_group_that_fails_is_handed_out_one_by_one():
    machine = started()
    machine.failed(take(machine, 3), ERROR)
    assert (machine.state, machine.next.entry, machine.retried) == (ApplierState.RUNNING, 0, 1)
    for entry in range(3):
        assert machine.limit() == 1
        machine.committed(take(machine, 1))
        assert machine.applied.entry == entry + 1
    assert machine.limit() == 10


def test_a_group_that_fails_dooms_those_behind_it():
    machine = started(workers=4)
    a, b, c = (take(machine, 2) for _ in range(3))
    machine.failed(a, ERROR)
    assert [group.doomed for group in (b, c)] == [True, True]
    assert not any(machine.is_turn(group) for group in (b, c))
    machine.rolled_back(c)
    assert (machine.next.entry, machine.has_room) == (0, False)
    machine.rolled_back(b)
    assert machine.has_room


def test_a_group_that_fails_when_the_log_has_is_undone_and_no_more():
    machine = started(workers=2)
    group = take(machine, 2)
    machine.broken(ERROR)
    machine.failed(group, ApplyError(1, 1, "later"))
    assert (machine.state, machine.error, machine.in_flight, machine.retried) == (ApplierState.FAILED, ERROR, 0, 0)


def test_failed_entry_ends_the_applier():
    machine = started()
    machine.failed(take(machine, 1), ERROR)
    assert (machine.state, machine.error, machine.has_room) == (ApplierState.FAILED, ERROR, False)


def test_a_finished_applier_goes_on_when_its_last_group_fails():
    machine = started(entry=3)
    group = take(machine, 3)
    assert (machine.limit(), machine.state) == (0, ApplierState.FINISHED)
    machine.failed(group, ERROR)
    assert (machine.state, machine.limit()) == (ApplierState.RUNNING, 1)


def test_a_stopped_applier_stays_so_when_its_last_group_fails():
    machine = started()
    group = take(machine, 3)
    machine.stop()
    machine.failed(group, ERROR)
    assert (machine.state, machine.applied.entry) == (ApplierState.STOPPED, 0)
    machine.start(at(0), StopBefore())
    assert machine.limit() == 1


def test_until_an_entry_is_exact():
    machine = started(entry=4)
    assert machine.limit() == 4
    take(machine, 3)
    assert machine.limit() == 1


def test_entries_from_the_time_of_until_on_are_not_allowed():
    machine = started(time_us=30)
    assert machine.allow([10, 20, 30, 40], 0) == Allowance(2)
    assert machine.state is ApplierState.RUNNING
    assert machine.allow([30], 0) == Allowance(0)
    assert machine.state is ApplierState.FINISHED


def test_entries_are_allowed_after_the_delay():
    machine = started(delay_us=100)
    assert machine.allow([10, 20, 30], 109) == Allowance(0, 1)
    assert machine.allow([10, 20, 30], 110) == Allowance(1)
    assert machine.allow([10, 20, 30], 125) == Allowance(2)
    assert machine.allow([10, 20, 30], 1000) == Allowance(3)


def test_only_the_next_entry_may_be_skipped_and_only_at_rest():
    machine = started()
    with pytest.raises(InvalidArgumentError, match="runs"):
        machine.check_skip(0)
    machine.failed(take(machine, 1), ERROR)
    with pytest.raises(InvalidArgumentError, match="the next one is 0"):
        machine.check_skip(1)
    machine.check_skip(0)
    machine.skipped(at(1))
    assert (machine.state, machine.error, machine.next) == (ApplierState.STOPPED, None, at(1))


def test_a_broken_log_dooms_all_and_keeps_the_first_error():
    machine = started(workers=2)
    a, b = take(machine, 1), take(machine, 1)
    machine.broken(ERROR)
    machine.broken(ApplyError(1, 1, "later"))
    assert (a.doomed, b.doomed, machine.error) == (True, True, ERROR)


class _Tap:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


SEGMENT_BYTES = 1 << 20


def space_of(limit: int | None, tap: _Tap, *, end: int = 0, visible: int = 10) -> SpaceLimit:
    space = SpaceLimit(limit, SEGMENT_BYTES, tap)
    space.note_received(end, visible)
    return space


def test_space_pauses_while_a_frame_still_fits():
    tap = _Tap()
    # the position at which two segments are full
    last = 2 * SEGMENT_BYTES - (incoming_bytes(SEGMENT_BYTES) - FRAME_BYTES)
    space = space_of(reach(last, SEGMENT_BYTES), tap, end=last)
    assert not space.paused
    space.note_received(last + 1, 10)
    space.note_received(last + FRAME_BYTES, 10)
    assert (space.paused, tap.calls) == (True, ["pause"])
    space.applied(600, 5, 10)
    assert space.paused
    space.applied(SEGMENT_BYTES, 8, 10)
    assert (space.paused, space.pauses, tap.calls) == (False, 1, ["pause", "resume"])
    assert not space_of(None, tap, end=1 << 60).paused


def test_a_receiver_is_not_paused_when_only_more_can_help():
    """The records that were received are applied, or wait for the commit point, which follows them in the stream."""
    tap = _Tap()
    space = space_of(SEGMENT_BYTES, tap, end=5000, visible=10)
    assert space.paused
    space.applied(0, 10, 10)
    assert not space.paused
    space.note_received(6000, 10)
    assert not space.paused
    space.note_received(7000, 11)
    assert (space.paused, tap.calls) == (True, ["pause", "resume", "pause"])
