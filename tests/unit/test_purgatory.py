"""The waiting room: nobody is forgotten, told twice, or kept when gone."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable

import pytest

from pyreplog.errors import ClosedError, OutcomeUnknownError, PoisonedError
from pyreplog.future import AppendFuture, expected_result, set_result
from pyreplog.purgatory import Purgatory, PurgatoryEntry


def run_threads(*targets: Callable[[], object]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def watched(purgatory: Purgatory, *thresholds: int, key: str = "log") -> list[AppendFuture[int]]:
    futures = [AppendFuture(threshold) for threshold in thresholds]
    for future, threshold in zip(futures, thresholds, strict=True):
        purgatory.watch(key, threshold, future)
    return futures


def done(futures: list[AppendFuture[int]]) -> list[int]:
    return [future.result() for future in futures if future.done()]


class Mine(AppendFuture[int]):
    """Other tests' may go at any time."""


def alive() -> Counter[str]:
    gc.collect()
    futures = [each for each in gc.get_objects() if type(each) is Mine]
    watches = [each for each in gc.get_objects() if type(each) is PurgatoryEntry]
    return Counter(AppendFuture=len(futures), PurgatoryEntry=len(watches))


# Reaching a number


def test_an_advance_completes_those_whose_threshold_is_reached() -> None:
    purgatory = Purgatory()
    futures = watched(purgatory, 1, 2, 3, 4)
    assert purgatory.waiting("log") == 4
    purgatory.advance_and_drain("log", 0)
    assert done(futures) == []
    purgatory.advance_and_drain("log", 3)
    assert done(futures) == [1, 2, 3]
    assert purgatory.waiting("log") == 1
    purgatory.advance_and_drain("log", 10)
    assert done(futures) == [1, 2, 3, 4]
    assert purgatory.waiting("log") == 0


def test_waiter_for_a_reached_position_completes_at_once() -> None:
    purgatory = Purgatory()
    purgatory.advance_and_drain("log", 5)
    assert done(watched(purgatory, -7, 5)) == [-7, 5]
    assert done(watched(purgatory, 6)) == []


def test_numbers_do_not_go_back() -> None:
    purgatory = Purgatory()
    purgatory.advance_and_drain("log", 5)
    purgatory.advance_and_drain("log", 3)
    assert done(watched(purgatory, 5)) == [5]
    futures = watched(purgatory, 6)
    purgatory.advance_and_drain("log", 4)
    assert done(futures) == []


def test_operations_wait_for_their_own_key() -> None:
    purgatory = Purgatory()
    orders, flights = watched(purgatory, 1, key="orders"), watched(purgatory, 1, key="flights")
    purgatory.advance_and_drain("orders", 1)
    assert (done(orders), done(flights)) == ([1], [])
    assert (purgatory.waiting("orders"), purgatory.waiting("flights"), purgatory.waiting("?")) == (0, 1, 0)


def test_advance_completes_nothing_before_drain() -> None:
    purgatory = Purgatory()
    futures = watched(purgatory, 1)
    purgatory.advance("log", 1)
    assert done(futures) == []
    purgatory.drain()
    assert done(futures) == [1]


def test_key_is_watched_from_watch_until_its_last_waiter_is_gone() -> None:
    purgatory, future = Purgatory(), AppendFuture[None](None)
    assert not purgatory.is_watched("a")
    entry = purgatory.watch("a", 5, future)
    assert purgatory.is_watched("a"), "its registration waits in the inbox"
    purgatory.drain()
    assert purgatory.is_watched("a")
    assert not purgatory.is_watched("b")
    purgatory.advance_and_drain("a", 4)
    assert purgatory.is_watched("a")
    purgatory.cancel(entry)
    assert not purgatory.is_watched("a")


def test_is_watched_checks_several_keys_at_once() -> None:
    purgatory, future = Purgatory(), AppendFuture[None](None)
    purgatory.advance_and_drain("a", 1)
    assert not purgatory.is_watched("a", "b", "c")
    purgatory.watch("b", 5, future)
    purgatory.drain()
    assert purgatory.is_watched("a", "b", "c")
    purgatory.advance_and_drain("b", 5)
    assert not purgatory.is_watched("a", "b", "c")


def test_a_watch_between_advance_and_drain_is_completed() -> None:
    purgatory = Purgatory()
    purgatory.advance("log", 1)
    futures = watched(purgatory, 1)
    purgatory.drain()
    assert done(futures) == [1]


def test_waiters_complete_by_threshold_and_then_by_arrival() -> None:
    purgatory = Purgatory()
    thresholds = [5, 3, 9, 3, 1, 5, 7, 9, 4, 3, 8]
    told: list[int] = []
    for place, threshold in enumerate(thresholds):
        future = AppendFuture(place)
        future.add_done_callback(lambda future: told.append(future.result()))
        purgatory.watch("log", threshold, future)
    purgatory.advance_and_drain("log", 5)
    assert told == sorted((p for p, t in enumerate(thresholds) if t <= 5), key=lambda p: thresholds[p])
    purgatory.advance_and_drain("log", 9)
    assert told == sorted(range(len(thresholds)), key=lambda p: thresholds[p])


def test_waiter_for_a_distant_position_does_not_block_others() -> None:
    purgatory = Purgatory()
    far = watched(purgatory, 10**12)
    near = watched(purgatory, *range(1000))
    purgatory.advance_and_drain("log", 999)
    assert done(near) == list(range(1000))
    assert done(far) == []
    assert purgatory.waiting("log") == 1


def test_waiter_settled_elsewhere_keeps_its_outcome() -> None:
    purgatory = Purgatory()
    (future,) = watched(purgatory, 1)
    set_result(future, 99)
    purgatory.advance_and_drain("log", 1)
    assert future.result() == 99
    assert purgatory.waiting("log") == 0


def test_tasks_wait_in_the_room() -> None:
    async def main() -> list[int]:
        purgatory = Purgatory()

        async def append(number: int) -> int:
            future = AppendFuture(number)
            purgatory.watch("log", number, future)
            return await future

        tasks = [asyncio.create_task(append(number)) for number in range(100)]
        await asyncio.sleep(0)
        run_threads(lambda: purgatory.advance_and_drain("log", 99))
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(range(100))


# Failing


def test_fail_fails_present_and_later_waiters() -> None:
    purgatory = Purgatory()
    error = PoisonedError("sync failed")
    waiting = watched(purgatory, 1, 8, 4)
    purgatory.fail("log", error)
    coming = watched(purgatory, 2)
    assert [future.exception(0) for future in waiting + coming] == [error] * 4
    assert purgatory.waiting("log") == 0
    assert done(watched(purgatory, 1, key="another")) == []


def test_fail_keeps_reached_positions_and_fails_waiters_beyond_them() -> None:
    purgatory = Purgatory()
    purgatory.advance_and_drain("log", 5)
    purgatory.fail("log", PoisonedError("sync failed"))
    purgatory.advance_and_drain("log", 9)
    assert done(watched(purgatory, 5)) == [5]
    (beyond,) = watched(purgatory, 6)
    assert isinstance(beyond.exception(0), PoisonedError)


def test_the_last_failure_of_a_key_counts() -> None:
    purgatory = Purgatory()
    purgatory.fail("log", PoisonedError("sync failed"))
    purgatory.fail("log", ClosedError("closed"))
    (future,) = watched(purgatory, 1)
    assert isinstance(future.exception(0), ClosedError)


def test_reset_forgets_number_and_failure_but_not_the_waiters() -> None:
    purgatory = Purgatory()
    purgatory.advance_and_drain("log", 5)
    waiting = watched(purgatory, 6)
    purgatory.reset("log")
    assert purgatory.waiting("log") == 1
    again = watched(purgatory, 5)
    assert done(again) == []
    purgatory.advance_and_drain("log", 5)
    assert (done(again), done(waiting)) == ([5], [])
    purgatory.fail("log", PoisonedError("sync failed"))
    purgatory.reset("log")
    futures = watched(purgatory, 6)
    assert done(futures) == []
    purgatory.advance_and_drain("log", 6)
    assert done(futures) == [6]


# Deadlines


def test_a_deadline_makes_the_outcome_unknown() -> None:
    purgatory = Purgatory(tick_us=10)
    future = AppendFuture(0)
    purgatory.advance_and_drain("log", 3)
    purgatory.watch("log", 7, future, deadline_us=100)
    assert purgatory.expire(99) == 100
    assert not future.done()
    assert purgatory.expire(100) is None
    with pytest.raises(OutcomeUnknownError, match="'log' to reach 7 ran out, it is at 3"):
        future.result(0)
    assert purgatory.waiting("log") == 0
    purgatory.advance_and_drain("log", 7)
    assert isinstance(future.exception(), OutcomeUnknownError)


def test_expired_waiter_without_a_number_raises_outcome_unknown_error() -> None:
    purgatory = Purgatory()
    future = AppendFuture(0)
    purgatory.watch("log", 7, future, deadline_us=0)
    purgatory.expire(0)
    with pytest.raises(OutcomeUnknownError, match="it has no number yet"):
        future.result(0)


def test_expire_returns_the_next_deadline() -> None:
    purgatory = Purgatory(tick_us=10)
    assert purgatory.expire(0) is None
    for deadline in (30, 20, 40):
        purgatory.watch("log", deadline, AppendFuture(0), deadline_us=deadline)
    assert purgatory.expire(10) == 20
    assert purgatory.expire(20) == 30
    purgatory.advance_and_drain("log", 30)
    assert purgatory.expire(25) == 40
    purgatory.advance_and_drain("log", 40)
    assert purgatory.expire(25) is None


def test_the_completed_do_not_expire() -> None:
    purgatory = Purgatory()
    future = AppendFuture(1)
    purgatory.watch("log", 1, future, deadline_us=100)
    purgatory.advance_and_drain("log", 1)
    purgatory.expire(1000)
    assert future.result(0) == 1


def test_complete_at_completes_at_its_deadline() -> None:
    purgatory = Purgatory(tick_us=10)
    early, late, cancelled = AppendFuture(1), AppendFuture(2), AppendFuture(3)
    purgatory.complete_at(100, early)
    purgatory.complete_at(200, late)
    purgatory.cancel(purgatory.complete_at(100, cancelled))
    purgatory.advance_and_drain("log", 1 << 62)
    assert purgatory.expire(99) == 100
    assert not early.done()
    assert purgatory.expire(100) == 200
    assert early.result(0) == 1 and not late.done()
    assert purgatory.expire(200) is None
    assert late.result(0) == 2 and not cancelled.done()


# Cancelling


def test_a_cancelled_watch_leaves_its_ack_open() -> None:
    purgatory = Purgatory()
    future = AppendFuture(1)
    watch = purgatory.watch("log", 1, future, deadline_us=100)
    purgatory.cancel(watch)
    assert purgatory.waiting("log") == 0
    assert purgatory.expire(1000) is None
    purgatory.advance_and_drain("log", 1)
    purgatory.fail("log", PoisonedError("sync failed"))
    assert not future.done()


def test_cancelling_twice_or_too_late_changes_nothing() -> None:
    purgatory = Purgatory()
    first, second = AppendFuture(1), AppendFuture(2)
    watch = purgatory.watch("log", 1, first)
    purgatory.watch("log", 2, second)
    purgatory.advance_and_drain("log", 1)
    for _ in range(2):
        purgatory.cancel(watch)
    purgatory.cancel(purgatory.watch("log", 0, AppendFuture(0)))
    assert purgatory.waiting("log") == 1
    purgatory.advance_and_drain("log", 2)
    assert done([first, second]) == [1, 2]


# Memory


def test_memory_returns_to_zero() -> None:
    before = alive()
    purgatory = Purgatory()
    numbers = list(range(300))
    random.Random(7).shuffle(numbers)
    watches = [purgatory.watch(n % 7, n, Mine(n), deadline_us=n * 1000 if n % 3 else None) for n in numbers]
    assert alive() - before == Counter(AppendFuture=300, PurgatoryEntry=300)
    for watch in watches[::5]:
        purgatory.cancel(watch)
    del watches, watch
    purgatory.expire(100_000)
    for key in range(6):
        purgatory.advance_and_drain(key, 300)
    purgatory.fail(6, ClosedError("closed"))
    assert alive() == before
    assert len(purgatory._wheel) == 0
    for key in range(7):
        purgatory.reset(key)
    assert not purgatory._lines


def test_waiters_that_gave_up_go_when_they_outnumber_the_rest() -> None:
    purgatory = Purgatory()
    before = alive()
    watches = [purgatory.watch("log", 10**6 + n * (-1) ** n, Mine(n)) for n in range(1000)]
    for watch in watches[:499]:
        purgatory.cancel(watch)
    del watches, watch
    assert (alive() - before)["PurgatoryEntry"] <= 1000
    purgatory.expire(0)
    for deadline in range(2000):  # each comes and gives up
        purgatory.watch("log", 1, Mine(0), deadline_us=deadline)
        purgatory.expire(deadline + 1000)
        assert purgatory.waiting("log") == 501
    assert (alive() - before)["PurgatoryEntry"] <= 2 * 501


def test_last_completion_removes_cancelled_waiters() -> None:
    purgatory = Purgatory()
    near: list[AppendFuture[int]] = [Mine(n) for n in range(100)]
    for n, future in enumerate(near):
        purgatory.watch("log", n, future)
    before = alive()
    for _ in range(100):
        purgatory.cancel(purgatory.watch("log", 10**6, Mine(0)))
    assert alive()["PurgatoryEntry"] > before["PurgatoryEntry"]
    purgatory.advance_and_drain("log", 99)
    assert done(near) == list(range(100))
    assert alive()["PurgatoryEntry"] == before["PurgatoryEntry"] - 100


def test_cancelled_waiter_is_freed_at_once(uncollected: None) -> None:
    class Waiter:
        def __init__(self, purgatory: Purgatory) -> None:
            future = AppendFuture[int](0)
            future.add_done_callback(self.told)
            self.entry = purgatory.watch("log", 1, future, deadline_us=5)

        def told(self, _: AppendFuture[int]) -> None: ...

    purgatory = Purgatory()
    others = watched(purgatory, *range(1, 10))
    waiter = Waiter(purgatory)
    gone = weakref.ref(waiter)
    purgatory.cancel(waiter.entry)
    del waiter
    assert gone() is None
    assert not done(others)


def test_a_key_that_only_was_waited_for_leaves_nothing() -> None:
    purgatory = Purgatory()
    for key in range(100):
        purgatory.watch(key, 1, AppendFuture(0), deadline_us=5)
        purgatory.cancel(purgatory.watch(-key - 1, 1, AppendFuture(0)))
    purgatory.expire(1000)
    assert not purgatory._lines
    assert purgatory.waiting("never heard of") == 0
    assert not purgatory._lines


# Cost


class Counted(int):
    """A number that counts how often numbers are compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return int(self) < other

    def __le__(self, other: float) -> bool:
        Counted.comparisons += 1
        return int(self) <= other

    def __gt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return int(self) > other

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def comparisons_to_complete(numbers: list[int], steps: int) -> int:
    """Watches for `numbers`, advances to the last one in equal `steps`, and returns the comparisons done."""
    Counted.comparisons = 0
    purgatory = Purgatory()
    futures = watched(purgatory, *map(Counted, numbers))
    for step in range(1, steps + 1):
        purgatory.advance_and_drain("log", len(numbers) * step // steps)
    assert all(future.done() for future in futures)
    return Counted.comparisons


def test_a_hundred_thousand_waiters_in_order_cost_the_same_each() -> None:
    few = comparisons_to_complete(list(range(1000)), steps=10)
    many = comparisons_to_complete(list(range(100_000)), steps=10)
    assert many <= 100 * few
    assert many <= 8 * 100_000


def test_advancing_stepwise_does_not_scan_remaining_waiters() -> None:
    at_once = comparisons_to_complete(list(range(20_000)), steps=1)
    one_by_one = comparisons_to_complete(list(range(20_000)), steps=20_000)
    assert one_by_one <= at_once + 3 * 20_000


def test_waiters_out_of_order_cost_a_logarithm() -> None:
    numbers = list(range(10_000))
    random.Random(7).shuffle(numbers)
    depth = 14  # log2 of 10 000, rounded up; at each level a tuple compares with == and then <
    assert comparisons_to_complete(numbers, steps=100) <= 10_000 * (8 + 2 * 2 * depth)


# Ctrl-C


def test_ctrl_c_during_drain_loses_no_waiter() -> None:
    class Interrupting(int):
        """A threshold at whose first look in the line Ctrl-C is pressed."""

        armed = True

        def __gt__(self, other: float) -> bool:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            return int(self) > other

    purgatory = Purgatory()
    futures = watched(purgatory, 1, 2, Interrupting(3), 4, 5)
    purgatory.advance("log", 4)
    later = watched(purgatory, 3, key="another")
    purgatory.advance("another", 3)
    with pytest.raises(KeyboardInterrupt):
        purgatory.drain()
    assert done(futures) == [1, 2, 3, 4]
    assert done(later) == [3]
    assert purgatory.waiting("log") == 1
    purgatory.advance_and_drain("log", 5)
    assert done(futures) == [1, 2, 3, 4, 5]


# Callbacks


def test_a_callback_may_use_the_room() -> None:
    purgatory = Purgatory()
    told: list[int] = []

    def follow(future: AppendFuture[int]) -> None:
        number = future.result()
        told.append(number)
        if number < 20:
            following = AppendFuture(number + 1)
            following.add_done_callback(follow)
            purgatory.watch("log", number + 1, following)
            purgatory.advance_and_drain("log", number + 1)

    (first,) = watched(purgatory, 0)
    first.add_done_callback(follow)
    purgatory.advance_and_drain("log", 0)
    assert told == list(range(21))
    assert purgatory.waiting("log") == 0


def test_a_callback_holds_nothing_that_another_thread_needs() -> None:
    purgatory = Purgatory()
    (first,) = watched(purgatory, 1)
    seen: list[list[int]] = []

    def in_another_thread() -> None:
        futures = watched(purgatory, 2)
        purgatory.advance_and_drain("log", 2)
        seen.append(done(futures))

    first.add_done_callback(lambda _: run_threads(in_another_thread))
    purgatory.advance_and_drain("log", 1)
    assert seen == [[2]]


# Threads


@pytest.mark.usefixtures("eager_switching")
def test_hammering_threads_settle_everything_exactly_once() -> None:
    purgatory = Purgatory()
    per_thread, watchers, keys = 400, 3, 2
    barrier = threading.Barrier(watchers + 3)
    told: Counter[tuple[int, int]] = Counter()
    futures: list[AppendFuture[tuple[int, int]]] = []

    def watch(thread: int) -> Callable[[], None]:
        rng = random.Random(thread)

        def run() -> None:
            barrier.wait()
            for n in range(per_thread):
                future = AppendFuture((thread, n))
                future.add_done_callback(lambda future: told.update([expected_result(future)]))
                futures.append(future)
                deadline = rng.choice([None, n])
                purgatory.watch(n % keys, n + rng.randrange(-20, 20), future, deadline_us=deadline)

        return run

    def advance_key(key: int) -> Callable[[], None]:
        def run() -> None:
            barrier.wait()
            for n in range(per_thread):
                purgatory.advance(key, n)
                if n % 3 == 0:
                    purgatory.drain()
            purgatory.advance_and_drain(key, per_thread + 20)

        return run

    def expire_some() -> None:
        barrier.wait()
        for n in range(per_thread // 2):
            purgatory.expire(n)

    run_threads(*(watch(thread) for thread in range(watchers)), advance_key(0), advance_key(1), expire_some)
    assert told == Counter((thread, n) for thread in range(watchers) for n in range(per_thread))
    assert all(future.done() for future in futures)
    assert [purgatory.waiting(key) for key in range(keys)] == [0, 0]
    assert len(purgatory._wheel) == 0


@pytest.mark.usefixtures("eager_switching")
def test_two_threads_playing_ping_pong_lose_no_wake_up() -> None:
    purgatory = Purgatory()
    turns = 300

    def play(mine: str, theirs: str) -> Callable[[], None]:
        def run() -> None:
            for turn in range(turns):
                purgatory.advance_and_drain(mine, turn)
                future = AppendFuture(turn)
                purgatory.watch(theirs, turn, future)
                assert future.result(60) == turn

        return run

    run_threads(play("ping", "pong"), play("pong", "ping"))
    assert (purgatory.waiting("ping"), purgatory.waiting("pong")) == (0, 0)
