"""A topic in one cluster: the shipped publisher, producers and gates, a log that takes its time, and owners that crash."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.clock import ahead_us
from pyreplog.errors import OriginSessionError, ReplogError, TopicFullError
from pyreplog.future import AppendFuture, settle_all
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import GateState, OriginGates
from pyreplog.origins.origin import Gap, Origin, OriginEntry
from pyreplog.topic.client.publishing.forwarded import decode, numbered_entries
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.publishing.replicated_batch import ReplicatedBatch
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import GlobalProducers

from ..world import World

if TYPE_CHECKING:
    from .invariants import Invariants

START_US = 1_700_000_000_000_000
LEDGER = 9
TOPIC = "t"
CONFIG = TopicConfig(deduplicate=True, global_producers=True)
_TAGGED = struct.Struct("<BH")

Reply = Callable[[Any], None]


class Stored(NamedTuple):
    """An entry. attributes: of its record, encoded."""

    value: bytes
    messages: int
    first: int
    time_us: int
    attributes: bytes | None
    attribute: OriginAttribute | None
    producer: bytes
    numbers: tuple[int, ...]


class Place:
    """What is stored survives crashes: the log, and the last snapshots of the gates and of the producers."""

    def __init__(self, world: World, letter: str, store_s: float) -> None:
        self.world, self.letter, self.store_s = world, letter, store_s
        self.origin = Origin(letter.encode() * 16, f"token of {letter}")
        self.entries: list[Stored] = []
        self._firsts: list[int] = []
        self.gates: tuple[int, list[GateState]] = (0, [])  # up to that entry
        self.producers: tuple[int, bytes] = (0, GlobalProducers().snapshot())
        self.crashes = self.lives = 0
        self.invariants: Invariants
        self.on_grow: list[Callable[[], None]] = []
        self.owner: Owner | None = None

    def __str__(self) -> str:
        return f"cluster {self.letter}"

    @property
    def end(self) -> int:
        return self.entries[-1].first + self.entries[-1].messages if self.entries else 0

    def now_us(self) -> int:
        return START_US + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(self.world.now * 1e6)

    def entry_at(self, offset: int) -> Stored | None:
        """The entry that holds an offset."""
        return self.entries[bisect_right(self._firsts, offset) - 1] if 0 <= offset < self.end else None

    def index_of(self, offset: int) -> int:
        """The number of entries below an offset."""
        return bisect_left(self._firsts, offset)

    def append(self, value: bytes, messages: int, attributes: bytes | None) -> None:
        batch, _ = decode([value])
        (part,) = numbered_entries(batch)
        attribute = None if attributes is None else OriginAttribute.from_bytes(attributes[_TAGGED.size :])
        entry = Stored(
            value,
            messages,
            self.end,
            self.now_us(),
            attributes,
            attribute,
            part.producer,
            tuple(part.sequences.tolist()),
        )
        self.world.note(self, "stores", entry.first, entry.producer, entry.numbers, attribute)
        self.invariants.store(self, entry)
        self._firsts.append(entry.first)
        self.entries.append(entry)

    def read(self, first: int) -> MessageBatch:
        """The messages from an entry on, with the attributes of their records."""
        kept = self.entries[first:]
        records = encode_entries(
            [entry.value for entry in kept], ledger=LEDGER, first=first, lac=first - 1, time=START_US,
            ledger_bytes=sum(len(entry.value) for entry in self.entries[:first]), ledger_messages=kept[0].first,
            messages=[entry.messages for entry in kept], attributes=[entry.attributes for entry in kept],
        )  # fmt: skip
        parsed = parse_entries(bytes(records.view), ledger=LEDGER, first=first, last=1 << 60)
        return decode_messages(parsed, offset=0, entries=0, size=0)

    def crash(self) -> None:
        """The owner dies; any first part of what was on its way is stored, whatever callers were told."""
        if self.owner is not None:
            self.crashes += 1
            self.owner.die()
            self.owner = None

    def recover(self) -> None:
        """The next owner answers."""
        if self.owner is None:
            self.owner = Owner(self)


class Owner:
    """A process that owns the topic. It is the `Sink`, the runtime and the clock's user of a `Publisher`."""

    pending: Callable[[], tuple[int, int]] | None = None

    def __init__(self, place: Place) -> None:
        self.place, self._world = place, place.world
        place.lives += 1
        self.epoch = place.lives
        self.is_dead = self._is_storing = False
        self.sent_end = place.end
        self.on_room: Callable[[], object] = lambda: None
        self._queue: deque[PublishBatch] = deque()
        producers = GlobalProducers()
        mark, data = place.producers
        producers.restore(data, ahead_us(place))
        if (at := self._earlier(mark)) < len(place.entries):
            producers.replay(place.read(at), ahead_us(place))
        self.gates = OriginGates(TOPIC)
        mark, states = place.gates
        for state in states:
            self.gates.add(state)
        for entry in place.entries[self._earlier(mark) :]:
            if entry.attribute is not None:
                gate = self.gates.by_key(entry.attribute.key)
                assert gate is not None, "an entry of an origin without a stored session"
                gate.replay(entry.attribute, entry.messages, crc32c(entry.value))
        self.publisher = Publisher(
            TOPIC, self, self, place, CONFIG, entry_bytes_max=1 << 20, producers=producers, gates=self.gates,
            end=place.end,
        )  # fmt: skip
        self.publisher.on_news(self._store_gates)

    def _earlier(self, mark: int) -> int:
        """Where the log is read from: at the mark of a snapshot, or before it."""
        return max(mark - self._world.random.randrange(3), 0)

    def sent(self, end: int) -> int:
        self.sent_end = max(self.sent_end, end)
        return self.sent_end

    # ---- requests --------------------------------------------------------------------------------------------

    def publish(self, producer: bytes, numbers: Sequence[int], reply: Reply) -> None:
        values = [b"%s %d" % (producer, number) for number in numbers]
        try:
            future = self.publisher.submit_batch(values, producer=producer.decode(), sequences=list(numbers))
        except ReplogError as error:
            reply(error)
        else:
            self._answer(future, reply)

    def open(self, origin: Origin, session: int, reply: Reply) -> None:
        future: AppendFuture[Any] = AppendFuture()
        self._answer(future, reply)

        def begin(_: int) -> None:
            gate = self.gates.get(origin) or self.gates.add(GateState(origin, 0, 0, None, ()))
            gate.open(session, future)

        try:
            self.publisher.with_gates(begin, admits=True)
        except ReplogError as error:
            settle_all([(future, error)])

    def replicate(
        self, origin: Origin, session: int, entries: Sequence[OriginEntry], gaps: Sequence[Gap], reply: Reply
    ) -> None:
        gate = self.gates.get(origin)
        try:
            if gate is None:
                raise OriginSessionError(TOPIC, "none is open")
            future = self.publisher.replicate(gate, session, entries, gaps)
        except ReplogError as error:
            reply(error)
        else:
            self._answer(future, reply)

    def _answer(self, future: AppendFuture[Any], reply: Reply) -> None:
        def done(_: object) -> None:
            if not self.is_dead:
                error = future.exception()
                reply(future.result() if error is None else error)

        future.add_done_callback(done)

    # ---- storing ---------------------------------------------------------------------------------------------

    def check_open(self) -> None: ...

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        for batch in batches:
            self._queue.append(batch)
            self._world.after(self.place.store_s * self._world.random.random(), self._stored)

    def _stored(self) -> None:
        """The entries of the oldest batch are stored; rarely only the first ones, or none, and the ledger says so."""
        if self.is_dead:
            return
        batch, random = self._queue.popleft(), self._world.random
        run = batch.run
        if run is not None and run.error is not None:
            batch.is_end_known = True
            batch.settle(run.error)
        elif not self._world.is_calm and self._world.chance(0.03):
            count = random.randrange(len(batch.entries)) if isinstance(batch, ReplicatedBatch) else 0
            self._append(batch, count)
            batch.cut(count, sum(map(len, batch.entries[:count])))
            batch.is_end_known = True
            batch.settle(TopicFullError(TOPIC, "no room for the rest"))
        else:
            first = self.place.end
            self._append(batch, len(batch.entries))
            batch.offsets = range(first, self.place.end)
            batch.settle()
        for call in self.place.on_grow:
            call()

    def _append(self, batch: PublishBatch, count: int) -> None:
        attributes = batch.attributes or [None] * len(batch.entries)
        for value, messages, attribute in zip(
            batch.entries[:count], batch.counts[:count], attributes[:count], strict=True
        ):
            self.place.append(value, messages, attribute)

    def _store_gates(self) -> None:
        """Do what the cursor of the origins does."""
        if self._is_storing or self.is_dead:
            return
        self._is_storing = True
        end, states = self.publisher.with_gates(lambda end: (end, [gate.snapshot() for gate in self.gates]))

        def stored() -> None:
            if self.is_dead:
                return
            self._is_storing = False
            self.place.gates = self.place.index_of(end), states
            for state in states:
                self.place.invariants.note_gaps(self.place, state.origin, state.gaps)
            self.publisher.with_gates(persist)

        def persist(_: int) -> None:
            for state in states:
                gate = self.gates.get(state.origin)
                assert gate is not None
                gate.persisted(state)

        self._world.after(self.place.store_s * self._world.random.random(), stored)

    def store_producers(self) -> None:
        """Do what the cursor of the producers does at times."""
        snapshot = self.publisher.snapshot()
        assert snapshot is not None
        end, data = snapshot

        def stored() -> None:
            if not self.is_dead:
                self.place.producers = self.place.index_of(end), data

        self._world.after(self.place.store_s * self._world.random.random(), stored)

    # ---- the runtime -----------------------------------------------------------------------------------------

    def wait(self, future: AppendFuture[Any], timeout: float | None = None) -> Any:
        raise AssertionError("nothing waits")

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object:
        self._world.after(seconds, lambda: None if self.is_dead else call())
        return self

    def die(self) -> None:
        self.is_dead = True
        for batch in list(self._queue)[: self._world.random.randint(0, len(self._queue))]:
            if batch.run is None or batch.run.error is None:
                self._append(batch, len(batch.entries))
        self._queue.clear()
