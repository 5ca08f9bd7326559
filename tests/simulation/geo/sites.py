"""A cluster: its topic, what it keeps durably, cursors and consumers, around the shipped state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.geo.acks.effects import (
    Acknowledge,
    CompareEntry,
    Diverged,
    Drop,
    Effect,
    HistoryDiffers,
    HomeChanged,
    Persist,
    Rebuild,
    SeekLost,
    Send,
)
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.handover import Handover, HandoverPhase
from pyreplog.geo.acks.journal import replay
from pyreplog.geo.acks.messages import Cursor as Reader
from pyreplog.geo.acks.messages import TombstoneItem, decode_items
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.subscription_state import FIRST_GENERATION, Generation, SubscriptionState
from pyreplog.geo.acks.translation import Translation
from pyreplog.origins.origin import LastEntry, Origin, OriginState

from ..invariants import demand

if TYPE_CHECKING:
    from .links import Link
    from .schedule import Schedule


class Entry(NamedTuple):
    """A message in the topic of one cluster.

    Origin and number are its identity there; `message` is the message itself. A cluster that was restored may give two
    messages one identity, or one message two.
    """

    origin: Origin
    number: int
    only_to: frozenset[bytes] | None  # clusters that it is replicated to; None: all
    message: int

    @property
    def last(self) -> LastEntry:
        return LastEntry(self.number, self.number + 1, self.origin.key & 0xFFFF_FFFF, self.message)


class TopicFiles(NamedTuple):
    """The messages of a topic in a backup, with what is known of their origins."""

    origin: Origin
    log: list[Entry]
    vector: dict[Origin, int]
    gaps: dict[Origin, list[tuple[int, int]]]


class Backup(NamedTuple):
    """A backup of a cluster. What is kept of its subscriptions may be a moment newer than its messages."""

    topic: TopicFiles
    journal: list[bytes]
    saved: dict[str, tuple[bytes, bytes]]
    seen_dead: set[str]
    marks: dict[bytes, int]


@dataclass
class Cursor:
    """The local cursor of a subscription: what the owner of a topic has."""

    token: str
    generation: Generation
    acked: RangeSet = field(default_factory=RangeSet)
    expired: RangeSet = field(default_factory=RangeSet)
    pending: dict[int, tuple[str, Generation]] = field(default_factory=dict)


class Site:
    def __init__(self, schedule: Schedule, place: int) -> None:
        self.schedule, self.world, self.truth = schedule, schedule.world, schedule.truth
        self.letter = "abcd"[place]
        self.id = bytes([place + 1]) * 16
        self.links: list[Link] = []
        self.is_up = True
        self.is_removed = False
        self.is_alone = False  # nothing connects to it
        self.boots = 0
        self.topics = 0
        self._identities = 0
        self.backup: Backup | None = None
        self._restores = 0
        self.handover: Handover | None = None
        self._handed, self._target, self._gives_back_at, self._gives_up_at = "", self, 0.0, 0.0
        self._late: list[tuple[str, int, str, Generation]] = []  # taken from consumers, which do not know
        self._disk_until = 0.0
        self.writes = 0  # moments before or behind a write, while faults happen
        self._touched: dict[str, None] = {}
        self._new_topic()

    def __repr__(self) -> str:
        return self.letter

    def _new_topic(self) -> None:
        self.topics += 1
        self.backup = None
        self.origin = self._new_origin()
        self.log: list[Entry] = []
        self.vector: dict[Origin, int] = {self.origin: 0}
        self.translation = Translation(self.origin)
        self.gaps: dict[Origin, list[tuple[int, int]]] = {}
        self.journal: list[bytes] = []
        self.saved: dict[str, tuple[bytes, bytes]] = {}  # digest of the header, acknowledged
        self.cursors: dict[str, Cursor] = {}
        self.seen_dead: set[str] = set()  # tokens whose tombstones are durable here, or were
        self.marks: dict[bytes, int] = {}  # by cluster, below which it has all messages of this topic's origin
        self.sent_end = 0  # other clusters may have messages of this topic's origin below it
        self.idle_writes = 0

    def _new_origin(self) -> Origin:
        self._identities += 1
        return Origin(self.id, f"{self.letter}{self._identities}")

    # ---- the process -----------------------------------------------------------------------------------------------

    def boot(self) -> None:
        self.boots += 1
        self.is_up = True
        self.handover = None
        self._late.clear()
        neighbours, replayed = self.neighbours(), replay(self.journal)
        self.sent_end = len(self.log)
        for name, (header, acked) in self.saved.items():  # acknowledgements beyond the end are forgotten
            kept = RangeSet.load(acked)
            kept.remove(self.sent_end, OFFSET_END)
            self.saved[name] = header, kept.dump()
        if max([replayed.end_of(self.origin), *self.marks.values()]) > self.sent_end:
            self._change_identity(self.sent_end)
        self.exchange = SubscriptionExchange(
            self.origin, participants=[self.id, *neighbours], neighbours=neighbours, replayed=replayed,
            positions=self.positions,
        )  # fmt: skip
        self.cursors = {}
        for origin, end in self.vector.items():
            self.exchange.arrive(origin, end)
        for name in self.exchange.names():
            self._restore(name)
        self.world.note(self, "boots with", self.exchange.names())
        self.world.after(0.2 * self.world.random.random(), self._flush, self.boots)

    def neighbours(self) -> list[bytes]:
        return [
            link.other(self).id for link in self.links if not link.other(self).is_removed and self not in link.withdrawn
        ]

    def configure(self) -> None:
        """The policy names other clusters than before."""
        if self.is_up:
            neighbours = self.neighbours()
            if self.handover is not None and self._target.id not in neighbours:
                self.schedule.cancelled += self.handover.cancel()
                self.handover = None
            self.do(self.exchange.configure([self.id, *neighbours], neighbours))
            self._look_at_handover()

    def _restore(self, name: str) -> None:
        """The cursor is what the journal has; what the cursor was saved with behind it counts, too."""
        state = self.exchange.state(name)
        assert state is not None
        self._rebuild(name)
        header, acked = self.saved.get(name, (b"", b""))
        if header == self._header(state):
            token = min(state.tokens)
            for origin, ranges in self.translation.to_origins(RangeSet.load(acked).intersect()).items():
                self.exchange.acknowledge(name, token, state.generation, origin, *ranges)
            self._rebuild(name)

    def _header(self, state: SubscriptionState) -> bytes:
        """What the acknowledgements of a cursor belong to: the present identity is part of it."""
        return state.header_digest() + self.origin.token.encode()

    def crash(self) -> None:
        if self.is_up:
            self.world.note(self, "crashes")
            self.is_up = False
            self.boots += 1
            for link in self.links:
                link.cut()
            self.world.after(self.world.random.expovariate(1 / self.schedule.plan.down_s), self._come_back)

    def _ends_at_write(self) -> bool:
        """Count a moment before or behind a write, and crash if this is the one that was chosen."""
        if not self.is_up or self.world.is_calm:
            return False
        self.writes += 1
        if self.schedule.crash_at != (self.letter, self.writes):
            return False
        self.crash()
        if self.schedule.fails_over:
            self.schedule.crashed = self
        return True

    def _come_back(self) -> None:
        if not self.is_up and not self.is_removed:
            self.boot()

    def recreate_topic(self) -> None:
        """The topic is deleted, with its subscriptions here, and created again."""
        if self.is_up:
            self.world.note(self, "creates its topic again")
            self.truth.forget_site(self)
            for link in self.links:
                link.cut()
                link.forgetful.add(self)
            self._new_topic()
            self.boot()

    # ---- backups ---------------------------------------------------------------------------------------------------

    def back_up(self) -> None:
        """Take a backup: first of the messages, then of the subscriptions, maybe a moment later."""
        gaps = {origin: [*gaps] for origin, gaps in self.gaps.items()}
        files = TopicFiles(self.origin, [*self.log], {**self.vector}, gaps)
        self.world.after(
            self.world.random.choice((0.0, 0.0, 0.4)), self._end_backup, files, self.backup, self._restores
        )

    def _end_backup(self, files: TopicFiles, former: Backup | None, restores: int) -> None:
        """End a backup, unless it was overtaken by another one, or the cluster is no longer what it was."""
        if files.origin == self.origin and self.backup is former and self._restores == restores:
            self.world.note(self, "has a backup up to", len(files.log))
            self.backup = Backup(files, [*self.journal], {**self.saved}, {*self.seen_dead}, {**self.marks})

    def restore(self) -> None:
        """All is as in the backup again; nobody here knows that there ever was more."""
        backup = self.backup
        if backup is None or self.is_removed:
            return
        self.world.note(self, "is restored: it had", len(self.log), "and has", len(backup.topic.log))
        self.schedule.restored += 1
        self._restores += 1
        self.truth.restored(self, backup)
        self.is_up = False
        for link in self.links:
            link.cut()
            link.forgetful.add(self)
        self.origin, log, vector, gaps = backup.topic
        self.log, self.vector = [*log], {**vector}
        self.gaps = {origin: [*gaps] for origin, gaps in gaps.items()}
        self.journal, self.saved, self.seen_dead = [*backup.journal], {**backup.saved}, {*backup.seen_dead}
        self.marks = {**backup.marks}
        self._translate()
        self.boot()

    def renew(self, offset: int) -> None:
        """Give the messages that were published here from an offset on another identity, and exchange subscriptions
        under this one: an operator ordered `resync`, because another cluster has messages of this topic that it lacks."""
        if self.world.chance(0.5):
            self.save_cursors()
        for link in self.links:
            link.cut()
        self._change_identity(offset)
        if self.is_up:
            self.boot()

    def _change_identity(self, offset: int) -> None:
        self.origin = self._new_origin()
        self.schedule.renewed += 1
        self.world.note(self, "has the identity", self.origin.token, "from", offset, "on")
        for local in range(offset, len(self.log)):
            entry = self.log[local]
            if entry.origin.cluster == self.id:
                self.log[local] = entry._replace(origin=self.origin)
                self.truth.published.setdefault((self.origin, local), set()).add(entry.message)
        self.vector = {origin: end for origin, end in self.vector.items() if origin.cluster != self.id}
        for entry in self.log:
            if entry.origin.cluster == self.id:
                self.vector[entry.origin] = entry.number + 1
        self.vector[self.origin] = len(self.log)
        self.marks = {cluster: min(mark, offset) for cluster, mark in self.marks.items()}
        self._translate()

    def _translate(self) -> None:
        self.translation = Translation(self.origin)
        for local, entry in enumerate(self.log):
            self._note_place(entry.origin, entry.number, local)

    def replicate_again(self) -> None:
        """The policy did not replicate subscriptions for a while: they belonged to this cluster alone, and their
        consumers went on."""
        if not self.is_up:
            return
        self.world.note(self, "replicates its subscriptions again")
        self.truth.forget_site(self)
        for link in self.links:
            link.cut()
            link.forgetful.add(self)
        cursors, self.journal, self.saved, self.seen_dead = self.cursors, [], {}, set()
        self.backup = None
        self.boot()
        for name, former in cursors.items():
            if not self.is_up:  # it crashed at a write
                return
            for local in sorted(former.pending):
                if self.world.chance(0.5):
                    former.acked.add(local, local + 1)
            if self.is_up:
                self._adopt(name, former)

    def _adopt(self, name: str, former: Cursor) -> None:
        """Replicate a subscription that this cluster alone had."""
        position = next((local for local in range(len(self.log)) if local not in former.acked), len(self.log))
        self.create(name, position)
        if name not in self.cursors:
            return  # the process has ended
        cursor = self.cursors[name]
        cursor.expired.add_ranges(*former.expired.intersect(position))  # those before it are a part of the base
        cursor.acked.add_ranges(*former.acked.intersect())
        for local in range(position, len(self.log)):
            if local in former.expired:
                self._expire(name, local)
            elif local in former.acked:
                self.acknowledge(name, local, cursor.token, cursor.generation)

    def _flush(self, boot: int) -> None:
        if boot == self.boots and self.is_up and not self.is_removed:
            self._do(self.exchange.flush())
            if self.world.chance(0.5):
                if self._ends_at_write():
                    return
                self.save_cursors()
                if self._ends_at_write():
                    return
            if self._late and self.world.chance(0.3):
                self._acknowledge_taken()
            self._look_at_handover()
            self.world.after(0.2, self._flush, boot)

    # ---- the topic -------------------------------------------------------------------------------------------------

    def publish(self, only_to: frozenset[bytes] | None = None) -> None:
        self.log.append(Entry(self.origin, len(self.log), only_to, self.truth.publish(self.origin, len(self.log))))
        self.translation.extend({}, len(self.log))
        self._arrived(self.origin, len(self.log))

    def store(self, origin: Origin, start: int, end: int, entries: list[Entry]) -> None:
        """Take replicated messages: all that the sender has of the origin from `start` to `end`."""
        stored = self.vector.get(origin, 0)
        if start > stored or end <= stored:
            return
        at = stored
        for entry in entries:
            if entry.number >= stored:
                if entry.number > at:
                    self.gaps.setdefault(origin, []).append((at, entry.number))
                self._note_place(origin, entry.number, len(self.log))
                self.log.append(entry)
                at = entry.number + 1
        if end > at:
            self.gaps.setdefault(origin, []).append((at, end))
        self._arrived(origin, end)

    def _note_place(self, origin: Origin, number: int, at: int) -> None:
        place = np.array([number]), np.array([at]), np.array([1])
        self.translation.extend({} if origin == self.origin else {origin: place}, at + 1)

    def _arrived(self, origin: Origin, end: int) -> None:
        """Early acknowledgements are applied before anything is delivered; the topic's own offsets count all messages."""
        self.vector[origin] = end
        self.vector[self.origin] = len(self.log)
        if self._ends_at_write():
            return
        if origin in self.translation.ends():  # otherwise gaps alone are stored of it
            self._do(self.exchange.arrive(origin, end))
        self._do(self.exchange.arrive(self.origin, len(self.log)))

    def positions(self) -> dict[Origin, OriginState]:
        lasts = {entry.origin: entry for entry in self.log}
        return {
            origin: OriginState(end, lasts[origin].last if origin in lasts else None)
            for origin, end in self.vector.items()
            if origin.cluster != self.id
        }

    def has(self, entry: Entry) -> bool:
        """Whether this is a message of the topic's present origin."""
        return entry.number < len(self.log) and self.log[entry.number] == entry

    def last_of(self, origin: Origin) -> Entry | None:
        return next((entry for entry in reversed(self.log) if entry.origin == origin), None)

    def _compare(self, boot: int, effect: CompareEntry) -> None:
        """The entry is read; at times it is not there any more, or was never sent here."""
        if boot == self.boots:
            key = effect.origin, effect.last.first
            here = next((entry.last for entry in self.log if (entry.origin, entry.number) == key), None)
            if self.world.chance(self.schedule.plan.trimmed):
                here = None
            self.schedule.comparisons += here is not None
            self._do(self.exchange.compared(effect, here))

    def held(self) -> OriginRanges:
        return self.translation.held_below(len(self.log))

    def foreign(self) -> OriginRanges:
        """Offsets of origins that are known to hold messages of others."""
        foreign = OriginRanges()
        for local, entry in enumerate(self.log):
            if entry.origin != self.origin:
                foreign.add(self.origin, np.array([local]), np.array([local + 1]))
        for origin, gaps in self.gaps.items():
            numbers = [number for start, end in gaps for number in range(start, end)]
            others = [number for number in numbers if (origin, number) not in self.truth.published]
            foreign.add(origin, np.array(others, np.int64), np.array(others, np.int64) + 1)
        return foreign

    def has_gap(self, key: tuple[Origin, int]) -> bool:
        return any(start <= key[1] < end for start, end in self.gaps.get(key[0], ()))

    # ---- effects ---------------------------------------------------------------------------------------------------

    def do(self, effects: list[Effect]) -> None:
        self._do(effects)

    def _do(self, effects: list[Effect]) -> None:
        boot = self.boots
        for effect in effects:
            if boot != self.boots:
                return
            match effect:
                case Persist():
                    self._persist(effect)
                case Send(peer, session, data):
                    self.idle_writes += 1
                    link = next(link for link in self.links if link.other(self).id == peer)
                    link.send(self, session, data)
                case Acknowledge():
                    self._apply(effect)
                case Rebuild(name):
                    self._rebuild(name)
                case Drop(name):
                    self.world.note(self, "drops", name)
                    self.cursors.pop(name, None)
                    self.saved.pop(name, None)
                case SeekLost():
                    self.truth.lost_seeks += 1
                case HomeChanged(name, home):
                    self.world.note(self, name, "has its home", home.number, home.cluster[:1])
                case CompareEntry():
                    self.world.after(
                        self.schedule.plan.disk_s * self.world.random.random(), self._compare, boot, effect
                    )
                case Diverged(peer, origin, _):
                    demand(origin in self.truth.rolled_back, "NobodyDiverges", f"{self}: {effect}")
                    next(link for link in self.links if link.other(self).id == peer).refusing.add(self)
                case HistoryDiffers(peer, origin, _):
                    differs = origin.cluster == peer and origin in self.truth.rolled_back
                    demand(differs or self.truth.has_two_histories(origin), "NobodyDiverges", f"{self}: {effect}")
        for name in self._touched:
            if self.exchange.state(name) is not None:
                self.truth.check_state(self, name)
                self.truth.check_cursor(self, name)
        self._touched.clear()

    def _persist(self, effect: Persist) -> None:
        self.idle_writes += 1
        chance = self.schedule.plan.crash_at_write
        if self.world.chance(chance / 2):
            self.crash()
            return
        if self._ends_at_write():
            return
        self._disk_until = max(
            self.world.now + self.schedule.plan.disk_s * self.world.random.random(), self._disk_until
        )
        self.world.at(self._disk_until, self._persisted, self.boots, effect)

    def _persisted(self, boot: int, effect: Persist) -> None:
        if boot != self.boots or self._ends_at_write():
            return
        if effect.is_snapshot:
            self.journal = []
        self.journal.append(effect.data)
        count = int.from_bytes(effect.data[4:8], "little")
        dead = {item.token for item in decode_items(Reader(effect.data, 16), count) if isinstance(item, TombstoneItem)}
        self.seen_dead |= dead
        if any(link.withdrawn for link in self.schedule.links):
            self.truth.lost_tombstones |= dead
        for token in dead:
            self.truth.dead.setdefault(token, set()).add(self.letter)
        if self.world.chance(self.schedule.plan.crash_at_write / 2):
            self.crash()
            return
        if self._ends_at_write():
            return
        self._do(self.exchange.persisted(effect.sequence))

    def _apply(self, effect: Acknowledge) -> None:
        cursor = self.cursors[effect.name]
        state = self.exchange.state(effect.name)
        assert state is not None and effect.generation == state.generation == cursor.generation
        starts, ends = self.translation.to_local(effect.origin, effect.ranges)
        cursor.acked.add_ranges(starts, ends)
        for start, end in zip(starts, ends, strict=True):
            for local in range(int(start), int(end)):
                if cursor.pending.pop(local, None) is not None:
                    self.truth.dropped += 1
                self.truth.early += local >= len(self.log) - 3
        self._touched[effect.name] = None

    def _rebuild(self, name: str) -> None:
        state = self.exchange.state(name)
        if state is None:
            return
        former = self.cursors.get(name)
        cursor = Cursor(min(state.tokens), state.generation)
        for origin in sorted(state.origins()):
            cursor.acked.add_ranges(*self.translation.to_local(origin, state.passed(origin)))
        if former is not None:
            cursor.expired = former.expired
            cursor.acked.add_ranges(*former.expired.intersect())
        self.cursors[name] = cursor
        self._touched[name] = None

    def save_cursors(self) -> None:
        """Cursors are durable on their own: earlier or later than what clusters exchanged."""
        for name, cursor in self.cursors.items():
            rest = RangeSet()
            rest.add_ranges(*cursor.acked.intersect())
            rest.remove_ranges(*cursor.expired.intersect())
            state = self.exchange.state(name)
            assert state is not None
            self.saved[name] = self._header(state), rest.dump()

    # ---- consumers and operators -----------------------------------------------------------------------------------

    def delivers(self, name: str) -> bool:
        state = self.exchange.state(name) if self.is_up else None
        if state is None or name not in self.cursors or not state.home.admits(self.id):
            return False
        return self.handover is None or self.handover.delivers

    def consume(self, name: str, most: int) -> None:
        """A consumer takes messages in their order, and acknowledges some of those that it holds in any order.

        During a handover, and where its home is another cluster, it gets nothing new.
        """
        if not self.is_up or name not in self.cursors:
            return
        if not self.delivers(name):
            most = 0
        cursor, random = self.cursors[name], self.world.random
        state = self.exchange.state(name)
        assert state is not None
        for local, entry in enumerate(self.log):
            if most <= 0:
                break
            if local not in cursor.acked and local not in cursor.pending:
                self.truth.check_delivery(self, name, entry)
                cursor.pending[local] = cursor.token, cursor.generation
                most -= 1
        for local in sorted(cursor.pending):
            key = self.log[local].origin, self.log[local].number
            demand(not state.acks.contains(*key), "AcknowledgedThereIsDroppedHere", f"{self} {name} holds {key[1]}")
        for local in random.sample(sorted(cursor.pending), random.randint(0, len(cursor.pending))):
            self.acknowledge(name, local, *cursor.pending.pop(local))
        self._look_at_handover()

    def acknowledge(self, name: str, local: int, token: str, generation: Generation) -> None:
        cursor, state = self.cursors[name], self.exchange.state(name)
        assert state is not None
        counts = token in state.tokens and generation == state.generation
        whole = np.array([local]), np.array([local + 1])
        entry = self.log[local]
        if counts:
            cursor.acked.add(local, local + 1)
            self.truth.acknowledged(name, state, entry.message)
        for origin, ranges in self.translation.to_origins(whole).items():
            self._do(self.exchange.acknowledge(name, token, generation, origin, *ranges))

    def acknowledge_late(self, name: str) -> None:
        """A consumer that was told of a seek too late acknowledges what it got before."""
        cursor = self.cursors.get(name)
        if self.is_up and cursor is not None and self.log:
            local = self.world.random.randrange(len(self.log))
            former = Generation(max(cursor.generation.counter - 1, 0), cursor.generation.cluster)
            if former != cursor.generation:
                self.acknowledge(name, local, cursor.token, former if former.counter else FIRST_GENERATION)

    def release(self, name: str) -> None:
        """Consumers end: what they hold is delivered again."""
        if name in self.cursors:
            self.cursors[name].pending.clear()

    def expire(self, name: str) -> None:
        """The oldest messages that nobody acknowledged expire, here alone."""
        cursor = self.cursors.get(name)
        if not self.is_up or cursor is None:
            return
        for local in [local for local in range(len(self.log)) if local not in cursor.acked][:2]:
            cursor.pending.pop(local, None)
            cursor.expired.add(local, local + 1)
            cursor.acked.add(local, local + 1)
            self._expire(name, local)

    def _expire(self, name: str, local: int) -> None:
        whole = np.array([local]), np.array([local + 1])
        for origin, ranges in self.translation.to_origins(whole).items():
            self._do(self.exchange.expire(name, origin, *ranges))

    def create(self, name: str, position: int) -> None:
        if self.is_up and self.exchange.state(name) is None:
            token = self.schedule.next_token()
            self.world.note(self, "creates", name, token, "at", position)
            bases = self.translation.held_below(position)
            self.truth.born(token, self.log[:position], self.exchange.tombstones(name))
            effects = self.exchange.create(name, token, bases)
            self._rebuild(name)
            self._do(effects)

    def seek(self, name: str, position: int) -> None:
        if self.is_up and self.exchange.state(name) is not None:
            bases = self.translation.held_below(position)
            effects = self.exchange.seek(name, bases)
            state = self.exchange.state(name)
            assert state is not None
            self.world.note(self, "seeks", name, "to", position, "in", state.generation.counter)
            self.truth.sought(name, state, self.log[:position])
            self._do(effects)

    def delete(self, name: str) -> None:
        state = self.exchange.state(name) if self.is_up else None
        if state is not None:
            self.world.note(self, "deletes", name)
            self._do(self.exchange.delete(name))

    def move(self, name: str, home: bytes) -> None:
        if self.is_up and self.exchange.state(name) is not None:
            self._do(self.exchange.move(name, home))

    def hand_over(self, name: str, target: Site) -> None:
        if self.delivers(name) and target.id in self.neighbours():
            random = self.world.random
            self.handover = Handover(self.exchange, name, target.id)
            self._handed, self._target = name, target
            self._gives_back_at = self.world.now + random.choice((0.0, 0.2, 1.0))
            self._gives_up_at = self.world.now + random.choice((0.1, 1.0, 10.0))
            self.world.note(self, "hands over to", target, "gives up at", f"{self._gives_up_at:.2f}")
            self._look_at_handover()

    def _look_at_handover(self) -> None:
        """What the owner of a topic does: consumers end what they hold, or it is taken from them; and time is over."""
        handover = self.handover
        if handover is None or not self.is_up:
            return
        if handover.phase is HandoverPhase.STOPPING:
            cursor = self.cursors.get(self._handed)
            if cursor is not None and cursor.pending and self.world.now >= self._gives_back_at:
                self._late += [(self._handed, local, *held) for local, held in cursor.pending.items()]
                cursor.pending.clear()
            if cursor is None or not cursor.pending:
                self._advance_handover(handover.stopped)
        else:
            self._advance_handover(handover.advance)
        if self.handover is not None and self.world.now >= self._gives_up_at:
            self.schedule.cancelled += handover.cancel()
            self.handover = None

    def end_handover(self) -> None:
        """Nobody waits for it any more; what was taken from consumers is acknowledged now, and no later."""
        self.handover = None
        while self.is_up and self._late:
            self._acknowledge_taken()

    def _acknowledge_taken(self) -> None:
        """A consumer acknowledges what was taken from it."""
        name, local, token, generation = self._late.pop(self.world.random.randrange(len(self._late)))
        if name in self.cursors and self.exchange.state(name) is not None:
            self.acknowledge(name, local, token, generation)
            self.cursors[name].pending.pop(local, None)

    def _advance_handover(self, step: Callable[[], list[Effect]]) -> None:
        handover = self.handover
        assert handover is not None
        before = handover.phase
        effects = step()
        state = self.exchange.state(self._handed)
        if before is not HandoverPhase.MOVING and handover.phase is HandoverPhase.MOVING:
            assert state is not None
            acked = {
                (entry.origin, entry.number) for entry in self.log if state.acks.contains(entry.origin, entry.number)
            }
            self.truth.handed[self._handed, min(state.tokens), state.generation, state.home] = acked
        self._do(effects)
        if handover.phase is HandoverPhase.MOVING and before is not HandoverPhase.MOVING:
            self.schedule.handovers += 1
            self.schedule.active[self._handed] = [self._target]
        if handover.is_over:
            self.handover = None
