"""One run: a topic that is sent to a target while both ends and the network fail, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pyreplog.geo.protocol.effects import Progress
from pyreplog.geo.protocol.sending import SenderState

from ..invariants import demand
from ..world import World
from .invariants import Invariants
from .source import Log, Process
from .target import CLUSTER, POISON, Target

PATIENCE_S = 400.0


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    busy_s: float
    appends: int
    faults: int
    lag_s: float
    store_s: float
    forward_all: bool
    others: float
    poison: float
    ttl_us: int | None
    rate: int | None
    window: int
    value_bytes: int
    read_bytes: int
    trims: bool
    latest: bool

    @classmethod
    def draw(cls, random: Random) -> Plan:
        return cls(
            busy_s=random.choice((0.5, 2.0, 5.0)),
            appends=random.choice((10, 60, 200)),
            faults=random.choice((0, 1, 3, 8)),
            lag_s=random.choice((0.0005, 0.005, 0.05)),
            store_s=random.choice((0.001, 0.02, 0.2)),
            forward_all=random.random() < 0.5,
            others=random.choice((0.0, 0.2, 0.7)),
            poison=random.choice((0.0, 0.0, 0.05)),
            ttl_us=random.choice((None, None, None, 300_000)),
            rate=random.choice((None, None, 20_000)),
            window=random.choice((1, 2_000, 8 << 20)),
            value_bytes=random.choice((1, 100, 100, 3000)),
            read_bytes=random.choice((1, 500, 1 << 20)),
            trims=random.random() < 0.5,
            latest=random.random() < 0.2,
        )


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.plan = plan = Plan.draw(self.world.random)
        self.world.note(plan)
        self.target_cluster = CLUSTER
        self.invariants = Invariants(self)
        self.log = Log(self)
        self.target = Target(self.world, self.invariants, plan.store_s)
        self.cursor: Progress | None = None
        self.connections = self.kills = 0
        self.is_apart = False
        self._epoch = 1
        if plan.latest:
            for _ in range(5):
                self._append()
            self.log.begins_here()
        self.process = Process(self, self._epoch)

    def run(self) -> None:
        plan, world = self.plan, self.world
        for _ in range(plan.appends):
            world.at(plan.busy_s * world.random.random(), self._grow)
        for _ in range(plan.faults):
            world.at(plan.busy_s * world.random.random(), self._fault)
        world.run(until=plan.busy_s)
        world.is_calm, self.is_apart, self.target.is_full = True, False, False
        if not self.target.is_up:
            self.target.recover()
        self._finish()

    def _append(self) -> None:
        random = self.world.random
        origin = None
        if random.random() < self.plan.others:
            origin = random.choice((self.log.other, self.log.far))
        value = b"%d." % random.randrange(1 << 30) + b"x" * random.randrange(self.plan.value_bytes)
        if origin is not self.log.far and random.random() < self.plan.poison:
            value = POISON
        self.log.append(origin, random.randint(1, 5), value)

    def _grow(self) -> None:
        self._append()
        self.process.grow()

    def _fault(self) -> None:
        world, faults = self.world, self.world.random.randrange(8)
        world.note("fault", faults)
        if faults <= 1:
            self.process.cut(half=faults == 1)
        elif faults == 2:
            self.target.crash()
            world.after(0.3 * world.random.random(), self.target.recover)
            self.process.cut(half=world.chance(0.5))
        elif faults == 3:
            self.target.change_owner()
        elif faults == 4:
            self.kills += 1
            self.process.kill()
            world.after(0.3 * world.random.random(), self._restart)
        elif faults == 5:
            self.is_apart = True
            self.process.cut(half=False)
            world.after(world.random.random(), self._reunite)
        elif faults == 6:
            self.target.is_full = True
            world.after(world.random.random(), self._drain)
        else:
            self.process.do(lambda *_: self.process.sender.pause())
            world.after(0.1, lambda: self.process.do(self.process.sender.resume))

    def _restart(self) -> None:
        self.process.kill()
        self._epoch += 1
        self.process = Process(self, self._epoch)

    def _reunite(self) -> None:
        self.is_apart = False

    def _drain(self) -> None:
        self.target.is_full = False

    def _finish(self) -> None:
        """Everything is there once the network heals."""
        until = self.world.now + PATIENCE_S
        while not self._is_done():
            demand(self.world.now < until, "Liveness", self._lacking())
            self.world.run(until=self.world.now + 0.5)
        sender = self.process.sender
        demand(sender.inflight_bytes == 0, "Window", f"{sender.inflight_bytes} bytes leaked")
        demand(sender.unsent_messages == 0, "Lag", f"{sender.unsent_messages} messages, none are")
        demand(sender.oldest_unsent_us is None, "Lag", "nothing is unsent")

    def _is_done(self) -> bool:
        process, stored = self.process, self.invariants.stored
        if process.is_dead or process.sender.state is not SenderState.SENDING:
            return False
        if stored.get(self.log.own, 0) < self.log.end or process.sender.mark < self.log.end:
            return False
        ends = [self.log.end_of(self.log.other)] if self.plan.forward_all else []
        return all(stored.get(self.log.other, 0) >= end - self._withheld() for end in ends)

    def _withheld(self) -> int:
        """Messages of the other origin that no entry follows: nothing tells the target about them."""
        return self.log.end_of(self.log.other) if self.plan.latest else 0

    def _lacking(self) -> str:
        sender = self.process.sender
        return (
            f"stored {self.invariants.stored}, expected {self.log.end}, state {sender.state}, mark {sender.mark}, "
            f"error {sender.error!r}, {sender.inflight_bytes} bytes in flight"
        )
