"""Single messages gathered into entries: until enough have come, or the first has waited long enough.

Without a linger time they wait for company only while an entry is on its way: those that come meanwhile go together as
soon as it is confirmed. So a lone publisher never waits, and many share entries without a delay to tune. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from pyreplog._native.topic.messageencoder import encode_messages
from pyreplog.future import AppendFuture

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GATHERED_BYTES = 4 << 20
"""So much does not wait, of however many producers it is."""
MESSAGE_BYTES = 64
"""What a message takes beside its key and value, at most; an entry's own, and its record's, are not in it."""

_PLAIN_TIME_US = 1 << 62


class SingleMessage(NamedTuple):
    """One message to be published, by whom, and who waits for its offset. sequence: -1, none. size: bytes, about."""

    value: bytes
    key: bytes | None
    properties: Mapping[str, str | bytes] | None
    event_time: int | None
    deliver_at: int | None
    sequence: int
    size: int
    future: AppendFuture[int]
    producer: bytes

    @property
    def messages(self) -> int:
        return 1

    @property
    def messages_given(self) -> int:
        return 1

    def shares(self) -> Iterator[tuple[bytes, list[int]]]:
        """As of a PublishBatch."""
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
    ) -> Self:
        """Errors: those of `encode_messages`, for what cannot be encoded: it must not fail others of its entry."""
        future: AppendFuture[int] = AppendFuture()
        if (
            type(value) is bytes
            and (key is None or type(key) is bytes)
            and properties is None
            and (event_time is None or (type(event_time) is int and abs(event_time) < _PLAIN_TIME_US))
            and (deliver_at is None or (type(deliver_at) is int and 0 <= deliver_at < _PLAIN_TIME_US))
        ):
            size = len(value) + (len(key) if key else 0) + MESSAGE_BYTES
            return cls(value, key, None, event_time, deliver_at, sequence, size, future, producer)
        size = len(
            encode_messages(
                [value],
                [key],
                properties=[properties],
                event_times=[event_time],
                deliver_at=[deliver_at],
            )
        )
        properties = dict(properties) if properties else None
        key = None if key is None else bytes(key)
        return cls(bytes(value), key, properties, event_time, deliver_at, sequence, size, future, producer)

    def encode(self) -> bytes:
        """The entry of this one alone."""
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
    """Messages of one producer that are one entry; those that have sequence numbers have them ascending."""

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
        """None: they have no numbers."""
        return None if self.singles[0].sequence < 0 else [single.sequence for single in self.singles]

    def add(self, single: SingleMessage) -> None:
        self.singles.append(single)
        self.size += single.size

    def follows(self, single: SingleMessage) -> bool:
        """Whether the number of a message lets it be the next one of this entry."""
        last = self.singles[-1].sequence
        return single.sequence > last >= 0 or single.sequence == last == -1

    def encode(self) -> bytes:
        """The entry."""
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
    """Messages that wait to be sent, as one entry or several per producer. Threads: the caller's lock.

    The messages of one producer stay in order; those of different producers may change places.
    """

    def __init__(self, *, linger_us: int, messages_max: int, bytes_max: int) -> None:
        self._linger_us, self._messages_max, self._bytes_max = linger_us, messages_max, bytes_max
        self.groups: list[MessageGroup] = []
        """What waits."""
        self._open: dict[bytes, MessageGroup] = {}  # the last of each producer
        self._bytes = 0
        self._flying = 0  # what was taken and has not landed
        self.due_us: int | None = None
        """When what waits has lingered long enough; None: nothing waits, or not for the time."""

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)

    def add(self, producer: bytes, single: SingleMessage, now_us: int) -> bool:
        """Whether all that wait are to be sent now; else they are when something lands, or at `due_us`."""
        group = self._open.get(producer)
        if group is None or not self._fits(group, single):
            group = self._open[producer] = MessageGroup(producer)
            self.groups.append(group)
        group.add(single)
        self._bytes += single.size
        if len(group.singles) >= self._messages_max or group.size >= self._bytes_max or self._bytes >= GATHERED_BYTES:
            return True
        if self._linger_us and self.due_us is None:
            self.due_us = now_us + self._linger_us
        return not self._linger_us and not self._flying

    def _fits(self, group: MessageGroup, single: SingleMessage) -> bool:
        return (
            group.count < self._messages_max and group.size + single.size <= self._bytes_max and group.follows(single)
        )

    def take(self) -> list[MessageGroup]:
        """All that wait, to be sent together; `landed` says when their outcome is known."""
        groups, self.groups = self.groups, []
        self._open.clear()
        self._bytes, self.due_us = 0, None
        self._flying += bool(groups)
        return groups

    def landed(self) -> bool:
        """Of something that was taken the outcome is known; whether what waits is to be sent now."""
        self._flying -= 1
        return bool(self.groups) and not self._linger_us
