"""Encodes the producers of a topic; FORMAT.md, "Producer snapshot", has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.metadata.snapshot_header import HEADER_BYTES, decode_header, encode_header

VERSION = 1
SEQUENCE_MAX = OFFSET_END - 1

_PRODUCER = struct.Struct("<HHIqq")


class ProducerState(NamedTuple):
    """The state of one producer.

    Attributes:
        name: its name.
        persisted: its highest stored number; -1: none.
        active_us: when that was stored.
        failed: numbers that are known not to be stored.
    """

    name: bytes
    persisted: int
    active_us: int
    failed: RangeSet | None


def encode(states: Sequence[ProducerState]) -> bytes:
    """Encode producers in their order."""
    parts = [encode_header(VERSION, len(states))]
    for state in states:
        failed = state.failed.dump() if state.failed else b""
        parts.append(_PRODUCER.pack(len(state.name), 0, len(failed), state.persisted, state.active_us))
        parts += (state.name, failed)
    return b"".join(parts)


def decode(data: bytes) -> list[ProducerState]:
    """Decode producers. Raises InvalidMetadataError if malformed, MetadataVersionError if a newer reader is needed."""
    count = decode_header("producer snapshot", data, VERSION)
    try:
        states = list(_read(data))
    except (struct.error, ReplogError) as error:
        raise InvalidMetadataError(f"producer snapshot of {len(data)} bytes: {error}") from error
    if len(states) != count or len({state.name for state in states}) != count:
        raise InvalidMetadataError(f"producer snapshot: expected {count} different producers, found {len(states)}")
    return states


def _read(data: bytes) -> Iterator[ProducerState]:
    at = HEADER_BYTES
    while at < len(data):
        name_size, _, failed_size, persisted, active_us = _PRODUCER.unpack_from(data, at)
        name_at, failed_at = at + _PRODUCER.size, at + _PRODUCER.size + name_size
        at = failed_at + failed_size
        if at > len(data) or not -1 <= persisted <= SEQUENCE_MAX:
            raise InvalidMetadataError(f"expected a producer up to byte {len(data)}, found one up to {at}: {persisted}")
        failed = RangeSet.load(data[failed_at:at]) if failed_size else None
        yield ProducerState(data[name_at:failed_at], persisted, active_us, failed)
