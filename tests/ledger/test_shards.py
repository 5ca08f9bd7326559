"""Metadata of ledgers in shards: keys, listing, and the migration of older stores."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import NoReturn

import pytest

from pyreplog.bookie.registration import Availability, availability_key
from pyreplog.errors import InvalidMetadataError, MetadataLayoutError, MetadataVersionError, NoSuchKeyError, ReplogError
from pyreplog.ledger.ledger_metadata import LEDGERS, SHARD_BITS, Fragment, LedgerMetadata, key_proof, metadata_key
from pyreplog.ledger.ledger_store import (
    StoredLedgers,
    delete_garbled,
    find_ledger,
    list_ledgers,
    next_id,
    remove_empty_shard,
    shards,
    stored_ledgers,
    survey,
)
from pyreplog.ledger.migration import migrate
from pyreplog.metadata.keys import VALUE_MAX
from pyreplog.metadata.layout import CLUSTER, cluster_id, encode_cluster
from pyreplog.metadata.memory import MemoryStore

ID_MAX = (1 << 62) - 1
SHARD = 1 << SHARD_BITS


class KilledError(Exception):
    """The process ends here."""


class Mortal(MemoryStore):
    """A store whose process ends before, or right after, the write with this number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.is_done = 1 << 30, False

    def _dies(self) -> bool:
        self.left -= 1
        return self.left < 0

    def _end(self) -> NoReturn:
        self.left = 1 << 30
        raise KilledError

    def _create(self, key: str, value: bytes) -> int:
        if (dies := self._dies()) and not self.is_done:
            self._end()
        version = super()._create(key, value)
        return self._end() if dies else version

    def _put(self, key: str, value: bytes, version: int) -> int:
        if (dies := self._dies()) and not self.is_done:
            self._end()
        version = super()._put(key, value, version)
        return self._end() if dies else version

    def _delete(self, key: str, version: int) -> None:
        if (dies := self._dies()) and not self.is_done:
            self._end()
        super()._delete(key, version)
        if dies:
            self._end()


@pytest.fixture
def store() -> Iterator[Mortal]:
    with Mortal() as store:
        yield store


def value_of(ledger: int) -> bytes:
    return LedgerMetadata(
        ledger=ledger, ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("b",)),),
        proof=key_proof(bytes(16)),
    ).encode()  # fmt: skip


def fill(store: MemoryStore, *ledgers: int) -> None:
    for ledger in ledgers:
        store.create(metadata_key(ledger), value_of(ledger))


def fill_flat(store: MemoryStore, *ledgers: int) -> bytes:
    """Store ledgers as layout 1 did."""
    cluster = uuid.uuid4()
    store.create(CLUSTER, json.dumps({"id": cluster.hex}).encode())
    for ledger in ledgers:
        store.create(
            f"{LEDGERS}/{ledger:019d}", value_of(ledger).replace(b'"version":2,"min_reader":2', b'"version":1')
        )
    store.create("/next-ledger", b"%d" % (max(ledgers) + 1))
    return cluster.bytes


def test_a_shard_is_a_reply_that_zookeeper_gives() -> None:
    names = SHARD * (len(metadata_key(0).rpartition("/")[2]) + 4)
    assert names < VALUE_MAX / 8
    assert metadata_key(0) == "/ledgers/0000000000000000/0000000000000000000"
    assert metadata_key(SHARD + 1) == "/ledgers/0000000000000001/0000000000000004097"
    keys = [metadata_key(ledger) for ledger in (0, 9, 10, SHARD - 1, SHARD, 45_000 * SHARD, ID_MAX)]
    assert keys == sorted(keys) and len({len(key) for key in keys}) == 1


def test_ledgers_are_listed_by_shard(store: Mortal) -> None:
    ledgers = [0, 7, SHARD - 1, SHARD, SHARD * 5 + 3, ID_MAX]
    fill(store, *reversed(ledgers))
    assert list_ledgers(store) == ledgers and len(shards(store)) == 4
    assert [ledger for ledger, _ in stored_ledgers(store)] == ledgers
    assert [metadata.ledger for metadata in survey(store)[0]] == ledgers
    assert StoredLedgers(store).listed() == set(ledgers)
    assert list(StoredLedgers(store).open_with("b", unsynced=False)) == ledgers


def test_a_shard_is_read_when_it_is_reached(store: Mortal) -> None:
    """Only one shard is in memory at a time, and ledgers that are deleted meanwhile are left out."""
    fill(store, 1, 2, SHARD, SHARD * 2)
    walk = stored_ledgers(store)
    assert next(walk)[0] == 1
    ledger_metadata = find_ledger(store, SHARD)
    assert ledger_metadata is not None
    store.delete(metadata_key(SHARD), ledger_metadata.version)
    fill(store, SHARD * 2 + 1)
    assert [ledger for ledger, _ in walk] == [2, SHARD * 2, SHARD * 2 + 1]


def test_strange_names_are_garbled_and_can_be_deleted(store: Mortal) -> None:
    fill(store, 1)
    wrong = [f"{LEDGERS}/seven", f"{LEDGERS}/{0:016d}/eight", f"{LEDGERS}/{3:016d}/{1:019d}"]
    for key in wrong:
        store.create(key, b"")
    ledgers, garbled = survey(store)
    assert [metadata.ledger for metadata in ledgers] == [1] == list_ledgers(store)
    assert sorted(odd.key for odd in garbled) == sorted(wrong)
    for name in ("seven", "eight"):
        delete_garbled(store, name)
        with pytest.raises(NoSuchKeyError):
            delete_garbled(store, name)
    assert [odd.key for odd in survey(store)[1]] == wrong[2:]


def test_an_empty_shard_is_removed_and_comes_back(store: Mortal) -> None:
    fill(store, SHARD, SHARD + 1)
    for ledger, left in ((SHARD, 1), (SHARD + 1, 0)):
        ledger_metadata = find_ledger(store, ledger)
        assert ledger_metadata is not None
        store.delete(metadata_key(ledger), ledger_metadata.version)
        remove_empty_shard(store, ledger)
        assert len(shards(store)) == left
    remove_empty_shard(store, SHARD)
    fill(store, SHARD + 2)
    assert list_ledgers(store) == [SHARD + 2]


# ---- older stores ----------------------------------------------------------------------------------------------------


def test_an_older_store_is_refused_and_the_command_is_named(store: Mortal) -> None:
    fill_flat(store, 1, 2)
    for refused in (cluster_id, list_ledgers, survey, lambda store: StoredLedgers(store).listed()):
        with pytest.raises(MetadataLayoutError, match="pyreplog cluster migrate"):
            refused(store)
    assert store.list(LEDGERS) == [f"{ledger:019d}" for ledger in (1, 2)]


def test_ledgers_of_an_older_client_beside_shards_are_refused(store: Mortal) -> None:
    """A client that lists shards would take these ledgers for deleted."""
    cluster_id(store)
    fill(store, 1)
    store.create(f"{LEDGERS}/{2:019d}", value_of(2))
    with pytest.raises(MetadataLayoutError, match="1 ledgers"):
        list_ledgers(store)
    assert migrate(store) == 1 and list_ledgers(store) == [1, 2]


def test_older_builds_refuse_a_store_of_this_layout(store: Mortal) -> None:
    """They need the key `id`: without that check they would collect each ledger as deleted."""
    cluster_id(store)
    stored = store.get(CLUSTER)
    assert stored is not None and "id" not in json.loads(stored.value)


def test_a_store_of_a_later_layout_is_refused(store: Mortal) -> None:
    store.create(CLUSTER, json.dumps({"version": 3, "min_reader": 3, "cluster": "00" * 16}).encode())
    for refused in (cluster_id, migrate):
        with pytest.raises(MetadataVersionError):
            refused(store)


def test_migrating_keeps_all_and_may_be_repeated(store: Mortal) -> None:
    ledgers = [0, 3, SHARD - 1, SHARD, SHARD * 9, 600, *range(1000, 1300)]
    cluster = fill_flat(store, *ledgers)
    store.create(f"{LEDGERS}/seven", b"odd")
    values = {ledger: store.get(f"{LEDGERS}/{ledger:019d}").value for ledger in ledgers}  # type: ignore[union-attr]
    assert migrate(store) == len(ledgers)
    assert migrate(store) == 0
    assert (cluster_id(store), list_ledgers(store)) == (cluster, sorted(ledgers))
    for ledger in ledgers:
        stored = store.get(metadata_key(ledger))
        assert stored is not None and stored.value == values[ledger]
    assert next_id(store) == max(ledgers) + 1
    assert [odd.key for odd in survey(store)[1]] == [f"{LEDGERS}/seven"]


@pytest.mark.parametrize("is_done", [False, True], ids=["not written", "written"])
def test_shard_migration_may_be_killed_at_every_step(is_done: bool) -> None:
    ledgers = [1, 2, SHARD + 5]
    steps = 0
    while True:
        with Mortal() as store:
            cluster = fill_flat(store, *ledgers)
            store.left, store.is_done = steps, is_done
            try:
                migrate(store)
                break
            except KilledError:
                pass
            stored = store.get(CLUSTER)
            assert stored is not None
            if stored.value != encode_cluster(cluster) or any(len(name) == 19 for name in store.list(LEDGERS)):
                with pytest.raises(MetadataLayoutError):
                    cluster_id(store)
            migrate(store)
            assert (cluster_id(store), list_ledgers(store)) == (cluster, ledgers)
            assert migrate(store) == 0
        steps += 1
    assert steps == 2 + 2 * len(ledgers)


def test_nothing_is_moved_while_bookies_run(store: Mortal) -> None:
    fill_flat(store, 1)
    store.create(availability_key("b@1"), Availability("h:1").encode())
    with pytest.raises(MetadataLayoutError, match="b@1"):
        migrate(store)
    assert store.list(LEDGERS) == [f"{1:019d}"]


def test_two_places_that_differ_are_left_to_the_operator(store: Mortal) -> None:
    fill_flat(store, 1)
    store.create(metadata_key(1), b"other")
    with pytest.raises(InvalidMetadataError, match="differ"):
        migrate(store)
    assert store.get(f"{LEDGERS}/{1:019d}") is not None


def test_a_store_of_no_cluster_is_refused(store: Mortal) -> None:
    with pytest.raises(ReplogError, match="not that of a cluster"):
        migrate(store)
