"""One run: a topic's life under several processes, drawn from a seed."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from pyreplog.bookie.identity import BOOKIES as BOOKIES_KEY
from pyreplog.errors import ReplogError
from pyreplog.metadata.memory import MemoryStore

from ..bookies import Nodes
from ..invariants import demand
from . import clients
from .clients import FarConsumer
from .faults import Faults
from .invariants import Invariants
from .loop import Loop
from .processes import SUBSCRIPTIONS, Process
from .source import OriginSource


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run begins."""

    processes: int
    bookies: int
    busy_s: float
    pause_s: float
    lag_s: float
    faults: int
    loss: float  # of calls to the metadata store
    settings: dict[str, Any]

    @classmethod
    def draw(cls, random: Random) -> Plan:
        ensemble = random.choice((2, 3, 3))
        return cls(
            processes=random.choice((2, 2, 3)),
            bookies=random.choice((3, 4)),
            busy_s=random.choice((0.3, 0.8, 2.0)),
            pause_s=random.choice((0.005, 0.01, 0.03)),
            lag_s=random.choice((0.0005, 0.003)),
            faults=random.choice((1, 2, 4, 8)),
            loss=random.choice((0.0, 0.0, 0.1, 0.3)),
            settings={
                "ensemble": ensemble, "write_quorum": ensemble, "ack_quorum": 2, "durability": "synced",
                "roll_entries": random.choice((2, 5, 1000)), "retention_bytes": random.choice((0, None)),
                "linger_ms": random.choice((0, 0, 5)),
            },
        )  # fmt: skip


class Schedule:
    """Runs it. Whatever breaks raises BrokenInvariantError, or what the shipped code raised."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        random.seed(seed)  # pauses before another try are drawn of it
        self.world = Loop(seed, tracing=tracing)
        self.plan = Plan.draw(self.world.random)
        self.world.note(self.plan)
        self.nodes = Nodes(self.world, self.plan.bookies, synced=True)
        self.host = MemoryStore()
        for node in self.nodes.places:
            self.host.create(f"{BOOKIES_KEY}/{node.name}", json.dumps({"id": node.name}).encode())
        self.invariants = Invariants(self)
        self.openings = 0
        self.has_ended = False
        self._values = self._lives = 0
        self.killed: list[Process] = []
        self.processes: list[Process] = []
        self.far = FarConsumer(self)
        self.source = OriginSource(self)

    def next_value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def _born(self) -> Process:
        self._lives += 1
        process = Process(self, f"process{self._lives}")
        process.soon(0.05, process.live)
        return process

    def restart(self, place: int) -> None:
        """Whoever was killed begins again, with nothing but what is stored."""
        if self.processes[place].is_over:
            self.killed.append(self.processes[place])
            self.processes[place] = self._born()

    def run(self) -> None:
        with mock.patch.object(time, "monotonic", lambda: self.world.now):
            try:
                self.processes += [self._born() for _ in range(self.plan.processes)]
                Faults(self).plan()
                self.world.run(until=self.plan.busy_s)
                self._settle()
            finally:
                for process in (*self.processes, *self.killed):
                    process.release()
                self.far.release()
                self.host.close()

    def _settle(self) -> None:
        """Faults stop, and all die, or are forgotten, but one, which finds everything."""
        Faults(self).end()
        for process in self.processes:
            if self.world.chance(0.5):
                process.kill()
            else:
                process.stop(10.0)  # it wakes up when the topic is another's
                process.lose_lease(10.0)
        self.world.run(until=self.world.now + 2.0)
        last = Process(self, "the last one")
        self.processes.append(last)
        last.soon(0.0, self._finish, last)
        self.world.pump(lambda: self.has_ended, 60.0)
        demand(self.has_ended, "Liveness", "the last owner does not finish")

    def _finish(self, last: Process) -> None:
        for _ in range(20):
            try:
                last.open()
                break
            except ReplogError as error:
                self.world.note(last.name, "gets", type(error).__name__)
                last.wait_until(lambda: False, 0.5)
        topic = last.topic
        assert topic is not None, "nobody can own it"
        if self.far.has_subscribed:
            demand(clients.NAME in topic.subscriptions(), "SubscriptionsStay", f"there is no {clients.NAME}")
        else:
            self.invariants.begins(clients.NAME, topic.start)
            topic.create_subscription(clients.NAME, start="earliest")  # what it does not keep from now on may go
        start, batches = topic.start, list(topic.read())
        self.source.check(topic, start, batches)
        values_by_offset = {
            offset: value
            for batch in batches
            for offset, value in zip(batch.offset.tolist(), batch.values(), strict=True)
        }
        self.invariants.stored(start, values_by_offset)
        for name in SUBSCRIPTIONS:
            while last.receive(name, 100) or self._backlog(last, name):
                last.wait_until(lambda: False, 0.05)
            self.invariants.consumed(name, values_by_offset)
        while not self.far.is_done or self._backlog(last, clients.NAME):
            last.wait_until(lambda: False, 0.05)
        self.invariants.consumed(clients.NAME, values_by_offset)
        self.far.check(topic.end)
        self.has_ended = True

    def _backlog(self, last: Process, name: str) -> int:
        assert last.topic is not None
        return next((sub.backlog_messages for sub in last.topic.stats().subscriptions if sub.name == name), 1)
