"""One run: a ledger's life, drawn from a seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random
from typing import Any

from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof

from .bookies import KEY, LEDGER, Nodes
from .clients import Client, LastReader, Reader, Recoverer, Writer
from .faults import Faults
from .invariants import Invariants, demand
from .store import MetadataHost
from .world import World

PROOF = key_proof(KEY)
LIMIT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    spares: int
    entries: int
    batch: int
    pause_s: float
    lag_s: float
    ending: str
    recoverers: int
    recovery_batch: int
    readers: int
    faults: int
    dead: int  # bookies that are away for good
    leaving: int  # times that a bookie is to leave, and others are to take its places
    naps: int  # times that others, so few that all write sets keep an ack quorum, are away for a while
    loss: float  # of metadata requests and answers
    cuts: float  # connections that break, per request
    slow_links: float  # share of links that are ten times slower
    clock_jump_us: int
    durability: str
    writer_options: dict[str, Any]

    @property
    def is_patient(self) -> bool:
        """Whether the writer, of a ledger that is its own, has its changes of the ensemble delayed and never hurries: what it
        has appended is acknowledged all the same, and only then does it close."""
        return bool(self.writer_options["delay_ensemble_change"]) and not self.recoverers

    @property
    def busy_s(self) -> float:
        """About as long as the writer needs."""
        return 0.02 + 1.5 * self.pause_s * self.entries / ((1 + self.batch) / 2)

    @classmethod
    def draw(cls, random: Random, leaving: Random) -> Plan:
        size = random.choice((3, 3, 4, 4, 5))
        write_quorum = random.randint(2, min(size, 4))
        ack_quorum = random.randint(1, min(write_quorum, 3))
        batch = random.choice((1, 1, 3, 6))
        plan = cls(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            spares=random.choice((0, 0, 0, 1, 2, 3)),
            entries=random.randint(5, 40) if batch > 1 else random.randint(5, 15),
            batch=batch,
            pause_s=random.choice((0.0005, 0.002, 0.005)),
            lag_s=random.choice((0.0005, 0.003)),
            ending=random.choice(("close", "close", "give up", "vanish")),
            recoverers=random.choice((0, 1, 1, 2, 3)),
            recovery_batch=random.choice((1, 2, 5, 256)),
            readers=random.choice((0, 0, 0, 1)),
            faults=random.choice((0, 1, 2, 3, 5, 8)),
            dead=min(random.choice((0, 1, 2)), write_quorum - ack_quorum, ack_quorum - 1),
            leaving=leaving.choice((0, 0, 0, 1, 2, 4)),
            naps=0,
            loss=random.choice((0.0, 0.0, 0.2, 0.5)),
            cuts=random.choice((0.0, 0.0, 0.02, 0.1)),
            slow_links=random.choice((0.0, 0.0, 0.3)),
            clock_jump_us=random.choice((0, 0, 10**9, 10**13)),
            durability="appended" if random.random() < 0.15 else "synced",
            writer_options={"delay_ensemble_change": random.random() < 0.2},
        )
        return plan.quiet() if random.random() < 0.15 else plan

    def quiet(self) -> Plan:
        """With bookies that are away, maybe, and the store that is slow: every write set keeps an ack quorum."""
        return dataclasses.replace(
            self, lag_s=0.0005, ending="close", recoverers=0, faults=0, cuts=0.0, slow_links=0.0,
            spares=min(self.spares, 1), entries=2 * self.entries, pause_s=0.005,
            dead=min(self.write_quorum - self.ack_quorum, self.ack_quorum - 1) if self.batch == 1 else 0,
            naps=0 if self.batch == 1 or self.durability == "appended" else 8,
        )  # fmt: skip

    @property
    def is_quiet(self) -> bool:
        return self.ending == "close" and not (self.recoverers or self.faults or self.cuts or self.slow_links)


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.plan = plan = Plan.draw(self.world.random, self.world.leaving)
        self.key = KEY
        self.world.note(plan)
        self.nodes = Nodes(self.world, plan.ensemble_size + plan.spares, synced=plan.durability == "synced")
        self.invariants = Invariants(self)
        self.store = MetadataHost(self.world, self._created(), self.invariants.metadata_changed)
        self.store.loss = plan.loss
        self.writer = Writer(self)
        self.clients: list[Client] = [self.writer]

    def _created(self) -> LedgerMetadata:
        plan = self.plan
        ensemble = tuple(node.name for node in self.nodes.places[: plan.ensemble_size])
        return LedgerMetadata(
            ledger=LEDGER,
            durability=plan.durability,
            ensemble_size=plan.ensemble_size,
            write_quorum=plan.write_quorum,
            ack_quorum=plan.ack_quorum,
            fragments=(Fragment(0, ensemble),),
            proof=PROOF,
        )

    def run(self) -> None:
        world, plan = self.world, self.plan
        self.writer.run()
        moments = [world.random.random() * 1.5 * plan.busy_s for _ in range(plan.recoverers)]
        for number, moment in enumerate(moments):
            self._join(Recoverer(self, f"recoverer{number}", tries=3), moment)
        for number in range(plan.readers):
            self._join(Reader(self, f"tail{number}"), world.random.random() * plan.busy_s)
        Faults(self).plan(moments)
        if plan.ending == "vanish":
            world.after(world.random.random() * 1.5 * plan.busy_s, self.writer.end)
        world.run(until=3 * plan.busy_s + 1.0)
        self._settle()

    def _join(self, client: Any, at: float) -> None:
        self.clients.append(client)
        self.world.at(at, client.run)

    def _settle(self) -> None:
        """Faults stop; the ledger gets closed by whoever tries, and all of it can be read."""
        world = self.world
        world.note("faults end")
        Faults(self).end()
        world.run(until=world.now + 3.0)
        if self.plan.ending != "vanish" and self.writer.is_alive and not self.plan.recoverers:
            demand(self.writer.has_ended, "Liveness", "the writer does not finish")
        if self.plan.is_quiet and self.plan.lag_s < 0.001:
            self.invariants.all_appended(self.writer.machine, self.plan.entries)
        last = Recoverer(self, "the last recoverer", tries=10)
        self._join(last, world.now)
        world.run(until=world.now + 10.0)
        metadata = self.store.metadata
        demand(metadata.state is State.CLOSED, "Liveness", f"the ledger is not closed: {last.error}")
        reader = LastReader(self)
        reader.run()
        world.run(until=world.now + 10.0)
        demand(reader.next == metadata.last_entry + 1, "Liveness", f"entry {reader.next} cannot be read")
