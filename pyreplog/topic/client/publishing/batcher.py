"""Collects single messages into entries: until enough have come, or the first one has waited long enough. No I/O.

Without a linger time messages wait only while an entry is in flight: those that come meanwhile are sent together as
soon as it is confirmed. So a lone publisher never waits, and many publishers share entries without a delay to tune.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.future import AppendFuture

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COLLECTED_BYTES = 4 << 20
"""Most bytes that wait, of all producers together."""
MESSAGE_BYTES = 64
"""Most bytes of a message in addition to its key and value, without those of the entry and its record."""

_PLAIN_TIME_US = 1 << 62


class SingleMessage(NamedTuple):
    """One message to be published, its producer, and the future of its offset.

    sequence: -1: none. size: estimated bytes. attribute: its replicate-to attribute; None: it has none.
    """

    value: bytes
    key: bytes | None
    properties: Mapping[str, str | bytes] | None
    event_time: int | None
    deliver_at: int | None
    sequence: int
    size: int
    future: AppendFuture[int]
    producer: bytes
    attribute: bytes | None = None

    @property
    def messages(self) -> int:
        return 1

    @property
    def messages_submitted(self) -> int:
        return 1

    def shares(self) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the producer and the number of the message, see `PublishBatch.shares`."""
        if self.producer and self.sequence >= 0:
            yield self.producer, [self.sequence]

    @classmethod
    def of(
        cls,
        value: ReadableBuffer,
        key: ReadableBuffer | None,
        properties: Mapping[str, str | bytes] | None,
        event_time: int | None,
        deliver_at: int | None,
        sequence: int,
        producer: bytes = b"",
        attribute: bytes | None = None,
    ) -> Self:
        """Create a message.

        Raises the errors of `encode_messages` now, so that other messages of its entry do not fail.
        """
        future: AppendFuture[int] = AppendFuture()
        if (
            type(value) is bytes
            and (key is None or type(key) is bytes)
            and properties is None
            and (event_time is None or (type(event_time) is int and abs(event_time) < _PLAIN_TIME_US))
            and (deliver_at is None or (type(deliver_at) is int and 0 <= deliver_at < _PLAIN_TIME_US))
        ):
            size = len(value) + (len(key) if key else 0) + MESSAGE_BYTES + (len(attribute) if attribute else 0)
            return make_named(
                cls, value, key, None, event_time, deliver_at, sequence, size, future, producer, attribute
            )
        size = len(
            encode_messages(
                [value],
                [key],
                properties=[properties],
                event_times=[event_time],
                deliver_at=[deliver_at],
            )
        )
        size += len(attribute) if attribute else 0
        properties = dict(properties) if properties else None
        key = None if key is None else bytes(key)
        return cls(bytes(value), key, properties, event_time, deliver_at, sequence, size, future, producer, attribute)

    def encode(self) -> bytes:
        """Return the entry of this message alone."""
        return encode_messages(
            [self.value],
            None if self.key is None else [self.key],
            properties=None if self.properties is None else [self.properties],
            event_times=None if self.event_time is None else [self.event_time],
            deliver_at=None if self.deliver_at is None else [self.deliver_at],
            producer=self.producer,
            first_sequence=self.sequence,
        )


class MessageGroup:
    """Messages of one producer that form one entry; sequence numbers, if they have any, ascend."""

    __slots__ = ("producer", "singles", "size")

    def __init__(self, producer: bytes) -> None:
        self.producer = producer
        self.singles: list[SingleMessage] = []
        self.size = 0

    @property
    def count(self) -> int:
        return len(self.singles)

    @property
    def sequences(self) -> list[int] | None:
        """Their sequence numbers; None: they have none."""
        return None if self.singles[0].sequence < 0 else [single.sequence for single in self.singles]

    def add(self, single: SingleMessage) -> None:
        self.singles.append(single)
        self.size += single.size

    @property
    def attribute(self) -> bytes | None:
        """The replicate-to attribute of all of them; None: they have none."""
        return self.singles[0].attribute

    def follows(self, single: SingleMessage) -> bool:
        """Return whether the number and the attribute of a message allow it to be the next one of this entry."""
        last = self.singles[-1].sequence
        follows = single.sequence > last >= 0 or single.sequence == last == -1
        return follows and single.attribute == self.singles[0].attribute

    def encode(self) -> bytes:
        """Return the entry."""
        if len(self.singles) == 1:
            return self.singles[0].encode()
        values, keys, properties, event_times, deliver_at, sequences, *_ = zip(*self.singles, strict=True)
        count = len(values)
        return encode_messages(
            list(values),
            None if keys.count(None) == count else list(keys),
            properties=None if properties.count(None) == count else list(properties),
            event_times=None if event_times.count(None) == count else list(event_times),
            deliver_at=None if deliver_at.count(None) == count else list(deliver_at),
            sequences=None if sequences[0] < 0 else list(sequences),
            producer=self.producer,
        )


class Batcher:
    """Messages that wait to be sent, as one or more entries for each producer. The caller has to hold its lock.

    Messages of one producer stay in order; those of different producers may change places.
    """

    def __init__(self, *, linger_us: int, messages_max: int, bytes_max: int) -> None:
        self._linger_us, self._messages_max, self._bytes_max = linger_us, messages_max, bytes_max
        self.groups: list[MessageGroup] = []
        """The messages that wait."""
        self._open: dict[bytes, MessageGroup] = {}  # the last group of each producer
        self._bytes = 0
        self._in_flight = 0  # batches that were taken and have no outcome
        self.due_us: int | None = None
        """When the waiting messages have lingered long enough; None: none waits, or not for the time."""

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)

    def add(self, producer: bytes, single: SingleMessage, now_us: int) -> bool:
        """Add a message; return whether all waiting messages are to be sent now.

        Otherwise they are sent after the next outcome, or at `due_us`.
        """
        group = self._open.get(producer)
        if group is None or not self._fits(group, single):
            group = self._open[producer] = MessageGroup(producer)
            self.groups.append(group)
        group.add(single)
        self._bytes += single.size
        if len(group.singles) >= self._messages_max or group.size >= self._bytes_max or self._bytes >= COLLECTED_BYTES:
            return True
        if self._linger_us and self.due_us is None:
            self.due_us = now_us + self._linger_us
        return not self._linger_us and not self._in_flight

    def _fits(self, group: MessageGroup, single: SingleMessage) -> bool:
        return (
            group.count < self._messages_max and group.size + single.size <= self._bytes_max and group.follows(single)
        )

    def take(self) -> list[MessageGroup]:
        """Return all waiting messages, to be sent together; the caller reports the outcome by `note_outcome`."""
        groups, self.groups = self.groups, []
        self._open.clear()
        self._bytes, self.due_us = 0, None
        self._in_flight += bool(groups)
        return groups

    def note_outcome(self) -> bool:
        """Note the outcome of a batch that was taken; return whether the waiting messages are to be sent now."""
        self._in_flight -= 1
        return bool(self.groups) and not self._linger_us
