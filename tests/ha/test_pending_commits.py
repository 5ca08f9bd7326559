"""`PendingCommits`: appends that wait for the commit point."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import DeposedError, ReplicationTimeoutError
from pyreplog.future import AppendFuture
from pyreplog.ha.pending_commits import PendingCommits
from pyreplog.stream.terms import Term

TIMEOUT_US = 1_000_000


class Room:
    """A `PendingCommits`, with a clock that stands still, and a count of its offers."""

    def __init__(self, timeout_us: int = TIMEOUT_US) -> None:
        self.clock = ManualClock(0)
        self.offers = 0
        self.pending_commits = PendingCommits(100, self._offer, timeout_us, self.clock)
        self.moved = threading.Condition()
        self.drives = self.most_drivers = 0

    def _offer(self) -> None:
        self.offers += 1

    def reach(self, position: int) -> None:
        self.pending_commits.advance(position)
        self.pending_commits.drain()

    def drive(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait as a reactor does, until `done` or the time-out, while another thread moves the commit point."""
        with self.moved:
            self.drives += 1
            self.most_drivers = max(self.most_drivers, self.drives)
            is_done = self.moved.wait_for(done, timeout_s)
            self.drives -= 1
        return is_done

    def let_one_go(self, position: int) -> None:
        with self.moved:
            self.reach(position)
            self.moved.notify_all()


@pytest.fixture
def room() -> Room:
    return Room()


def test_an_append_without_a_loop_is_offered_at_once(room: Room) -> None:
    future = AppendFuture(7)
    room.pending_commits.add(200, future)
    assert (room.offers, future.done()) == (1, False)
    room.reach(199)
    assert not future.done()
    room.reach(200)
    assert future.result() == 7


def test_append_below_the_commit_point_completes_at_once(room: Room) -> None:
    future = AppendFuture(1)
    room.pending_commits.add(100, future)
    assert future.done()


def test_a_round_of_a_loop_is_offered_once_and_settled_together(room: Room) -> None:
    async def main() -> list[int]:
        futures = [AppendFuture(number) for number in range(50)]
        for number, future in enumerate(futures):
            room.pending_commits.add(200 + number, future)
        assert room.offers == 0
        await asyncio.sleep(0)
        assert room.offers == 1
        room.reach(248)
        assert not any(future.done() for future in futures), "the last one of what was sent together is not there"
        room.reach(249)
        return [await future for future in futures]

    assert asyncio.run(main()) == list(range(50))


def test_a_round_that_its_loop_did_not_take_has_not_begun(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise later rounds would wait for a round that never ends."""

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> int:
        future = AppendFuture(1)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(asyncio.get_running_loop(), "call_soon", refuse)
            room.pending_commits.add(200, AppendFuture(0))
        room.pending_commits.add(300, future)
        await asyncio.sleep(0)
        room.reach(300)
        assert (room.offers, future.done()) == (1, True)
        return await future

    assert asyncio.run(main()) == 1


def test_a_round_whose_loop_has_ended_is_taken_by_the_clock(room: Room) -> None:
    future, loop = AppendFuture(1), asyncio.new_event_loop()

    async def main() -> None:
        room.pending_commits.add(200, future)
        loop.stop()  # the loop stops after this round, and the offer would come in the next one

    task = loop.create_task(main())
    loop.run_forever()
    assert task.done()
    loop.close()
    room.pending_commits.tick()
    room.reach(200)
    assert (room.offers, future.done()) == (0, True)


@pytest.mark.parametrize("is_in_a_round", [False, True])
def test_fail_reaches_all_pending_appends(room: Room, is_in_a_round: bool) -> None:
    future, error = AppendFuture(1), DeposedError("over", Term(3, "b"))

    async def main() -> None:
        room.pending_commits.add(200, future)
        room.pending_commits.fail(error)

    if is_in_a_round:
        asyncio.run(main())
    else:
        room.pending_commits.add(200, future)
        room.pending_commits.fail(error)
    assert future.exception() is error
    with pytest.raises(DeposedError):
        room.pending_commits.wait(200, room.drive)
    room.pending_commits.wait(100, room.drive)


def test_time_outs_leave_the_outcome_unknown(room: Room) -> None:
    first, second = AppendFuture(1), AppendFuture(2)
    room.pending_commits.add(200, first)
    room.clock.advance(TIMEOUT_US // 2)
    room.pending_commits.add(300, second)
    room.clock.advance(TIMEOUT_US // 2)
    room.pending_commits.tick()
    assert isinstance(first.exception(), ReplicationTimeoutError)
    assert not second.done()
    room.reach(300)
    assert second.result() == 2


def test_append_committed_before_its_timeout_is_noticed_succeeds(room: Room) -> None:
    """RocketMQ fails an append whose deadline has passed in its queue, without comparing it with the progress of
    replicas."""
    future = AppendFuture(1)
    room.pending_commits.add(200, future)
    room.clock.advance(TIMEOUT_US)
    room.pending_commits.advance(200)  # nothing has drained the queue since
    room.pending_commits.tick()
    assert future.result() == 1
    in_time = Room(timeout_us=1)
    in_time.pending_commits.advance(300)
    in_time.pending_commits.wait(300, in_time.drive)


def test_a_thread_that_waits_in_vain_does_not_know_the_outcome() -> None:
    room = Room(timeout_us=1)
    with pytest.raises(ReplicationTimeoutError, match="position 300"):
        room.pending_commits.wait(300, room.drive)
    assert not room.drives, "the time was over before it could drive, or it gave the lead up"


def test_one_waiting_thread_at_a_time_drives_the_reactor() -> None:
    """The commit point passes the threads one after the other: the one that drives the reactor stops, and another one
    takes over."""
    room, results = Room(timeout_us=3_600_000_000), list[int]()
    positions = list(range(200, 216))

    def wait(position: int) -> None:
        room.pending_commits.wait(position, room.drive)
        results.append(position)

    threads = [threading.Thread(target=wait, args=(position,)) for position in positions]
    for thread in threads:
        thread.start()
    for position in positions:
        room.let_one_go(position)
    for thread in threads:
        thread.join(30)
    assert sorted(results) == positions
    assert room.most_drivers == 1


def test_the_last_thread_that_is_woken_offers_what_the_others_have_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.ha.pending_commits._PARK_US", 3_600_000_000)
    room = Room(timeout_us=3_600_000_000)
    threads = [threading.Thread(target=room.pending_commits.wait, args=(200, room.drive)) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while room.pending_commits.lot.sleeping < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert (room.offers, room.pending_commits.lot.is_waking) == (0, False)
    room.let_one_go(200)
    for thread in threads:
        thread.join(30)
    assert (room.offers, room.pending_commits.lot.is_waking) == (1, False)


def test_a_failure_ends_the_waits_of_threads() -> None:
    room, errors = Room(timeout_us=3_600_000_000), list[BaseException]()

    def wait() -> None:
        try:
            room.pending_commits.wait(200, room.drive)
        except DeposedError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    with room.moved:
        room.pending_commits.fail(DeposedError("over", Term(3, "b")))
        room.moved.notify_all()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 4
