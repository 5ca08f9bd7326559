"""A client of whoever owns the topic: it consumes over connections that break before and after any message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerTimeoutError,
    ReplogError,
)
from pyreplog.future import AppendFuture
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer
from pyreplog.topic.client.remote.connection_pool import ConnectionPool, OnOutcome, outcome_of
from pyreplog.topic.client.remote.remote_subscription import RemoteSubscribeOptions, RemoteSubscription
from pyreplog.topic.model.wire.protocol import VERSION, Request, decode_request, encode_request
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.client_session import ClientSession

from .alarm import Alarm

if TYPE_CHECKING:
    from .processes import Process
    from .schedule import Schedule

NAME = "far"
"""Of its subscription."""

BREAK = 0.03
"""Before a message arrives, and behind that."""

LOOK_S = 0.05
REQUEST_S = 5.0

T = TypeVar("T")


class Shown:
    """What a service sees of the topics of its process: the one that is open. It opens none."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def open(self, name: str, *, create: bool = True, settings: Any = None) -> Topic:
        if not self._process.owns or self._process.topic is None:
            raise ClosedError("the topic is not open here")
        return self._process.topic


class Line:
    """A connection to one process; `session`: what that knows of it."""

    remote_address = ""

    def __init__(self, road: Road, process: Process) -> None:
        self._road, self._world, self.process = road, road.world, process
        self.is_cut = False
        self.session = ClientSession(cast("Any", self))
        self._out_at = self._in_at = 0.0
        self._pending: dict[int, OnOutcome] = {}
        self._sent: deque[tuple[int, bytes]] = deque()  # and not arrived: in order, however late the process is

    def send(self, number: int, request: Request, came: OnOutcome) -> None:
        self._pending[number] = came
        body = b"".join(bytes(part) for part in encode_request(request))
        self._out_at = max(self._out_at, self._world.now + self._road.delay())
        self._sent.append((number, body))
        self._world.at(self._out_at, self.process.at, self._out_at, self._arrive)

    def _arrive(self) -> None:
        """What was sent before a cut may arrive behind it."""
        if not self._sent:
            return
        number, body = self._sent.popleft()
        self._road.may_break(self)
        if self.is_cut and self._world.chance(0.3):
            self._sent.clear()  # all or nothing of what follows
        else:
            request = decode_request(memoryview(body))
            self._world.note(self.process.name, "hears", type(request).__name__)
            self.process.service._handle(self.session, number, request)
            self._road.may_break(self)

    def reply(self, number: int, *buffers: Any) -> bool:
        body = b"".join(bytes(part) for part in buffers)
        self._in_at = max(self._in_at, self._world.now + self._road.delay())
        self._world.at(self._in_at, self._answered, number, body)
        return True

    def _answered(self, number: int, body: bytes) -> None:
        self._road.may_break(self)
        came = self._pending.pop(number, None)
        if came is not None:
            came(self._road.address, outcome_of(memoryview(body))[0])
            self._road.may_break(self)

    def late(self, number: int) -> None:
        """Its answer should have come."""
        came = self._pending.pop(number, None)
        if came is not None:
            came(self._road.address, PeerTimeoutError("no answer"))

    def cut(self) -> None:
        """Its ends learn of it one after the other."""
        if self.is_cut:
            return
        self.is_cut = True
        self._world.note("a connection of the client is lost")
        pending, self._pending = self._pending, {}
        for came in pending.values():
            self._world.after(self._road.delay(), came, self._road.address, DisconnectedError("connection reset"))
        self.process.soon(0.01, self.session.end, DisconnectedError("connection reset"))


class Road:
    """A `ConnectionPool`, to whoever owns the topic."""

    timeout = close_timeout = 1e6
    address = ("an owner", 7400)

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.world = schedule, schedule.world
        self.line: Line | None = None
        self._numbers = self._handles = 0
        self.breaks = 0
        self.world.after(LOOK_S, self._look)

    def delay(self) -> float:
        return self.world.random.random() * self.schedule.plan.lag_s

    def may_break(self, line: Line) -> None:
        if not self.world.is_calm and not line.is_cut and self.world.chance(BREAK):
            self.breaks += 1
            line.cut()

    def _look(self) -> None:
        """Whoever was killed says nothing more."""
        if self.line is not None and self.line.process.is_over:
            self.line.cut()
        if not self.schedule.has_ended:
            self.world.after(LOOK_S, self._look)

    # ---- as a ConnectionPool ------------------------------------------------------------------------------------------

    def version(self, address: Any) -> int:
        return VERSION

    def next_handle(self) -> int:
        self._handles += 1
        return self._handles

    def ask(self, topic: str, request: Request, came: OnOutcome) -> None:
        owners = [process for process in self.schedule.processes if process.owns and not process.is_over]
        if not owners:
            self.world.after(self.delay(), came, self.address, NotConnectedError("nobody owns it"))
            return
        owner = self.world.random.choice(owners)
        if self.line is None or self.line.is_cut or self.line.process is not owner:
            if self.line is not None:
                self.line.cut()
            self.line = Line(self, owner)
        self.send(self.address, request, came, REQUEST_S)

    def send(self, address: Any, request: Request, came: OnOutcome, timeout: float = 0.0) -> None:
        if self.line is None or self.line.is_cut:
            self.world.after(self.delay(), came, self.address, NotConnectedError("there is no connection"))
            return
        self._numbers += 1
        self.line.send(self._numbers, request, came)
        if timeout:
            self.world.after(min(timeout, REQUEST_S), self.line.late, self._numbers)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm()
        self.world.after(seconds, lambda: alarm.cancel() and call())
        return alarm

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Nobody waits here: others, whose events these are, could not go on."""
        if not future.done():
            raise OutcomeUnknownError("it is not there yet")
        return future.result(0)


class FarConsumer:
    """Receives, acknowledges, flushes, seeks; what it flushed does not come again. It waits for nothing."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.road = Road(schedule)
        self._consumer: PartitionConsumer | None = None
        self._attachment: RemoteSubscription | None = None
        self._is_busy = False  # something has no outcome yet
        self._acked: set[int] = set()  # since the last seek
        self._flushed: set[int] = set()  # of these
        self._sought: int | None = None  # all from there on has to come
        self._came: set[int] = set()  # since the last seek
        self._moving: tuple[Process, int, AppendFuture[int]] | None = None  # by somebody else, to that offset
        self.has_subscribed = False
        self.is_done = False
        self.flushes = self.seeks = 0
        self._world.after(0.05, self.live)

    def live(self) -> None:
        """Something, again and again."""
        if not self._is_busy:
            self._act()
        if not self._schedule.has_ended:
            self._world.after(2 * self._schedule.plan.pause_s * self._world.random.random(), self.live)

    def _act(self) -> None:
        if self._consumer is None or self._attachment is None:
            self._attach()
            return
        self._look_at_seek(self._attachment)
        choice = self._world.random.random()
        if choice < 0.7:
            self._receive(self._consumer, self._attachment, self._world.random.randint(1, 6))
        elif choice < 0.9 or self._world.is_calm:
            self._flush(self._consumer)
        elif self._moving is not None:
            return  # of two seeks at once nobody knows which is the last
        elif choice < 0.95:
            self._seek(self._consumer)
        else:
            self._somebody_seeks()

    def _expect(
        self, future: AppendFuture[T], done: Callable[[T], object], failed: Callable[[], object] = lambda: None
    ) -> None:
        """Nothing else until it has an outcome."""
        self._is_busy = True

        def over(future: AppendFuture[T]) -> None:
            self._is_busy = False
            error = future.exception()
            if error is None:
                done(future.result(0))
            else:
                self._world.note("the client gets", type(error).__name__)  # its text has the id of a process
                failed()

        future.add_done_callback(over)

    def _attach(self) -> None:
        consumer = PartitionConsumer(0, "t", NAME, "x", queue=7, on_change=self._changed)
        wanted = RemoteSubscribeOptions("t", NAME, "earliest", True, 0, "")
        attachment = RemoteSubscription(cast("ConnectionPool", self.road), wanted, consumer, _nothing)

        def attached(_: object) -> None:
            consumer.attached(attachment, 0)
            self._note_start()
            self._consumer, self._attachment = consumer, attachment

        self._expect(attachment.attach(), attached, lambda: consumer.refuse_calls(ClosedError("refused")))

    def _note_start(self) -> None:
        """What was trimmed before there was the subscription, it does not need."""
        topic = None if self.road.line is None else self.road.line.process.topic
        if not self.has_subscribed and topic is not None:
            self.has_subscribed = True
            self._schedule.invariants.begins(NAME, topic.start)

    def _receive(self, consumer: PartitionConsumer, attachment: RemoteSubscription, count: int) -> None:
        got: list[int] = []
        for _ in range(count):
            message = consumer.receive(timeout=0)
            if message is None:
                break
            self._world.note("the client gets", message.offset)
            self._schedule.invariants.delivered_far(message.offset, message.value, self._flushed)
            self._came.add(message.offset)
            got.append(message.offset)
        if not got or (not self._world.is_calm and self._world.chance(0.2)):
            return
        self._world.note("the client acknowledges", got)
        if self._world.chance(0.2):
            up_to = max(got) + 1
            below = set(range(up_to))  # all of it came, or was acknowledged
            self._schedule.invariants.acked[NAME] |= below
            self._expect(attachment.acknowledge_cumulative(0, up_to), lambda _: self._acknowledged(below))
        else:
            consumer.acknowledge(got)
            self._acknowledged(set(got))

    def _acknowledged(self, offsets: set[int]) -> None:
        self._schedule.invariants.acked[NAME] |= offsets
        self._acked |= offsets

    def _flush(self, consumer: PartitionConsumer) -> None:
        acked = set(self._acked)

        def flushed(_: object) -> None:
            self._world.note("the client has flushed", sorted(acked)[-10:])
            self.flushes += 1
            self._flushed |= acked & self._acked
            self.is_done = self._world.is_calm

        self._expect(consumer.flush_async(), flushed, self._forget)  # it says that some of them are unknown

    def _seek(self, consumer: PartitionConsumer) -> None:
        """Back."""
        at = max(self._acked, default=0) // 2
        self._world.note("the client seeks", at)
        self._begin_to_move(at)
        self._forget()

        def sought(_: int) -> None:
            self.seeks += 1
            self._sought = at

        self._expect(consumer.seek_async(at), sought)

    def _forget(self) -> None:
        """What was acknowledged may come again: the subscription is moved."""
        self._acked, self._flushed = set(), set()

    def _begin_to_move(self, at: int) -> None:
        """The subscription may pass over what is before, though nobody may ever know whether it was moved."""
        self._sought, self._came = None, set()
        self._schedule.invariants.acked[NAME] |= set(range(at))

    def _somebody_seeks(self) -> None:
        """Back, at the owner; the client hears of it later."""
        at = max(self._acked, default=0) // 2
        owner = next((process for process in self._schedule.processes if process.owns and not process.is_over), None)
        if owner is None or owner.topic is None or NAME not in owner.topic.subscriptions():
            return
        self._world.note("somebody seeks", at)
        try:
            future = owner.topic.subscription(NAME).seek(at)
        except ReplogError as error:
            self._world.note("which is refused", type(error).__name__)
            return
        self._begin_to_move(at)
        self._moving = owner, at, future

    def _look_at_seek(self, attachment: RemoteSubscription) -> None:
        """Until the client has heard of it, what it acknowledges does not count."""
        if self._moving is None:
            return
        self._forget()
        owner, at, future = self._moving
        line = self.road.line
        if line is None or not attachment._handle:
            return
        if owner.is_over or not owner.owns or (line.process is not owner and future.done()):
            self._moving = None  # whether that happened nobody knows
            return
        if line.process is not owner or owner.topic is None or NAME not in owner.topic.subscriptions():
            return
        if future.done() and attachment._era == owner.topic.subscription(NAME).era:
            self._moving = None
            if future.exception() is None:
                self.seeks += 1
                self._sought = at

    def _changed(self, consumer: PartitionConsumer) -> None:
        """It looks for itself, now and then."""

    def release(self) -> None:
        """What Python still has of it, at the end of the run."""
        if self._consumer is not None:
            self._consumer.refuse_calls(ClosedError("its run is over"))

    def check(self, end: int) -> None:
        """All behind the last seek came."""
        if self._sought is not None:
            self._schedule.invariants.sought(self._sought, end, self._came)


def _nothing(_: object) -> None:
    return
