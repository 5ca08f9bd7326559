"""What the encoder of messages takes, how it cuts a call into entries, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyreplog._native.log.append_arguments import ColumnParts, SequenceParts
from pyreplog._native.topic.message_encoder import Messages, encode_messages, encode_slices
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError
from tests.topic.entries import decoded

VALUES = [b"aaa", b"bbb", b"ccc"]
KEYS = [b"k0", b"k1", b"k2"]
PACKED = (np.arange(4) * 3, b"aaabbbccc")


@pytest.mark.parametrize(
    "values",
    [
        VALUES,
        tuple(VALUES),
        iter(VALUES),
        [bytearray(b"aaa"), memoryview(b"bbb"), np.frombuffer(b"ccc", np.uint8)],
        PACKED,
        ([0, 3, 6, 9], bytearray(b"aaabbbccc")),
        np.array(VALUES),
        np.frombuffer(b"aaabbbccc", np.uint8).reshape(3, 3),
        pa.array(VALUES),
        SequenceParts(VALUES, None, None, None),
        ColumnParts(PACKED, None, None),
    ],
    ids=lambda values: type(values).__name__,
)
def test_all_sorts_of_values_are_the_same_bytes(values: Any) -> None:
    assert encode_messages(values) == encode_messages(VALUES)


def test_columns_are_the_same_bytes_as_lists() -> None:
    """Also when not all of a column's bytes are used, and values are longer than what they lie in."""
    times, sequences = [5, 6, 7], [1, 5, 1 << 62]
    lists = encode_messages(
        VALUES,
        KEYS,
        event_times=times,
        sequences=sequences,
        deliver_at=times,
        producer=b"p",
        properties=[{"a": "b"}, None, {}],
    )
    columns = encode_messages(
        (np.arange(4) * 3 + 1, b"xaaabbbcccxxx"), (np.array([0, 2, 4, 6]), b"k0k1k2"), event_times=np.array(times),
        sequences=np.array(sequences), deliver_at=np.array(times, np.uint64), producer=b"p",
        properties=({"a": b"b"}, {}, None),
    )  # fmt: skip
    assert columns == lists
    parts = ColumnParts(PACKED, (np.array([0, 2, 4, 6]), b"k0k1k2"), np.array(times))
    with pytest.raises(InvalidArgumentError, match="to be among the parts"):
        encode_messages(parts, KEYS)
    entries, counts = encode_slices(parts, messages_max=2, bytes_max=1000)
    assert counts == [2, 1]
    assert [message.event_time for message in decoded(entries, counts)] == times
    assert decoded(entries, counts).keys() == KEYS


def test_two_values_are_no_column() -> None:
    assert decoded([encode_messages((b"a", b"bc"))], [2]).values() == [b"a", b"bc"]


def test_a_column_takes_no_room_when_nothing_is_in_it() -> None:
    plain = encode_messages(VALUES)
    assert plain == encode_messages(
        VALUES, [None] * 3, properties=[None, {}, None], event_times=[None] * 3, deliver_at=[None, 0, None]
    )
    assert len(plain) == 32 + 16 + 9
    assert encode_messages(VALUES, sequences=[7, 8, 9]) == encode_messages(VALUES, first_sequence=7)
    assert len(encode_messages(VALUES, first_sequence=0)) == len(plain)


@pytest.mark.parametrize(("messages_max", "bytes_max", "counts"), [
    (10, 1000, [10, 10, 5]), (100, 1000, [25]), (100, 30, [10, 10, 5]), (100, 29, [9, 9, 7]), (1, 1000, [1] * 25),
    (5, 2, [1] * 25), (5, -1, [1] * 25),
])  # fmt: skip
def test_a_call_is_cut_into_entries_by_messages_and_bytes(messages_max: int, bytes_max: int, counts: list[int]) -> None:
    values = [b"%03d" % i for i in range(25)]
    entries, slices = encode_slices(values, messages_max=messages_max, bytes_max=bytes_max, first_sequence=3)
    assert slices == counts
    batch = decoded(entries, counts)
    assert batch.values() == values
    assert batch.sequence.tolist() == list(range(3, 28))
    starts = [sum(counts[:i]) for i in range(len(counts))]
    assert batch.entry_sequence.tolist() == [start + count + 2 for start, count in zip(starts, counts, strict=True)]


def test_slices_are_what_their_messages_alone_would_be() -> None:
    """Each has the columns that its own messages need."""
    values, keys = [b"%d" % i for i in range(9)], [None, None, None, b"k", None, b"", None, None, None]
    times, later = [None] * 6 + [4, None, 5], [0, 0, 8] + [0] * 6
    properties = [{"a": "b", "c": "d"}, None, None, None, {"ü": b""}, {"x": "y"}, None, None, None]
    sequences = [0, 1, 2, 3, 5, 7, 8, 9, 10]
    entries, counts = encode_slices(
        values, keys, event_times=times, deliver_at=later, properties=properties, sequences=sequences,
        producer=b"me", messages_max=3, bytes_max=1 << 20,
    )  # fmt: skip
    assert counts == [3, 3, 3]
    for entry, at in zip(entries, (slice(0, 3), slice(3, 6), slice(6, 9)), strict=True):
        assert entry == encode_messages(
            values[at], keys[at], event_times=times[at], deliver_at=later[at], properties=properties[at],
            sequences=sequences[at], producer=b"me",
        )  # fmt: skip
    assert [int.from_bytes(entry[2:4], "little") for entry in entries] == [8 | 16, 1 | 4 | 16, 2]


def test_slices_count_keys_and_properties_as_bytes() -> None:
    properties: list[dict[str, str | bytes] | None] = [{"ab": "cd"}] * 4  # 10 bytes each
    _, counts = encode_slices([b"v" * 5] * 4, [b"k" * 5] * 4, properties=properties, messages_max=9, bytes_max=40)
    assert counts == [2, 2]
    _, counts = encode_slices([b"v" * 5] * 4, [b"k" * 5] * 4, properties=properties, messages_max=9, bytes_max=39)
    assert counts == [1] * 4


def test_the_size_counts_keys_and_the_properties_of_every_message() -> None:
    properties = [{"a": "b"}, None, {"longer": "c"}]
    sizes = [Messages(VALUES[at : at + 1], properties=properties[at : at + 1]).size for at in range(3)]
    assert sizes[1] == 3 < sizes[0] < sizes[2]
    assert Messages(VALUES, KEYS, properties=properties).size == sum(sizes) + 3 * 2


def test_large_calls_release_the_gil_and_are_the_same_bytes() -> None:
    values = [b"%d" % i * 100 for i in range(2000)]
    entry = encode_messages(
        values, values, properties=[{"n": b"%d" % i} for i in range(2000)], sequences=range(0, 4000, 2)
    )
    batch = decoded([entry], [2000])
    assert batch.values() == batch.keys() == values
    assert batch.properties(1999) == {"n": b"1999"}
    assert batch.sequence.tolist() == list(range(0, 4000, 2))


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "none": ({"values": []}, InvalidArgumentError, "values: expected at least one message"),
    "text": ({"values": ["text"] * 3}, WrongTypeError, "value: expected a contiguous bytes-like object"),
    "bytes": ({"values": b"abc"}, WrongTypeError, "values: expected a sequence of items"),
    "keys": ({"keys": [b""]}, InvalidArgumentError, "keys: expected 3"),
    "event times": ({"event_times": [1]}, InvalidArgumentError, "event_times: expected 3"),
    "properties": ({"properties": [{}]}, InvalidArgumentError, "properties: expected 3"),
    "a dict": ({"properties": {"a": "b"}}, WrongTypeError, "properties: expected a sequence of dicts, found dict"),
    "no dict": ({"properties": [1, {}, {}]}, WrongTypeError, "properties: expected dicts, found int"),
    "empty, no dict": ({"properties": [(), {}, {}]}, WrongTypeError, "properties: expected dicts, found tuple"),
    "a number": ({"properties": [{"a": 1}, {}, {}]}, WrongTypeError, "expected str to str or bytes, found str to int"),
    "a name": ({"properties": [{b"a": "b"}, {}, {}]}, WrongTypeError, "found bytes to str"),
    "long name": ({"properties": [{"a" * 65536: "b"}, {}, {}]}, RecordTooLargeError, "at most 65535 bytes"),
    "surrogate": ({"properties": [{"\ud800": "b"}, {}, {}]}, InvalidArgumentError, "expected text that UTF-8 has"),
    "large property": (
        {"properties": [{"a": bytes(1 << 26)}, {"a": "b"}, {}]},
        RecordTooLargeError,
        "at most 67108864",
    ),
    "deliver at": ({"deliver_at": [1]}, InvalidArgumentError, "deliver_at: expected 3, one per value, found 1"),
    "past": ({"deliver_at": [0, -1, 0]}, InvalidArgumentError, "deliver_at: expected integers from 0 to"),
    "past column": (
        {"deliver_at": np.array([0, -1, 0])},
        InvalidArgumentError,
        "deliver_at: expected 0 or more, found -1",
    ),
    "float": ({"deliver_at": [0.5, 0, 0]}, WrongTypeError, "deliver_at: expected integers, found float"),
    "floats": ({"deliver_at": np.zeros(3)}, WrongTypeError, "deliver_at: expected integers, found float64"),
    "one number": ({"deliver_at": 5}, WrongTypeError, "deliver_at: expected integers, found int"),
    "bool": ({"sequences": [True, 2, 3]}, WrongTypeError, "sequences: expected integers, found bool"),
    "no sequence": ({"sequences": [None, 2, 3]}, WrongTypeError, "sequences: expected integers, found NoneType"),
    "huge": ({"sequences": [1, 2, 1 << 63]}, InvalidArgumentError, "expected integers from 0 to"),
    "equal": ({"sequences": [1, 1, 2]}, InvalidArgumentError, "expected more than 1 for message 1, found 1"),
    "descending": (
        {"sequences": np.array([1, 5, 4])},
        InvalidArgumentError,
        "expected more than 5 for message 2, found 4",
    ),
    "negative": ({"sequences": np.array([-1, 0, 1])}, InvalidArgumentError, "more than -1 for message 0, found -1"),
    "last twice": (
        {"sequences": [1, (1 << 63) - 1, (1 << 63) - 1]},
        InvalidArgumentError,
        f"expected more than {(1 << 63) - 1}",
    ),
    "too few": ({"sequences": np.arange(2)}, InvalidArgumentError, "sequences: expected 3, one per value, found 2"),
    "both": ({"sequences": [1, 2, 3], "first_sequence": 1}, InvalidArgumentError, "first_sequence: expected -1 or"),
    "first": ({"first_sequence": -2}, InvalidArgumentError, "first_sequence: expected -1 or"),
    "no room": ({"first_sequence": (1 << 63) - 3}, InvalidArgumentError, "leaves room for 3 below"),
    "producer": ({"producer": "me"}, WrongTypeError, "producer: expected bytes, found str"),
    "long producer": ({"producer": bytes(65536)}, InvalidArgumentError, "producer: at most 65535 bytes, found 65536"),
    "entry": ({"values": [bytes(1 << 25)] * 3}, RecordTooLargeError, "at most 67108864 bytes in one entry"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_encode_messages_refuses_invalid_arguments(name: str) -> None:
    options, error, why = REFUSED[name]
    with pytest.raises(error, match=why):
        encode_messages(**{"values": VALUES, **options})


def test_slices_refuse_no_messages_at_all() -> None:
    with pytest.raises(InvalidArgumentError, match="messages_max: expected at least 1, found 0"):
        encode_slices(VALUES, messages_max=0, bytes_max=100)
