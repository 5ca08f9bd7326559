"""Batch entries as a reader of a ledger returns them, for tests of their content."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import Message, MessageBatch, decode_messages
from tests.topic.twin import TwinMessage

LEDGER = 9
TIME = 1_700_000_000_000_000


def records_of(
    entries: Sequence[bytes], counts: Sequence[int] | None, *, first: int = 0, size: int = 0, messages: int = 0
) -> RecordBatch:
    """Return entries of a ledger from `first` on. size, messages: those of the ledger before them. counts: None for
    data entries."""
    new_entries = encode_entries(
        entries, ledger=LEDGER, first=first, lac=first - 1, time=TIME, ledger_bytes=size, ledger_messages=messages,
        messages=counts,
    )  # fmt: skip
    return parse_entries(bytes(new_entries.view), ledger=LEDGER, first=first, last=1 << 60)


def decoded(entries: Sequence[bytes], counts: Sequence[int], **options: Any) -> MessageBatch:
    """Decode entries of a topic that begins with their ledger."""
    return decode_messages(records_of(entries, counts), offset=0, entries=0, size=0, **options)


def encoded(messages: Sequence[TwinMessage], producer: bytes = b"") -> bytes:
    sequences = [message.sequence for message in messages]
    return encode_messages(
        [message.value for message in messages],
        [message.key for message in messages],
        properties=[{name.decode(): value for name, value in message.properties} for message in messages],
        event_times=[message.event_time for message in messages],
        deliver_at=[message.deliver_at for message in messages],
        sequences=None if sequences[0] < 0 else sequences,
        producer=producer,
    )


def as_twin(message: Message) -> TwinMessage:
    return TwinMessage(
        message.value,
        message.key,
        message.event_time,
        message.deliver_at or 0,
        -1 if message.sequence is None else message.sequence,
        tuple((name.encode(), value) for name, value in message.properties.items()),
    )


def some_messages(rng: random.Random, count: int, *, plain: bool = False) -> list[TwinMessage]:
    """Return random messages of all kinds. plain: with values only."""
    if plain:
        return [TwinMessage(rng.randbytes(rng.choice((0, 1, 7, 8, 100)))) for _ in range(count)]
    first = rng.choice((-1, 0, 1 << 40))
    gap = rng.choice((1, 3))
    return [
        TwinMessage(
            rng.randbytes(rng.choice((0, 1, 7, 8, 100))),
            rng.choice((None, b"", rng.randbytes(9))),
            rng.choice((None, rng.randrange(-(1 << 40), 1 << 60))),
            rng.choice((0, 0, rng.randrange(1 << 60))),
            -1 if first < 0 else first + gap * i,
            rng.choice(((), ((b"a", b""), ("ü".encode(), rng.randbytes(5))))),
        )
        for i in range(count)
    ]
