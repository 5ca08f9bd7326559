"""What runs state machines: carries out their effects, brings them their events. The writer, recoverers, readers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pyreplog._native.machines.effects import Send, Settle
from pyreplog.bookie.protocol import Reply
from pyreplog.errors import NoSuchEntryError, NotEnoughBookiesError, UnreadableError
from pyreplog.future import AppendFuture, settle_all
from pyreplog.ledger.protocol.effects import Degraded, Effect, Finished, Load, Store, Wake
from pyreplog.ledger.protocol.lac import LacQuery
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp
from pyreplog.ledger.protocol.recovery import LedgerRecovery
from pyreplog.ledger.protocol.writer import LedgerWriter

from .network import Link

if TYPE_CHECKING:
    from .schedule import Schedule

TRY_AGAIN_S = 0.02


class Client:
    """A process. One that has ended hears nothing any more."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.world, self.name = schedule, schedule.world, name
        self.stopped_until = 0.0
        self.is_alive = True
        self.was_degraded = False
        self._links: dict[str, Link] = {}

    def link(self, bookie: str) -> Link:
        held_value = self._links.get(bookie)
        if held_value is None:
            node = self.schedule.nodes.by_name[bookie]
            plan = self.schedule.plan
            lag_s = plan.lag_s * (10 if self.world.chance(plan.slow_links) else 1)
            held_value = self._links[bookie] = Link(self.world, self, node, lag_s, plan.cuts)
        return held_value

    def links(self) -> list[Link]:
        return list(self._links.values())

    def on_reply(self, reply: Reply) -> None:
        self.schedule.invariants.lac_seen(reply.lac)

    def stop(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT later."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)
        self.world.note(self.name, f"is stopped for {seconds * 1000:.1f} ms")

    def end(self) -> None:
        """As SIGKILL."""
        if self.is_alive:
            self.world.note(self.name, "is killed")
        self.is_alive = False

    def deliver(self, machine: Any, event: str, *args: Any) -> None:
        if not self.is_alive:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, self.deliver, machine, event, *args)
        else:
            self.perform(machine, getattr(machine, event)(*args))

    def perform(self, machine: Any, effects: list[Effect]) -> None:
        settled: list[Settle] = []
        for effect in effects:
            if isinstance(effect, Send):
                self.link(effect.bookie).send(machine, effect)
            elif isinstance(effect, Store):
                self.schedule.store.store(self, machine, effect)
            elif isinstance(effect, Load):
                self.schedule.store.load(self, machine)
            elif isinstance(effect, Wake):
                self.world.after(effect.seconds, self.deliver, machine, "woken", effect.about)
            elif isinstance(effect, Settle):
                settled.append(effect)
            elif isinstance(effect, Degraded):
                self.world.note(self.name, "goes on without", *(effect.bookies or ("nobody",)))
                self.was_degraded = True
            elif isinstance(effect, Finished):
                self.world.note(self.name, "finished:", effect.error or "well")
                self.finished(machine, effect)
        for settle in settled:
            settle_all(settle.outcomes)

    def finished(self, machine: Any, end: Finished) -> None:
        raise NotImplementedError


class Writer(Client):
    """Appends until it has appended all, closes, gives up, or is killed."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, "writer")
        plan = schedule.plan
        self.machine = LedgerWriter(
            schedule.store.metadata, schedule.store.version, schedule.key, schedule.nodes.choose,
            random=self.world.random.random, **plan.writer_options,
        )  # fmt: skip
        self._left = plan.entries
        self._acks: deque[tuple[int, AppendFuture[range]]] = deque()
        self.has_ended = False

    def run(self) -> None:
        if not self.is_alive or self.has_ended:
            return
        world, plan = self.world, self.schedule.plan
        if self.stopped_until > world.now:
            world.at(self.stopped_until, self.run)
        elif self.machine.error is not None:
            return
        elif self._left > 0:
            self._append()
            if world.chance(0.05):
                self.perform(self.machine, self.machine.send_lac())
                if not plan.is_patient:
                    self.perform(self.machine, self.machine.change_ensemble_now())
                    self.perform(self.machine, self.machine.reconsider())
            world.after(world.random.expovariate(1 / plan.pause_s), self.run)
        elif plan.ending == "close" and plan.is_patient and self._acks:  # all have to come, by themselves
            world.after(plan.pause_s, self.run)
        elif plan.ending == "close":
            self.perform(self.machine, self.machine.close())
        elif plan.ending == "give up":
            self.perform(self.machine, self.machine.give_up(NotEnoughBookiesError("it gives up")))

    def _append(self) -> None:
        world, first = self.world, self.machine.last_add_pushed + 1
        count = min(self._left, world.random.randint(1, self.schedule.plan.batch))
        self._left -= count
        values = [value_of(entry) for entry in range(first, first + count)]
        time_us = max(0, int(1e15 + world.now * 1e6 + self.schedule.plan.clock_jump_us * world.random.randint(-1, 1)))
        future, effects = self.machine.append(values, None, None, time_us=time_us)
        world.note(self.name, f"appends {first}..{first + count - 1}")
        self._acks.append((first + count - 1, future))
        self.perform(self.machine, effects)

    def perform(self, machine: Any, effects: list[Effect]) -> None:
        self.schedule.invariants.confirmed(self.machine.last_add_confirmed)
        super().perform(machine, effects)
        self.schedule.invariants.let_go(self.machine)
        while self._acks and self._acks[0][1].done():
            last, future = self._acks.popleft()
            error = future.exception()
            self.world.note(self.name, "gets", error or f"the ack of entry {last}")
            self.schedule.invariants.settled(last, error)

    def finished(self, machine: Any, end: Finished) -> None:
        assert not self.has_ended, "the writer finished twice"
        self.has_ended = True
        self.schedule.invariants.writer_ended(end, self.machine)


class Recoverer(Client):
    """Opens the ledger after its writer; tries again when that fails."""

    def __init__(self, schedule: Schedule, name: str, tries: int) -> None:
        super().__init__(schedule, name)
        self._tries = tries
        self.machine: LedgerRecovery | None = None
        self.error: Exception | None = None
        self.has_ended = False

    def run(self) -> None:
        """Metadata that it begins with may be old by the time it acts on it."""
        if not self.is_alive:
            return
        store, plan = self.schedule.store, self.schedule.plan
        self.world.note(self.name, "recovers")
        self._tries -= 1
        self.machine = LedgerRecovery(
            store.metadata,
            store.version,
            self.schedule.key,
            self.schedule.nodes.choose,
            batch_entries=plan.recovery_batch,
        )
        self.world.after(self.world.random.random() * 0.01, self.deliver, self.machine, "start")

    def finished(self, machine: Any, end: Finished) -> None:
        self.error = end.error
        if end.error is None:
            self.has_ended = True
            self.schedule.invariants.recovered(end.result)
        elif self._tries > 0:
            self.world.after(TRY_AGAIN_S, self.run)
        else:
            self.has_ended = True


class Reader(Client):
    """Tails: asks for the LAC, reads up to it."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(schedule, name)
        self._lac = -1
        self._rounds = 0

    def run(self) -> None:
        self._rounds += 1
        metadata = self.schedule.store.metadata
        query = LacQuery(metadata, self.schedule.key, self._lac, wait_ms=0)
        self.perform(query, query.start())

    def finished(self, machine: Any, end: Finished) -> None:
        world = self.world
        if isinstance(machine, LacQuery):
            if end.error is None:
                self.schedule.invariants.lac_read(self._lac, end.result)
                self._lac = end.result
            if self._lac >= 0:
                first = world.random.randint(0, self._lac)
                reading = LedgerReadOp(
                    self.schedule.store.metadata, self.schedule.key, first, self._lac + 1, speculate_s=0.01
                )
                self.perform(reading, reading.start())
                return
        elif end.error is None:
            self.schedule.invariants.read(machine, end.result)
        else:
            assert not isinstance(end.error, NoSuchEntryError), f"a confirmed entry is said not to exist: {end.error}"
        if self._rounds < 4:
            world.after(world.random.random() * 0.05, self.run)


class LastReader(Client):
    """Reads a closed ledger from its first entry to its last; tries again."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, "reader")
        self.next = 0

    def run(self) -> None:
        metadata = self.schedule.store.metadata
        if self.next <= metadata.last_entry:
            reading = LedgerReadOp(
                metadata, self.schedule.key, self.next, metadata.last_entry + 1, bytes_max=400, speculate_s=0.01
            )
            self.perform(reading, reading.start())

    def finished(self, machine: Any, end: Finished) -> None:
        if end.error is None:
            self.next = self.schedule.invariants.read(machine, end.result)
            self.run()
        else:
            assert isinstance(end.error, UnreadableError), f"reading entry {self.next}: {end.error}"
            self.world.after(TRY_AGAIN_S, self.run)


def value_of(entry: int) -> bytes:
    """What is appended as an entry."""
    return b"%d" % entry * (1 + entry % 3)
