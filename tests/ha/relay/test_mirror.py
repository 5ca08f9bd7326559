"""The applier on a real relay log, a MirrorLog to which a master's stream is appended."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from random import Random

import pytest

from pyreplog import RecordBatch
from pyreplog.ha.relay import Advance, Applier, ApplierState, discard, refetch_from
from pyreplog.ha.relay.space_limit import FRAME_BYTES, incoming_bytes, reach
from pyreplog.log.commit_log import CommitLog
from pyreplog.stream.mirror_log import MirrorLog
from tests.ha.streams import SEGMENT_BYTES, config, copy, frames_of, make_mirror, open_master, stream, take_in, values

from .lab import Memory

WAIT_S = 60
ALL = 1 << 62


@pytest.fixture
def master(tmp_path: Path) -> Iterator[CommitLog]:
    with open_master(tmp_path / "master") as log:
        yield log


def first_of(values: list[bytes]) -> list[int]:
    return [int(value.partition(b",")[0]) for value in values]


def test_applier_applies_only_committed_records(tmp_path, master):
    memory = Memory()
    master.append_batch(values(100))
    with make_mirror(tmp_path / "relay", master) as relay:
        copy(master, relay)
        with Applier(relay, memory.apply, memory, batch_entries=7) as applier:
            applier.start()
            relay.show(master.position_of(30), 30)
            applier.wait_applied(29, WAIT_S)
            stats = applier.stats()
            assert (stats.applied_entry, stats.visible_entry, stats.received_entry) == (30, 30, 100)
            assert stats.lag_entries == 70
            relay.show(ALL, ALL)
            applier.wait_applied(99, WAIT_S)
            assert applier.stats().lag_bytes == 0
    assert memory.values == values(100)


def test_a_master_far_ahead_of_a_slow_applier(tmp_path, master):
    """The relay log never exceeds its limit, and all records are applied."""
    memory, may_go_on, may_apply = Memory(), threading.Event(), threading.Event()

    class Tap:
        @staticmethod
        def pause() -> None:
            may_go_on.clear()
            may_apply.set()

        resume = staticmethod(may_go_on.set)

    def apply(batch: RecordBatch, advance: Advance) -> Generator[None, None, None]:
        assert may_apply.wait(WAIT_S)
        yield from memory.apply_in_two(batch, advance)

    may_go_on.set()
    master.append_batch(values(1000))
    limit = 2 * SEGMENT_BYTES + incoming_bytes(SEGMENT_BYTES)
    used = []
    with make_mirror(tmp_path / "relay", master) as relay:
        relay.show(ALL, ALL)
        with Applier(
            relay, apply, memory, workers=2, batch_entries=5, space_limit_bytes=limit, receiver=Tap()
        ) as applier:
            applier.start()
            for offset, body in frames_of(stream(master, 0)):
                assert may_go_on.wait(WAIT_S)
                if offset % SEGMENT_BYTES:
                    relay.append_replicated(offset, [body])
                else:
                    relay.begin(body)
                applier.note_received(relay.received_end)
                used.append(relay.received_end - relay.start_position)
            applier.wait_applied(999, WAIT_S)
            applier.stop()
            assert applier.stats().pauses > 0
            assert relay.start > 900
    assert max(used) <= limit
    assert memory.values == values(1000)


def test_receiver_is_not_paused_while_records_wait_for_their_commit(tmp_path, master):
    """The commit point follows the records in the stream, so that a receiver that is paused would not get it."""
    memory, may_go_on = Memory(), threading.Event()

    class Tap:
        pause, resume = staticmethod(may_go_on.clear), staticmethod(may_go_on.set)

    may_go_on.set()
    master.append_batch(values(900))
    limit = 2 * SEGMENT_BYTES + incoming_bytes(SEGMENT_BYTES)
    with (
        make_mirror(tmp_path / "relay", master) as relay,
        Applier(relay, memory.apply, memory, space_limit_bytes=limit, receiver=Tap()) as applier,
    ):
        applier.start()
        for offset, body in frames_of(stream(master, 0)):
            assert may_go_on.wait(WAIT_S)
            if offset % SEGMENT_BYTES:
                relay.append_replicated(offset, [body])
            else:
                relay.begin(body)
            applier.note_received(relay.received_end)
        assert relay.received_end - relay.start_position > limit
        relay.show(ALL, ALL)
        applier.wait_applied(899, WAIT_S)
    assert memory.values == values(900)


def test_an_applier_goes_on_after_its_relay_log_was_discarded(tmp_path, master):
    """Records that were received and not applied are discarded. The applier goes on at its position."""
    memory = Memory()
    master.append_batch(values(300))
    with make_mirror(tmp_path / "relay", master) as relay:
        copy(master, relay)
        relay.show(ALL, ALL)
        with Applier(relay, memory.apply, memory) as applier:
            applier.start(until_entry=150)
            applier.wait_ended(WAIT_S)
    discard(tmp_path / "relay")
    position = refetch_from(memory.load(), SEGMENT_BYTES)
    assert 0 < position < master.position_of(150)
    first = next(iter(master.read_positions(position)))[0].entry
    with MirrorLog.create(
        tmp_path / "relay", config(), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(position, first)
    ) as relay:
        take_in(relay, stream(master, position))
        relay.show(ALL, ALL)
        with Applier(relay, memory.apply, memory) as applier:
            applier.start(until_entry=300)
            assert applier.wait_ended(WAIT_S) is ApplierState.FINISHED
    assert memory.values == values(300)


def test_a_cut_of_what_was_not_applied(tmp_path, master):
    """A failover cuts the end of the relay log. The records that replace it are applied."""
    memory = Memory()
    master.append_batch(values(50))
    with make_mirror(tmp_path / "relay", master) as relay:
        copy(master, relay)
        relay.show(master.position_of(20), 20)
        with Applier(relay, memory.apply, memory, batch_entries=3) as applier:
            applier.start()
            applier.wait_applied(19, WAIT_S)
            relay.cut(master.position_of(25), 25)
            master.truncate(25)
            master.append_batch(values(50, 1000))
            copy(master, relay)
            relay.show(ALL, ALL)
            applier.wait_applied(74, WAIT_S)
    assert first_of(memory.values) == [*range(25), *range(1000, 1050)]


def test_a_cut_of_what_was_applied(tmp_path, master):
    memory = Memory()
    master.append_batch(values(40))
    with make_mirror(tmp_path / "relay", master) as relay:
        copy(master, relay)
        relay.show(ALL, ALL)
        with Applier(relay, memory.apply, memory) as applier:
            applier.start()
            applier.wait_applied(39, WAIT_S)
            relay.cut(master.position_of(25), 25)
            master.truncate(25)
            master.append_batch(values(50, 1000))
            copy(master, relay)
            relay.show(ALL, ALL)
            assert applier.wait_ended(WAIT_S) is ApplierState.FAILED
            assert "another history" in str(applier.error)
    assert first_of(memory.values) == list(range(40))


def ends_and_sizes(log, transfer_bytes):
    """Return for the frames that a master sends, from the start, the end of each and the total bytes of bodies up to
    there."""
    ends, sizes = [0], [0]
    for offset, body in frames_of(stream(log, 0, transfer_bytes=transfer_bytes)):
        ends.append(offset + len(body))
        sizes.append(sizes[-1] + len(body))
    return ends, sizes


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20])
def test_incoming_bytes_bounds_the_records_of_one_frame(tmp_path, seed, segment_bytes):
    """The bound holds for records of any size, and for any number of segments in the bytes of one frame."""
    random = Random(seed)
    with open_master(tmp_path / "log", segment_bytes=segment_bytes) as log:
        room = min(FRAME_BYTES, segment_bytes - (8 << 10))
        for _ in range(8):
            size = random.randrange(1, max(2, room // random.choice((1, 2, 20))))
            log.append_batch([bytes(size)] * max(1, min(5000, FRAME_BYTES // size)))
        ends, sizes = ends_and_sizes(log, transfer_bytes=500)
    first = most = 0
    for last in range(1, len(ends)):
        while sizes[last] - sizes[first] > FRAME_BYTES:
            first += 1
        most = max(most, ends[last] - ends[first])
    assert FRAME_BYTES < most <= incoming_bytes(segment_bytes)


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20, 1 << 21])
def test_reach_bounds_the_end_of_the_log_after_one_frame(tmp_path, seed, segment_bytes):
    """The bound holds for records of a whole segment, too, which leave the rest of the segment before unused."""
    random = Random(seed)
    with open_master(tmp_path / "log", segment_bytes=segment_bytes) as log:
        room = segment_bytes - (8 << 10)
        for _ in range(40):
            log.append(bytes(random.randrange(1, room // random.choice((1, 1, 2, 20)))))
            log.append_batch([bytes(random.randrange(1, 5000))] * random.randrange(20))
        ends, sizes = ends_and_sizes(log, transfer_bytes=5000)
    first = most = 0
    for last in range(1, len(ends)):
        while sizes[last] - sizes[first] > FRAME_BYTES:
            first += 1
        assert ends[last] <= reach(ends[first], segment_bytes)
        most = max(most, ends[last] - ends[first])
    if segment_bytes > 1 << 20:
        assert most > incoming_bytes(segment_bytes), "no record left much free"
