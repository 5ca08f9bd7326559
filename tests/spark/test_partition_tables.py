"""Record batches as rows: a table of a partition's log is what was appended, record by record."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyreplog.errors import CorruptionError
from pyreplog.partition.protocol.record_batch import stamped
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.record_batches.batches import build_batch
from pyreplog.tables.planning import plan
from tests.ha.streams import config
from tests.partition.kafka_batches import TOPIC_ID, Expected, Writer, partition_path

from .reading import options_of, read_slices, read_table
from .streams import Query


def rows_of(table: pa.Table) -> list[Expected]:
    rows = table.to_pylist()
    return [
        Expected(row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000),
                 [(header["key"].encode(), header["value"]) for header in row["headers"]])
        for row in rows
    ]  # fmt: skip


def plain(rows: list[Expected]) -> list[Expected]:
    return [row._replace(transaction=-1) for row in rows]


def read(path: Path, **options: Any) -> list[Expected]:
    return rows_of(read_table(path, includeHeaders=True, **options))


def test_a_table_has_a_row_for_each_record_of_a_batch(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(path := partition_path(tmp_path), rng)
    with writer.log:
        writer.append(9)
        writer.end(9, is_commit=False)
        writer.at_random(60)
        writer.append(8)
        writer.show()
        assert read(path) == plain(writer.visible(committed=False))
        assert read(path, isolation="read_committed") == plain(writer.visible(committed=True))
        table = read_table(path, includeMetadata=True)
        assert set(table["topic"].to_pylist()) == {TOPIC_ID} and set(table["partition"].to_pylist()) == {0}
        rows = read(path, verifyChecksum=False, batchRows=7)
        assert rows == plain(writer.visible(committed=False))


def test_slices_begin_and_end_within_batches(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(path := partition_path(tmp_path), rng)
    with writer.log:
        writer.at_random(80)
        writer.show()
        end = writer.log.end
        for _ in range(10):
            low, high = sorted((rng.randint(0, end), rng.randint(0, end)))
            options = options_of(path, includeHeaders=True, startingOffsets=low, endingOffsets=high, minPartitions=5)
            rows = rows_of(read_slices(options, plan(options)))
            assert rows == [row for row in plain(writer.rows) if low <= row.offset < high]


def test_rows_end_at_the_high_watermark(tmp_path: Path, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append()
        shown = writer.log.end_mark
        writer.log.show_high_watermark(shown)
        writer.append()
        assert read(path) == plain(writer.visible(committed=False, end=shown.entry))


def test_native_messages_stand_between_batches(tmp_path: Path, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append(count=3)
        writer.log.append_messages([b"native"], [b"k"])
        writer.append(count=2)
        writer.show()
        table = read_table(path)
        assert table["offset"].to_pylist() == [0, 1, 2, 3, 4, 5]
        assert table["value"].to_pylist()[3] == b"native"


def test_a_damaged_batch_is_a_damaged_record(tmp_path: Path, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append(count=3)
        bad = stamped(build_batch([b"a", b"b"], timestamps_ms=[1, 2]), 3, 1)
        bad[-2] ^= 1
        writer.append_bytes(bad, 2)
        writer.append(count=2)
        writer.show()
        with pytest.raises(CorruptionError, match="CRC-32C of the batch"):
            read(path)
        rows = read_table(path, mode="PERMISSIVE").to_pylist()
        assert [row["offset"] for row in rows] == [0, 1, 2, None, 5, 6]
        assert rows[3]["_corrupt_record"] == bytes(bad)
        assert [row.offset for row in read(path, mode="DROPMALFORMED")] == [0, 1, 2, 5, 6]


def test_log_append_time_is_the_time_of_all_records(tmp_path: Path) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(0))
    with writer.log:
        batch = stamped(build_batch([b"a", None], timestamps_ms=[1, 2]), 0, 1, 5000)
        writer.append_bytes(batch, 2)
        writer.show()
        table = read_table(path)
        assert table["timestamp"].to_pylist() == [datetime.fromtimestamp(5, UTC)] * 2
        assert table["timestampType"].to_pylist() == [1, 1] and table["value"].to_pylist() == [b"a", None]


def test_a_brokers_directory_is_a_table_of_its_partitions(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "broker").write_bytes(b"")
    counts = []
    for number in range(3):
        writer = Writer(partition_path(broker, number), rng)
        with writer.log:
            writer.at_random(5)
            writer.show()
            counts.append(len(writer.rows))
    table = read_table(broker)
    assert [table["partition"].to_pylist().count(number) for number in range(3)] == counts


def test_replicas_of_a_partition_are_read_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    folders = [tmp_path / name for name in ("a", "b")]
    writer = Writer(partition_path(folders[0]), rng)
    with writer.log:
        writer.at_random(10)
        writer.show()
        with PartitionLog.open_or_create(partition_path(folders[1]), config(), uuid=writer.log.uuid) as follower:
            while follower.end_mark != writer.log.end_mark:
                follower.append_fetched(writer.log.read_frames(follower.end_mark, 1 << 20))
            follower.show_high_watermark(follower.end_mark)
            paths = json.dumps([str(partition_path(folder)) for folder in reversed(folders)])
            assert rows_of(read_table(None, paths=paths, includeHeaders=True)) == plain(writer.rows)


def test_a_stream_gives_each_record_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(path := partition_path(tmp_path), rng)
    with writer.log:
        writer.append(count=40)
        writer.show()
        isolation = rng.choice(("read_uncommitted", "read_committed"))
        limit = rng.randint(3, 20)
        with Query(path, isolation=isolation, maxOffsetsPerTrigger=limit, startingOffsets="earliest") as query:
            seen = query.read()
            for _ in range(4):
                writer.at_random(rng.randint(1, 10))
                writer.show()
                seen += query.read()
        wanted = writer.visible(committed=isolation == "read_committed")
        assert [(row["offset"], row["value"]) for row in seen] == [(row.offset, row.value) for row in wanted]
