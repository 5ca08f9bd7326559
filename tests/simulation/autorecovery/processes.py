"""Auditors, workers, and collectors of surplus copies: processes that act on what they knew a moment ago."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pyreplog.autorecovery.protocol.absence import (
    Alarm,
    AuditorView,
    ForgetState,
    NoteState,
    PlaceOrder,
    WithdrawOrder,
    decide,
)
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, CopyReport
from pyreplog.autorecovery.protocol.effects import NoteLost, lost_entries
from pyreplog.autorecovery.protocol.ledger_replicator import LedgerReplicated, LedgerReplicator
from pyreplog.autorecovery.protocol.member_ends import MemberEnds
from pyreplog.autorecovery.protocol.member_repair import MemberRepair
from pyreplog.autorecovery.protocol.open_ledger_watch import OpenLedgerWatch, Verdict
from pyreplog.autorecovery.protocol.priority import fewest_copies
from pyreplog.bookie.bookie_state import BookiePhase, BookieState
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State
from pyreplog.ledger.placement import Candidate, choose
from pyreplog.ledger.protocol.effects import Effect, Finished, Store, Wake

from ..bookies import Node
from ..clients import Client
from ..invariants import demand

if TYPE_CHECKING:
    from .ledgers import LedgerLife
    from .schedule import Schedule

DELAY_S = 0.15
QUIET_S = 0.25
ROUND_S = 0.03


class Auditor:
    """Judges, and carries out what it decided a moment later, by compare-and-set."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule, self._world, self.name = schedule, schedule.world, name
        self.is_alive = True

    def run(self) -> None:
        if not self.is_alive:
            return
        schedule, world = self._schedule, self._world
        states = dict(schedule.states)
        named: dict[str, int] = {}
        for life in schedule.lives:
            if not life.store.is_deleted:
                for bookie in life.store.metadata.bookies():
                    named[bookie] = named.get(bookie, 0) + 1
        view = AuditorView(
            named=named,
            registered=schedule.registered(),
            states=states,
            orders=frozenset(schedule.orders),
            now_us=int(1e15 + world.now * 1e6),
            settled=not world.chance(0.1) or world.is_calm,
        )
        decisions = decide(view, int(DELAY_S * 1e6))
        away = sum(bookie not in view.registered for bookie in named)
        for decision in decisions:
            if isinstance(decision, PlaceOrder):
                schedule.check_order(decision.bookie, states, away, len(named))
            if not isinstance(decision, Alarm) and (world.is_calm or not world.chance(0.05)):
                world.after(world.random.random() * 0.01, self._carry_out, decision, states)
        world.after(ROUND_S * (0.5 + world.random.random()), self.run)

    def _carry_out(self, decision: Any, known: dict[str, BookieState]) -> None:
        schedule, bookie = self._schedule, decision.bookie
        if isinstance(decision, PlaceOrder):
            schedule.orders.add(bookie)
        elif isinstance(decision, WithdrawOrder):
            schedule.orders.discard(bookie)
        elif schedule.states.get(bookie) == known.get(bookie):
            if isinstance(decision, NoteState):
                schedule.states[bookie] = decision.state
            elif isinstance(decision, ForgetState):
                schedule.states.pop(bookie, None)
        self._world.note(self.name, type(decision).__name__, bookie)


class Worker(Client):
    """Copies one ledger after the other, the most urgent first; sometimes one that another worker copies, too."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(schedule, name)  # type: ignore[arg-type]
        self._life: LedgerLife | None = None
        self.machine: LedgerReplicator | None = None
        self._retry_at: dict[int, float] = {}

    def run(self) -> None:
        if not self.is_alive:
            return
        schedule: Any = self.schedule
        world, orders = self.world, frozenset(schedule.orders)
        lives = [
            life
            for life in schedule.lives
            if not life.store.is_deleted
            and not orders.isdisjoint(life.store.metadata.bookies())
            and self._retry_at.get(life.ledger, 0.0) <= world.now
        ]
        if not lives:
            world.after(ROUND_S, self.run)
            return
        lives.sort(key=lambda life: (fewest_copies(life.store.metadata, orders), life.ledger))
        life = lives[0] if world.chance(0.7) else world.random.choice(lives)
        metadata, version = life.store.metadata, life.store.version
        registered = schedule.registered()
        lost = schedule.gone() - registered
        away = (orders | schedule.states.keys()) - registered - lost
        self._life = life
        self.machine = LedgerReplicator(
            metadata, version, orders, lost=lost, away=away, choose=self._choose, others=registered,
            throttle=lambda count: world.random.random() * 0.002,
        )  # fmt: skip
        world.note(self.name, "copies ledger", life.ledger, "for", sorted(orders))
        world.after(world.random.random() * 0.02, self.deliver, self.machine, "start")

    def _choose(self, metadata: LedgerMetadata, fragment: Fragment, index: int, refused: Collection[str]) -> str | None:
        schedule: Any = self.schedule
        busy = {bookie for bookie, state in schedule.states.items() if state.phase is not BookiePhase.AWAY}
        names = sorted(schedule.registered() - busy)
        chosen = choose(
            metadata.ledger, fragment.ensemble, [index], [Candidate(name) for name in names],
            write_quorum=metadata.write_quorum, taken={*fragment.ensemble, *refused}, turn=self.world.random.randint(0, 9),
        )  # fmt: skip
        return chosen.get(index)

    def perform(self, machine: Any, effects: list[Effect]) -> None:
        if machine is not self.machine:  # a reply that comes too late
            assert not effects
            return
        life = self._life
        assert life is not None
        rest: list[Effect] = []
        for effect in effects:
            if isinstance(effect, NoteLost):
                life.store.note_lost(self, machine, effect)
            elif isinstance(effect, Store):
                life.store.store(self, machine, _Marked(life, self.name, effect))
            elif type(effect).__name__ == "Load":
                life.store.load(self, machine)
            else:
                rest.append(effect)
        super().perform(machine, rest)

    def on_reply(self, reply: Any) -> None:
        """LACs in replies are checked by the clients of the ledger."""

    def finished(self, machine: Any, end: Finished) -> None:
        life, world = self._life, self.world
        assert life is not None
        if end.error is not None or (
            isinstance(end.result, LedgerReplicated) and (end.result.is_open or end.result.kept)
        ):
            self._retry_at[life.ledger] = world.now + ROUND_S * (1 + world.random.random())
        self._life = self.machine = None
        world.after(0.001, self.run)


class Watcher(Client):
    """Recovers ledgers that have no writer any more and name a bookie with an order, as the auditor's process does."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(schedule, name)  # type: ignore[arg-type]
        self._watches: dict[int, tuple[Fragment, OpenLedgerWatch]] = {}
        self._life: LedgerLife | None = None
        self._asked_us = 0

    def run(self) -> None:
        if not self.is_alive:
            return
        schedule: Any = self.schedule
        world = self.world
        concerned = [
            life
            for life in schedule.lives
            if not life.store.is_deleted
            and life.store.metadata.state is not State.CLOSED
            and not schedule.orders.isdisjoint(life.store.metadata.last_fragment.ensemble)
        ]
        if not concerned:
            world.after(ROUND_S, self.run)
            return
        self._life = life = world.random.choice(concerned)
        self._asked_us = int(world.now * 1e6)
        key = None if world.chance(0.1) and not world.is_calm else life.has_key()
        if key is False:
            machine = MemberEnds(life.store.metadata)
            self.perform(machine, machine.start())
        else:
            self._observe(key, {})

    def perform(self, machine: Any, effects: list[Effect]) -> None:
        super().perform(
            machine, [Wake(0.1, effect.about) if isinstance(effect, Wake) else effect for effect in effects]
        )

    def on_reply(self, reply: Any) -> None:
        """LACs in replies are checked by the clients of the ledger."""

    def finished(self, machine: Any, end: Finished) -> None:
        self._observe(False, end.result)

    def _observe(self, key: bool | None, ends: dict[str, Any]) -> None:
        life, world = self._life, self.world
        assert life is not None
        fragment = life.store.metadata.last_fragment
        known, watch = self._watches.get(life.ledger, (None, None))
        if watch is None or known != fragment:
            watch = OpenLedgerWatch(int(QUIET_S * 1e6))
            self._watches[life.ledger] = fragment, watch
        verdict = watch.observe(int(world.now * 1e6), key, ends, asked_us=self._asked_us)
        if verdict is Verdict.RECOVER and not life.has_key():
            demand(not life.has_writer(), "LiveOwnersAreNotFenced", f"ledger {life.ledger} after {watch.silent_us} us")
            del self._watches[life.ledger]
            life.recover(f"recoverer of {self.name} of {life.ledger}", 0.0, 1)
            life.rescues += 1
        world.after(ROUND_S * world.random.random(), self.run)


class Repairer(Client):
    """Repairs copies that are noted, and compares the replicas of closed ledgers, as the auditor's process does."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(schedule, name)  # type: ignore[arg-type]
        self._life: LedgerLife | None = None
        self._bookie, self._entries, self._version = "", set[int](), 0
        self.machine: MemberRepair | CopyCheck | None = None
        self._retry_at: dict[tuple[int, str], float] = {}

    def run(self) -> None:
        if not self.is_alive:
            return
        schedule: Any = self.schedule
        world, registered = self.world, schedule.registered()
        closed = [
            life for life in schedule.lives if not life.store.is_deleted and life.store.metadata.state is State.CLOSED
        ]
        noted = [
            (life, bookie)
            for life in closed
            for bookie in sorted(life.store.noted)
            if bookie in registered and self._retry_at.get((life.ledger, bookie), 0.0) <= world.now
        ]
        if noted and world.chance(0.8):
            self._life, self._bookie = world.random.choice(noted)
            self._entries = set(self._life.store.noted[self._bookie])
            absent = frozenset(schedule.gone() - registered)
            self.machine = MemberRepair(self._life.store.metadata, self._bookie, absent=absent)
        elif closed:
            self._life = world.random.choice(closed)
            metadata = self._life.store.metadata
            self.machine = CopyCheck(metadata, absent=metadata.bookies() - registered, window=1)
        else:
            world.after(ROUND_S, self.run)
            return
        self._version = self._life.store.version
        world.note(self.name, type(self.machine).__name__, "of ledger", self._life.ledger, self._bookie)
        world.after(world.random.random() * 0.02, self.deliver, self.machine, "start")

    def perform(self, machine: Any, effects: list[Effect]) -> None:
        if machine is self.machine:
            super().perform(machine, effects)

    def on_reply(self, reply: Any) -> None:
        """LACs in replies are checked by the clients of the ledger."""

    def finished(self, machine: Any, end: Finished) -> None:
        life, world = self._life, self.world
        assert life is not None
        if isinstance(end.result, CopyReport):
            for bookie, member in end.result.members.items():
                demand(not member.differs, "ReplicasAreEqual", f"ledger {life.ledger}: {bookie} {member.differs}")
                if member.missing:
                    life.store.noted.setdefault(bookie, set()).add(member.missing[0].start)
        elif end.error is not None or (end.result.missing and life.store.version != self._version):
            self._retry_at[life.ledger, self._bookie] = world.now + ROUND_S * (1 + world.random.random())
        else:
            if end.result.missing and not life.store.lost.issuperset(end.result.missing):
                gone = frozenset(self.schedule.gone())  # type: ignore[attr-defined]
                life.list_lost(lost_entries(life.store.metadata, end.result.missing, self._bookie, gone))
            life.store.forget(self._bookie, self._entries)
            life.repairs += 1
        is_check = isinstance(machine, CopyCheck)
        self._life = self.machine = None
        world.after(ROUND_S * world.random.random() * (10 if is_check else 1), self.run)


class Finder(Client):
    """Gives members what a bookie that has returned has of lost entries, as the auditor's process does."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        super().__init__(schedule, name)  # type: ignore[arg-type]
        self._life: LedgerLife | None = None
        self._bookie, self._version = "", 0
        self._others: list[str] = []
        self._lost: set[int] = set()
        self._members: list[str] = []
        self._missing: set[int] = set()

    def run(self) -> None:
        if not self.is_alive:
            return
        schedule: Any = self.schedule
        registered = schedule.registered()
        returned = [
            (life, bookie)
            for life in schedule.lives
            for bookie in sorted(life.store.had_last)
            if (bookie in registered or self.world.chance(0.1)) and not life.store.is_deleted
        ]
        if not returned:
            self.world.after(ROUND_S, self.run)
            return
        self._life, self._bookie = self.world.random.choice(returned)
        store = self._life.store
        self._others = [self._bookie] if self._bookie in registered else []
        self._lost, self._version = set(store.had_last[self._bookie]), store.version
        self._members, self._missing = sorted(store.metadata.bookies()), set()
        self._next_member()

    def _next_member(self) -> None:
        schedule: Any = self.schedule
        life = self._life
        assert life is not None
        absent = frozenset(schedule.gone() - schedule.registered())
        machine = MemberRepair(life.store.metadata, self._members.pop(), absent=absent, others=self._others)
        self.perform(machine, machine.start())

    def on_reply(self, reply: Any) -> None:
        """LACs in replies are checked by the clients of the ledger."""

    def finished(self, machine: Any, end: Finished) -> None:
        life = self._life
        assert life is not None
        if end.error is None:
            self._missing.update(end.result.missing)
            if self._members:
                self._next_member()
                return
            if life.store.version == self._version:  # a worker that listed them as lost has to look again
                life.store.replace(life.store.metadata)
                self.world.after(self.world.random.random() * 0.01, life.store.found, self._lost - self._missing)
        self.world.after(ROUND_S * (1 + self.world.random.random()), self.run)


class _Marked:
    """A Store that says whose it is when it is done."""

    lacking = ()

    def __init__(self, life: LedgerLife, name: str, effect: Store) -> None:
        self._life, self._name, self._effect = life, name, effect
        self.version = effect.version

    @property
    def metadata(self) -> LedgerMetadata:
        self._life.mover = self._name  # the host decodes it just before it replaces the metadata
        return self._effect.metadata


class Collector:
    """Removes copies of a closed ledger that no metadata ask for, as a bookie does: two looks, then the version."""

    def __init__(self, schedule: Schedule, node: Node) -> None:
        self._schedule, self._world, self._node = schedule, schedule.world, node
        self._seen: set[tuple[int, int]] = set()

    def run(self) -> None:
        node, world = self._node, self._world
        if node.is_gone:
            return
        surplus: set[tuple[int, int]] = set()
        if node.is_up and node.name not in self._schedule.gone():
            for life in self._schedule.lives:
                metadata = life.store.metadata
                is_spared = life.store.lost or any(
                    self._schedule.states[bookie].phase is not BookiePhase.DRAINING
                    for bookie in metadata.bookies() & self._schedule.states.keys()
                )
                if metadata.state is State.CLOSED and not life.store.is_deleted and not is_spared:
                    named = {entry for stripe in metadata.holdings(node.name) for entry in stripe}
                    surplus |= {
                        (life.ledger, entry)
                        for entry in node.log.held.get(life.ledger, {}).keys() - named
                        if entry <= metadata.last_entry
                    }
            for life in self._schedule.lives:
                twice = {entry for ledger, entry in surplus & self._seen if ledger == life.ledger}
                if twice:
                    version = life.store.version
                    world.after(world.random.random() * 0.01, self._bump, life, version, twice)
        self._seen = surplus
        world.after(ROUND_S * (1 + world.random.random()), self.run)

    def _bump(self, life: LedgerLife, version: int, entries: set[int]) -> None:
        """From the change of the version on the copies are not here any more: a proof that counted on them is void, and
        a later one does not see them."""
        store, held = life.store, self._node.log.held.get(life.ledger, {})
        if store.version != version or store.is_deleted or not self._node.is_up:
            return
        store.replace(store.metadata)
        for entry in entries:
            held.pop(entry, None)
        self._world.note(self._node.name, "removes surplus copies of ledger", life.ledger, sorted(entries))
