"""The scheduler finds what it is there for, and finds it again."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from pyreplog.errors import OutcomeUnknownError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.client.publishing import window
from tests.interleaving import primitives
from tests.interleaving.scheduler import FailedRunError, World
from tests.interleaving.seam import controlled
from tests.interleaving.search import Choices, Harness, InterleavingError, attempt, repeat, try_preemptions, try_seeds


def of(program: object, *, lines: bool = True, hasty: bool = False) -> Harness:
    return Harness("program", program, (__file__,) if lines else (), hasty)  # type: ignore[arg-type]


def counting(world: World) -> None:
    total = [0]

    def add() -> None:
        before = total[0]
        total[0] = before + 1

    tasks = [world.go(add, "a"), world.go(add, "b")]
    world.join(*tasks)
    assert total == [2]


def crossing(world: World) -> None:
    new_first, two = primitives.Lock(), primitives.Lock()

    def take(first: primitives.Lock, second: primitives.Lock) -> None:
        with first, second:
            pass

    world.join(world.go(lambda: take(new_first, two), "a"), world.go(lambda: take(two, new_first), "b"))


def cleared_late(world: World) -> None:
    """An event cleared behind the look: what came between is not seen until a time-out."""
    event, items, seen = primitives.Event(), [], []

    def read() -> None:
        while len(seen) < 2:
            event.wait(1.0)
            seen.extend(items[len(seen) :])
            event.clear()

    def write() -> None:
        for number in range(2):
            items.append(number)
            event.set()

    world.join(world.go(read, "reader"), world.go(write, "writer"))
    assert not world.timeouts


def cleared_early(world: World) -> None:
    event, items, seen = primitives.Event(), [], []

    def read() -> None:
        while len(seen) < 2:
            event.wait(1.0)
            event.clear()
            seen.extend(items[len(seen) :])

    def write() -> None:
        for number in range(2):
            items.append(number)
            event.set()

    world.join(world.go(read, "reader"), world.go(write, "writer"))
    assert not world.timeouts


def condition(world: World) -> None:
    changed, items, taken = primitives.Condition(), [], []

    def take() -> None:
        with changed:
            while not items:
                changed.wait()
            taken.append(items.pop())

    def put() -> None:
        with changed:
            items.append(1)
            changed.notify()

    world.join(*[world.go(take, "taker") for _ in range(2)], *[world.go(put, "putter") for _ in range(2)])
    assert taken == [1, 1]


def condition_by_if(world: World) -> None:
    changed, items, taken = primitives.Condition(), [], []

    def take() -> None:
        with changed:
            if not items:
                changed.wait()
            taken.append(items.pop())

    def put() -> None:
        with changed:
            items.append(1)
            changed.notify_all()

    world.join(*[world.go(take, "taker") for _ in range(2)], *[world.go(put, "putter") for _ in range(2)])
    assert taken == [1, 1]


BROKEN = [counting, crossing, cleared_late, condition_by_if]
SOUND = [cleared_early, condition]


@pytest.mark.parametrize("program", BROKEN)
def test_a_race_is_found_with_few_preemptions(program: object) -> None:
    with pytest.raises(InterleavingError, match="repeat it with"):
        try_preemptions(of(program), 2, 4_000)


@pytest.mark.parametrize("program", BROKEN)
def test_a_race_is_found_at_random(program: object) -> None:
    with pytest.raises(InterleavingError, match="seed"):
        try_seeds(of(program), 0, 500)


@pytest.mark.parametrize("program", SOUND)
def test_correct_programs_pass_under_every_schedule(program: object) -> None:
    try_seeds(of(program), 0, 60)
    assert try_preemptions(of(program), 2, 300) > 100


@pytest.mark.parametrize("program", BROKEN)
def test_error_names_choices_that_repeat_the_run(program: object) -> None:
    with pytest.raises(InterleavingError) as raised:
        try_seeds(of(program), 0, 500)
    choices = str(raised.value).partition("--repeat '")[2].partition("'")[0]
    first, second = repeat(of(program), choices), repeat(of(program), choices)
    assert first.failure is not None and second.failure is not None
    assert [str(switch) for switch in first.switches] == [str(switch) for switch in second.switches]


def test_without_a_second_chance_a_race_of_lines_is_not_seen() -> None:
    assert try_preemptions(of(counting, lines=False), 2, 1_000) < 1_000  # all of them


def test_clock_advances_when_no_thread_can_run() -> None:
    def program(world: World) -> None:
        began = time.monotonic()
        primitives.sleep(3600.0)
        assert primitives.monotonic() - primitives.START_S == 3600.0
        assert not primitives.Event().wait(5.0)
        assert world.now == 3605.0
        assert time.monotonic() - began < 60.0

    world = attempt(of(program), Choices({}))
    assert world.failure is None
    assert [text.partition(" at ")[2] for text in world.timeouts] == ["sleep", "wait for an event"]


def test_a_time_out_may_come_early_where_a_harness_wants_it() -> None:
    outcomes = set()

    def program(world: World) -> None:
        event = primitives.Event()
        task = world.go(lambda: event.set(), "setter")
        outcomes.add(event.wait(1.0))
        world.join(task)

    try_seeds(of(program, hasty=True), 0, 200)
    assert outcomes == {True, False}


def test_deadlock_error_names_waiting_threads() -> None:
    def program(world: World) -> None:
        primitives.Event().wait()

    failure = attempt(of(program), Choices({})).failure
    assert isinstance(failure, FailedRunError)
    assert "all wait, for ever" in str(failure) and "0 main: wait for an event" in str(failure)


def test_error_names_threads_that_wait_after_the_main_thread_ended() -> None:
    def program(world: World) -> None:
        event = primitives.Event()
        world.join(world.go(event.wait, "left"), world.go(lambda: None, "ends"))

    failure = attempt(of(program), Choices({3: 1, 4: 1, 5: 0, 6: 2})).failure
    assert isinstance(failure, FailedRunError) and "1 left" in str(failure)


def test_a_program_that_runs_in_circles_ends() -> None:
    def program(world: World) -> None:
        while True:
            world.point("again")

    world = World(Choices({}), steps_max=100)
    world.run(program)
    assert "no end after 100 steps" in str(world.failure)


def test_unjoined_threads_end_with_their_world() -> None:
    before = threading.active_count()

    def program(world: World) -> None:
        world.go(lambda: primitives.Event().wait(), "left")

    assert attempt(of(program), Choices({})).failure is None
    assert threading.active_count() == before


def test_threads_of_others_are_left_alone() -> None:
    """Acks, locks and logs of a thread that is no task are real, and work, while a run goes on."""
    begun, log, results = threading.Event(), logging.getLogger("pyreplog.others"), []
    future = AppendFuture(7)

    def other() -> None:
        begun.wait()
        log.error("nothing to do with it")
        with allocate_lock_of_product(), pytest.raises(OutcomeUnknownError):
            AppendFuture[int]().result(0.01)
        results.append(future.result(30))

    def allocate_lock_of_product() -> Any:
        return window.threading.Lock()

    def program(world: World) -> None:
        begun.set()
        time.sleep(0.1)
        set_result(future)
        assert type(window.threading.Lock()) is primitives.Lock

    thread = threading.Thread(target=other)
    thread.start()
    with controlled():
        assert attempt(of(program), Choices({})).failure is None
        thread.join(30)
    assert results == [7]


def test_an_error_of_any_task_fails_the_run() -> None:
    def program(world: World) -> None:
        world.join(world.go(lambda: [].pop(), "fails"))

    assert isinstance(attempt(of(program), Choices({})).failure, IndexError)
