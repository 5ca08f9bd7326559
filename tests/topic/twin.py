"""A second implementation of batch entries in plain Python, written from FORMAT.md alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

HEADER = struct.Struct("<BBHHHIIqq")
KEYS, EVENT_TIMES, SEQUENCES, DELIVER_AT, PROPERTIES = 1, 2, 4, 8, 16
NO_KEY = 0x80000000
NO_TIME = -(1 << 63)
RAW_MAX = 64 << 20


class TwinMessage(NamedTuple):
    value: bytes
    key: bytes | None = None
    event_time: int | None = None
    deliver_at: int = 0
    sequence: int = -1
    properties: tuple[tuple[bytes, bytes], ...] = ()


class BadEntry(Exception):
    pass


def expect(true: bool, subject: str) -> None:
    if not true:
        raise BadEntry(subject)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def ends_of(parts: Sequence[bytes]) -> list[int]:
    ends, at = [], 0
    for part in parts:
        at += len(part)
        ends.append(at)
    return ends


def encode(messages: Sequence[TwinMessage], producer: bytes = b"") -> bytes:
    """Encode messages, as one call of `encode_messages` does."""
    count = len(messages)
    keys = [message.key or b"" for message in messages]
    properties = [
        b"".join(struct.pack("<HI", len(name), len(value)) + name + value for name, value in message.properties)
        for message in messages
    ]
    sequences = [message.sequence for message in messages]
    flags, columns = 0, [struct.pack(f"<{count}I", *ends_of([message.value for message in messages]))]
    if any(message.key is not None for message in messages):
        flags |= KEYS
        ends = zip(messages, ends_of(keys), strict=True)
        columns.append(struct.pack(f"<{count}I", *(end | NO_KEY if m.key is None else end for m, end in ends)))
    if any(message.event_time is not None for message in messages):
        flags |= EVENT_TIMES
        times = (NO_TIME if message.event_time is None else message.event_time for message in messages)
        columns.append(struct.pack(f"<{count}q", *times))
    if sequences != list(range(sequences[0], sequences[0] + count)) and sequences[0] >= 0:
        flags |= SEQUENCES
        columns.append(struct.pack(f"<{count}q", *sequences))
    if any(message.deliver_at for message in messages):
        flags |= DELIVER_AT
        columns.append(struct.pack(f"<{count}q", *(message.deliver_at for message in messages)))
    if any(properties):
        flags |= PROPERTIES
        columns.append(struct.pack(f"<{count}I", *ends_of(properties)))
    body = b"".join([padded(column) for column in columns] + keys + properties + [m.value for m in messages])
    head = HEADER.pack(1, 0, flags, len(producer), 0, count, len(body), sequences[0], sequences[-1])
    return padded(head + producer) + body


def decode(
    entry: bytes, decompress: Callable[[int, bytes, int], bytes] | None = None
) -> tuple[bytes, list[TwinMessage]]:
    """Return (producer, messages); raise BadEntry if the value is malformed."""
    expect(len(entry) >= HEADER.size, "header")
    version, codec, flags, producer, _, count, raw_size, first, last = HEADER.unpack_from(entry)
    expect(version == 1 and codec <= 2 and flags < 32, "version, codec, flags")
    body_at = HEADER.size + len(padded(bytes(producer)))
    expect(body_at <= len(entry) and raw_size <= RAW_MAX and 1 <= count <= raw_size // 4, "sizes")
    body = entry[body_at:]
    if codec:
        expect(decompress is not None, "codec")
        assert decompress is not None
        body = decompress(codec, body, raw_size)
    expect(len(body) == raw_size, "raw size")
    columns, at = _columns(body, flags, count)
    sequences = columns.get(SEQUENCES, [-1] * count if first < 0 else list(range(first, first + count)))
    expect(first >= (0 if SEQUENCES in columns else -1) and (sequences[0], sequences[-1]) == (first, last), "sequence")
    if first >= 0:
        expect(all(a < b for a, b in pairwise(sequences)), "sequences")
    marked = columns.get(KEYS, [NO_KEY] * count)
    keys = _split(body, at, [end & ~NO_KEY for end in marked])
    expect(all(not (end & NO_KEY and key) for end, key in zip(marked, keys, strict=True)), "key of none")
    at += sum(map(len, keys))
    properties = _split(body, at, columns.get(PROPERTIES, [0] * count))
    at += sum(map(len, properties))
    values = _split(body, at, columns[0])
    expect(at + sum(map(len, values)) == len(body), "total")
    times = (None if time == NO_TIME else time for time in columns.get(EVENT_TIMES, [NO_TIME] * count))
    present = (None if end & NO_KEY else key for end, key in zip(marked, keys, strict=True))
    named = map(_properties, properties)
    rows = zip(values, present, times, columns.get(DELIVER_AT, [0] * count), sequences, named, strict=True)
    return entry[HEADER.size : HEADER.size + producer], [TwinMessage(*row) for row in rows]


def _columns(body: bytes, flags: int, count: int) -> tuple[dict[int, list[int]], int]:
    """Return the columns by their flag, and the offset of their end."""
    columns, at = {}, 0
    widths = ((0, "I"), (KEYS, "I"), (EVENT_TIMES, "q"), (SEQUENCES, "q"), (DELIVER_AT, "q"), (PROPERTIES, "I"))
    for flag, code in widths:
        if flags & flag == flag:
            size = struct.calcsize(f"<{count}{code}")
            expect(at + size <= len(body), "columns")
            columns[flag] = list(struct.unpack_from(f"<{count}{code}", body, at))
            at += size + -size % 8
    expect(at <= len(body), "columns")
    return columns, at


def _split(body: bytes, at: int, ends: list[int]) -> list[bytes]:
    starts = [0, *ends[:-1]]
    expect(all(start <= end <= len(body) - at for start, end in zip(starts, ends, strict=True)), "ends")
    return [body[at + start : at + end] for start, end in zip(starts, ends, strict=True)]


def _properties(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    out, at = [], 0
    while at < len(data):
        expect(len(data) - at >= 6, "property")
        name, value = struct.unpack_from("<HI", data, at)
        at += 6
        expect(at + name + value <= len(data), "property")
        out.append((data[at : at + name], data[at + name : at + name + value]))
        at += name + value
    return tuple(out)
