"""Single messages are gathered into entries."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError
from pyreplog.origins.replicate_to import attribute_of
from pyreplog.topic.client.publishing.batcher import (
    COLLECTED_BYTES,
    MESSAGE_BYTES,
    Batcher,
    MessageGroup,
    SingleMessage,
)
from pyreplog.topic.client.publishing.publish_batch import CollectedBatch, Encoder
from tests.topic.entries import decoded


def single(value: bytes = b"value", sequence: int = -1, **fields: Any) -> SingleMessage:
    properties, event_time, deliver_at = (fields.get(name) for name in ("properties", "event_time", "deliver_at"))
    attribute = attribute_of(fields.get("replicate_to"))
    return SingleMessage.of(value, fields.get("key"), properties, event_time, deliver_at, sequence, b"", attribute)


def make(linger_us: int = 0, messages_max: int = 10, bytes_max: int = 100_000) -> Batcher:
    return Batcher(linger_us=linger_us, messages_max=messages_max, bytes_max=bytes_max)


def values(groups: list[MessageGroup]) -> list[tuple[bytes, list[bytes]]]:
    return [(group.producer, [single.value for single in group.singles]) for group in groups]


def test_a_lone_message_does_not_wait() -> None:
    batcher = make()
    assert batcher.add(b"", single(b"0"), 0)
    assert values(batcher.take()) == [(b"", [b"0"])]


def test_messages_added_while_a_batch_is_in_flight_form_the_next_batch() -> None:
    batcher = make()
    batcher.add(b"", single(b"0"), 0)
    batcher.take()
    assert [batcher.add(b"", single(b"%d" % n), 0) for n in range(1, 4)] == [False] * 3
    assert batcher.due_us is None, "nothing waits for the time"
    assert batcher.note_outcome()
    assert values(batcher.take()) == [(b"", [b"1", b"2", b"3"])]
    assert not batcher.note_outcome()
    assert batcher.take() == []
    assert batcher.add(b"", single(), 0), "taking nothing put nothing on its way"


def test_messages_of_an_entry_have_the_same_list_of_clusters() -> None:
    batcher = make()
    batcher.add(b"", single(), 0)
    batcher.take()
    lists: list[Any] = [None, None, (), (), ("west",), ("west", "west"), ("south", "west"), ("west", "south"), None]
    for at, names in enumerate(lists):
        batcher.add(b"", single(b"%d" % at, replicate_to=names), 0)
    groups = batcher.take()
    assert [[int(single.value) for single in group.singles] for group in groups] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
        [8],
    ]
    assert [group.attribute for group in groups] == [attribute_of(names) for names in lists[::2]]


def test_linger_time_starts_with_the_first_message_of_a_batch() -> None:
    batcher = make(linger_us=500)
    assert not batcher.add(b"", single(b"0"), 100)
    assert not batcher.add(b"", single(b"1"), 300)
    assert batcher.due_us == 600
    assert values(batcher.take()) == [(b"", [b"0", b"1"])]
    assert batcher.due_us is None
    assert not batcher.add(b"", single(b"2"), 700)
    assert not batcher.note_outcome(), "what lingers goes at its own time"
    assert batcher.due_us == 1200


@pytest.mark.parametrize("linger_us", [0, 500])
def test_a_full_entry_does_not_wait(linger_us: int) -> None:
    batcher = make(linger_us=linger_us, messages_max=3)
    batcher.add(b"", single(), 0)
    batcher.take()
    assert [batcher.add(b"", single(), 0) for _ in range(3)] == [False, False, True]
    assert [group.count for group in batcher.take()] == [3]


def test_an_entry_has_no_more_bytes_than_it_may() -> None:
    size = 1000 + MESSAGE_BYTES
    batcher = make(linger_us=1, bytes_max=3 * size - 1)
    assert [batcher.add(b"", single(bytes(1000)), 0) for _ in range(3)] == [False] * 3
    assert batcher.add(b"", single(bytes(9000)), 0), "it is an entry by itself, and full"
    assert [group.count for group in batcher.take()] == [2, 1, 1]


def test_many_bytes_of_many_producers_do_not_wait() -> None:
    batcher = make(linger_us=1, bytes_max=COLLECTED_BYTES)
    sent = [batcher.add(b"%d" % n, single(bytes((1 << 20) - MESSAGE_BYTES)), 0) for n in range(4)]
    assert sent == [False, False, False, True]


def test_producers_do_not_share_entries_and_keep_their_order() -> None:
    batcher = make(linger_us=1)
    for n in range(6):
        batcher.add(b"ab"[n % 2 : n % 2 + 1], single(b"%d" % n, sequence=n), 0)
    groups = batcher.take()
    assert values(groups) == [(b"a", [b"0", b"2", b"4"]), (b"b", [b"1", b"3", b"5"])]
    batch = decoded([group.encode() for group in groups], [group.count for group in groups])
    assert batch.entry_producer == [b"a", b"b"]
    assert batch.sequence.tolist() == [0, 2, 4, 1, 3, 5]


def test_an_entry_never_has_numbers_that_descend_or_are_missing() -> None:
    batcher = make(linger_us=1)
    for sequence in (5, 6, 6, 9, 3, -1, -1, 4):
        batcher.add(b"p", single(sequence=sequence), 0)
    groups = batcher.take()
    assert [group.sequences for group in groups] == [[5, 6], [6, 9], [3], None, [4]]
    batch = decoded([group.encode() for group in groups], [group.count for group in groups])
    assert batch.sequence.tolist() == [5, 6, 6, 9, 3, -1, -1, 4]


def test_an_entry_holds_all_that_belongs_to_its_messages() -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"key": b""},
        {"key": bytearray(b"key"), "properties": {"a": "1", "b": b"\xff"}},
        {"event_time": -5, "deliver_at": 7},
    ]
    group = MessageGroup(b"p")
    for n, field in enumerate(fields):
        group.add(single(b"%d" % n, **field))
    batch = list(decoded([group.encode()], [4]))
    assert [message.value for message in batch] == [b"0", b"1", b"2", b"3"]
    assert [message.key for message in batch] == [None, b"", b"key", None]
    assert [message.properties for message in batch] == [{}, {}, {"a": b"1", "b": b"\xff"}, {}]
    assert [message.event_time for message in batch] == [None, None, None, -5]
    assert [message.deliver_at for message in batch] == [None, None, None, 7]


def test_batcher_copies_mutable_arguments() -> None:
    value, key, properties = bytearray(b"value"), bytearray(b"key"), {"a": "1"}
    new_single = single(value, key=key, properties=properties)  # type: ignore[arg-type]
    value[:], key[:], properties["a"] = b"other", b"yek", "2"
    assert (new_single.value, new_single.key, new_single.properties) == (b"value", b"key", {"a": "1"})


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"value": "text"}, WrongTypeError),
        ({"value": None}, WrongTypeError),
        ({"key": "text"}, WrongTypeError),
        ({"event_time": 1.5}, WrongTypeError),
        ({"event_time": 1 << 80}, InvalidArgumentError),
        ({"deliver_at": -1}, InvalidArgumentError),
        ({"deliver_at": True}, WrongTypeError),
        ({"properties": {"a": 1}}, WrongTypeError),
        ({"properties": ["a"]}, WrongTypeError),
        ({"properties": {"a" * 70_000: "1"}}, RecordTooLargeError),
    ],
)
def test_message_that_cannot_be_encoded_is_refused_at_once(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        single(**fields)


@pytest.mark.parametrize("fields", [{}, {"key": bytes(999)}, {"properties": {"a": bytes(5000)}}])
def test_the_size_of_a_message_is_what_it_may_take_in_an_entry(fields: dict[str, Any]) -> None:
    new_single = single(bytes(777), sequence=8, event_time=5, deliver_at=6, **fields)
    group = MessageGroup(b"")
    group.add(new_single)
    assert new_single.size - 32 <= len(group.encode()) <= new_single.size + 32


@pytest.mark.parametrize(
    "fields", [{}, {"key": b"k", "properties": {"a": "b"}}, {"replicate_to": ["tokyo"]}, {"sequence": 5}]
)
def test_a_message_alone_is_encoded_as_the_group_of_one_that_it_is(fields: dict[str, Any]) -> None:
    group = MessageGroup(b"")
    group.add(single(**fields))
    batch, encoder = CollectedBatch([group]), Encoder(10, 100_000, 1 << 20, 0, None)
    batch.encode(encoder)
    assert batch.entries == [group.encode()]
    assert batch.attributes == (None if group.attribute is None else [group.attribute])
