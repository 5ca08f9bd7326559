"""A cluster: its topic, which others replicate into, and the ways to its targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyreplog.geo.protocol.effects import Progress, RenewOrigin, SourceEntry
from pyreplog.origins.gate import Admission
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry

from ..invariants import BrokenInvariantError, demand
from ..replication.invariants import Invariants
from ..replication.schedule import Plan
from ..replication.source import START_US, Log, Process
from ..replication.target import Target

if TYPE_CHECKING:
    from .schedule import Schedule


class SiteLog(Log):
    """The confirmed entries of a topic, of all origins."""

    def __init__(self, own: Origin) -> None:
        self.own = own
        self.entries: list[SourceEntry] = []
        self.history: list[SourceEntry] = []  # with those that were trimmed
        self.start = self.end = self.begin = self.former_end = 0
        self.withheld = GapCause.EXPIRED


class SiteInvariants(Invariants):
    """What must hold of what a topic stores of other clusters."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.stored: dict[Origin, int] = {}
        self.logged: dict[Origin, int] = {}
        self.messages: dict[Origin, int] = {}

    def store(self, origin: Origin, gaps: tuple[Gap, ...], entry: OriginEntry) -> None:
        site, at = self._site, self.logged.get(origin, 0)
        demand(origin.cluster != site.id, "OwnOriginNeverReturns", f"{site}: {origin.token} {entry.first}")
        for gap in gaps:
            demand(gap.start == at, "PrefixComplete", f"{site}: {gap} of {origin.token} behind {at}")
            at = gap.end
        demand(entry.first == at, "OncePerCluster", f"{site}: {entry.first} of {origin.token} behind {at}")
        truth = site.schedule.published.get((origin, entry.first))
        found = entry.value, entry.messages, entry.publish_time_us
        demand(truth == found, "BytesEqual", f"{site}: {entry.first} of {origin.token}")
        self.logged[origin] = entry.end
        self.stored[origin] = max(entry.end, self.stored.get(origin, 0))


class WayInvariants(SiteInvariants):
    """What must hold of what one cluster tells another one."""

    def __init__(self, way: Way) -> None:
        super().__init__(way.source)
        self._way = way

    def claim(self, origin: Origin, entries: Iterable[OriginEntry], gaps: Iterable[Gap]) -> None:
        """Nothing is left out but what was trimmed while nobody kept it for the target, or for the source, which had to
        forward it: there are no filters, and nothing expires."""
        way = self._way
        for gap in [*gaps, *(gap for entry in entries for gap in entry.gaps)]:
            for number in range(gap.start, gap.end):
                key = origin, number
                if key in way.source.schedule.numbers:
                    is_excused = key in way.other.excused or key in way.source.excused
                    demand(is_excused, "SkipsHaveACause", f"{way}: {number} of {origin.token}: {gap.cause.name}")
                    way.other.excused.add(key)


class SiteTarget(Target):
    """The topic, as others replicate into it: what is stored is sent on."""

    def __init__(self, site: Site, store_s: float) -> None:
        self._site = site
        super().__init__(site.world, site.invariants, store_s)

    def _append(self, admission: Admission, count: int) -> None:
        super()._append(admission, count)
        for attribute, entry in zip(admission.attributes[:count], admission.entries[:count], strict=True):
            origin = next(gate.origin for gate in self._gates if gate.key == attribute.key)
            self._site.append(
                SourceEntry(
                    entry.value,
                    entry.messages,
                    self._site.log.end,
                    self._site.time_us,
                    origin,
                    entry.first,
                    entry.publish_time_us,
                    attribute.gaps,
                )
            )


class Owner(Process):
    """An owner's Sender to one target. What was sent of the topic is known to all of its senders."""

    def __init__(self, way: Way, epoch: int) -> None:
        self._site, self._way = way.source, way
        super().__init__(way, epoch, mark=way.begins_at)

    def _sent(self, end: int) -> int:
        self._site.sent_end = max(self._site.sent_end, end)
        return self._site.sent_end

    def _persist(self, number: int, progress: Progress) -> None:
        super()._persist(number, progress)
        if not self.is_dead:
            self._site.trim()


class Way:
    """The replication of a site's topic to another site, with its durable cursor: the surroundings of a Process."""

    expects_alarm = True  # sites with a topic that was created again have less than they said

    def __init__(self, source: Site, other: Site, plan: Plan) -> None:
        self.source, self.other, self.plan = source, other, plan
        self.world = source.world
        self.cursor: Progress | None = None
        self.cursors: list[Progress] = []
        self.ends: list[int] = []
        self.connections = 0
        self.is_apart = self.is_removed = False
        self.is_detached = self.is_detached_stored = False
        self.begins_at: int = 0  # where the source began, when the cursor was made
        self.process: Owner | None = None
        self._invariants = WayInvariants(self)

    def __repr__(self) -> str:
        return f"{self.source}-{self.other}"

    @property
    def log(self) -> SiteLog:
        return self.source.log

    @property
    def target(self) -> Target:
        return self.other.target

    @property
    def target_cluster(self) -> bytes:
        return self.other.id

    @property
    def invariants(self) -> WayInvariants:
        return self._invariants

    @property
    def mark(self) -> int | None:
        """The source keeps messages from this offset on for the target; None: it keeps none for it."""
        if self.is_removed or self.is_detached_stored:
            return None
        return self.begins_at if self.cursor is None else max(self.cursor.mark, self.begins_at)

    def renew(self, effect: RenewOrigin) -> None:
        raise BrokenInvariantError("FalseAlarm", f"{self}: {effect}")

    def begin(self) -> None:
        """The owner of the topic sends. What it had not stored of a change is not known to it."""
        self.is_detached = self.is_detached_stored
        if not self.is_removed and not self.is_detached and self.source.target.is_up:
            self.log.begin = self.begins_at  # the process reads it once
            self.process = Owner(self, self.source.epoch)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def remove(self) -> None:
        """The policy does not name the target any more: its cursor goes, and messages are trimmed without it."""
        self.kill()
        self.is_removed, self.cursor = True, None
        self.is_detached = self.is_detached_stored = False
        self.source.trim()

    def add(self) -> None:
        """The policy names the target: messages are kept for it from now on."""
        if self.is_removed:
            self.is_removed, self.begins_at = False, self.log.start
            self.source.epoch += 1
            self.begin()

    def detach(self) -> None:
        """The backlog is larger than its bound: replication ends, and messages are trimmed without the target."""
        process = self.process
        if process is not None and not self.is_detached:
            self.is_detached = True
            process.do(lambda *_: process.sender.pause())
            self.world.after(0.03 * self.world.random.random(), self._store_detached, process)

    def _store_detached(self, process: Owner) -> None:
        if process is self.process and not self.is_removed:
            self.is_detached_stored = self.is_detached
            self.source.trim()

    def resync(self) -> None:
        """An operator orders it: the target gets what is stored here, and messages are kept for it again."""
        if not self.is_detached or not self.source.target.is_up:
            return
        self.is_detached = self.is_detached_stored = False
        process = self.process
        if process is None:
            self.source.epoch += 1
            self.begin()
        else:
            process.do(process.sender.resume)
            process.do(process.sender.resync)

    def configure(self, rate: int | None, window: int) -> None:
        self.plan = replace(self.plan, rate=rate, window=window)
        if self.process is not None:
            self.process.do(self.process.sender.configure, self.process.settings())


class Site:
    def __init__(self, schedule: Schedule, place: int) -> None:
        self.schedule, self.world = schedule, schedule.world
        self.letter = "abcd"[place]
        self.id = bytes([place + 1]) * 16
        self.epoch = self.world.random.randrange(1, 4)
        self.ways: list[Way] = []
        self.incoming: list[Way] = []
        self.topics = self.trimmed = self.unkept = 0
        self.excused: set[tuple[Origin, int]] = set()  # messages that it may lack: trimmed before it had them
        self.new_topic()

    def __repr__(self) -> str:
        return self.letter

    @property
    def time_us(self) -> int:
        return START_US + round(self.world.now * 1e6)

    def new_topic(self) -> None:
        self.topics += 1
        self.log = SiteLog(Origin(self.id, f"{self.letter}{self.topics}"))
        self.invariants = SiteInvariants(self)
        self.target = SiteTarget(self, self.schedule.store_s)
        self.sent_end = 0  # below it other clusters may have messages of the topic

    def append(self, entry: SourceEntry) -> None:
        self.log.entries.append(entry)
        self.log.history.append(entry)
        self.log.end += entry.messages
        for way in self.ways:
            if way.process is not None:
                way.process.grow()

    def trim(self) -> None:
        """Trim what all targets have for which messages are kept; at times a part of it, or nothing.

        What a target lacks for which messages are not kept is missing there from then on.
        """
        random, log = self.world.random, self.log
        if not self.schedule.trims or not self.target.is_up or random.random() < 0.3:
            return
        marks = [mark for way in self.ways if (mark := way.mark) is not None]
        below = min(marks, default=log.end)
        if random.random() < 0.3:
            below = random.randint(0, below)
        for entry in log.entries:
            if entry.end > below:
                break
            for way in self.ways:
                self._check_trim(way, entry)
            self.trimmed += entry.messages
        start = log.start
        log.trim(below)
        if log.start > start:
            for way in self.ways:
                if way.process is not None:
                    way.process.grow()

    def _check_trim(self, way: Way, entry: SourceEntry) -> None:
        """Demand that a target has stored an entry that is trimmed, or note that it may lack it."""
        origin, first = self.log.own, entry.first
        if entry.origin is not None:
            if not way.plan.forward_all or entry.origin.cluster == way.other.id:
                return
            origin, first = entry.origin, entry.origin_first
        stored, end = way.other.invariants.stored.get(origin, 0), first + entry.messages
        if stored >= end:
            return
        text = f"{way}: {first} to {end} of {origin.token} is trimmed, stored below {stored}"
        demand(way.mark is None, "TrimAtMostLeastStored", text)
        self.unkept += entry.messages
        way.other.excused.update((origin, number) for number in range(first, end))

    def publish(self, value: bytes, messages: int) -> None:
        if self.target.is_up:
            own, first, time_us = self.log.own, self.log.end, self.time_us
            self.schedule.published[own, first] = value, messages, time_us
            self.schedule.numbers.update((own, number) for number in range(first, first + messages))
            self.append(SourceEntry(value, messages, first, time_us))

    def crash(self) -> None:
        """The owner dies; its calls are not answered, and its cursors are those that were stored."""
        if self.target.is_up:
            for way in self.ways:
                way.kill()
            self.target.crash()
            self._hang_up()

    def _hang_up(self) -> None:
        for way in self.incoming:
            if way.process is not None:
                way.process.cut(half=self.world.chance(0.5))

    def change_owner(self) -> None:
        """Another process takes the topic; who replicates into it is told."""
        if self.target.is_up:
            for way in self.ways:
                way.kill()
            self.target.change_owner()
            self._begin()

    def _begin(self) -> None:
        self.epoch += 1
        self.sent_end = self.log.end
        for way in self.ways:
            way.begin()

    def recover(self) -> None:
        if not self.target.is_up:
            self.target.recover()
            self._begin()

    def recreate(self) -> None:
        """The topic is deleted, and created again: it has another identity, and nothing of the former one."""
        self.world.note(self, "is created again")
        for way in self.ways:
            way.kill()
            way.cursor, way.begins_at = None, 0
            way.is_detached = way.is_detached_stored = False
        self.target.crash()
        self.new_topic()
        self._hang_up()
        self._begin()
