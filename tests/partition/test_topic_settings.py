"""Settings of topics: they change in use, unknown ones are refused, and those of later builds are kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.errors import ConfigError, InvalidArgumentError, NoSuchTopicError
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import MetadataStore
from pyreplog.partition.metadata.topic_metadata import (
    alter_topic,
    create_partitions,
    create_topic,
    delete_topic,
    find_topic,
    topic_key,
)
from pyreplog.partition.metadata.topic_settings import (
    KAFKA_DEFAULTS,
    SETTINGS,
    TopicSettings,
    format_setting,
    parse_setting,
)


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    with MemoryStore() as store:
        yield store


def settings_of(store: MetadataStore) -> TopicSettings:
    topic = find_topic(store, "flights")
    assert topic is not None
    return topic.config


def create(store: MetadataStore, **settings: Any) -> None:
    create_topic(store, "flights", partitions=1, replication_factor=1, now_us=1, **settings)


def test_default_topic_settings_have_no_retention_limit(store: MetadataStore) -> None:
    create(store)
    settings = settings_of(store)
    assert settings == TopicSettings()
    assert settings.retention_ms is None and settings.retention_bytes is None and settings.segment_ms is None


def test_settings_of_a_new_topic(store: MetadataStore) -> None:
    create(store, min_isr=1, settings={**KAFKA_DEFAULTS, "min.insync.replicas": 2, "segment.bytes": 1 << 20})
    settings = settings_of(store)
    assert settings.retention_ms == settings.segment_ms == 604_800_000
    assert settings.min_isr == 2 and settings.segment_bytes == 1 << 20
    assert set(settings.values()) == {*SETTINGS}


def test_settings_change_and_go_back_to_their_defaults(store: MetadataStore) -> None:
    create(store, settings={"retention.ms": 1000, "retention.bytes": 2000})
    altered = alter_topic(store, "flights", {"retention.ms": 5000, "unclean.leader.election.enable": True})
    assert altered == find_topic(store, "flights")
    settings = settings_of(store)
    assert settings.retention_ms == 5000 and settings.retention_bytes == 2000 and settings.unclean_election
    alter_topic(store, "flights", {"retention.ms": None, "unclean.leader.election.enable": None})
    settings = settings_of(store)
    assert settings.retention_ms is None and settings.retention_bytes == 2000 and not settings.unclean_election


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"retention.hours": 7}, "unknown setting 'retention.hours' of a topic"),
        ({"retention.hours": None}, "unknown setting 'retention.hours' of a topic"),
        ({"retention.ms": -1}, "retention.ms: expected 0 to"),
        ({"retention.ms": True}, "retention.ms: expected 0 to"),
        ({"min.insync.replicas": 0}, "min.insync.replicas: expected 1 to 64"),
        ({"message.timestamp.type": "Any"}, "expected 'CreateTime' or 'LogAppendTime'"),
        ({"cleanup.policy": "shrink"}, "cleanup.policy: expected 'delete' or 'compact'"),
        ({"min.cleanable.dirty.ratio": 1.5}, "min.cleanable.dirty.ratio: expected 0 to 1"),
        ({"max.compaction.lag.ms": 0}, "max.compaction.lag.ms: expected 1 to"),
        ({"segment.bytes": 1 << 20}, "segment.bytes: topic flights was created with 65536"),
        ({"segment.bytes": 70_000}, "a multiple of 4096"),
        ({"requires.sync": True}, "requires.sync: topic flights was created with False, which cannot be changed"),
        ({"retention.ms": 7, "flush.messages": 1}, "unknown setting 'flush.messages'"),
    ],
)
def test_alter_topic_refuses_invalid_settings(store: MetadataStore, changes: dict[str, Any], expected: str) -> None:
    create(store, settings={"segment.bytes": 65536})
    before = store.get(topic_key("flights"))
    with pytest.raises(ConfigError, match=expected):
        alter_topic(store, "flights", changes)
    assert store.get(topic_key("flights")) == before


def test_alter_topic_accepts_the_present_value_of_a_fixed_setting(store: MetadataStore) -> None:
    create(store, requires_sync=True, settings={"segment.bytes": 65536})
    alter_topic(store, "flights", {"segment.bytes": 65536, "requires.sync": True, "retention.ms": 1})
    assert settings_of(store).retention_ms == 1


def test_settings_of_later_builds_are_kept(store: MetadataStore) -> None:
    create(store)
    stored = store.get(topic_key("flights"))
    assert stored is not None
    value = json.loads(stored.value)
    later = {**value, "settings": {"remote.storage.enable": True}, "later": 1}
    store.put(topic_key("flights"), json.dumps(later).encode(), stored.version)
    alter_topic(store, "flights", {"retention.ms": 1})
    after = store.get(topic_key("flights"))
    assert after is not None
    assert json.loads(after.value)["settings"] == {"remote.storage.enable": True, "retention.ms": 1}
    assert json.loads(after.value)["later"] == 1
    assert settings_of(store) == TopicSettings(retention_ms=1)


def test_a_topic_that_is_not_there(store: MetadataStore) -> None:
    with pytest.raises(NoSuchTopicError):
        alter_topic(store, "flights", {"retention.ms": 1})
    create(store)
    delete_topic(store, "flights")
    with pytest.raises(NoSuchTopicError, match="it is being deleted"):
        alter_topic(store, "flights", {"retention.ms": 1})


def test_partitions_that_are_added_have_the_brokers_that_were_chosen(store: MetadataStore) -> None:
    create(store)
    for _ in range(2):  # again, as after an unknown outcome
        grown = create_partitions(store, "flights", 3, {1: ["b"], 2: ["a"]})
    assert grown.partitions == 3 and grown.replicas_of(0) is None and grown.replicas_of(1) == ("b",)
    with pytest.raises(InvalidArgumentError, match="expected partitions from 3 to 3, found 1"):
        create_partitions(store, "flights", 4, {1: ["a"]})


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_parsed_from_texts_of_kafka(name: str) -> None:
    value = TopicSettings().values()[name]
    assert parse_setting(name, format_setting(value)) == value


def test_texts_that_are_no_values() -> None:
    assert parse_setting("retention.ms", "-1") is None and parse_setting("retention.ms", "0") == 0
    for name, text in (("retention.ms", "soon"), ("min.insync.replicas", "-1"), ("requires.sync", "1"), ("x", "1")):
        with pytest.raises(ConfigError):
            parse_setting(name, text)


NUMBERS = {
    "retention.ms": (0, 1 << 52),
    "retention.bytes": (0, 1 << 62),
    "segment.bytes": (1 << 16, 1 << 30),
    "segment.ms": (1, 1 << 52),
    "min.insync.replicas": (1, 64),
    "max.message.bytes": (0, 1 << 30),
    "message.timestamp.before.max.ms": (0, 1 << 62),
    "message.timestamp.after.max.ms": (0, 1 << 62),
    "delete.retention.ms": (0, 1 << 52),
    "min.compaction.lag.ms": (0, 1 << 52),
    "max.compaction.lag.ms": (1, 1 << 52),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_refused_outside_their_bounds(name: str) -> None:
    low, high = NUMBERS[name]
    for value in (low, high):
        assert TopicSettings.of({name: value}).values()[name] == value
        assert parse_setting(name, str(value)) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"^{name}: expected {low} to {high}.*found '{value}'"):
            TopicSettings.of({name: value})


def test_all_numbers_are_looked_at() -> None:
    fields = {field.name for field in dataclasses.fields(TopicSettings) if str(field.type) in ("int", "int | None")}
    assert {SETTINGS[name].field for name in NUMBERS} == fields


def test_a_topic_may_be_compacted_from_the_beginning_or_later(store: MetadataStore) -> None:
    settings = {"cleanup.policy": "compact,delete"}
    both = create_topic(store, "both", partitions=1, replication_factor=3, now_us=1, settings=settings)
    assert both.config.is_compacted and both.config.is_trimmed
    create_topic(store, "later", partitions=1, replication_factor=2, now_us=1)
    later = alter_topic(store, "later", {"cleanup.policy": "compact"})
    assert later.config.is_compacted and not later.config.is_trimmed
