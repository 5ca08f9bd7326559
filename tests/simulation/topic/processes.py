"""Processes that want to own the topic; who does publishes and consumes. They are killed or stopped anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from pyreplog.cluster import Cluster
from pyreplog.cursors import cursor_flusher as flush_module
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic.server import topic_server as topic_server_module
from pyreplog.topic.server.topic_server import TopicService
from tests.topic.killable_processes import release_killed

from .clients import Shown
from .loop import LoopClock
from .runtime import FakeRuntime, Hands, HandsOfConnections

if TYPE_CHECKING:
    from .metadata import HeldLease
    from .schedule import Schedule

NAME = "t"
SUBSCRIPTIONS = {"all": "failover", "some": "shared"}
TRY_AGAIN_S = 0.2
LATE_S = 0.0005


class KilledError(BaseException):
    """This frame's process is no more."""


class Process:
    """One life of a process. `is_over`: it was killed."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.world, self.name = schedule, schedule.world, name
        self.is_over = self.is_cut_off = self._acts = False
        self.stopped_until = 0.0
        self._stands = 0  # calls for whose end all of it stands still
        self._waits = 0  # calls of it that wait
        self.leases: list[HeldLease] = []
        self.topic: Topic | None = None
        self.consumers: dict[str, Consumer] = {}
        self.opening = 0  # which opening of the topic by anybody this was
        runtime: Any = FakeRuntime(self)
        self.runtime: FakeRuntime = runtime
        self.cluster = Cluster(f"cluster of {name}", runtime, LoopClock(schedule.world))

        def hands(count: int, _: str) -> Hands:
            return Hands(self, count)

        with (
            mock.patch.object(topics_module, "ThreadPool", hands),
            mock.patch.object(flush_module, "ThreadPool", hands),
        ):
            self.topics = self.cluster.topics
        with mock.patch.object(topic_server_module, "FairExecutor", lambda name: HandsOfConnections(self)):
            self.service = TopicService(cast("Topics", Shown(self)))

    # ---- events ---------------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[..., Any], *args: Any) -> None:
        self.world.at(max(time, self.world.now), self._event, call, args)

    def soon(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.world.now + self.world.random.random() * seconds, call, *args)

    def _event(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.is_over:
            return
        if self.stopped_until > self.world.now or self._stands:
            self.world.at(max(self.stopped_until, self.world.now + LATE_S), self._event, call, args)
            return
        try:
            call(*args)
        except KilledError:
            assert self.is_over, "somebody else was killed"

    def wait_until(self, is_over: Callable[[], object], seconds: float) -> None:
        """As a thread of it does."""
        self._waits += 1
        self.world.pump(lambda: self.is_over or is_over(), seconds)
        self._waits -= 1
        self.stand_still(0.0)

    def stand_still(self, seconds: float) -> None:
        """All of it, as long as it is stopped, and so long at least. KilledError: it was killed meanwhile."""
        self.stop(seconds)
        self._stands += 1
        while self.stopped_until > self.world.now and not self.is_over:
            self.world.pump(lambda: self.is_over, self.stopped_until - self.world.now)
        self._stands -= 1
        if self.is_over:
            raise KilledError

    # ---- what happens to it ---------------------------------------------------------------------------------

    def stop(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT later."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)

    def lose_lease(self, told_after: float) -> None:
        for lease in self.leases:
            lease.end()
            self.at(self.world.now + told_after, lease.report_loss)

    def kill(self) -> None:
        """As SIGKILL; its lease is over a while later."""
        self.is_over = True
        self.world.note(self.name, "is killed")
        self.world.after(self.world.random.random(), self.lose_lease, 0.0)

    def release(self) -> None:
        """What Python still has of it, at the end of the run."""
        self.is_over = True
        for handle in (*self.consumers.values(), *self.leases, self.runtime.metadata):
            handle.refuse_calls(ClosedError("its process died"))
        release_killed(self.cluster)

    # ---- what it does ---------------------------------------------------------------------------------------

    @property
    def owns(self) -> bool:
        return self.topic is not None and not self.topic.is_closing

    def live(self) -> None:
        """Own the topic, or try to; do something with it; again and again."""
        if not self._acts:
            self._acts = True
            try:
                self._act()
            except ReplogError as error:
                self.world.note(self.name, "gets", type(error).__name__)
            finally:
                self._acts = False
        if self.owns or not self.world.is_calm:
            self.soon(2 * (self.schedule.plan.pause_s if self.owns else TRY_AGAIN_S), self.live)

    def _act(self) -> None:
        if not self.owns and not self.world.is_calm:
            self.open()
        if not self.owns:
            return
        random = self.world.random
        if random.random() < 0.5:
            self._publish(random.choice((1, 1, 1, 2, 5)))
        else:
            name = random.choice(sorted(SUBSCRIPTIONS))
            self.receive(name, random.randint(1, 8))
            if random.random() < 0.1 and not self._waits:  # else it may wait for a job that goes on behind it only
                self._flush(name)

    def open(self) -> None:
        """Own the topic, and consume. Errors: those of `Cluster.topic` and `subscribe`."""
        self.schedule.openings += 1
        self.opening = self.schedule.openings
        for consumer in self.consumers.values():
            consumer.close()
        self.topic, self.consumers = None, {}
        topic = self.cluster.topic(NAME, **self.schedule.plan.settings)
        self.world.note(self.name, f"owns it, epoch {topic.managed.epoch}")
        for name, kind in SUBSCRIPTIONS.items():
            self.consumers[name] = topic.subscribe(name, type=kind, start="earliest", queue=7)
        self.schedule.invariants.attached()
        self.topic = topic

    def _publish(self, count: int) -> None:
        assert self.topic is not None
        invariants, handle = self.schedule.invariants, object()
        for _ in range(count):
            value = self.schedule.next_value()
            future: AppendFuture[int] = self.topic.submit(value)
            future.add_done_callback(lambda done, value=value: invariants.published(self, handle, value, done))

    def receive(self, name: str, count: int) -> int:
        """So many at most; acknowledges some of them, or all. Returns how many there were."""
        consumer, invariants = self.consumers[name], self.schedule.invariants
        messages = []
        for _ in range(count):
            message = consumer.receive(timeout=0)
            if message is None:
                break
            invariants.delivered(self, name, message.offset, message.value)
            messages.append(message.offset)
        acked = [offset for offset in messages if name == "all" or self.world.is_calm or self.world.chance(0.7)]
        if acked:
            consumer.acknowledge(acked)
            invariants.acknowledged(name, acked, self.opening)
        return len(messages)

    def _flush(self, name: str) -> None:
        invariants, opening = self.schedule.invariants, self.opening
        asked = invariants.asked(name, opening)
        self.consumers[name].flush()
        if self.schedule.openings == opening:
            invariants.kept(name, asked)
