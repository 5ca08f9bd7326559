"""A topic of the target cluster: the shipped gates, a log that takes its time, and owners that crash."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    BacklogFullError,
    InvalidEntryError,
    OriginSessionError,
    ReplogError,
    TopicFencedError,
)
from pyreplog.future import AppendFuture, settle_all
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import Admission, GateState, OriginGate, OriginGates, check_entries
from pyreplog.origins.origin import Gap, Origin, OriginEntry

from ..world import World
from .invariants import Invariants

CLUSTER = b"T" * 16
TARGET_NAME = "target"
TOPIC = "far"
POISON = b"poison"

Reply = Callable[[Any], None]


@dataclass(eq=False)
class Call:
    """A REPLICATE."""

    gate: OriginGate
    session: int
    entries: Sequence[OriginEntry]
    gaps: Sequence[Gap]
    future: AppendFuture[int] = field(default_factory=AppendFuture)

    @property
    def end(self) -> int:
        return self.gaps[-1].end if self.gaps else self.entries[-1].end


class Target:
    """What is stored survives crashes: the log, and the last snapshot of the gates. `is_up`: it answers."""

    def __init__(self, world: World, invariants: Invariants, store_s: float) -> None:
        self.world, self._invariants, self._store_s = world, invariants, store_s
        self._log: list[tuple[OriginAttribute, OriginEntry]] = []
        self._snapshot: tuple[int, list[GateState]] = (0, [])  # of the log up to there
        self._gates = OriginGates(TOPIC)
        self._pushes: deque[tuple[Call, Admission]] = deque()
        self._replies: dict[AppendFuture[Any], None] = {}  # in their order
        self._is_storing = False
        self._life = 0
        self.is_up = True
        self.is_full = False  # its quota refuses messages
        self.backups: list[Callable[[], None]] = []  # each restores the topic as it was then
        self.crashes = self.refusals = 0

    # ---- requests --------------------------------------------------------------------------------------------

    def open(self, origin: Origin, session: int, reply: Reply) -> bool:
        """Open a session; False: nobody is there."""
        if not self.is_up:
            return False
        gate = self._gates.get(origin) or self._gates.add(GateState(origin, 0, 0, None, ()))
        future: AppendFuture[Any] = AppendFuture()
        self._answer(future, reply)
        try:
            gate.open(session, future)
        except ReplogError as error:
            settle_all([(future, error)])
        self._settle(gate)
        return True

    def replicate(
        self, origin: Origin, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap], reply: Reply
    ) -> bool:
        """Store entries; False: nobody is there."""
        if not self.is_up:
            return False
        gate = self._gates.get(origin)
        try:
            if gate is None:
                raise OriginSessionError(TOPIC, "none is open")
            check_entries(entries, gaps)
            if any(entry.value == POISON for entry in entries):
                raise InvalidEntryError("poison")
        except ReplogError as error:
            self.refusals += 1
            reply(error)
            return True
        call = Call(gate, session, entries, gaps)
        self._answer(call.future, reply)
        self._admit(call)
        return True

    def _answer(self, future: AppendFuture[Any], reply: Reply) -> None:
        self._replies[future] = None

        def done(_: object) -> None:
            if future in self._replies:
                del self._replies[future]
                error = future.exception()
                reply(error if error is not None else future.result())

        future.add_done_callback(done)

    def _admit(self, call: Call) -> None:
        gate = call.gate
        try:
            if self.is_full:
                raise BacklogFullError(TOPIC, "full")
            admission = gate.admit(call.session, call.entries, call.gaps)
        except ReplogError as error:
            self.refusals += 1
            settle_all([(call.future, error)])
            return
        if admission is None:
            gate.wait(call)
        else:
            gate.push(admission)
            if admission.entries:
                self._pushes.append((call, admission))
                self.world.after(self._store_s * self.world.random.random(), self._stored, self._life)
            else:
                gate.notify(call.end, call.future)
        self._settle(gate)

    # ---- storing ---------------------------------------------------------------------------------------------

    def _stored(self, life: int) -> None:
        """The entries of the oldest call are stored; rarely only some of them, and the ledger says so."""
        if life != self._life or not self._pushes:
            return
        call, admission = self._pushes.popleft()
        if admission.run.error is not None:
            call.gate.failed([], admission.run.error)
        elif not self.world.is_calm and self.world.chance(0.02):
            count = self.world.random.randrange(len(admission.entries))
            self._append(admission, count)
            error = BacklogFullError(TOPIC, "no room for the rest")
            call.gate.failed(admission.entries[:count], error)
            settle_all([(call.future, error)])
        else:
            self._append(admission, len(admission.entries))
            call.gate.settled(admission.entries)
            call.gate.notify(call.end, call.future)
        if admission.run.error is not None and not call.future.done():
            settle_all([(call.future, admission.run.error)])
        self._settle(call.gate)

    def _append(self, admission: Admission, count: int) -> None:
        for attribute, entry in zip(admission.attributes[:count], admission.entries[:count], strict=True):
            origin = next(gate.origin for gate in self._gates if gate.key == attribute.key)
            self._invariants.store(origin, attribute.gaps, entry)
            self._log.append((attribute, entry))

    def _settle(self, gate: OriginGate) -> None:
        """Do what a gate asks for after each of its events."""
        settle_all(gate.take_outcomes())
        for call in gate.take_waiting():
            self._admit(call)
        if gate.has_news:
            self._store_snapshot()

    def _store_snapshot(self) -> None:
        if self._is_storing:
            return
        self._is_storing = True
        states = [gate.snapshot() for gate in self._gates]
        mark = len(self._log)
        self.world.after(self._store_s * self.world.random.random(), self._snapshot_stored, self._life, mark, states)

    def _snapshot_stored(self, life: int, mark: int, states: list[GateState]) -> None:
        if life != self._life:
            return
        self._is_storing = False
        self._snapshot = mark, states
        for state in states:
            self._invariants.note_gaps(state.origin, state.stored, state.gaps)
        self.backups.append(partial(self._restore, self._log[:], self._snapshot, self._invariants.backup()))
        for state in states:
            gate = self._gates.get(state.origin)
            assert gate is not None
            gate.persisted(state)
            self._settle(gate)
        if any(gate.has_news for gate in self._gates):
            self._store_snapshot()

    # ---- the end of an owner -----------------------------------------------------------------------------------

    def crash(self) -> None:
        """The owner dies; the next one finds any first part of what was on its way, whatever callers were told."""
        self.crashes += 1
        self._life += 1
        self.is_up = self._is_storing = False
        self._replies.clear()
        for _, admission in list(self._pushes)[: self.world.random.randint(0, len(self._pushes))]:
            if admission.run.error is None:
                self._append(admission, len(admission.entries))
        self._pushes.clear()
        mark, states = self._snapshot
        self._gates = OriginGates(TOPIC)
        for state in states:
            self._gates.add(state)
        for attribute, entry in self._log[max(mark - self.world.random.randrange(3), 0) :]:
            gate = self._gates.by_key(attribute.key)
            assert gate is not None, "an entry of an origin without a stored session"
            gate.replay(attribute, entry.messages, crc32c(entry.value))
        for gate in self._gates:
            self._invariants.recovered(gate.origin, gate.stored)

    def _restore(
        self, log: list[tuple[OriginAttribute, OriginEntry]], snapshot: tuple[int, list[GateState]],
        forget: Callable[[], None],
    ) -> None:  # fmt: skip
        self.crash()
        self._log, self._snapshot = log[:], snapshot
        forget()
        self.crash()
        self.recover()

    def recover(self) -> None:
        """The next owner answers."""
        self.is_up = True

    def change_owner(self) -> None:
        """All calls fail, and their outcome is not known to the caller."""
        waiting = list(self._replies)
        self.crash()
        self._replies.update(dict.fromkeys(waiting))
        self.is_up = True
        settle_all([(future, TopicFencedError(TOPIC, "another process owns it")) for future in waiting])
