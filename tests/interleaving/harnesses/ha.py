"""Replica groups: syncing what has landed, streaming a log, waiting for the commit point, commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyreplog.errors import DeposedError, DiskError, ReplicationTimeoutError
from pyreplog.future import AppendFuture
from pyreplog.ha import commands, pending_commits
from pyreplog.ha.commands import Commands
from pyreplog.ha.pending_commits import PendingCommits
from pyreplog.ha.relay import space_limit
from pyreplog.ha.relay.space_limit import SpaceLimit
from pyreplog.net import fair_executor
from pyreplog.stream import receiver, sender, syncer
from pyreplog.stream.receiver import StreamReceiver
from pyreplog.stream.syncer import Syncer
from pyreplog.stream.terms import Term
from tests.interleaving import primitives
from tests.interleaving.harnesses.building import harness, in_time, run_all
from tests.interleaving.scheduler import World


class Log:
    """A log that lands what it is told to, and syncs what had landed when the sync began."""

    segment_bytes = 1 << 16

    def __init__(self) -> None:
        self.received_end = self.synced = 0
        self.fails = False

    def sync(self) -> None:
        before = self.received_end
        primitives.point("syncing")
        if self.fails:
            raise DiskError(5, "the disk failed")
        self.synced = max(self.synced, before)

    def resume(self) -> None: ...

    def append_replicated(self, offset: int, bodies: Any) -> None:
        self.received_end += 1

    @property
    def progress(self) -> tuple[int, int]:
        return self.received_end, self.synced


def synced(world: World) -> None:
    """All that has landed is synced, and told, without anybody asking twice."""
    log, told = Log(), [0]
    syncer = Syncer(log, lambda: told.append(log.synced), lambda error: None)  # type: ignore[arg-type]

    def land() -> None:
        for _ in range(2):
            log.received_end += 1
            syncer.grew()

    run_all(world, a=land, b=land)
    world.wait(lambda: told[-1] == 4, 1.0, "synced")
    in_time(world)
    assert told[-1] == 4 and told == sorted(told)
    syncer.stop()


def failed_sync(world: World) -> None:
    """A sync that fails is told once, unless nobody wants to know any more."""
    log, failures = Log(), []
    log.fails = True
    syncer = Syncer(log, lambda: None, failures.append)  # type: ignore[arg-type]
    stopped: list[bool] = []

    def stop() -> None:
        syncer.stop()
        stopped.append(True)

    run_all(world, a=lambda: (syncer.grew(), syncer.grew()), stopper=stop)
    assert len(failures) <= 1


class Connection:
    """Of a receiver. paused: as it was told last."""

    error = None
    unread_bytes = queued_bytes = 0

    def __init__(self) -> None:
        self.paused = False
        self.sent: list[bytes] = []
        self.closed: list[Exception] = []

    def pause(self) -> None:
        primitives.point("pause")
        self.paused = True

    def resume(self) -> None:
        primitives.point("resume")
        self.paused = False

    def close(self, error: Exception) -> None:
        self.closed.append(error)

    def send(self, *frames: bytes) -> bool:
        primitives.point("send")
        self.sent += frames
        return True


def _receiver(on_progress: Callable[[], object]) -> StreamReceiver:
    return StreamReceiver(
        on_opened=lambda: None, on_control=lambda body: None, on_progress=on_progress, on_closed=lambda error: None
    )


def paused(world: World) -> None:
    """A connection is paused if the last word was pause, whenever it was opened."""
    receiver = _receiver(lambda: None)
    connection = Connection()
    last: list[str] = []

    def pause() -> None:
        receiver.pause()
        receiver.resume()
        receiver.pause()
        last.append("pause")

    run_all(world, a=pause, driver=lambda: receiver.opened(connection))  # type: ignore[arg-type]
    assert connection.paused


def received(world: World) -> None:
    """What arrives is reported when it is synced, also when it came during a sync."""
    reports: list[tuple[int, int]] = []
    log = Log()
    receiver = _receiver(lambda: reports.append(log.progress))

    def drive() -> None:
        receiver.stream(log, syncs=True)  # type: ignore[arg-type]
        for _ in range(2):
            log.append_replicated(0, ())
            receiver.report()
            assert receiver._syncer is not None
            receiver._syncer.grew()

    run_all(world, driver=drive)
    world.wait(lambda: bool(reports) and reports[-1] == (2, 2), 1.0, "reported")
    in_time(world)
    assert max(reports) == (2, 2)
    receiver.stop()


class _Feed:
    """Bytes of a log that grows."""

    turn: Any = None

    def __init__(self, world: World, *_: Any) -> None:
        self.position, self.left_bytes = 0, 0
        self.end = lambda: None

    def take(self, limit: int) -> tuple[list[bytes], int]:
        size = min(limit, _Growing.end - self.position)
        self.position += size
        return [b"."] * bool(size), size


class _Growing:
    """Calls who waits for the log to grow; as Growth, in the task that appends."""

    end = 0

    def __init__(self) -> None:
        self.waiting: dict[Any, int] = {}

    def when_beyond(self, position: int, call: Callable[[], object]) -> None:
        primitives.point("asks")
        if _Growing.end > position:
            call_soon.append(call)
        else:
            self.waiting[call] = position

    def forget(self, call: Any) -> None: ...


call_soon: list[Callable[[], object]] = []


def streamed(world: World) -> None:
    """Whoever pumps while another does leaves nothing behind."""
    call_soon.clear()
    _Growing.end = 0
    real, sender.FrameFeed = sender.FrameFeed, lambda *arguments: _Feed(world, *arguments)  # type: ignore[misc,assignment]
    try:
        connection = Connection()
        connection.attach = lambda feed: None  # type: ignore[attr-defined]
        reactor = type("Net", (), {"clock": None, "call_soon": lambda self, call: call_soon.append(call)})()
        stream_sender = sender.StreamSender(reactor, connection, None, 0)  # type: ignore[arg-type]
    finally:
        sender.FrameFeed = real  # type: ignore[misc]

    def append() -> None:
        for _ in range(2):
            _Growing.end += 10
            stream_sender.pump()

    run_all(world, a=append, b=append)
    while call_soon:
        call_soon.pop()()
    assert stream_sender.feed.position == 40


# ---- the commit point ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_us(self) -> int:
        return round((primitives.START_S + self._world.now) * 1e6)


class Room:
    """PendingCommits, and a reactor that one of those who wait drives: what is to happen comes when somebody drives, or from
    a task that appended by itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offers = self.drivers = 0
        self.events: list[Callable[[], None]] = []
        self.pending_commits = PendingCommits(100, self._offer, 10_000_000, Clock(world))  # type: ignore[arg-type]

    def _offer(self) -> None:
        self.offers += 1

    def drive(self, done: Callable[[], bool], timeout_s: float) -> bool:
        self.drivers += 1
        assert self.drivers == 1, "two drive"
        try:
            while not done():
                if not primitives.wait(lambda: bool(self.events) or done(), timeout_s, "driving"):
                    break
                while self.events:
                    self.events.pop(0)()
            return done()
        finally:
            self.drivers -= 1

    def reach(self, position: int) -> None:
        self.pending_commits.advance(position)
        self.pending_commits.drain()


def committed(world: World) -> None:
    """Threads that wait for the commit point return when it is reached, whoever of them drives."""
    room = Room(world)

    def replicas() -> None:
        for position in (150, 200, 300):
            room.events.append(lambda position=position: room.reach(position))  # type: ignore[misc]
            world.point("an acknowledgement came")

    run_all(
        world,
        a=lambda: room.pending_commits.wait(150, room.drive),
        b=lambda: room.pending_commits.wait(200, room.drive),
        c=lambda: room.pending_commits.wait(300, room.drive),
        replicas=replicas,
    )
    in_time(world)
    assert not room.pending_commits.lot.sleeping and not room.pending_commits.lot.is_waking


def acks_committed(world: World) -> None:
    """Acks of what was submitted are completed by the commit point, though it came before they were watched."""
    room = Room(world)
    acks = [AppendFuture(number) for number in range(2)]
    run_all(
        world,
        a=lambda: (room.pending_commits.add(150, acks[0]), acks[0].result()),
        b=lambda: (room.pending_commits.add(250, acks[1]), acks[1].result()),
        replicas=lambda: (room.reach(200), room.reach(300)),
    )
    in_time(world)


def deposed(world: World) -> None:
    """When the commit point moves no more, everybody is told; nobody waits on."""
    room = Room(world)
    errors: list[BaseException | None] = []

    def wait() -> None:
        try:
            room.pending_commits.wait(150, room.drive)
        except (DeposedError, ReplicationTimeoutError) as error:
            errors.append(error)

    def submit() -> None:
        future = AppendFuture(1)
        room.pending_commits.add(160, future)
        errors.append(future.exception())

    run_all(
        world, a=wait, b=wait, c=submit, failing=lambda: room.pending_commits.fail(DeposedError(Term(2, "b"), "gone"))
    )
    in_time(world)
    assert [type(error) for error in errors] == [DeposedError] * 3


# ---- commands and relays -------------------------------------------------------------------------------------------


def commanded(world: World) -> None:
    """Every command is obeyed, by one of a few threads, none is left when all have gone home."""
    done: list[int] = []
    real, commands.execute = commands.execute, lambda node, connection, number, command: done.append(number)  # type: ignore[assignment]
    most, commands.THREADS_MAX = commands.THREADS_MAX, 1
    idle_s, fair_executor.IDLE_S = fair_executor.IDLE_S, 0.0  # who finds nothing goes home at once
    try:
        new_commands = Commands(None)  # type: ignore[arg-type]
        run_all(
            world,
            a=lambda: new_commands.take(None, 1, None),
            b=lambda: (new_commands.take(None, 2, None), new_commands.take(None, 3, None)),
        )  # type: ignore[arg-type]
        world.wait(lambda: len(done) == 3, 1.0, "obeyed")
        new_commands.close()
        world.join(*(task for task in world.tasks if task is not world.current))
    finally:
        commands.execute, commands.THREADS_MAX, fair_executor.IDLE_S = real, most, idle_s
    in_time(world)
    assert sorted(done) == [1, 2, 3]


def limited(world: World) -> None:
    """A receiver is paused by the last judgement, whoever judged: pause and resume do not overtake each other."""
    connection = Connection()
    segment = 1 << 20
    space_limit = SpaceLimit(4 * segment, segment, connection)
    run_all(
        world,
        a=lambda: space_limit.note_received(5 * segment, 10),
        b=lambda: space_limit.applied(4 * segment, 5, 10),
        c=lambda: space_limit.note_received(6 * segment, 12),
    )
    assert connection.paused == space_limit.paused


HARNESSES = [
    harness(synced, syncer),
    harness(failed_sync, syncer),
    harness(paused, receiver),
    harness(received, receiver, syncer),
    harness(streamed, sender),
    harness(committed, pending_commits),
    harness(acks_committed, pending_commits),
    harness(deposed, pending_commits),
    harness(commanded, commands, fair_executor),
    harness(limited, space_limit),
]
