"""Arbitrary messages and arbitrary bytes; tests/fuzz/fuzz_messages.py has the check, with a twin in plain Python."""

from __future__ import annotations

import zlib

import mmh3
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.topic.message_encoder import compress_entry, encode_slices
from pyreplog._native.topic.partitioning import key_hash
from tests.fuzz import fuzz_messages as fuzz
from tests.topic import twin
from tests.topic.entries import as_twin, decoded, encoded
from tests.topic.twin import TwinMessage

unhurried = settings(deadline=None)  # no verdict hangs on the speed of the machine

times = st.integers(-(2**63) + 1, 2**63 - 1)
names = st.text(max_size=5).map(str.encode)
properties = st.dictionaries(names, st.binary(max_size=9), max_size=3).map(lambda given: tuple(given.items()))
message = st.builds(
    TwinMessage, st.binary(max_size=40), st.none() | st.binary(max_size=9), st.none() | times,
    st.just(0) | st.integers(0, 2**63 - 1), st.just(-1), properties,
)  # fmt: skip


@st.composite
def some_messages(draw: st.DrawFn) -> list[TwinMessage]:
    messages = draw(st.lists(message, min_size=1, max_size=12))
    if draw(st.booleans()):
        first = draw(st.integers(0, 2**62))
        gaps = draw(st.lists(st.integers(1, 3), min_size=len(messages), max_size=len(messages)))
        messages = [item._replace(sequence=first + sum(gaps[1 : i + 1])) for i, item in enumerate(messages)]
    return messages


@given(some_messages(), st.binary(max_size=20), st.booleans())
@unhurried
def test_decode_reverses_encode_of_messages(messages: list[TwinMessage], producer: bytes, compressed: bool) -> None:
    entry = encoded(messages, producer)
    assert entry == twin.encode(messages, producer)
    assert twin.decode(entry) == (producer, messages)
    if compressed:
        entry = compress_entry(entry, 1, zlib.compress)
    batch = decoded([entry], [len(messages)], decompress=lambda _, body, __: zlib.decompress(body))
    assert [as_twin(item) for item in batch] == messages


@given(some_messages(), st.data())
@unhurried
def test_changed_bytes_are_refused_or_are_other_messages(messages: list[TwinMessage], data: st.DataObject) -> None:
    entry = bytearray(encoded(messages, data.draw(st.binary(max_size=9))))
    for _ in range(data.draw(st.integers(0, 3))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.just(len(entry)) | st.integers(0, len(entry)))
    fuzz.check(bytes([len(messages) - 1, 0]) + bytes(entry[:stop]))


@given(st.integers(0, 3), st.integers(0, 40), st.binary(max_size=200), st.integers(0, 31), st.integers(0, 2))
@unhurried
def test_arbitrary_bytes_are_messages_or_refused(count: int, cut: int, body: bytes, flags: int, codec: int) -> None:
    head = twin.HEADER.pack(1, codec, flags, 0, 0, count + 1, max(len(body) - max(cut - 32, 0), 0), -1, -1)
    fuzz.check(bytes([count, cut]) + head + body)
    fuzz.check(bytes([count, cut]) + body)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.integers(1, 10), st.integers(0, 60))
@unhurried
def test_slices_are_all_messages_in_order(values: list[bytes], messages_max: int, bytes_max: int) -> None:
    entries, counts = encode_slices(values, messages_max=messages_max, bytes_max=bytes_max, first_sequence=5)
    batch = decoded(entries, counts)
    assert batch.values() == values
    assert batch.sequence.tolist() == list(range(5, 5 + len(values)))
    assert all(1 <= count <= messages_max for count in counts)
    at = 0
    for count, following in zip(counts, [*counts[1:], 0], strict=True):
        size = sum(map(len, values[at : at + count]))
        assert count == 1 or size <= bytes_max
        assert (
            not following or count == messages_max or size + len(values[at + count]) > bytes_max
        )  # no shorter than need be
        at += count


@given(st.binary())
def test_key_hashes_are_those_of_murmur3(key: bytes) -> None:
    assert key_hash(key) == mmh3.hash(key, 0, signed=False)
