"""Brokers with a coordinator each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyreplog.future import AppendFuture
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.partition.topic_partition import TopicPartition

from .log import LogOfBroker

if TYPE_CHECKING:
    from .schedule import Schedule

PARTITION = TopicPartition(OFFSETS_TOPIC, 0)
TICK_S = 0.02


class Events:
    """Runs events in their order. What they raise ends the run."""

    def __init__(self) -> None:
        self._events: deque[Callable[[], object]] = deque()
        self._is_running = False

    def post(self, event: Callable[[], object], /) -> None:
        self._events.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events:
                self._events.popleft()()
        finally:
            self._is_running = False


class Broker:
    """It serves what it believes to lead, and learns of elections late."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.world, self.name = schedule, schedule.world, name
        self.coordinator: GroupCoordinator | None = None
        self.epoch: int | None = None
        self.life = 0
        self.requests: list[tuple[float, str, AppendFuture[Any]]] = []

    def __repr__(self) -> str:
        return self.name

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(self.world.now * 1_000_000)

    def start(self) -> None:
        if self.coordinator is not None:
            return
        self.life += 1
        self.epoch = None
        self.coordinator = GroupCoordinator(
            LogOfBroker(self.schedule, self), self, self.schedule.config,
            new_member_id=self.schedule.new_member_id, executor=Events, topics=self.schedule.catalog,
        )  # fmt: skip
        self._tick(self.life)

    def crash(self) -> None:
        self.world.note(self, "crashes")
        self.coordinator = None
        self.requests.clear()

    def _tick(self, life: int) -> None:
        if self.coordinator is not None and life == self.life:
            self.coordinator.expire()
            self.world.after(TICK_S, self._tick, life)

    def learn(self, epoch: int, leader: str, life: int) -> None:
        """It hears of an election, or of one that is over."""
        if self.coordinator is None or life != self.life or epoch < self.schedule.log.epoch:
            return
        mine = epoch if leader == self.name else None
        if mine != self.epoch:
            self.epoch = mine
            self.coordinator.leadership_changed(PARTITION, mine)

    def serve(
        self, what: str, call: Callable[[GroupCoordinator], AppendFuture[Any]], done: Callable[[Any], None]
    ) -> None:
        if self.coordinator is None:
            return
        future = call(self.coordinator)
        self.requests.append((self.world.now, what, future))
        if len(self.requests) > 200:
            self.requests = [entry for entry in self.requests if not entry[2].done()]
        life = self.life

        def answer(finished: AppendFuture[Any]) -> None:
            if life == self.life and self.coordinator is not None:
                done(finished.result())

        future.add_done_callback(answer)
