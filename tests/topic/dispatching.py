"""A topic in memory, and a dispatcher whose effects are carried out at once or by the test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from pyreplog._native.ledger_log.entries import encode_entries, merge_entries
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.dispatch.dispatcher import Dispatcher, DispatchStatus
from pyreplog.topic.model.dispatch.effects import (
    ActiveConsumerChanged,
    CursorChanged,
    DeadLetter,
    Deliver,
    Effect,
    Locate,
    ReadEntries,
    WakeAt,
)
from pyreplog.topic.model.positions import ORIGIN, EntryPosition, TopicPosition

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


class Log:
    """Entries of messages whose value is their offset."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.places: list[EntryPosition] = []

    @property
    def end(self) -> TopicPosition:
        return self.places[-1].behind if self.places else ORIGIN

    def publish(
        self,
        count: int,
        *,
        keys: Sequence[bytes | None] | None = None,
        deliver_at: Sequence[int] | None = None,
        padding: bytes = b"",
    ) -> int:
        """Publish one entry of so many messages; return the new end."""
        before = self.end
        values = [b"%d%s" % (before.offset + i, padding) for i in range(count)]
        entry = encode_messages(values, keys, deliver_at=deliver_at)
        number = len(self.places)
        entries = encode_entries(
            [entry], ledger=1, first=number, lac=number - 1, time=NOW, ledger_bytes=before.size,
            ledger_messages=before.offset, messages=[count],
        )  # fmt: skip
        self._parts.append(bytes(entries.view))
        self.places.append(EntryPosition(1, number, before.offset, count, len(entry), before.entries, before.size))
        return self.end.offset

    def place(self, offset: int) -> EntryPosition:
        return next(place for place in self.places if place.first <= offset < place.end)

    def read(self, offset: int, end: int, bytes_max: int) -> MessageBatch:
        """Read as a managed ledger does."""
        chosen: list[EntryPosition] = []
        for place in self.places:
            if (
                place.end > offset
                and place.first < end
                and (not chosen or sum(choice.size for choice in chosen) + place.size <= bytes_max)
            ):
                chosen.append(place)
            elif chosen:
                break
        records = merge_entries([self._parts[place.entry] for place in chosen], last=chosen[-1].entry)
        return decode_messages(records, offset=0, entries=0, size=0)


class Rig:
    """A dispatcher of a log. The test answers reads with `answer`, or they are answered at once while `is_prompt`."""

    def __init__(
        self, log: Log, *, is_prompt: bool = True, start: int = 0, topic: str = "flights", **settings: object
    ) -> None:
        self.log, self.is_prompt = log, is_prompt
        self.cursor = Cursor("sub", ORIGIN)
        config = SubscriptionConfig.of(settings)
        self.dispatcher = Dispatcher(
            self.cursor, config, topic=topic, start=start, end=log.end.offset, wall_us=lambda: self.wall
        )
        self.now = 77 * SECOND
        self.ahead = NOW - self.now
        self.reads: list[ReadEntries] = []
        self.delivered: dict[int, list[int]] = defaultdict(list)
        self.deliveries: list[Deliver] = []
        self.dead: list[DeadLetter] = []
        self.became: list[tuple[int, bool]] = []
        self.located: list[Locate] = []
        self.wake: int | None = None
        self.dirty = 0

    @property
    def wall(self) -> int:
        """Return the time of day, which begins with `NOW`."""
        return self.now + self.ahead

    def set_clock(self, seconds: float) -> None:
        """Set the clock forward or back."""
        self.ahead += round(seconds * SECOND)
        self.do(self.dispatcher.woken(self.now))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ReadEntries():
                    self.reads.append(effect)
                case Deliver(consumer, batch):
                    self.deliveries.append(effect)
                    self.delivered[consumer] += batch.offset.tolist()
                case DeadLetter():
                    self.dead.append(effect)
                case ActiveConsumerChanged(consumer, active):
                    self.became.append((consumer, active))
                case Locate(consumer, starts, ends):
                    self.located.append(effect)
                    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                        self.locate(consumer, start, end)
                case WakeAt(at_us):
                    self.wake = at_us if self.wake is None else min(self.wake, at_us)
                case CursorChanged():
                    self.dirty += 1
        while self.is_prompt and self.reads:
            self.answer()

    def answer(self, index: int = 0) -> None:
        read = self.reads.pop(index)
        batch = self.log.read(read.offset, read.end, read.bytes_max)
        self.do(self.dispatcher.entries(read.id, batch, self.now))

    def locate(self, consumer: int, start: int, end: int) -> None:
        for place in self.log.places:
            if place.first < end and start < place.end:
                self.cursor.note(place)
        self.do(self.dispatcher.acknowledge_range(consumer, start, end, self.now))

    def fail(self, index: int = 0) -> None:
        read = self.reads.pop(index)
        self.do(self.dispatcher.read_failed(read.id, OSError("no bookie"), self.now))

    # ---- what consumers and the topic do ---------------------------------------------------------------------

    def attach(self, consumer: int, permits: int = 0, *, name: str = "", priority: int = 0) -> None:
        self.do(self.dispatcher.attach(consumer, name or f"c{consumer}", self.now, priority=priority))
        if permits:
            self.flow(consumer, permits)

    def detach(self, consumer: int) -> None:
        self.do(self.dispatcher.detach(consumer, self.now))

    def flow(self, consumer: int, messages: int) -> None:
        self.do(self.dispatcher.flow(consumer, messages, self.now))

    def publish(self, count: int, **more: object) -> None:
        self.do(self.dispatcher.grew(self.log.publish(count, **more), self.now))  # type: ignore[arg-type]

    def ack(self, consumer: int, offsets: Sequence[int]) -> None:
        self.do(self.dispatcher.acknowledge(consumer, np.array(offsets, np.int64), self.now))

    def nack(
        self, consumer: int, offsets: Sequence[int], delay_us: int | None = None, reason: str | None = None
    ) -> None:
        at = np.array(offsets, np.int64)
        self.do(self.dispatcher.nack(consumer, at, self.now, delay_us=delay_us, reason=reason))

    def cumulative(self, consumer: int, to: int) -> None:
        place = self.log.place(self.cursor.cumulative_start(to) - 1)
        self.do(self.dispatcher.cumulative(consumer, place, to, self.now))

    def sleep(self, seconds: float) -> None:
        """Let time pass, and fire the timer when it is due."""
        until = self.now + round(seconds * SECOND)
        while self.wake is not None and self.wake <= until:
            self.now, self.wake = max(self.now, self.wake), None
            self.do(self.dispatcher.woken(self.now))
        self.now = until

    def got(self, consumer: int) -> list[int]:
        """Return the messages that a consumer got since the last call."""
        return self.delivered.pop(consumer, [])

    @property
    def status(self) -> DispatchStatus:
        return self.dispatcher.status(self.now)

    @property
    def backlog(self) -> int:
        return self.cursor.backlog(self.log.end).messages
