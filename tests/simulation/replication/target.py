"""A topic of the target cluster: the rules of the gate, with entries on their way, and owners that crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    BacklogFullError,
    InvalidEntryError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    TopicFencedError,
)
from pyreplog.origins.origin import GAPS_MAX, Gap, LastEntry, Origin, OriginEntry, OriginState

from ..world import World
from .invariants import Invariants

CLUSTER = b"T" * 16
TOPIC = "far"
POISON = b"poison"

Reply = Callable[[Any], None]


class Push(NamedTuple):
    """An entry on its way, or gaps behind the last one."""

    origin: Origin
    entry: OriginEntry | None
    gaps: tuple[Gap, ...]
    end: int


@dataclass
class Gate:
    """One origin. calls: wait until everything below an offset is stored."""

    session: int = 0
    stored: int = 0
    last: LastEntry | None = None
    pushed: int = 0
    calls: list[tuple[int, Reply]] = field(default_factory=list)
    openings: list[tuple[int, Reply]] = field(default_factory=list)


class Target:
    """What is stored survives crashes. `is_up`: it answers."""

    def __init__(self, world: World, invariants: Invariants, store_s: float) -> None:
        self.world, self._invariants, self._store_s = world, invariants, store_s
        self.gates: dict[Origin, Gate] = {}
        self._pushes: list[Push] = []
        self._life = 0
        self.is_up = True
        self.is_full = False  # its quota refuses messages
        self.crashes = self.refusals = 0

    # ---- requests --------------------------------------------------------------------------------------------

    def open(self, origin: Origin, session: int, reply: Reply) -> bool:
        if not self.is_up:
            return False
        gate = self.gates.setdefault(origin, Gate())
        if session < gate.session:
            reply(OriginSessionError(TOPIC, f"fenced by {gate.session}"))
            return True
        gate.session = session
        gate.openings.append((session, reply))
        self._settle(gate)
        return True

    def replicate(
        self, origin: Origin, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap], reply: Reply
    ) -> bool:
        if not self.is_up:
            return False
        gate = self.gates.get(origin, Gate())
        try:
            if self.is_full:
                raise BacklogFullError(TOPIC, "full")
            pushes, end = self._judge(origin, gate, session, entries, gaps)
        except (OriginSessionError, OriginGapError, OriginHistoryError, InvalidEntryError, BacklogFullError) as error:
            self.refusals += 1
            reply(error)
            return True
        gate.pushed = max(gate.pushed, end)
        gate.calls.append((end, reply))
        for push in pushes:
            self._pushes.append(push)
            self.world.after(self._store_s * self.world.random.random(), self._stored, self._life)
        self._settle(gate)
        return True

    def _judge(
        self, origin: Origin, gate: Gate, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap]
    ) -> tuple[list[Push], int]:
        if session != gate.session:
            raise OriginSessionError(TOPIC, f"fenced by {gate.session}")
        at, pushes = gate.pushed, list[Push]()
        assert len(gaps) <= GAPS_MAX and all(len(entry.gaps) <= GAPS_MAX for entry in entries)
        end = 0
        for entry in entries:
            end = entry.end
            if entry.value == POISON:
                raise InvalidEntryError("poison")
            if entry.end <= at:
                continue
            kept, at = self._clip(at, entry.gaps)
            if entry.first > at:
                raise OriginGapError(TOPIC, f"expected {at}, found {entry.first}")
            if entry.first < at:
                raise OriginHistoryError(TOPIC, f"across {at}: {entry.first} to {entry.end}")
            at = entry.end
            pushes.append(Push(origin, entry, kept, at))
        kept, at = self._clip(at, gaps)
        if kept:
            pushes.append(Push(origin, None, kept, at))
        return pushes, max(end, gaps[-1].end if gaps else 0)

    def _clip(self, at: int, gaps: Sequence[Gap]) -> tuple[tuple[Gap, ...], int]:
        kept = []
        for gap in gaps:
            if gap.end <= at:
                continue
            if gap.start > at:
                raise OriginGapError(TOPIC, f"expected {at}, found a gap from {gap.start} on")
            kept.append(gap._replace(start=at))
            at = gap.end
        return tuple(kept), at

    # ---- storing ---------------------------------------------------------------------------------------------

    def _stored(self, life: int) -> None:
        if life == self._life and self._pushes:
            self._store(self._pushes.pop(0))

    def _store(self, push: Push) -> None:
        gate = self.gates[push.origin]
        self._invariants.store(push.origin, gate.stored, push.entry, push.gaps, push.end)
        if push.entry is not None:
            entry = push.entry
            gate.last = LastEntry(entry.first, entry.end, crc32c(entry.value), entry.publish_time_us)
        gate.stored = push.end
        self._settle(gate)

    def _settle(self, gate: Gate) -> None:
        done = [reply for end, reply in gate.calls if end <= gate.stored]
        gate.calls = [call for call in gate.calls if call[0] > gate.stored]
        for reply in done:
            reply(gate.stored)
        if gate.pushed == gate.stored:
            openings, gate.openings = gate.openings, []
            for session, reply in openings:
                if session < gate.session:
                    reply(OriginSessionError(TOPIC, f"fenced by {gate.session}"))
                else:
                    reply(OriginState(gate.stored, gate.last))

    def crash(self) -> None:
        """The owner dies; the next one finds any first part of what was on its way."""
        self.crashes += 1
        self._life += 1
        self.is_up = False
        for gate in self.gates.values():
            gate.calls, gate.openings = [], []
        kept = self.world.random.randint(0, len(self._pushes))
        pushes, self._pushes = self._pushes, []
        for push in pushes[:kept]:
            self._store(push)
        for gate in self.gates.values():
            gate.pushed = gate.stored

    def recover(self) -> None:
        self.is_up = True

    def change_owner(self) -> None:
        """All calls fail, and their outcome is not known to the caller."""
        calls = [reply for gate in self.gates.values() for _, reply in (*gate.calls, *gate.openings)]
        self.crash()
        self.is_up = True
        for reply in calls:
            reply(TopicFencedError(TOPIC, "another process owns it"))
