"""The topic here: its log, which keeps what is confirmed, its durable cursor, and a process with a Sender."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pyreplog.errors import NotConnectedError, ReplogError, TrimmedError, UnreadableError
from pyreplog.geo.protocol.effects import (
    CheckEntry,
    Disconnect,
    Effect,
    EntryRefused,
    OpenOrigin,
    Progress,
    RaiseAlarm,
    ReadEntries,
    RenewOrigin,
    SendEntries,
    SourceEntry,
    TargetPosition,
    WakeAt,
)
from pyreplog.geo.protocol.sender import Sender, SendingSettings
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginState
from pyreplog.origins.replicate_to import attribute_of

from ..invariants import BrokenInvariantError, demand
from .network import Connection
from .target import CLUSTER, POISON, TARGET_NAME

if TYPE_CHECKING:
    from ..world import World
    from .invariants import Invariants
    from .schedule import Plan, Schedule
    from .target import Target

START_US = 1_700_000_000_000_000
Truth = tuple[bytes, int, int, bytes | None]
"""Of an entry: value, messages, publish time, replicate-to attribute."""


def is_for_target(entry: SourceEntry) -> bool:
    """Whether the list of an entry names the target, or it has none."""
    return entry.replicate_to is None or TARGET_NAME in entry.replicate_to


class Log:
    """The confirmed entries of the source's topic, of three origins: its own, another cluster's, the target's."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.own = Origin(b"S" * 16, "own")
        self.other = Origin(b"X" * 16, "other")
        self.far = Origin(CLUSTER, "far")
        self.entries: list[SourceEntry] = []
        self.forwarded: list[SourceEntry] = []  # those of the other cluster, also after they were trimmed
        self.start = self.end = self.begin = self.former_end = 0
        self.withheld = GapCause.FILTERED
        self._ends = {self.other: 0, self.far: 0}
        self._causes: dict[tuple[Origin, int], str] = {}
        self._truth: dict[tuple[Origin, int], Truth] = {}

    def append(
        self, origin: Origin | None, messages: int, value: bytes, replicate_to: frozenset[str] | None = None
    ) -> None:
        is_withheld = replicate_to is not None and TARGET_NAME not in replicate_to
        time_us = START_US + round(self._schedule.world.now * 1e6)
        if origin is None:
            entry = SourceEntry(value, messages, self.end, time_us, replicate_to=replicate_to)
            if not is_withheld:
                self._truth[self.own, self.end] = value, messages, time_us, attribute_of(replicate_to)
            kind = "withheld" if is_withheld else "poison" if value == POISON else "own"
        else:
            first, gaps = self._ends[origin], ()
            if self._schedule.world.chance(0.2):
                first += 2
                gaps = (Gap(first - 2, first, GapCause.DUPLICATE),)
                for offset in range(first - 2, first):
                    self._causes[origin, offset] = "skipped"
            self._ends[origin] = first + messages
            entry = SourceEntry(value, messages, self.end, time_us, origin, first, time_us - 5000, gaps, replicate_to)
            if not is_withheld:
                self._truth[origin, first] = value, messages, time_us - 5000, attribute_of(replicate_to)
            for offset in range(first, first + messages):
                self._causes[origin, offset] = "withheld" if is_withheld else "poison" if value == POISON else "own"
            kind = "foreign"
        for offset in range(self.end, self.end + messages):
            self._causes[self.own, offset] = kind
        self.entries.append(entry)
        if origin == self.other:
            self.forwarded.append(entry)
        self.end += messages

    def begins_here(self) -> None:
        """What is there now is not sent to a new target."""
        self.begin = self.end
        for place, cause in self._causes.items():
            self._causes[place] = f"{cause} before"

    def truth(self, origin: Origin, first: int) -> Truth | None:
        return self._truth.get((origin, first))

    def cause(self, origin: Origin, offset: int) -> str:
        return self._causes.get((origin, offset), "nothing")

    def end_of(self, origin: Origin) -> int:
        return self.end if origin == self.own else self._ends[origin]

    def read(self, offset: int, bytes_max: int) -> list[SourceEntry]:
        if offset < self.start:
            raise TrimmedError(f"from {self.start} on")
        entries, size = [], 0
        for entry in self.entries:
            if entry.end > offset and size < bytes_max:
                entries.append(entry)
                size += len(entry.value)
        return entries

    def rewrite_other(self, end: int) -> int | None:
        """Put other messages in the place of the last ones of the other cluster, the one that ends at `end` included.

        Return the offset of the first one; None: that is not kept, or lies before the messages that are sent: the sender
        reads it no more, and does not compare it.
        """
        kept = [
            entry for entry in self.entries
            if entry.origin == self.other and entry.value != POISON and is_for_target(entry)
            and entry.first >= self.begin
        ]  # fmt: skip
        last = [at for at, entry in enumerate(kept) if entry.origin_first + entry.messages == end]
        if not last:
            return None
        first = kept[max(last[0] - self._schedule.world.random.randrange(4), 0)].origin_first
        for index, entry in enumerate(self.entries):
            if entry in kept and entry.origin_first >= first:
                value = entry.value + b"!"
                self.entries[index] = entry._replace(value=value)
                self._truth[self.other, entry.origin_first] = (
                    value, entry.messages, entry.origin_time_us, attribute_of(entry.replicate_to),
                )  # fmt: skip
        return first

    def restore(self, end: int, start: int) -> None:
        """Forget what was stored behind an offset: the cluster was restored from a backup. start: then."""
        self.entries = [entry for entry in self.entries if entry.end <= end]
        self.start, self.end = start, end
        for origin in self._ends:
            firsts = [entry.origin_first + entry.messages for entry in self.entries if entry.origin == origin]
            self._ends[origin] = max(firsts, default=0)

    def renew(self, offset: int) -> None:
        """Give the messages from an offset on another identity."""
        former, self.own, self.former_end = self.own, Origin(b"S" * 16, "own again"), offset
        for index, entry in enumerate(self.entries):
            kind = "foreign"
            if entry.origin is None and entry.first < offset:
                self.entries[index] = entry._replace(
                    origin=former, origin_first=entry.first, origin_time_us=entry.time_us
                )
            elif entry.origin is None:
                kind = "poison" if entry.value == POISON else "own"
                if not is_for_target(entry):
                    kind = "withheld"
                else:
                    self._truth[self.own, entry.first] = (
                        entry.value, entry.messages, entry.time_us, attribute_of(entry.replicate_to),
                    )  # fmt: skip
            for at in range(entry.first, entry.end):
                self._causes[self.own, at] = kind
        for at in range(offset):
            self._causes[self.own, at] = "skipped"

    def trim(self, below: int) -> None:
        while self.entries and self.entries[0].end <= below:
            self.start = self.entries.pop(0).end


class Surroundings(Protocol):
    """What a Process is in: a topic that is sent to a target.

    cursor: the last one that was stored; cursors, ends: all of them, and the ends of the topic then.
    """

    cursor: Progress | None
    cursors: list[Progress]
    ends: list[int]
    connections: int
    is_apart: bool
    expects_alarm: bool

    @property
    def world(self) -> World: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def log(self) -> Log: ...
    @property
    def target(self) -> Target: ...
    @property
    def target_cluster(self) -> bytes: ...
    @property
    def invariants(self) -> Invariants: ...
    def renew(self, effect: RenewOrigin) -> None: ...


class Process:
    """An owner of the topic: a Sender, carried out. What it knows dies with it, but for the cursor."""

    def __init__(
        self,
        schedule: Surroundings,
        epoch: int,
        *,
        mark: int = 0,
        others: dict[Origin, TargetPosition] | None = None,
        opened_at: int | None = None,
    ) -> None:
        self._schedule, self._world, self._log = schedule, schedule.world, schedule.log
        self.is_dead = False
        self.alarms: list[str] = []
        self._told = self._persisted = 0  # numbers of cursors
        self._wake: float | None = None
        self._connection: Connection | None = None
        self._sessions: dict[tuple[int, Origin], int] = {}
        self._sent_end = self._log.end if opened_at is None else opened_at
        plan = schedule.plan
        cursor = schedule.cursor
        self.sender = Sender(
            self._log.own, self.settings(), epoch=epoch, begin=self._log.begin,
            withheld=self._log.withheld, own_position=None if cursor is None else cursor.own,
            positions=others if cursor is None else cursor.others, mark=mark if cursor is None else cursor.mark,
            former=self._log.former_end, sent=self._sent, random=random.Random(f"{plan}{epoch}").random,
        )  # fmt: skip
        self.do(self.sender.grew, self._log.start, self._log.end)
        self.do(self.sender.resume)

    def settings(self) -> SendingSettings:
        plan = self._schedule.plan
        return SendingSettings(plan.forward_all, None, plan.ttl_us, plan.rate, plan.window, TARGET_NAME)

    def _sent(self, end: int) -> int:
        self._sent_end = max(self._sent_end, end)
        return self._sent_end

    @property
    def connection(self) -> Connection:
        """The connection; another one after it was lost."""
        if self._connection is None or self._connection.is_cut:
            self._connection = Connection(self._world, self._schedule.plan.lag_s)
            self._schedule.connections += 1
        return self._connection

    def do(self, event: Callable[..., list[Effect]], *arguments: Any) -> None:
        """Tell the sender, and carry out what it wants."""
        if self.is_dead:
            return
        now_us = round(self._world.now * 1e6)
        for effect in event(*arguments, now_us, START_US + now_us):
            self._world.note("effect", effect)
            self._carry_out(effect)
        sender = self.sender
        largest = max((len(entry.value) for entry in self._log.entries), default=0)
        demand(
            sender.inflight_bytes <= sender.settings.window_bytes + (1 << 20) + largest, "Window",
            f"{sender.inflight_bytes} of {sender.settings.window_bytes}",
        )  # fmt: skip

    def _carry_out(self, effect: Effect) -> None:
        world, sender = self._world, self.sender
        if isinstance(effect, OpenOrigin):
            self._open(effect)
        elif isinstance(effect, SendEntries):
            self._send(effect)
        elif isinstance(effect, ReadEntries):
            world.after(0.001 * world.random.random(), self._read, effect)
        elif isinstance(effect, CheckEntry):
            world.after(0.001, self._check, effect)
        elif isinstance(effect, WakeAt):
            world.at(max(effect.at_us / 1e6, world.now), partial(self.do, sender.woke))
        elif isinstance(effect, Progress):
            self._told += 1
            world.after(0.03 * world.random.random(), self._persist, self._told, effect)
        elif isinstance(effect, EntryRefused):
            pass
        elif isinstance(effect, RaiseAlarm) and not self._schedule.expects_alarm:
            raise BrokenInvariantError("FalseAlarm", effect.text)
        elif isinstance(effect, RenewOrigin):
            world.after(0.001, self._schedule.renew, effect)
        elif isinstance(effect, Disconnect):
            self._sessions.clear()

    def _open(self, effect: OpenOrigin) -> None:
        sender, target = self.sender, self._schedule.target

        def came(reply: Any) -> None:
            if isinstance(reply, ReplogError):
                self.do(sender.lost, effect.attempt, effect.origin, reply)
                return
            assert isinstance(reply, OriginState)
            self._sessions[effect.attempt, effect.origin] = effect.session
            self.do(sender.opened, effect.attempt, effect.origin, self._schedule.target_cluster, reply)

        if self._schedule.is_apart:
            self._world.after(0.01, came, NotConnectedError("apart"))
        else:
            self.connection.request(partial(target.open, effect.origin, effect.session), came)

    def _send(self, effect: SendEntries) -> None:
        sender, target = self.sender, self._schedule.target
        session = self._sessions[effect.attempt, effect.origin]
        self._schedule.invariants.claim(effect.origin, effect.entries, effect.gaps)

        def came(reply: Any) -> None:
            if isinstance(reply, ReplogError):
                self.do(sender.request_failed, effect.attempt, effect.request, reply)
            else:
                self.do(sender.request_stored, effect.attempt, effect.request, reply)

        self.connection.request(
            lambda reply: target.replicate(effect.origin, session, effect.entries, effect.gaps, reply), came
        )

    def _read(self, effect: ReadEntries) -> None:
        try:
            if not self._world.is_calm and self._world.chance(0.02):
                raise UnreadableError(1, "dark")
            entries = self._log.read(effect.offset, self._schedule.plan.read_bytes)
        except ReplogError as error:
            self.do(self.sender.read_failed, effect.attempt, error, self._log.start)
        else:
            self.do(self.sender.entries_read, effect.attempt, entries)

    def _check(self, effect: CheckEntry) -> None:
        entries = [entry for entry in self._log.entries if entry.first <= effect.first < entry.end]
        self.do(self.sender.checked, effect.attempt, entries[0] if entries else None)

    def _persist(self, number: int, progress: Progress) -> None:
        """Store the cursor; what was told before is never stored behind it."""
        if not self.is_dead and number > self._persisted:
            self._persisted = number
            self._schedule.cursor = progress
            self._schedule.cursors.append(progress)
            self._schedule.ends.append(self._log.end)
            if self._schedule.plan.trims:
                self._schedule.invariants.trim(progress.mark)
                self._log.trim(progress.mark)
                self.do(self.sender.grew, self._log.start, self._log.end)

    def grow(self) -> None:
        self.do(self.sender.grew, self._log.start, self._log.end)

    def kill(self) -> None:
        self.is_dead = True
        if self._connection is not None:
            self._connection.forget()

    def cut(self, *, half: bool) -> None:
        if self._connection is not None:
            (self._connection.half_cut if half else self._connection.cut)()
