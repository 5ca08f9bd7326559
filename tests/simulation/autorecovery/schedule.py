"""One run: several ledgers, some of which are written while bookies die, come back, drain, or lose their disks."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyreplog.bookie.bookie_state import BookiePhase, BookieState
from pyreplog.ledger.ledger_metadata import State

from ..bookies import Node, Nodes
from ..disk import PLENTY
from ..invariants import BrokenInvariantError, demand
from ..schedule import Plan
from ..world import World
from .ledgers import LedgerLife
from .processes import DELAY_S, QUIET_S, ROUND_S, Auditor, Collector, Finder, Repairer, Watcher, Worker

SESSION_S = 0.02
CALM_S = 8.0
"""Behind the last fault, so long may it take until all is well."""


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        random = self.world.random
        count = random.randint(4, 8)
        self.nodes = Nodes(self.world, count, synced=True)
        for place, node in enumerate(self.nodes.places):
            self._rename(place, node, f"b{place}@0")
        self.states: dict[str, BookieState] = {}
        self.orders: set[str] = set()
        self.declared_lost: set[str] = set()
        self._unregistered_at: dict[str, float] = {}
        self.plan = self._plan(count)
        self.lives = [LedgerLife(self, number, self._plan(count)) for number in range(random.randint(1, 6))]
        self.auditors = [Auditor(self, f"auditor{number}") for number in range(random.randint(1, 3))]
        self.workers = [Worker(self, f"worker{number}") for number in range(random.randint(1, 3))]
        self.menders: list[Any] = [Repairer(self, f"mender{number}") for number in range(random.randint(1, 2))]
        self.menders.append(Finder(self, "finder"))
        self.menders += [Watcher(self, f"watcher{number}") for number in range(random.randint(1, 2))]
        self.disk_losses = self.drains = self.orders_placed = 0

    def _rename(self, place: int, node: Node, name: str) -> None:
        self.nodes.by_name.pop(node.name, None)
        node.name = name
        self.nodes.by_name[name] = node

    def _plan(self, count: int) -> Plan:
        """Of a ledger: durable entries, more bookies than copies where there are enough."""
        while True:
            plan = Plan.draw(self.world.random, self.world.leaving)
            if plan.ensemble_size < count:
                return dataclasses.replace(
                    plan, durability="synced", dead=0, naps=0, recoverers=min(plan.recoverers, 1), readers=0,
                    ending=self.world.random.choice(("close", "close", "close", "vanish")),
                )  # fmt: skip

    # ---- what processes ask ---------------------------------------------------------------------------------

    def registered(self) -> frozenset[str]:
        """Bookies whose session lives; it outlives a crash for a moment."""
        now = self.world.now
        return frozenset(
            node.name
            for node in self.nodes.places
            if node.is_up or (not node.is_gone and now - self._unregistered_at.get(node.name, -1.0) < SESSION_S)
        )

    def gone(self) -> set[str]:
        """Bookies that are declared to be gone; one of them may run all the same."""
        phases = (BookiePhase.LOST, BookiePhase.RETIRED)
        return {bookie for bookie, state in self.states.items() if state.phase in phases}

    def check_order(self, bookie: str, states: dict[str, BookieState], away: int, named: int) -> None:
        """An order needs a reason: the bookie is lost, drains, or was away for the delay; a split orders nothing."""
        self.orders_placed += 1
        state = states.get(bookie)
        if state is None or state.phase is BookiePhase.AWAY:
            successor = any(
                other != bookie and other.split("@")[0] == bookie.split("@")[0] for other in self.registered()
            )
            waited = state is not None and self.world.now * 1e6 + 1e15 - state.since_us >= DELAY_S * 1e6
            demand(successor or waited, "TheDelaySurvivesElections", f"{bookie} is ordered after {state}")

    # ---- faults ---------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        random = self.world.random
        kinds = (self._crash, self._crash, self._lose_disk, self._drain, self._fill, self._kill_worker, self._kill_auditor,
                 self._stall, self._delete, self._stop, self._declare_lost, self._lapse)  # fmt: skip
        random.choice(kinds)()

    def _crash(self) -> None:
        node = self.world.random.choice(self.nodes.places)
        if node.is_up:
            self._unregistered_at[node.name] = self.world.now
            node.crash()
            seconds = self.world.random.choice((0.01, 0.05, 0.1, 3 * DELAY_S)) * (0.5 + self.world.random.random())
            self.world.after(seconds, self._come_back, node)

    def _come_back(self, node: Node) -> None:
        node.start()
        for life in self.lives:
            writer = life.writer
            self.world.after(self.world.random.random() * 0.01, writer.deliver, writer.machine, "reconsider")

    def _lose_disk(self) -> None:
        place = self.world.random.randrange(len(self.nodes.places))
        node = self.nodes.places[place]
        if node.name in self.declared_lost:  # it may have the only copies of what workers list as lost
            return
        if not all(life.store.is_deleted or life.bears_loss(node) for life in self.lives):
            return
        self.disk_losses += 1
        for life in self.lives:
            life.losses_while_open += life.store.metadata.state is not State.CLOSED
        name, _, number = node.name.partition("@")
        self.nodes.replace_by_empty(place)
        fresh = self.nodes.places[place]
        self._rename(place, fresh, f"{name}@{int(number) + 1}")
        Collector(self, fresh).run()
        self.world.note(node.name, "has lost its disk and is", fresh.name)

    def _declare_lost(self) -> None:
        """An operator declares the loss of a bookie whose disk comes back later."""
        node = self.world.random.choice(self.nodes.places)
        if node.name in self.states or self.declared_lost or not self._bears_leaving():
            return
        self.declared_lost.add(node.name)
        self.states[node.name] = BookieState(BookiePhase.LOST, int(1e15 + self.world.now * 1e6), "declared")
        self.nodes.leaving.add(node.name)
        node.crash()
        self.world.note(node.name, "is declared lost")
        self.world.after(self.world.random.random() * 0.8, self._come_back, node)

    def _lapse(self) -> None:
        """A writer's lease lapses for a moment: its client was cut off from the metadata store."""
        life = self.world.random.choice(self.lives)
        if life.key_lapses is None:
            now = self.world.now
            life.key_lapses = now, now + self.world.random.random() * 0.6 * QUIET_S

    def _bears_leaving(self) -> bool:
        """Whether one more bookie may leave: others can take its places."""
        leaving = sum(node.name in self.nodes.leaving for node in self.nodes.places)
        return len(self.nodes.places) - leaving - 1 >= max(life.plan.ensemble_size for life in self.lives)

    def _drain(self) -> None:
        node = self.world.random.choice(self.nodes.places)
        if self._bears_leaving() and node.name not in self.states:
            self.drains += 1
            self.states[node.name] = BookieState(BookiePhase.DRAINING, int(1e15 + self.world.now * 1e6), "drawn")
            self.nodes.leaving.add(node.name)
            self.world.note(node.name, "is drained")
            for life in self.lives:
                writer = life.writer
                after = self.world.random.random() * 0.01
                self.world.after(after, writer.deliver, writer.machine, "replace_members", sorted(self.nodes.leaving))

    def _fill(self) -> None:
        node = self.world.random.choice(self.nodes.places)
        node.fill(0)
        self.world.after(self.world.random.random() * 0.2, node.fill, PLENTY)

    def _stop(self) -> None:
        self.world.random.choice(self.nodes.places).stop(self.world.random.random() * 0.1)

    def _kill_worker(self) -> None:
        """kill -9 of a worker, or a mender, in the middle; another process begins."""
        random = self.world.random
        processes: list[Any] = self.menders if random.random() < 0.3 else self.workers
        at = random.randrange(len(processes))
        processes[at].end()
        processes[at] = type(processes[at])(self, f"{processes[at].name}'")
        self.world.after(random.random() * 0.1, processes[at].run)

    def _kill_auditor(self) -> None:
        at = self.world.random.randrange(len(self.auditors))
        self.auditors[at].is_alive = False
        self.auditors[at] = Auditor(self, f"{self.auditors[at].name}'")
        self.world.after(self.world.random.random() * 0.1, self.auditors[at].run)

    def _stall(self) -> None:
        store = self.world.random.choice(self.lives).store
        store.stalled_until = self.world.now + self.world.random.random() * 0.1

    def _delete(self) -> None:
        if self.world.chance(0.3):
            life = self.world.random.choice(self.lives)
            if life.store.metadata.state is State.CLOSED:
                life.store.is_deleted = True
                self.world.note("ledger", life.ledger, "is deleted")

    # ---- the run --------------------------------------------------------------------------------------------

    def run(self) -> None:
        world = self.world
        for life in self.lives:
            world.after(world.random.random() * 0.1, life.begin)
        for process in (*self.auditors, *self.workers, *self.menders):
            world.after(world.random.random() * ROUND_S, process.run)
        for node in self.nodes.places:
            Collector(self, node).run()
        busy_s = max(life.plan.busy_s for life in self.lives) + 0.3
        for _ in range(world.random.randint(1, 14)):
            world.at(world.random.random() * busy_s, self._fault)
        world.run(until=busy_s + 1.0)
        self._settle()

    def _settle(self) -> None:
        """Faults stop; ledgers get closed, and every entry has all its copies on bookies that metadata name."""
        world = self.world
        world.note("faults end")
        world.is_calm = True
        for node in self.nodes.places:
            node.log.free, node.stopped_until = PLENTY, 0.0
            node.start()
            node.fill(PLENTY)
        for life in self.lives:
            life.store.loss = 0.0
            for client in life.clients:
                for link in client.links():
                    link.blocked_until = 0.0
        world.after(1.0, self._recover_others)
        until = world.now + CALM_S
        while True:
            world.run(until=world.now + 0.25)
            try:
                self._check_all()
                return
            except BrokenInvariantError:
                if world.now >= until:
                    raise

    def _recover_others(self) -> None:
        """Ledgers that name bookies with orders are the watchers' concern; whoever opens another one recovers it."""
        for life in self.lives:
            metadata = life.store.metadata
            is_watched = not self.orders.isdisjoint(metadata.last_fragment.ensemble)
            if metadata.state is not State.CLOSED and not is_watched and not life.has_writer():
                life.recover(f"the last recoverer of {life.ledger}", 0.0, 3)
        self.world.after(1.0, self._recover_others)

    def _check_all(self) -> None:
        """What must hold at the end, and holds for good once it does."""
        for life in self.lives:
            if not life.store.is_deleted:
                self._check(life)
        left = {bookie: state for bookie, state in self.states.items() if state.phase is BookiePhase.AWAY}
        demand(not left, "ReturnsEndWork", f"still away: {sorted(left)}")
        demand(not self.orders, "OrdersEnd", f"left are {sorted(self.orders)}: {self.states}")

    def _check(self, life: Any) -> None:
        metadata, acked = life.store.metadata, life.invariants.acked
        demand(metadata.state is State.CLOSED, "Liveness", f"ledger {life.ledger} is not closed: {metadata}")
        gone = [bookie for bookie in metadata.bookies() if self.nodes.by_name[bookie].is_gone]
        demand(not gone, "EventuallyWriteQuorum", f"ledger {life.ledger} names {gone}, whose disks are gone")
        for entry in range(metadata.last_entry + 1):
            copies = life.copies(entry)
            demand(copies >= 1 or entry in life.store.lost, "AckedIsReadable", f"entry {entry} has {copies} copies")
            enough = copies >= metadata.write_quorum or entry in life.store.lost
            demand(enough, "EventuallyWriteQuorum", f"entry {entry} of ledger {life.ledger} has {copies} copies")
        demand(not [entry for entry in life.store.lost if entry <= acked], "NothingIsLost", f"{life.store.lost}")
        demand(metadata.last_entry >= acked, "AckedIsReadable", f"{acked} of {metadata.last_entry}")
