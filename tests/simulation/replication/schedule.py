"""One run: a topic that is sent to a target while both ends and the network fail, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from random import Random

from pyreplog._native.system.checksum import crc32c
from pyreplog.geo.protocol.effects import Progress, RenewOrigin
from pyreplog.geo.protocol.sender import SenderState
from pyreplog.origins.origin import GapCause, OriginEntry, OriginState
from pyreplog.origins.replicate_to import attribute_of

from ..invariants import demand
from ..world import World
from .invariants import Invariants
from .source import Log, Process, is_for_target
from .target import CLUSTER, POISON, TARGET_NAME, Target

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
    rolls_back: bool  # in the end the source is restored, and publishes on
    restores: bool  # in the end the source is restored, and gets another history of the other origin
    restores_target: bool  # in the end the target is restored
    lists: float  # share of the entries that name the clusters they go to

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
            rolls_back=random.random() < 0.3,
            restores=random.random() < 0.3,
            lists=random.choice((0.0, 0.1, 0.6)),
            restores_target=random.random() < 0.3,
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
        self.cursors: list[Progress] = []  # all that were stored
        self.ends: list[int] = []  # of the topic then
        self.expects_alarm = False
        self.restored = self.renewed = self.targets_restored = 0
        self.connections = self.kills = self.rivals = 0
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
        if plan.rolls_back and not plan.trims:
            self._roll_back()
        elif plan.restores and plan.forward_all:
            self._restore_forwarder()
        elif plan.restores_target and not plan.trims:
            self._restore_target()

    def _restore_target(self) -> None:
        """The target is restored from a backup: it has less than it reported. Nothing is sent until people were told;
        after `resync` it has all again, once."""
        random, invariants, own = self.world.random, self.invariants, self.log.own
        if not self.target.backups:
            return
        self.expects_alarm = True
        self.world.run(until=self.world.now + 5.0)  # no request of a former connection is on its way
        random.choice(self.target.backups)()
        self.world.note("the target is restored to", invariants.stored, self.cursor)
        self.process.cut(half=False)
        for _ in range(random.choice((1, 1, 20))):
            self._grow()
        if self.plan.forward_all:  # it is noticed with the next message of an origin
            self.log.append(self.log.other, 1, b"new")
        self.process.grow()
        before, sender = dict(invariants.messages), self.process.sender
        if self.cursor is not None and invariants.stored.get(own, 0) < self.cursor.own.stored:
            self._wait_for(SenderState.DIVERGED, "RollbackDetected")
            is_same = invariants.messages.get(own, 0) == before.get(own, 0)
            demand(is_same, "RollbackDetected", "messages were sent before people were told")
        until = self.world.now + PATIENCE_S
        while not self._is_done():
            demand(self.world.now < until, "Liveness", self._lacking())
            if sender.state is SenderState.DIVERGED:
                demand("resync" in sender.alarm, "RollbackDetected", "people are not told what to do")
                self.process.do(sender.resync)
                self.targets_restored += 1
            self.world.run(until=self.world.now + 0.5)
        self._finish()

    def _roll_back(self) -> None:
        """The cluster here is restored from a backup, and publishes on. Its new messages are not taken for those that
        the target has in their place; people order `resync`, and all of them get there, behind the former ones.
        """
        log, invariants, random = self.log, self.invariants, self.world.random
        known = [at for at, end in enumerate(self.ends) if end < log.end]
        if not known:
            return
        at = random.choice(known)
        end, former, before = self.ends[at], log.own, dict(invariants.messages)
        if invariants.stored.get(former, 0) <= end:
            return
        log.restore(end, log.start)
        self.cursor, self.expects_alarm = self.cursors[at], True
        for _ in range(random.choice((1, 5, 60))):
            log.append(None, random.randint(1, 5), b"new %d" % random.randrange(1 << 30))
        self.world.note("rolled back to", end, self.cursor)
        self._restart(end)
        self._wait_for(SenderState.DIVERGED, "RollbackDetected")
        self.process.do(self.process.sender.resync)
        until = self.world.now + PATIENCE_S
        while log.own == former:
            demand(self.world.now < until, "Liveness", "resync gives no other identity")
            self.world.run(until=self.world.now + 0.5)
        self._finish()
        same = invariants.messages.get(former, 0) == before.get(former, 0)
        demand(same, "RollbackDetected", "messages got the identity of others")
        self.renewed += 1

    def renew(self, effect: RenewOrigin) -> None:
        """Do as a Replicator does."""
        log, position = self.log, effect.position
        assert position is not None
        if position.last is not None:
            first = position.last.first
            here = [(one.end, crc32c(one.value), one.time_us) for one in log.entries if one.first == first]
            demand(here == [position.last[1:]], "RollbackDetected", "the backup has no cursor of its time")
        self.process.kill()
        former = log.own
        log.renew(effect.mark)
        log.begin, log.withheld = effect.mark, GapCause.DUPLICATE
        others = {**(self.cursor.others if self.cursor is not None else {}), former: position}
        self.cursor = None
        self._epoch += 1
        self.process = Process(self, self._epoch, mark=effect.mark, others=others)

    def _wait_for(self, state: SenderState, name: str) -> None:
        until = self.world.now + PATIENCE_S
        while self.process.sender.state is not state:
            demand(self.world.now < until, name, f"{self.process.sender.state}")
            self.world.run(until=self.world.now + 0.5)

    def _restore_forwarder(self) -> None:
        """The cluster here was restored from a backup, and so was the one whose messages it forwards: that published
        others in their place. Nothing of the new history may be taken for the old one, and nothing is sent behind it.
        """
        end = self.invariants.logged.get(self.log.other, 0)
        first = self.log.rewrite_other(end)
        if first is None:
            return
        self.expects_alarm = True
        older: list[Progress | None] = [None]  # cursors of that time
        for cursor in self.cursors:
            position = cursor.others.get(self.log.other)
            if position is None or position.stored <= first:
                older.append(cursor)
        self.cursor = self.world.random.choice(older)
        stored = dict(self.invariants.messages)
        self.world.note("restored", self.cursor)
        self._restart()
        for _ in range(3):
            self.log.append(self.log.other, 1, b"new")
        self.process.grow()
        until = self.world.now + PATIENCE_S
        while self.process.sender.state is not SenderState.DIVERGED:
            demand(self.world.now < until, "RollbackDetected", f"another history of {self.log.other} is forwarded")
            self.world.run(until=self.world.now + 0.5)
        other = self.log.other
        same = self.invariants.messages.get(other, 0) == stored.get(other, 0)
        demand(same, "RollbackDetected", "messages of two histories were stored")
        demand("resync" in self.process.sender.alarm, "RollbackDetected", "people are not told what to do")
        self.restored += 1

    def _append(self) -> None:
        random = self.world.random
        origin = None
        if random.random() < self.plan.others:
            origin = random.choice((self.log.other, self.log.far))
        value = b"%d." % random.randrange(1 << 30) + b"x" * random.randrange(self.plan.value_bytes)
        if origin is not self.log.far and random.random() < self.plan.poison:
            value = POISON
        names = None
        if value != POISON and random.random() < self.plan.lists:
            names = frozenset(random.choice(((), ("south",), (TARGET_NAME,), (TARGET_NAME, "south"))))
        self.log.append(origin, random.randint(1, 5), value, names)

    def _grow(self) -> None:
        self._append()
        self.process.grow()

    def _fault(self) -> None:
        world, faults = self.world, self.world.random.randrange(9)
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
        elif faults == 7:
            self._rival()
        else:
            self.process.do(lambda *_: self.process.sender.pause())
            world.after(0.1, lambda: self.process.do(self.process.sender.resume))

    def _rival(self) -> None:
        """Another cluster forwards messages of the same origin to the target, and fences this one."""
        self.rivals += 1
        session, log = (1 << 34) + self.rivals, self.log

        def opened(state: object) -> None:
            if isinstance(state, OriginState):
                behind = [entry for entry in log.forwarded if entry.origin_first >= state.stored]
                entries = [
                    OriginEntry(
                        entry.value,
                        entry.messages,
                        entry.origin_first,
                        entry.origin_time_us,
                        entry.gaps,
                        attribute_of(entry.replicate_to),
                    )
                    for entry in takewhile(is_for_target, behind[: self.world.random.randrange(1, 8)])
                ]
                if entries:
                    self.invariants.claim(log.other, entries, ())
                    self.target.replicate(log.other, session, entries, (), lambda _: None)

        self.target.open(log.other, session, opened)

    def _restart(self, opened_at: int | None = None) -> None:
        """opened_at: end of the topic when the next owner opened it; None: now."""
        self.process.kill()
        self._epoch += 1
        self.process = Process(self, self._epoch, opened_at=opened_at)

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
        demand(sender.unsent_messages == 0, "Lag", f"{sender.unsent_messages} messages, none are")
        demand(sender.oldest_unsent_us is None, "Lag", "nothing is unsent")

    def _is_done(self) -> bool:
        process, stored = self.process, self.invariants.stored
        if process.is_dead or process.sender.state is not SenderState.SENDING or process.sender.inflight_bytes:
            return False  # an answer to one request may say that later ones are stored as well
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
