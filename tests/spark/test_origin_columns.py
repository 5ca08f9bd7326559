"""Columns of where a message was published: the cluster, and its offset and its publish time there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyreplog
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.cursors.subscription_metadata import (
    SubscriptionMetadata,
    create_subscription,
    delete_subscription,
    load_subscription,
)
from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.store import MetadataStore
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry
from pyreplog.tables.cluster.entry_slices import EntrySlice
from pyreplog.tables.cluster.stored_metadata import StoredMetadata
from pyreplog.tables.paths import METADATA
from pyreplog.tables.planning import plan
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.origins import ORIGINS
from pyreplog.topic.owner.topic import Topic
from tests import samples
from tests.geo.sites import Site, has_all
from tests.spark.clusters import KEPT, Nodes, embedded
from tests.spark.reading import options_of, read_table
from tests.spark.streams import Query

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

PATIENCE_S = 30.0
TIME_US = 1_700_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = "offset,originCluster,originOffset,originPublishTime"
SOURCES = [
    Origin(bytes(range(0xF0, 0x100)), "0123456789abcdef"),
    Origin(b"\x0a" * 16, "fedcba"),
    Origin(bytes(16), "z"),
]
"""Ascending by key or not: each is looked up."""
Place = tuple[int, str | None, int | None, int | None]
"""Offset in the topic; cluster, offset, and time in microseconds since 1970, of where it was published."""


def entry(first: int, messages: int, *gaps: Gap, **settings: Any) -> OriginEntry:
    values = [b"%d" % number for number in range(first, first + messages)]
    return OriginEntry(encode_messages(values, **settings), messages, first, TIME_US + first, gaps)


def fill(topic: Topic) -> list[Place]:
    """Messages of three origins, and own ones, in turns; where each was published."""
    places: list[Place] = []
    for source in SOURCES:
        topic.origins.open(source, 1).result(PATIENCE_S)
    at = dict.fromkeys(SOURCES, 0)
    for turn in range(12):
        source = SOURCES[turn % 3]
        gaps = [Gap(at[source], at[source] + 100, GapCause.EXPIRED)] if turn >= 9 else []
        first, count = at[source] + 100 * len(gaps), turn % 4 + 1
        topic.origins.replicate(source, 1, [entry(first, count, *gaps)]).result(PATIENCE_S)
        places += [(len(places) + n, source.cluster.hex(), first + n, TIME_US + first) for n in range(count)]
        at[source] = first + count
        if turn % 2:
            topic.publish_batch([b"own"] * 3)
            places += [(len(places) + n, None, None, None) for n in range(3)]
    return places


def open_topic(cluster: pyreplog.Cluster, name: str = "orders") -> Topic:
    topic = cluster.topic(name, durability="appended", roll_entries=4, **KEPT)
    assert isinstance(topic, Topic)
    return topic


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Place]]]:
    path = tmp_path_factory.mktemp("origins") / "data"
    with embedded(path) as cluster:
        with open_topic(cluster) as topic:
            places = fill(topic)
        with open_topic(cluster, "own") as topic:
            topic.publish_batch([b"1", b"2"])
    yield path, places


def places_of(path: Path | None, **options: object) -> list[Place]:
    options.setdefault("columns", COLUMNS)
    rows = read_table(path, **{"topics": "orders", **options}).to_pylist()
    return [place_of(row) for row in rows]


def place_of(row: Mapping[str, Any] | Row) -> Place:
    """Of a row of a table, or of Spark, whose times are those of the local zone."""
    moment = row["originPublishTime"]
    time_us = None if moment is None else (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    return row["offset"], row["originCluster"], row["originOffset"], time_us


# ---- rows ------------------------------------------------------------------------------------------------------


def test_origin_columns_tell_where_each_message_was_published(place: tuple[Path, list[Place]]) -> None:
    path, places = place
    with StoredMetadata(path / METADATA) as metadata:
        assert load_subscription(metadata, "orders", ORIGINS).cursor_ledger >= 0
    assert places_of(path) == places
    assert places_of(path, minPartitions=5, batchRows=2) == places
    assert places_of(path, columns="originPublishTime,originOffset,offset,originCluster") == places
    assert {cluster for _, cluster, *_ in places} == {None, *(source.cluster.hex() for source in SOURCES)}


def test_origin_columns_are_right_from_the_middle_of_entries(place: tuple[Path, list[Place]]) -> None:
    path, places = place
    for low in range(len(places)):
        assert places_of(path, startingOffsets=low, endingOffsets=min(low + 5, len(places))) == places[low : low + 5]


def test_origin_columns_are_the_last_of_all_columns(place: tuple[Path, list[Place]]) -> None:
    path, places = place
    table = read_table(path, topics="orders", includeMetadata=True)
    assert table.column_names[-3:] == ["originCluster", "originOffset", "originPublishTime"]
    assert places_of(path, columns="originPublishTime,offset,originOffset,originCluster", includeHeaders=True) == places


def test_origin_columns_of_own_messages_are_null(place: tuple[Path, list[Place]]) -> None:
    assert places_of(place[0], topics="own") == [(0, None, None, None), (1, None, None, None)]


def test_logs_and_ledgers_have_none(place: tuple[Path, list[Place]], tmp_path: Path) -> None:
    samples.make_log(tmp_path / "log")
    for path, options in ((tmp_path / "log", {}), (place[0], {"replica": "all"})):
        table = read_table(path, columns="originCluster,originOffset,originPublishTime", **options)
        assert table.num_rows and [column.null_count for column in table.columns] == [table.num_rows] * 3


def test_origin_columns_are_read_over_tcp(tmp_path: Path) -> None:
    with Nodes(tmp_path, ("b0", "b1", "b2")) as nodes, pyreplog.Cluster.connect(nodes.url) as cluster:
        with open_topic(cluster) as topic:
            places = fill(topic)
            confirmed = places_of(None, cluster=nodes.url)
            assert len(places) - 3 <= len(confirmed), "bookies may not know yet that the last entry is confirmed"
            assert confirmed == places[: len(confirmed)]
        assert places_of(None, cluster=nodes.url) == places


def test_replicated_messages_have_origin_columns(tmp_path: Path) -> None:
    with Site(tmp_path / "a") as here, Site(tmp_path / "b") as there:
        here.topic().publish_batch([b"%d" % n for n in range(5)])
        there.topic().publish_batch([b"own"] * 2)
        has_all(here.replicate("b", there.server.address), 5)
        name = cluster_id(here.cluster.metadata).hex()
        times = [time for batch in here.topic().read() for time in batch.publish_time.tolist()]
    own: list[Place] = [(0, None, None, None), (1, None, None, None)]
    assert places_of(tmp_path / "b", topics="t") == own + [(2 + n, name, n, times[n]) for n in range(5)]


# ---- what is not known -----------------------------------------------------------------------------------------


def by_key(places: list[Place]) -> list[Place]:
    keys = {source.cluster.hex(): f"key:{source.key:016x}" for source in SOURCES}
    return [(offset, cluster and keys[cluster], *others) for offset, cluster, *others in places]


@pytest.fixture
def forgotten(tmp_path: Path) -> tuple[Path, list[Place]]:
    """A topic whose origins are stored nowhere."""
    with embedded(tmp_path / "data") as cluster:
        with open_topic(cluster) as topic:
            places = fill(topic)
        delete_subscription(cluster.metadata, "orders", ORIGINS)
    return tmp_path / "data", places


def test_an_origin_that_is_not_known(forgotten: tuple[Path, list[Place]]) -> None:
    path, places = forgotten
    assert places_of(path) == by_key(places)


def put_malformed(store: MetadataStore) -> None:
    record = SystemCursorRecord(0, TopicPosition(0, 0, 0), b"\xff" * 9).to_bytes()
    create_subscription(store, "orders", ORIGINS, SubscriptionMetadata(token="t", created_us=1, snapshot=record))


def test_origins_that_cannot_be_decoded(forgotten: tuple[Path, list[Place]]) -> None:
    """They are an error, or not known, as the mode says; whoever does not ask for the column does not notice."""
    path, places = forgotten
    with embedded(path) as cluster:
        put_malformed(cluster.metadata)
    with pytest.raises(InvalidMetadataError, match="origins snapshot"):
        places_of(path)
    assert places_of(path, mode="PERMISSIVE") == by_key(places)
    table = read_table(path, topics="orders", columns="offset,originOffset,originPublishTime")
    assert table["originOffset"].to_pylist() == [number for _, _, number, _ in places]
    assert table["originPublishTime"].null_count == sum(time_us is None for *_, time_us in places)


def test_origin_clusters_are_looked_up_only_for_their_column(place: tuple[Path, list[Place]]) -> None:
    def clusters(columns: str) -> set[int]:
        tasks = plan(options_of(place[0], topics="orders", columns=columns))
        parts = [part for task in tasks for part in task]
        return {len(part.topic.clusters) for part in parts if isinstance(part, EntrySlice) and part.topic is not None}

    assert clusters("key,value,offset,originOffset,originPublishTime") == {0}
    assert clusters("originCluster") == {24 * len(SOURCES)}


# ---- streams, and Spark ----------------------------------------------------------------------------------------


def test_a_stream_has_origin_columns(place: tuple[Path, list[Place]]) -> None:
    path, places = place
    with Query(path, topics="orders", columns=COLUMNS, maxOffsetsPerTrigger=7) as query:
        batches = list(query.batches())
    assert len(batches) > 3
    rows = [row for batch in batches for row in batch]
    assert [place_of(row) for row in rows] == places


def sorted_places(rows: list[Row]) -> list[Place]:
    return sorted(map(place_of, rows))


def test_spark_reads_origin_columns(spark: SparkSession, place: tuple[Path, list[Place]], tmp_path: Path) -> None:
    """By an option, and by a schema, of which the options do not tell; and streams of both."""
    path, places = place
    reader = spark.read.format("pyreplog").option("topics", "orders").option("minPartitions", "2")
    assert sorted_places(reader.option("columns", COLUMNS).load(str(path)).collect()) == places
    schema = "offset bigint, originPublishTime timestamp, originOffset bigint, originCluster string"
    frame = spark.read.format("pyreplog").option("topics", "orders").schema(schema).load(str(path))
    assert sorted_places(frame.collect()) == places
    counts = {row["originCluster"]: row["count"] for row in frame.groupBy("originCluster").count().collect()}
    assert counts[None] == sum(cluster is None for _, cluster, *_ in places)

    rows: list[Row] = []
    stream = spark.readStream.format("pyreplog").option("topics", "orders").schema(schema).load(str(path))
    writer = stream.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    assert sorted_places(rows) == places
