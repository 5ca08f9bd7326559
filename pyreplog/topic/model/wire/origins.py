"""Fields of the requests that replicate an origin into a topic, and the topic's subscriptions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, groupby

from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import InvalidEntryError
from pyreplog.origins.origin import CLUSTER_BYTES, GAPS_MAX, Gap, GapCause, OriginEntry
from pyreplog.origins.replicate_to import ATTRIBUTE_HEAD, VALUE_BYTES_MAX, decode_names, encode_attribute
from pyreplog.topic.model.wire.fields import ENTRIES_MAX, WireField, number_field

_COUNT = struct.Struct(">I")
_GAP = struct.Struct(">qqB")
_ENTRY = struct.Struct(">IIqqB")  # bytes, messages, first offset, publish time, number of gaps
_RUN = struct.Struct(">IH")  # entries, bytes of their list
NO_LIST = 0xFFFF
_OFFSET_MAX = (1 << 62) - 1
_CAUSES = {cause.value: cause for cause in GapCause}


def _encode_cluster(cluster: bytes) -> bytes:
    return cluster


def _decode_cluster(reader: WireReader) -> bytes:
    return bytes(reader.take(CLUSTER_BYTES))


def _encode_gaps(gaps: Sequence[Gap]) -> bytes:
    return bytes((len(gaps),)) + b"".join([_GAP.pack(*gap) for gap in gaps])


def _decode_gaps(reader: WireReader) -> tuple[Gap, ...]:
    return _gaps(reader, reader.take(1)[0])


def _gaps(reader: WireReader, count: int) -> tuple[Gap, ...]:
    """Decode gaps that ascend, none of them empty. A cause that only newer builds know is read as LOST."""
    if count > GAPS_MAX:
        raise reader.refusal(f"at most {GAPS_MAX} gaps", str(count))
    at, gaps = 0, []
    for start, end, cause in _GAP.iter_unpack(reader.take(_GAP.size * count)):
        if not at <= start < end <= _OFFSET_MAX:
            raise reader.refusal(f"a gap from {at} on that is not empty", f"{start} to {end}")
        gaps.append(Gap(start, end, _CAUSES.get(cause, GapCause.LOST)))
        at = end
    return tuple(gaps)


def _encode_entries(entries: Sequence[OriginEntry]) -> bytes:
    """Encode all fields except the values, which follow unencoded."""
    rows = [
        _ENTRY.pack(len(entry.value), entry.messages, entry.first, entry.publish_time_us, len(entry.gaps))
        for entry in entries
    ]
    gaps = [_GAP.pack(*gap) for entry in entries for gap in entry.gaps]
    return b"".join([_COUNT.pack(len(entries)), *rows, *gaps])


def _decode_entries(reader: WireReader) -> list[OriginEntry]:
    (count,) = reader.unpack(_COUNT)
    if count > ENTRIES_MAX:
        raise reader.refusal(f"at most {ENTRIES_MAX} entries", str(count))
    rows = list(_ENTRY.iter_unpack(reader.take(_ENTRY.size * count)))
    gaps = [_gaps(reader, row[4]) if row[4] else () for row in rows]
    values = reader.take(sum(row[0] for row in rows))
    entries, at = [], 0
    for (size, messages, first, time_us, _), before, end in zip(
        rows, gaps, accumulate(row[0] for row in rows), strict=True
    ):
        if not (messages >= 1 and at <= first <= _OFFSET_MAX - messages) or (before and before[-1].end > first):
            raise reader.refusal(f"1 or more messages from {at} on, behind their gaps", f"{messages} from {first} on")
        at = first + messages
        entries.append(OriginEntry(bytes(values[end - size : end]), messages, first, time_us, before))
    return entries


def _encode_lists(attributes: Sequence[bytes | None]) -> bytes:
    """Encode the lists of clusters as runs of entries with equal lists."""
    runs = []
    for attribute, run in groupby(attributes):
        count = sum(1 for _ in run)
        size = NO_LIST if attribute is None else len(attribute) - ATTRIBUTE_HEAD
        runs.append(_RUN.pack(count, size) + (attribute or b"")[ATTRIBUTE_HEAD:])
    return _COUNT.pack(len(runs)) + b"".join(runs)


def _decode_lists(reader: WireReader) -> list[bytes | None]:
    (runs,) = reader.unpack(_COUNT)
    if runs > ENTRIES_MAX:
        raise reader.refusal(f"at most {ENTRIES_MAX} lists of clusters", str(runs))
    attributes: list[bytes | None] = []
    for _ in range(runs):
        count, size = reader.unpack(_RUN)
        if not 1 <= count <= ENTRIES_MAX - len(attributes) or (size > VALUE_BYTES_MAX and size != NO_LIST):
            raise reader.refusal(
                f"a list of at most {VALUE_BYTES_MAX} bytes for 1 to {ENTRIES_MAX - len(attributes)} entries",
                f"one of {size} for {count}",
            )
        attribute = None
        if size != NO_LIST:
            try:
                attribute = encode_attribute(decode_names(bytes(reader.take(size))))
            except InvalidEntryError as error:
                raise reader.refusal("a list of clusters", str(error)) from None
        attributes += [attribute] * count
    return attributes


MESSAGES_MAX = 64
MESSAGES_BYTES_MAX = 17 << 20
"""Most bytes of the messages of one request; one of the largest messages fits."""


def _encode_messages(messages: Sequence[bytes]) -> bytes:
    return b"".join([bytes((len(messages),)), *(_COUNT.pack(len(message)) + message for message in messages)])


def _decode_messages(reader: WireReader) -> list[bytes]:
    count = reader.take(1)[0]
    if count > MESSAGES_MAX:
        raise reader.refusal(f"at most {MESSAGES_MAX} messages", str(count))
    messages, room = [], MESSAGES_BYTES_MAX
    for _ in range(count):
        (size,) = reader.unpack(_COUNT)
        if size > room:
            raise reader.refusal(f"messages of at most {MESSAGES_BYTES_MAX} bytes", f"one of {size}, with {room} left")
        room -= size
        messages.append(bytes(reader.take(size)))
    return messages


CLUSTER = WireField(_encode_cluster, _decode_cluster)
PARTITIONS = number_field("I", 0, 1 << 16)
GAPS = WireField(_encode_gaps, _decode_gaps)
LISTS = WireField(_encode_lists, _decode_lists)
ORIGIN_ENTRIES = WireField(_encode_entries, _decode_entries)
MESSAGES = WireField(_encode_messages, _decode_messages)
