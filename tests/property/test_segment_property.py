"""Any bytes in a segment are records or an error, never a crash, an over-read or a record that is not there."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.segments import exercise

HEAD = struct.Struct("<IIIBBHqII")

heads = st.builds(
    lambda length, kind, form, key, delta: HEAD.pack(length, 0, 0, kind, form, key, 0, delta, 0),
    st.integers(0, 300) | st.integers(0, 0xFFFFFFFF),
    st.integers(0, 6),
    st.sampled_from([0x01, 0x11, 0x21, 0x31, 0x41, 0x61, 0x71, 0x81, 0x02, 0x00]),
    st.integers(0, 80) | st.just(0xFFFF),
    st.integers(0, 3) | st.just(0xFFFFFFFF),
)
counts = st.just(b"") | st.builds(struct.Struct("<II").pack, st.integers(0, 5) | st.just(0xFFFFFFFF), st.just(0))
bodies = st.lists(heads | st.binary(max_size=64), max_size=40).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(bodies, st.booleans(), st.sampled_from([0, -1, 1 << 40]), st.sampled_from([1, 2]))
def test_arbitrary_bytes_of_a_segment_are_records_or_refused(data: bytes, mended: bool, first_entry: int, version: int):
    assert exercise(data, mended=mended, first_entry=first_entry, version=version) >= 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(heads, counts, st.binary(max_size=200)), min_size=1, max_size=12), st.sampled_from([1, 2]))
def test_bytes_that_pass_the_checksum(parts: list[tuple[bytes, bytes, bytes]], version: int):
    """Every length, kind, form and key length behind a right stamp and CRC."""
    data = bytearray()
    for head, count, body in parts:
        record = bytearray(head + count + body)
        struct.pack_into("<I", record, 0, len(record))
        data += record + bytes(-len(record) % 8)
    assert exercise(bytes(data), mended=True, version=version) >= 0
