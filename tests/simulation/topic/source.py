"""A topic of another cluster that is replicated into whoever owns the topic here, over sessions that are given up anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import OriginHistoryError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry, OriginState
from pyreplog.topic.owner.topic import Topic

from ..invariants import demand

if TYPE_CHECKING:
    from .processes import Process
    from .schedule import Schedule

ORIGIN = Origin(b"a cluster abroad", "token")
SIZES = (1, 3, 2, 1, 2)
FILTERED_EVERY = 4
"""Of so many entries one is left out."""


def entries(first: int, count: int) -> tuple[list[OriginEntry], list[Gap]]:
    """Return entries number `first` and following of the origin, and the gaps behind the last one that is sent."""
    at = sum(SIZES) * (first // len(SIZES)) + sum(SIZES[: first % len(SIZES)])
    sent: list[OriginEntry] = []
    gaps: list[Gap] = []
    for number in range(first, first + count):
        end = at + SIZES[number % len(SIZES)]
        if number % FILTERED_EVERY == 1:
            gaps.append(Gap(at, end, GapCause.FILTERED))
        else:
            value = encode_messages([value_of(offset) for offset in range(at, end)])
            sent.append(OriginEntry(value, end - at, at, number, tuple(gaps)))
            gaps = []
        at = end
    return sent, gaps


def value_of(offset: int) -> bytes:
    return b"o%d" % offset


def number_at(offset: int) -> int:
    """Return the number of the entry that begins with an offset at the origin."""
    number, at = 0, 0
    while at < offset:
        at += SIZES[number % len(SIZES)]
        number += 1
    demand(at == offset, "WholeEntriesAreStored", f"no entry of the origin begins at {offset}")
    return number


class OriginSource:
    """Sends entries, again and again; what it was told is stored stays stored. It waits for nothing."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self._owner: Process | None = None
        self._topic: Topic | None = None
        self._is_open = False
        self._next = 0  # number of the entry to be sent
        self.session = self.told = self.failures = self.successes = 0
        self._world.after(0.05, self.live)

    def live(self) -> None:
        """Something, again and again."""
        owners = [process for process in self._schedule.processes if process.owns and not process.is_over]
        if owners:
            owner = self._owner if self._owner in owners else self._world.random.choice(owners)
            owner.soon(0.001, self._act, owner)
        if not self._world.is_calm:
            self._world.after(5 * self._schedule.plan.pause_s * self._world.random.random(), self.live)

    def _act(self, owner: Process) -> None:
        topic = owner.topic
        if topic is None or not owner.owns:
            return
        chance = self._world.chance
        try:
            if self._topic is not topic or self._owner is not owner or chance(0.03):
                self._owner, self._topic, self._is_open = owner, topic, False
                self._open(topic)
            elif self._is_open:
                first = self._next
                if chance(0.1):
                    first = max(first + self._world.random.randint(-6, 2), 0)
                self._send(topic, first, self._world.random.randint(1, 4))
            elif chance(0.05):
                self._open(topic)
        except ReplogError as error:
            self._failed(error)

    def _open(self, topic: Topic) -> None:
        self.session += not self.session or not self._world.chance(0.3)
        session = self.session
        self._world.note("the origin opens session", session)

        def done(future: AppendFuture[OriginState]) -> None:
            error = future.exception()
            if error is not None:
                self._failed(error)
                return
            stored = future.result(0).stored
            self._world.note("the origin is told", stored, "session", session)
            demand(stored >= self.told, "VectorNeverFalls", f"{stored} is stored, {self.told} was told before")
            self.told = stored
            if session == self.session:
                self._is_open, self._next = True, number_at(stored)

        topic.origins.open(ORIGIN, session).add_done_callback(done)

    def _send(self, topic: Topic, first: int, count: int) -> None:
        sent, gaps = entries(first, count)
        end = gaps[-1].end if gaps else sent[-1].end
        session = self.session
        self._next = max(first + count, self._next)

        def done(future: AppendFuture[int]) -> None:
            error = future.exception()
            if error is not None:
                self._failed(error, session)
                return
            stored = future.result(0)
            demand(stored >= end, "WhatIsAcknowledgedIsStored", f"{stored}, of a call up to {end}")
            self.successes += 1
            self.told = max(self.told, stored)

        topic.origins.replicate(ORIGIN, session, sent, gaps).add_done_callback(done)

    def _failed(self, error: BaseException, session: int | None = None) -> None:
        self._world.note("the origin gets", type(error).__name__)  # its text has the id of a process
        demand(not isinstance(error, OriginHistoryError), "OneHistory", str(error))
        self.failures += 1
        if session in (None, self.session):
            self._is_open = False

    def check(self, topic: Topic, start: int, batches: Sequence[MessageBatch]) -> None:
        """All that is there, from `start` on, is what the last owner says, each message once, nothing left out."""
        state = topic.origins.all().get(ORIGIN, OriginState(0, None))
        demand(state.stored >= self.told, "VectorNeverFalls", f"{state.stored} is stored, {self.told} was told before")
        found: list[tuple[OriginAttribute, Sequence[bytes]]] = []
        for batch in batches:
            values, first = batch.values(), 0
            for index, count in enumerate(batch.entry_count.tolist()):
                attribute = batch.entry_origin(index)
                if attribute is not None:
                    found.append((OriginAttribute.from_bytes(attribute), values[first : first + count]))
                first += count
        at = 0 if start == 0 else None
        for attribute, stored in found:
            begin = attribute.gaps[0].start if attribute.gaps else attribute.first
            demand(at in (None, begin), "NothingIsLeftOut", f"expected {at}, found {attribute}")
            expected = [value_of(attribute.first + place) for place in range(len(stored))]
            demand(list(stored) == expected, "BytesAreEqual", f"{attribute}: {stored}")
            at = attribute.first + len(stored)
        if at is not None:
            demand(at <= state.stored, "VectorIsReplay", f"{state} is told, the log ends at {at}")
            demand(state.last is None or not found or state.last.end == at, "VectorIsReplay", f"{state}, found {at}")
