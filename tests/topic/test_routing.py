"""Routing of messages to partitions."""

from __future__ import annotations

import mmh3
import numpy
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.topic.model.routing import PARTITIONS_MAX, Router, key_hash, partition_name, partition_of

PULSAR = {
    b"k1": 2110152746,
    b"k2": 1479966664,
    b"key1": 462881061,
    b"key2": 1936800180,
    b"key01": 39696932,
    b"key02": 751761803,
}
"""The hashes of Pulsar's clients for these keys."""


@pytest.mark.parametrize("key", PULSAR)
def test_keys_hash_as_pulsars_do(key: bytes) -> None:
    assert key_hash(key) == key_hash(memoryview(key)) == PULSAR[key]
    assert Router("t", 7).route(key) == PULSAR[key] % 7


def test_key_hashes_are_positive() -> None:
    keys = [b"%d" % n for n in range(200)]
    hashes = [mmh3.hash(key, 0, signed=False) for key in keys]
    assert any(each_hash >= 1 << 31 for each_hash in hashes)
    assert [key_hash(key) for key in keys] == [each_hash & (1 << 31) - 1 for each_hash in hashes]


def test_messages_without_keys_go_in_turn() -> None:
    router = Router("t", 3)
    assert [router.route(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_rows_without_keys_of_a_batch_stay_together() -> None:
    router = Router("t", 3)
    assert [rows.tolist() for rows in router.split([None] * 4)] == [[0, 1, 2, 3], [], []]
    assert [rows.tolist() for rows in router.split([None] * 2)] == [[], [0, 1], []]
    router.split([b"k1"])
    assert [rows.tolist() for rows in router.split([None])] == [[], [], [0]], "keys take no turn"


@given(st.lists(st.none() | st.binary(max_size=5), max_size=50), st.integers(1, 9))
def test_a_batch_is_split_as_its_messages_are_routed(keys: list[bytes | None], partitions: int) -> None:
    split = Router("t", partitions).split(keys)
    assert len(split) == partitions
    assert sorted(row for rows in split for row in rows.tolist()) == list(range(len(keys)))
    for partition, rows in enumerate(split):
        assert rows.tolist() == sorted(rows.tolist())
        assert all(keys[row] is None or Router("t", partitions).route(keys[row]) == partition for row in rows.tolist())


@given(st.lists(st.binary(min_size=3, max_size=3), max_size=50), st.integers(1, 9))
def test_columns_split_as_their_keys(keys: list[bytes], partitions: int) -> None:
    router = Router("t", partitions)
    expected = [rows.tolist() for rows in router.split(keys)]
    packed = (numpy.arange(len(keys) + 1) * 3, b"".join(keys))
    array = numpy.frombuffer(b"".join(keys), numpy.uint8).reshape(-1, 3)
    for column in (packed, array, pyarrow.array(keys, pyarrow.binary())):
        assert [rows.tolist() for rows in router.split_column(column)] == expected


def test_many_columns_split_as_their_keys() -> None:
    """With so many keys, the hashes are computed without the GIL."""
    keys = [b"%06d" % n for n in range(20_000)]
    router = Router("t", 5)
    array = numpy.array(keys)
    assert [rows.tolist() for rows in router.split_column(array)] == [rows.tolist() for rows in router.split(keys)]


def test_names_of_partitions_are_known() -> None:
    for topic in ("t", "a-partition-1", "a\nb-partition-"):
        for partition in (0, 1, 10, 65535):
            assert partition_of(partition_name(topic, partition)) == (topic, partition)
    for name in ("t", "t-partition-", "t-partition-01", "t-partition-x", "-partition-1", "t-partition-1 "):
        assert partition_of(name) is None


def test_partitions_have_pulsars_names() -> None:
    assert Router("a/b", 2).names == ["a/b-partition-0", "a/b-partition-1"]
    assert partition_name("t", 12) == "t-partition-12"


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_invalid_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidArgumentError, match="partitions"):
        Router("t", partitions)


def test_a_key_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(WrongTypeError, match="key"):
        key_hash("text")  # type: ignore[arg-type]
