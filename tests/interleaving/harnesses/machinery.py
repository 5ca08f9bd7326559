"""What everything else waits with: acks, turns, purgatory, workers, watchers, leases, the reactor."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable
from typing import Any

from pyreplog import event_queue, fair_lock, purgatory, timing_wheel
from pyreplog.errors import ClosedError, OutcomeUnknownError, ReplogError
from pyreplog.event_queue import EventQueue
from pyreplog.fair_lock import FairLock
from pyreplog.future import AppendFuture, set_exception, set_result, settle_all
from pyreplog.ledger import thread_pool
from pyreplog.metadata import lease, watching
from pyreplog.metadata.lease import Heartbeat
from pyreplog.metadata.watching import Watchers
from pyreplog.net import connection, driver_lock, fair_executor, reactor, timers
from pyreplog.net.handshake import NodeIdentity, Peer
from pyreplog.net.limits import Limits
from pyreplog.purgatory import Purgatory
from tests.interleaving import primitives
from tests.interleaving.harnesses.building import harness, in_time, run_all
from tests.interleaving.scheduler import World


def ack(world: World) -> None:
    """Whoever waits for an ack, before or after it is settled, sees its outcome; a callback is called once."""
    first, two = AppendFuture(1), AppendFuture(2)
    called: list[int] = []
    got: list[int] = []

    def listen() -> None:
        first.add_done_callback(lambda ack: called.append(ack.result()))
        two.add_done_callback(lambda ack: called.append(ack.result()))
        got.append(two.result())

    run_all(
        world,
        waiter=lambda: got.append(first.result()),
        listener=listen,
        settler=lambda: settle_all([(first, None), (two, None)]),
        late=lambda: set_result(first, 9) or set_result(two, 9),
    )
    in_time(world)
    assert sorted(got) == sorted([first.result(), two.result()])
    assert sorted(called) == sorted([first.result(), two.result()])


def turns(world: World) -> None:
    """Turns are taken in order, one at a time; who gives up passes them on."""
    fair_lock = FairLock()
    inside: list[str] = []
    most = [0]

    def take(name: str) -> None:
        if not fair_lock.try_enter():
            ack = fair_lock.enter()
            try:
                ack.result(5.0)
            except OutcomeUnknownError:
                fair_lock.give_up(ack)
                return
        inside.append(name)
        most[0] = max(most[0], len(inside))
        world.point("inside")
        inside.remove(name)
        fair_lock.leave()

    run_all(world, a=lambda: take("a"), b=lambda: take("b"), c=lambda: take("c"))
    in_time(world)
    assert most == [1] and fair_lock.enter().done()


def step_queue(world: World) -> None:
    """Steps are done in the order they were posted, each once, none is left."""
    queue = EventQueue()
    done: list[int] = []
    posted: list[int] = []

    def post(number: int) -> None:
        for step in (number, number + 1):
            queue.post(lambda step=step: (posted.append(step), world.point("step"), done.append(step)))  # type: ignore[misc]

    run_all(world, a=lambda: post(0), b=lambda: post(10), c=lambda: post(20))
    assert sorted(done) == [0, 1, 10, 11, 20, 21] and done == posted
    for first in (0, 10, 20):
        assert done.index(first) < done.index(first + 1)


def waiting_room(world: World) -> None:
    """Whoever waits for a number that is reached goes on, whatever comes between."""
    room = Purgatory()
    futures = [AppendFuture(number) for number in (1, 2, 3)]

    def watch(number: int) -> None:
        room.watch("key", number, futures[number - 1])
        assert futures[number - 1].result() == number

    def advance() -> None:
        room.advance("key", 1)
        room.drain()
        room.advance_and_drain("key", 3)

    run_all(
        world,
        a=lambda: watch(1),
        b=lambda: watch(3),
        mover=advance,
        other=lambda: room.advance_and_drain("key", 2),
    )
    in_time(world)
    assert room.waiting("key") == 0


def waiting_room_deadlines(world: World) -> None:
    """A watch is completed, cancelled or late: one of them, and the room forgets it."""
    room = Purgatory()
    first, second = AppendFuture[int](1), AppendFuture[int](2)

    def cancel() -> None:
        watch = room.watch("key", 5, first, deadline_us=2_000)
        room.cancel(watch)
        set_exception(first, TimeoutError())

    run_all(
        world,
        canceller=cancel,
        late=lambda: room.watch("key", 6, second, deadline_us=1_000),
        clock=lambda: room.expire(10_000),
        mover=lambda: room.advance_and_drain("key", 5),
    )
    room.expire(20_000)
    assert first.done() and second.done() and isinstance(second.exception(), OutcomeUnknownError)
    assert room.waiting("key") == 0 and room.expire(30_000) is None


def failing_room(world: World) -> None:
    """Nobody waits in a room that has failed."""
    room = Purgatory()
    futures = [AppendFuture[int](number) for number in range(2)]

    def watch(number: int) -> None:
        room.watch("key", 5, futures[number])
        assert isinstance(futures[number].exception(), ValueError)

    run_all(world, a=lambda: watch(0), b=lambda: watch(1), mover=lambda: room.advance_and_drain("key", 4),
            failing=lambda: room.fail("key", ValueError()))  # fmt: skip
    in_time(world)


def few_workers(world: World) -> None:
    """All that was submitted before a close is done, and the close ends."""
    pool = thread_pool.ThreadPool(2, "worker")
    done: list[int] = []

    def submit(number: int) -> None:
        pool.submit(lambda: done.append(number))

    run_all(world, a=lambda: submit(1), b=lambda: submit(2))
    pool.close()
    assert sorted(done) == [1, 2]
    in_time(world)


class _Held:
    """A connection of FairExecutor. held: as it was told last."""

    def __init__(self) -> None:
        self.held = False

    def hold(self, why: object) -> None:
        self.held = True

    def release(self, why: object) -> None:
        self.held = False


def fair_jobs(world: World) -> None:
    """Every job is done by one of a few threads, though another waits for it, and connections are read on."""
    jobs = fair_executor.FairExecutor("job", threads=3, threads_max=3, running_max=2, queued_max=2)
    new_first, other = _Held(), _Held()
    done: list[str] = []

    def first() -> None:
        world.wait(lambda: "second" in done, None, "a job waits for another")
        done.append("first")

    def submit() -> None:
        jobs.submit(new_first, first)  # type: ignore[arg-type]
        jobs.submit(new_first, lambda: done.append("second"))  # type: ignore[arg-type]
        jobs.submit(new_first, lambda: done.append("third"))  # type: ignore[arg-type]

    run_all(world, a=submit, b=lambda: jobs.submit(other, lambda: done.append("other")))  # type: ignore[arg-type]
    world.wait(lambda: len(done) == 4, 10.0, "done")
    in_time(world)
    assert sorted(done) == ["first", "other", "second", "third"] and not new_first.held
    jobs.close()
    in_time(world)


def watches(world: World) -> None:
    """Every change is told after it has happened, though it comes while others are told; nobody is told after a close."""
    value = [0]
    seen: list[int] = []
    watchers = Watchers(arm=lambda key: True)
    closed: list[bool] = []

    def told(key: str) -> None:
        assert not (closed and seen and seen[-1] == -1)
        seen.append(value[0])

    watch = watchers.add("key", told)

    def change() -> None:
        for number in (1, 2):
            value[0] = number
            watchers.changed(["key"])

    run_all(world, a=change, b=lambda: watchers.all_changed())
    world.wait(lambda: bool(seen) and seen[-1] == 2, 10.0, "told")
    in_time(world)
    assert seen[-1] == 2
    watch.close()
    watchers.stop()


def lost_lease(world: World) -> None:
    """A lease that is lost is mourned, once; one that is to be renewed is, without a wait."""
    renewed: list[int] = []
    mourned: list[str] = []

    class Clock:
        def monotonic_us(self) -> int:
            return round(world.now * 1e6)

    def renew() -> int:
        renewed.append(1)
        return round((world.now + 30.0) * 1e6)

    beat = Heartbeat(
        ttl=30.0, clock=Clock(), renew=renew, give_up=lambda: mourned.append("given up"),  # type: ignore[arg-type]
        on_loss=lambda: mourned.append("lost"),
    )  # fmt: skip
    run_all(world, hurrier=lambda: (beat.suspend(), beat.renew_now()), loser=lambda: beat.lose())
    world.wait(lambda: len(mourned) == 2, 60.0, "mourned")
    in_time(world)
    assert mourned == ["given up", "lost"]
    beat.stop()


# ---- the reactor ---------------------------------------------------------------------------------------------------


class _Wakeup:
    """In place of an eventfd."""

    def __init__(self) -> None:
        self.fd, self.is_rung = 1, False

    def ring(self) -> None:
        self.is_rung = True
        primitives.point("ring")

    def clear(self) -> None:
        self.is_rung = False


class _Epoll:
    """In place of the kernel's: the bell, and descriptors that a harness makes ready."""

    ready: list[tuple[int, int]]

    def __init__(self) -> None:
        self.ready, self.wakeup = [], lambda: None
        self.is_closed = False

    def register(self, fd: int, event_queue: int) -> None: ...
    def unregister(self, fd: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def poll(self, timeout_s: float, busy_poll_us: int) -> list[tuple[int, int]]:
        wakeup: Any = self.wakeup()
        primitives.wait(lambda: bool(self.ready) or (wakeup is not None and wakeup.is_rung), timeout_s, "epoll")
        ready, self.ready = self.ready, []
        if wakeup is not None and wakeup.is_rung:
            ready.append((wakeup.fd, 1))
        return ready


class _Reactor(reactor.Reactor):
    """Its clock is the world's, its descriptors are a harness's."""


def _made() -> reactor.Reactor:
    real_epoll, real_bell = reactor.Epoll, reactor.Wakeup
    reactor.Epoll, reactor.Wakeup = _Epoll, _Wakeup  # type: ignore[assignment,misc]
    try:
        new_reactor = _Reactor()
    finally:
        reactor.Epoll, reactor.Wakeup = real_epoll, real_bell  # type: ignore[misc]
    epoll: Any = new_reactor._epoll
    epoll.wakeup = weakref.ref(new_reactor._wakeup)  # type: ignore[arg-type]
    return new_reactor


def driving(world: World) -> None:
    """Threads that wait drive for each other; what is handed over is done at once, whoever drives or rests."""
    net = _made()
    net.start()
    first, two = AppendFuture[int](), AppendFuture[int]()

    def wait(ack: AppendFuture[int]) -> None:
        net.wait(ack)

    def hand_over() -> None:
        net.call_soon(lambda: set_result(first, 1))
        net.call_soon(lambda: set_result(two, 2))

    run_all(world, a=lambda: wait(first), b=lambda: wait(two), caller=hand_over)
    in_time(world, but=("pyreplog-net",))  # the owner's rests are bounded on purpose
    net.close()
    in_time(world, but=("pyreplog-net",))


def driving_alone(world: World) -> None:
    """Threads that wait drive for each other without a thread of the reactor's own."""
    net = _made()
    futures = [AppendFuture[int]() for _ in range(3)]

    def hand_over() -> None:
        for number, ack in enumerate(futures):
            net.call_soon(lambda ack=ack, number=number: set_result(ack, number))  # type: ignore[misc]

    run_all(
        world,
        a=lambda: net.wait(futures[0]),
        b=lambda: net.wait(futures[1]),
        c=lambda: net.wait(futures[2]),
        caller=hand_over,
    )
    in_time(world)
    net.close()


def driving_elsewhere(world: World) -> None:
    """An ack that another thread settles, without driving, wakes who waits for it."""
    net = _made()
    net.start()
    first, two = AppendFuture[int](), AppendFuture[int]()

    run_all(
        world,
        a=lambda: net.wait(first),
        b=lambda: net.wait(two),
        settler=lambda: (set_result(first, 1), set_result(two, 2)),
    )
    in_time(world, but=("pyreplog-net",))
    net.close()


def handed_over(world: World) -> None:
    """What is handed over to a reactor that nobody waits for is done by its own thread."""
    net = _made()
    net.start()
    done: list[int] = []
    run_all(world, a=lambda: net.call_soon(lambda: done.append(1)), b=lambda: net.call_soon(lambda: done.append(2)))
    world.wait(lambda: len(done) == 2, 0.05, "done")
    assert sorted(done) == [1, 2]
    net.close()


def closing_reactor(world: World) -> None:
    """A close ends, and who waits is told."""
    net = _made()
    net.start()
    ack = AppendFuture[int]()

    def wait() -> None:
        try:
            net.wait(ack)
        except Exception as error:
            assert "closed" in str(error)

    run_all(world, a=wait, closer=lambda: net.close(), b=wait)
    in_time(world, but=("pyreplog-net", "closer"))


def closing_idle_reactor(world: World) -> None:
    """The same of a reactor without a thread of its own: who closes it, and who waits, are told without a pause."""
    net = _made()
    told: list[str] = []

    def wait() -> None:
        try:
            net.wait(AppendFuture[int]())
        except ClosedError:
            told.append("closed")

    run_all(world, a=wait, b=wait, closer=lambda: net.close())
    in_time(world, but=("closer",))
    assert told == ["closed", "closed"]


class _Posts:
    """A reactor that only notes what it is to call. clock: stands still."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.clock = self

    def monotonic_us(self) -> int:
        return 0

    def call_soon(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def unregister(self, fd: int) -> None: ...


class _Ends:
    """A handler of a connection that notes how it ended."""

    def __init__(self) -> None:
        self.errors: list[ReplogError] = []

    def closed(self, connection: object, error: ReplogError) -> None:
        self.errors.append(error)


def closing_connection(world: World) -> None:
    """Several threads close a connection at a time: its handler is told once, behind all else."""
    posts, ends = _Posts(), _Ends()
    ours, theirs = socket.socketpair()
    with theirs:
        new_connection = connection.Connection(posts, ours, ends, Limits(), Peer(NodeIdentity(), 1, 1000, 60.0, None))  # type: ignore[arg-type]
        run_all(
            world, a=lambda: new_connection.close(ClosedError("a")), b=lambda: new_connection.close(ClosedError("b"))
        )
        for call in posts.calls:
            call()
    in_time(world)
    assert len(ends.errors) == 1


HARNESSES = [
    harness(ack),
    harness(turns, fair_lock, hasty=True),
    harness(step_queue, event_queue),
    harness(waiting_room, purgatory),
    harness(waiting_room_deadlines, purgatory, timing_wheel),
    harness(failing_room, purgatory),
    harness(few_workers, thread_pool),
    harness(fair_jobs, fair_executor),
    harness(watches, watching),
    harness(lost_lease, lease),
    harness(driving, driver_lock, reactor),
    harness(driving_alone, driver_lock, reactor),
    harness(driving_elsewhere, driver_lock, reactor),
    harness(handed_over, driver_lock, reactor, timers),
    harness(closing_reactor, driver_lock, reactor),
    harness(closing_idle_reactor, driver_lock, reactor),
    harness(closing_connection, connection),
]
