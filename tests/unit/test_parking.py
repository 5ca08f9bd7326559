"""Threads that wait for a position, one of them in the lead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import pytest

from pyreplog._native.ha.parking import ParkingLot
from tests.waiting import PATIENCE_S, until

FOREVER_US = 3_600_000_000


class Sleepers:
    """A lot that the test's thread leads, and threads that sleep there."""

    def __init__(self) -> None:
        self.lot = ParkingLot(100)
        self._threads: dict[int, threading.Thread] = {}
        assert self.lot.lead()

    def park(self, *positions: int) -> None:
        """One thread more for each, asleep."""
        for position in positions:
            before = self.lot.sleeping
            thread = threading.Thread(target=self.lot.park, args=(position, FOREVER_US), daemon=True)
            self._threads[position] = thread
            thread.start()
            until(lambda before=before: self.lot.sleeping > before)  # type: ignore[misc]

    def is_through(self, position: int) -> bool:
        """Whether the one who waits there comes through."""
        self._threads[position].join(PATIENCE_S)
        return not self._threads[position].is_alive()

    def end(self) -> None:
        self.lot.close()
        self.lot.leave()
        assert all(self.is_through(position) for position in self._threads)


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    sleepers.end()


def test_reach_wakes_threads_whose_position_is_reached(sleepers: Sleepers) -> None:
    sleepers.park(300, 200, 201, 400)
    sleepers.lot.reach(201)
    assert sleepers.lot.sleeping == 2
    assert sleepers.is_through(200)
    assert sleepers.is_through(201)
    sleepers.lot.reach(150)
    assert (sleepers.lot.reached, sleepers.lot.sleeping) == (201, 2), "it never goes back"
    sleepers.lot.reach(400)
    assert sleepers.is_through(300)
    assert sleepers.is_through(400)


def test_a_wait_is_over_when_it_is_reached_or_never_will_be() -> None:
    lot = ParkingLot(100)
    assert (lot.is_over(100), lot.is_over(101)) == (True, False)
    lot.reach(200)
    assert (lot.is_over(200), lot.is_over(201)) == (True, False)
    lot.close()
    assert lot.is_over(201)


def test_park_at_a_reached_position_returns_at_once(sleepers: Sleepers) -> None:
    sleepers.lot.reach(200)
    sleepers.lot.park(200, FOREVER_US)


def test_only_the_first_thread_leads(sleepers: Sleepers) -> None:
    flags = list[bool]()
    other = threading.Thread(target=lambda: flags.append(sleepers.lot.lead()))
    other.start()
    other.join()
    assert flags == [False]
    assert sleepers.lot.lead(), "again, as an interrupted one does"


def test_leaving_leader_wakes_the_longest_sleeper(sleepers: Sleepers) -> None:
    sleepers.park(200, 201)
    sleepers.lot.leave()
    assert sleepers.is_through(200), "it has slept longest"
    assert sleepers.lot.sleeping == 1
    sleepers.lot.park(300, FOREVER_US)  # nobody leads: does not sleep
    assert sleepers.lot.lead()


def test_woken_thread_that_leaves_wakes_the_next(sleepers: Sleepers) -> None:
    sleepers.park(200, 201)
    sleepers.lot.leave()
    assert sleepers.is_through(200)
    sleepers.lot.leave()  # as that one does when its time is over
    assert sleepers.is_through(201)


def test_leave_by_another_thread_does_not_end_the_lead(sleepers: Sleepers) -> None:
    sleepers.park(200)
    other = threading.Thread(target=sleepers.lot.leave)
    other.start()
    other.join()
    assert sleepers.lot.sleeping == 1
    sleepers.lot.park(201, 1)  # sleeps: somebody leads


def test_close_wakes_all_parked_threads(sleepers: Sleepers) -> None:
    sleepers.park(200, 201)
    sleepers.lot.close()
    assert sleepers.is_through(200)
    assert sleepers.is_through(201)
    sleepers.lot.park(300, FOREVER_US)


def test_no_wake_up_is_lost(seed: int) -> None:
    """Threads that wait for one position after the other; whoever leads reaches some of what there is."""
    lot, random, issued, threads = ParkingLot(0), Random(seed), [0], list[threading.Thread]()
    issuing = threading.Lock()

    def wait(position: int) -> None:
        try:
            while lot.reached < position:
                if lot.lead():
                    lot.reach(random.randint(lot.reached, issued[0]))
                else:
                    lot.park(position, FOREVER_US)
        finally:
            lot.leave()

    def run() -> None:
        for _ in range(500):
            with issuing:
                issued[0] += 1
                position = issued[0]
            wait(position)

    for _ in range(16):
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (lot.reached, lot.sleeping) == (issued[0], 0)
