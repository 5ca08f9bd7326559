"""What goes wrong, and when; and what operators do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .brokers import Broker

if TYPE_CHECKING:
    from .schedule import Schedule


class Faults:
    """Each is drawn, with its time, from the schedule's seed."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world, self._plan = schedule, schedule.world, schedule.plan
        crashes = [self._crash, self._crash_leader, self._crash_leader]
        self._kinds = [
            self._stop_cleanly, self._pause, self._pause_leader, self._cut, self._isolate_leader, self._isolate_leader,
            self._leave_store, self._leave_store, *(crashes if not self._plan.is_frugal else []),
        ]  # fmt: skip
        if self._plan.trims:
            self._kinds += [self._trim, self._delete_records]
        if self._plan.transactional:
            self._kinds += [self._schedule.coordinator.fail_over, self._schedule.coordinator.fail_over]
        if self._plan.reassigns:
            self._kinds.append(self._reassign)

    def plan(self) -> None:
        """They come in clusters: what breaks things is the second fault during the first."""
        random, plan = self._world.random, self._plan
        moments = [0.05 + random.random() * plan.busy_s for _ in range(3)]
        kinds = [random.choice(self._kinds) for _ in range(plan.faults)]
        if plan.is_frugal:
            kinds += [random.choice((self._crash, self._crash_leader)) for _ in range(plan.min_isr - 1)]
        for kind in kinds:
            time = random.random() * plan.busy_s
            if random.random() < 0.6:
                time = random.choice(moments) + random.random() * 0.05
            self._world.at(time, kind)

    def _moment(self) -> float:
        random = self._world.random
        return random.random() ** 2 * (0.12 if random.random() < 0.8 else 0.4)

    def _broker(self) -> Broker:
        return self._world.random.choice(self._schedule.brokers)

    def _leader(self) -> Broker:
        leaders = [broker for broker in self._schedule.brokers if broker.is_up and broker.leading is not None]
        return self._world.random.choice(leaders or self._schedule.brokers)

    def _crash(self) -> None:
        self._crash_broker(self._broker())

    def _crash_leader(self) -> None:
        self._crash_broker(self._leader())

    def _crash_broker(self, broker: Broker) -> None:
        broker.crash(power=self._plan.power_cuts and self._world.chance(0.8))
        quick = self._world.chance(0.5)
        self._world.after(0.005 * self._world.random.random() if quick else self._moment(), broker.start)

    def _stop_cleanly(self) -> None:
        self._broker().stop()

    def _pause(self) -> None:
        self._pause_broker(self._broker())

    def _pause_leader(self) -> None:
        self._pause_broker(self._leader())

    def _pause_broker(self, broker: Broker) -> None:
        """As SIGSTOP, and SIGCONT later."""
        broker.stopped_until = max(broker.stopped_until, self._world.now + self._moment())
        self._world.note(broker.name, f"is stopped until {broker.stopped_until * 1000:.1f} ms")

    def _cut(self) -> None:
        until = self._world.now + self._moment()
        for broker in self._schedule.brokers:
            for other in self._schedule.brokers:
                if broker is not other and self._world.chance(0.25):
                    self._schedule.network.cut(broker.name, other.name, until)

    def _isolate_leader(self) -> None:
        """From the others, or from the store, or from both, one way or both."""
        leader, until = self._leader(), self._world.now + self._moment()
        others = [broker.name for broker in self._schedule.brokers if broker is not leader]
        ends = self._world.random.choice((others, [""], [*others, ""]))
        for end in ends:
            if self._world.chance(0.8):
                self._schedule.network.cut(leader.name, end, until)
            if self._world.chance(0.6):
                self._schedule.network.cut(end, leader.name, until)

    def _leave_store(self) -> None:
        broker, until = self._broker(), self._world.now + self._moment()
        self._schedule.network.cut(broker.name, "", until)
        if self._world.chance(0.5):
            self._schedule.network.cut("", broker.name, until)

    def _trim(self) -> None:
        self._leader().trim()

    def _delete_records(self) -> None:
        self._leader().delete_records()

    def _reassign(self) -> None:
        names = [broker.name for broker in self._schedule.brokers]
        self._world.random.shuffle(names)
        target = tuple(names[: self._world.random.randint(1, len(names))])
        controller = self._world.random.choice(self._schedule.controllers)
        controller.reassign(target)
        if self._world.chance(0.4):
            controller.cancel()
