"""Entries are read in their stored form, without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, RecordTooLargeError, TrimmedError
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.origin import Origin, OriginEntry
from pyreplog.origins.replicate_to import attribute_of, decode_names
from pyreplog.topic.owner.managed.entry_reader import StoredEntry
from pyreplog.topic.owner.topic import Topic

PATIENCE_S = 30.0


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        made = cluster.topic("t", ensemble=1, roll_entries=3, retention_bytes=None)
        assert isinstance(made, Topic)
        yield made


def read(topic: Topic, offset: int, bytes_max: int = 1 << 20, end: int | None = None) -> list[StoredEntry]:
    return topic.managed.entries.read(offset, bytes_max=bytes_max, end=end).result(PATIENCE_S).entries


def read_all(topic: Topic) -> list[StoredEntry]:
    entries: list[StoredEntry] = []
    while chunk := read(topic, entries[-1].first + entries[-1].messages if entries else 0):
        entries += chunk
    return entries


def test_entries_of_open_and_closed_ledgers(topic: Topic) -> None:
    batches = [[b"%d.%d" % (entry, number) for number in range(1 + entry % 4)] for entry in range(10)]
    for batch in batches:
        topic.publish_batch(batch)
    entries = read_all(topic)
    assert [entry.value for entry in entries] == [encode_messages(batch) for batch in batches]
    assert [entry.messages for entry in entries] == [len(batch) for batch in batches]
    assert [entry.first for entry in entries] == [sum(map(len, batches[:at])) for at in range(10)]
    assert all(entry.origin is None for entry in entries)
    stored = [time for batch in topic.read() for time in batch.publish_time.tolist()]
    assert [entry.time_us for entry in entries] == [stored[entry.first] for entry in entries]


def test_a_read_begins_with_the_entry_that_holds_the_offset_and_is_bounded(topic: Topic) -> None:
    for _ in range(3):
        topic.publish_batch([b"x" * 1000] * 5)
    assert [entry.first for entry in read(topic, 7)] == [5, 10]
    assert [entry.first for entry in read(topic, 0, bytes_max=1)] == [0]
    assert [entry.first for entry in read(topic, 0, end=5)] == [0]
    assert [entry.first for entry in read(topic, 0, end=6)] == [0, 5]
    at_end = topic.managed.entries.read(15, bytes_max=1).result(PATIENCE_S)
    assert (at_end.entries, at_end.end) == ([], 15)


def test_the_list_of_clusters_comes_along(topic: Topic) -> None:
    """An entry that another cluster replicated has the list beside its origin, and it is read as well."""
    topic.publish_batch([b"own"] * 2, replicate_to=("west",))
    topic.publish(b"none", replicate_to=())
    origin = Origin(b"o" * 16, "token")
    topic.origins.open(origin, 1).result(PATIENCE_S)
    sent = OriginEntry(encode_messages([b"a"]), 1, 0, 77, (), attribute_of(("süd",)))
    topic.origins.replicate(origin, 1, [sent]).result(PATIENCE_S)
    lists = [None if entry.replicate_to is None else decode_names(entry.replicate_to) for entry in read_all(topic)]
    assert lists == [{"west"}, set(), {"süd"}]
    assert [entry.origin is None for entry in read_all(topic)] == [True, True, False]


def test_a_large_message_has_room_for_its_list(topic: Topic) -> None:
    """A message that is accepted without a list is accepted with the longest one, or is refused as too large."""
    longest = [f"{at:0200}" for at in range(16)]
    size = 1 << 20
    with pytest.raises(RecordTooLargeError):
        while True:
            topic.publish(bytes(size), replicate_to=longest)
            size += 1 << 20
    size -= 1 << 20
    for more in range(1 << 16, 1 << 20, 1 << 16):
        with suppress(RecordTooLargeError):
            topic.publish(bytes(size + more), replicate_to=longest)
            topic.publish_batch([bytes(size + more)], replicate_to=longest)
    topic.publish_batch([b""] * 100_000, replicate_to=longest)
    assert {decode_names(entry.replicate_to or b"") for entry in read_all(topic)} == {frozenset(longest)}


def test_the_attribute_of_an_origin_comes_along(topic: Topic) -> None:
    origin = Origin(b"o" * 16, "token")
    topic.publish(b"own")
    topic.origins.open(origin, 1).result(PATIENCE_S)
    value = encode_messages([b"a", b"b"])
    topic.origins.replicate(origin, 1, [OriginEntry(value, 2, 0, 77)]).result(PATIENCE_S)
    own, replicated = read_all(topic)
    assert own.origin is None and replicated.origin is not None
    assert (replicated.value, replicated.first, replicated.messages) == (value, 1, 2)
    assert OriginAttribute.from_bytes(replicated.origin) == OriginAttribute(origin.key, 0, 77)


def test_read_of_trimmed_entries_or_a_closed_topic_raises(topic: Topic) -> None:
    for _ in range(4):
        topic.publish(b"x")
    topic.configure(retention_bytes=0)
    assert topic.trim() == 3
    with pytest.raises(TrimmedError):
        read(topic, 0)
    topic.close()
    with pytest.raises(ClosedError):
        read(topic, 3)
