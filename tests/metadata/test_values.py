"""Values that processes of several versions share: unknown fields stay, and a reader that is too old says so."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from pyreplog.bookie.identity import claim, is_registered, register
from pyreplog.bookie.registration import Availability
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata
from pyreplog.errors import InvalidMetadataError, MetadataVersionError
from pyreplog.ledger.ledger_metadata import LedgerMetadata, metadata_key
from pyreplog.ledger.ledger_store import survey
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.memory import MemoryStore
from pyreplog.topic.model import producer_snapshot
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.partitioned_metadata import (
    PartitionedMetadata,
    find_partitioned,
    grow_partitioned,
    partitioned_key,
)
from pyreplog.topic.owner.ownership import TopicOwner

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = {
    1: json.loads((GOLDEN / "metadata-v1.json").read_text()),
    2: json.loads((GOLDEN / "metadata-v2.json").read_text()),
}
"""Values as builds of these versions stored them, by kind. Never changed."""

SUPPORTED = {"topic": 3}
"""Kinds of which some values need a reader of a version above 2."""

ADDED = {"tomorrow": {"a": [1, None, "ä"]}, "settings": [7]}
"""Fields that no version up to now knows; one has the name of something that is encoded otherwise."""


class Value(Protocol):
    def encode(self) -> bytes: ...


Decode = Callable[[bytes], Any]
SHARED: dict[str, Decode] = {
    "ledger": LedgerMetadata.decode,
    "closed ledger": LedgerMetadata.decode,
    "topic": LedgerChain.decode,
    "subscription": SubscriptionMetadata.decode,
    "partitioned": PartitionedMetadata.decode,
}
ALONE: dict[str, Decode] = {"owner": TopicOwner.decode, "available": Availability.decode}


def changed(kind: str, value: Any) -> Any:
    """As somebody who rewrites it changes it."""
    match kind:
        case "ledger":
            return value.replace_bookies({1: ("z", 3)}).in_recovery().closed(5, 60, 6)
        case "closed ledger":
            return dataclasses.replace(value, token="other")
        case "topic":
            return (
                value.taken_over("o", "n")
                .closed(LedgerTotals(2, 1, 1, 1, 9, 9))
                .added(99, 5)
                .trimmed(5)
                .marked_deleted()
            )
        case "subscription":
            return dataclasses.replace(value.with_config(SubscriptionConfig(max_unacked=9)), owner="me", snapshot=b"x")
        case _:
            return dataclasses.replace(value, partitions=77)


def newer(kind: str, **more: Any) -> bytes:
    """As a later version stores it."""
    return json.dumps({**VERSIONS[2][kind], **ADDED, "version": 9, **more}).encode()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [*SHARED, *ALONE])
def test_values_of_every_version_are_read(kind: str, version: int) -> None:
    decode = {**SHARED, **ALONE}[kind]
    value = decode(json.dumps(VERSIONS[version][kind]).encode())
    assert decode(value.encode()) == value
    if kind in SHARED:
        assert value == decode(json.dumps(VERSIONS[2][kind]).encode())


@pytest.mark.parametrize("kind", [*SHARED, *ALONE])
def test_values_are_written_as_the_golden_ones(kind: str) -> None:
    """A change of these bytes needs another version."""
    value = {**SHARED, **ALONE}[kind](json.dumps(VERSIONS[2][kind]).encode())
    assert json.loads(value.encode()) == VERSIONS[2][kind]


@pytest.mark.parametrize("kind", SHARED)
def test_rewritten_value_keeps_unknown_fields(kind: str) -> None:
    value = SHARED[kind](newer(kind, min_reader=2))
    for again in (value, changed(kind, value)):
        body = json.loads(again.encode())
        assert {name: body[name] for name in ADDED} == ADDED
        assert (body["version"], body["min_reader"]) == (9, 2)
        assert SHARED[kind](again.encode()) == again
    assert json.loads(value.encode()) == json.loads(newer(kind, min_reader=2))


@pytest.mark.parametrize("kind", SHARED)
def test_a_value_of_version_1_has_this_version_when_it_is_rewritten(kind: str) -> None:
    """A reader of version 1 would refuse what is added later."""
    body = json.loads(changed(kind, SHARED[kind](json.dumps(VERSIONS[1][kind]).encode())).encode())
    assert (body["version"], body["min_reader"]) == (2, 2)


@pytest.mark.parametrize(
    "more", [{"min_reader": 4}, {"version": 4, "min_reader": None}, {"version": 4, "min_reader": 7}], ids=str
)
@pytest.mark.parametrize("kind", [*SHARED, *ALONE])
def test_value_for_a_newer_reader_raises_metadata_version_error_with_advice(
    kind: str, more: dict[str, int | None]
) -> None:
    decode = {**SHARED, **ALONE}[kind]
    body = {name: value for name, value in {**VERSIONS[2][kind], **ADDED, **more}.items() if value is not None}
    with pytest.raises(MetadataVersionError, match=r"upgrade pyreplog") as caught:
        decode(json.dumps(body).encode())
    expected = more["min_reader"] or 4
    assert (caught.value.found, caught.value.supported) == (expected, SUPPORTED.get(kind, 2 if kind in SHARED else 1))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.found, again.kind) == (str(caught.value), expected, caught.value.kind)


def test_a_topic_with_another_identity_needs_a_reader_of_version_3() -> None:
    """One that ignored it would give messages the identity of others. Without it, version 2 is enough."""
    golden = json.loads((GOLDEN / "metadata-v3.json").read_text())["topic"]
    chain = LedgerChain.decode(json.dumps(golden).encode())
    assert chain.renewals == (("5ca1ab1e", 4), ("0ddba11", 7)) and json.loads(chain.encode()) == golden
    assert (golden["version"], golden["min_reader"]) == (3, 3)
    body = json.loads(dataclasses.replace(chain, renewals=()).encode())
    assert (body["version"], body["min_reader"], "renewals" in body) == (2, 2, False)
    assert chain.renewed("beef", 7).renewals == (("5ca1ab1e", 4), ("beef", 7))
    assert chain.renewed("beef", 2).renewals == (("beef", 2),)
    assert chain.renewed("0ddba11", 9) == chain


@pytest.mark.parametrize("renewals", [{}, [["a"]], [["a", -1]], [["a", 3], ["b", 3]], [["", 1]], [[1, 1]]], ids=str)
def test_identities_that_contradict_each_other_are_refused(renewals: Any) -> None:
    with pytest.raises(InvalidMetadataError):
        LedgerChain.decode(json.dumps({**VERSIONS[2]["topic"], "renewals": renewals}).encode())


@pytest.mark.parametrize("kind", ALONE)
def test_read_only_value_ignores_unknown_fields(kind: str) -> None:
    body = {**VERSIONS[2][kind], **ADDED, "version": 9, "min_reader": 1}
    assert ALONE[kind](json.dumps(body).encode()) == ALONE[kind](json.dumps(VERSIONS[2][kind]).encode())


@pytest.mark.parametrize(
    "more",
    [{"version": 0}, {"version": "2"}, {"version": True}, {"min_reader": None}, {"min_reader": 1 << 40}],
    ids=str,
)
@pytest.mark.parametrize("kind", [*SHARED, *ALONE])
def test_a_version_that_is_none_is_refused(kind: str, more: dict[str, Any]) -> None:
    decode = {**SHARED, **ALONE}[kind]
    with pytest.raises(InvalidMetadataError) as caught:
        decode(json.dumps({**VERSIONS[2][kind], **more}).encode())
    assert not isinstance(caught.value, MetadataVersionError)


def test_unknown_settings_of_a_topic_are_kept() -> None:
    body = {**VERSIONS[2]["topic"]}
    body["config"] = {**body["config"], "of_tomorrow": [1]}
    chain = LedgerChain.decode(json.dumps(body).encode())
    assert chain.config == LedgerChain.decode(json.dumps(VERSIONS[2]["topic"]).encode()).config
    again = dataclasses.replace(chain, config=chain.config.changed({"linger_ms": 3})).taken_over("o", "n")
    config = json.loads(again.encode())["config"]
    assert (config["of_tomorrow"], config["linger_ms"]) == ([1], 3)


def test_in_a_store_nothing_is_lost_and_what_is_too_new_is_named() -> None:
    with MemoryStore() as store:
        store.create(partitioned_key("t"), newer("partitioned", min_reader=2))
        assert grow_partitioned(store, "t", 50).partitions == 50
        stored = store.get(partitioned_key("t"))
        assert stored is not None and json.loads(stored.value)["tomorrow"] == ADDED["tomorrow"]
        ledger = VERSIONS[2]["ledger"]["ledger"]
        store.create(metadata_key(ledger), newer("ledger", min_reader=5))
        ledgers, garbled = survey(store)
        assert not ledgers and "version 5" in garbled[0].why and "upgrade" in garbled[0].why
        partitioned = find_partitioned(store, "t")
        assert partitioned is not None and partitioned.kept.fields == ADDED


def test_a_bookie_keeps_what_a_newer_one_registered(tmp_path: Path) -> None:
    with MemoryStore() as store:
        new_claim = claim(tmp_path, "b", store)
        new_claim = register(tmp_path, new_claim, store, bytes(16), 0)
        stored = store.get(new_claim.key)
        assert stored is not None
        body = {**json.loads(stored.value), **ADDED, "version": 4, "min_reader": 1}
        store.put(new_claim.key, json.dumps(body).encode(), stored.version)
        assert is_registered(store, new_claim)
        register(tmp_path, claim(tmp_path, "b", store), store, bytes(16), 0)
        stored = store.get(new_claim.key)
        assert stored is not None and json.loads(stored.value) == {**body, "opens": 2}
        store.put(new_claim.key, json.dumps({**body, "min_reader": 2}).encode(), stored.version)
        with pytest.raises(MetadataVersionError):
            claim(tmp_path, "b", store)
        assert cluster_id(store) == new_claim.cluster


def test_producer_snapshot_names_its_minimum_reader_version() -> None:
    states = [producer_snapshot.ProducerState(b"p", 7, 9, None)]
    data = producer_snapshot.encode(states)
    assert producer_snapshot.decode(b"\x09\0\1\0" + data[4:]) == states
    for head, needed in ((b"\2\0\0\0", 2), (b"\2\0\2\0", 2), (b"\1\0\7\0", 7)):
        with pytest.raises(MetadataVersionError) as caught:
            producer_snapshot.decode(head + data[4:])
        assert (caught.value.found, caught.value.supported) == (needed, 1)
    with pytest.raises(InvalidMetadataError):
        producer_snapshot.decode(b"\0\0\0\0" + data[4:])
