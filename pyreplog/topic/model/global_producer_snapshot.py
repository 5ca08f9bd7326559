"""Encodes the global producers of a topic; FORMAT.md, "Global producer snapshot", has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.metadata.snapshot_header import HEADER_BYTES, decode_header, encode_header
from pyreplog.topic.model.producer_snapshot import SEQUENCE_MAX

VERSION = 1

_PRODUCER = struct.Struct("<HHHHqq")
_SET = struct.Struct("<QII")


class GlobalProducerState(NamedTuple):
    """The state of one producer.

    Attributes:
        name: its name.
        floor: numbers published here below it were forgotten.
        active_us: when its last message was stored.
        stored: the stored numbers, none empty, by key of the origin; 0: published here.
    """

    name: bytes
    floor: int
    active_us: int
    stored: dict[int, RangeSet]


def encode(states: Sequence[GlobalProducerState]) -> bytes:
    """Encode producers in their order."""
    parts = [encode_header(VERSION, len(states))]
    for state in states:
        head = _PRODUCER.size, len(state.name), len(state.stored), 0
        parts += (_PRODUCER.pack(*head, state.floor, state.active_us), state.name)
        for origin, numbers in state.stored.items():
            ranges = numbers.dump()
            parts += (_SET.pack(origin, len(ranges), 0), ranges)
    return b"".join(parts)


def decode(data: bytes) -> list[GlobalProducerState]:
    """Decode producers. Raises InvalidMetadataError if malformed, MetadataVersionError if a newer reader is needed."""
    count = decode_header("global producers", data, VERSION)
    try:
        states = list(_read(data))
    except (struct.error, ReplogError) as error:
        raise InvalidMetadataError(f"global producers in {len(data)} bytes: {error}") from error
    if len(states) != count or len({state.name for state in states}) != count:
        raise InvalidMetadataError(f"global producers: expected {count} different ones, found {len(states)}")
    return states


def _read(data: bytes) -> Iterator[GlobalProducerState]:
    at = HEADER_BYTES
    while at < len(data):
        size, name_size, sets, _, floor, active_us = _PRODUCER.unpack_from(data, at)
        name_at = at + size  # a later version may have more fields
        start, at = at, name_at + name_size
        if size < _PRODUCER.size or not sets or not 0 <= floor <= SEQUENCE_MAX:
            raise InvalidMetadataError(f"expected a producer at byte {start}, found {size}, {sets}, {floor}")
        name, stored = data[name_at:at], dict[int, RangeSet]()
        for _ in range(sets):
            origin, ranges_size, _ = _SET.unpack_from(data, at)
            start, at = at + _SET.size, at + _SET.size + ranges_size
            if at > len(data) or origin in stored or not ranges_size:
                raise InvalidMetadataError(f"expected numbers of another origin up to byte {len(data)}, found {at}")
            stored[origin] = RangeSet.load(data[start:at])
        yield GlobalProducerState(name, floor, active_us, stored)
