"""cat, tail and stat of a partition's log show the records of its batches."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from pyreplog import reports
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.protocol.record_batch import stamped
from pyreplog.record_batches.batches import build_batch
from tests.cli.support import Run
from tests.partition.kafka_batches import TOPIC_ID, Expected, Writer, partition_path


def rows_of(out: str) -> list[tuple[int, bool, bool]]:
    rows = [json.loads(line) for line in out.splitlines()]
    return [(row["entry"], row["key"] is None, row["value"] is None) for row in rows]


def of(rows: list[Expected]) -> list[tuple[int, bool, bool]]:
    return [(row.offset, row.key is None, row.value is None) for row in rows]


def test_cat_shows_the_records_of_batches(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.at_random(50)
        writer.show()
        assert rows_of(run("cat", path, "--json").out) == of(writer.visible(committed=False))
        committed = rows_of(run("cat", path, "--json", "--isolation", "read_committed").out)
        assert committed == of(writer.visible(committed=True))


def test_cat_begins_and_ends_within_a_batch(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append(count=40)
        writer.show()
        assert [row[0] for row in rows_of(run("cat", path, "--json", "--from", 7, "--to", 12).out)] == list(
            range(7, 12)
        )
        assert [row[0] for row in rows_of(run("tail", path, "--json", "-n", 3).out)] == [37, 38, 39]


def test_cat_ends_at_the_high_watermark(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append(count=4)
        writer.show()
        writer.append(count=4)
        assert [row[0] for row in rows_of(run("cat", path, "--json").out)] == [0, 1, 2, 3]


def test_a_record_has_its_own_fields(tmp_path: Path, run: Run) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(1))
    with writer.log:
        writer.append(count=5)
        writer.show()
        lines = [json.loads(line) for line in run("cat", path, "--json").out.splitlines()]
        assert [line["timestamp"] for line in lines] == [row.timestamp_ms * 1000 for row in writer.rows]
        assert [len(line["headers"]) for line in lines] == [len(row.headers) for row in writer.rows]


def test_stat_shows_topic_partition_and_offsets(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path, 3), random.Random(seed))
    with writer.log:
        writer.append(count=4)
        writer.append(7, count=2)
        writer.end(7, is_commit=False)
        writer.append(8, count=2)
        writer.show()
        fields = run("stat", path, "--json").json["partition"]
        assert (fields["topic_id"], fields["partition"]) == (TOPIC_ID, 3)
        assert (fields["high_watermark"], fields["last_stable_offset"]) == (9, 7)
        assert (fields["batches"], fields["records"], fields["markers"]) == (4, 8, 1)
        assert fields["producers"] == [7, 8] and fields["aborted_transactions"] == 1
        assert [epoch["epoch"] for epoch in fields["epochs"]] == [1]
        assert f"3 of topic {TOPIC_ID}" in run("stat", path).out


def test_fsck_names_the_batch_that_is_damaged_inside(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.append(count=4)
        writer.append(7, count=2)
        writer.end(7, is_commit=True)
        writer.show()
        assert run("fsck", path).code == 0
        bad = stamped(build_batch([b"a", b"b"], timestamps_ms=[1, 2]), 7, 1)
        bad[-2] ^= 1
        writer.append_bytes(bad, 2)
        writer.append(count=2)
        writer.show()
        done = run("fsck", path)
        assert done.code == 4 and "records 7 to 8" in done.out


def test_a_backup_keeps_the_numbers_of_batches(tmp_path: Path, run: Run, seed: int) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(seed))
    with writer.log:
        writer.at_random(40)
        writer.show()
        assert run("backup", path, tmp_path / "backup").code == 0
        assert run("restore", tmp_path / "backup", tmp_path / "restored").code == 0
        wanted = of(writer.visible(committed=True))
        assert rows_of(run("cat", tmp_path / "restored", "--json", "--isolation", "read_committed").out) == wanted
        assert (
            "of an unknown topic: the name of the directory does not contain it"
            in run("stat", tmp_path / "restored").out
        )


def test_sealed_segments_of_a_partition_are_offloaded(tmp_path: Path, run: Run) -> None:
    """Readers of the URL see the same records; `fsck` knows the files of a partition."""
    config = BrokerConfig(segment_bytes=64 << 10)
    with PartitionClient.embedded(tmp_path / "brokers", 1, broker_config=config) as client:
        partition = client.create_topic("flights")[0]
        for _ in range(6):
            partition.append_batch([b"x" * 5_000] * 5)
        (path,) = (tmp_path / "brokers" / "broker-0").glob("*-0")
        done = run("offload", path, f"file://{tmp_path}/offloaded", "--json")
        assert done.code == 0 and 0 < done.json["end"] < 30, done
        rows = reports.run("rate_by_minute", f"file://{tmp_path}/offloaded").to_pylist()
        assert sum(row["entries"] for row in rows) == done.json["end"]
    (tmp_path / "brokers" / "broker-0" / path.name / "00000000000009999999.producers").touch()
    checked = run("fsck", path)
    assert checked.code == 0 and checked.out.count(".producers") == 1
    assert "9999999.producers: a snapshot of a partition's producers whose segment is not in use" in checked.out


def test_dump_explains_the_header_of_a_batch(tmp_path: Path, run: Run) -> None:
    writer = Writer(path := partition_path(tmp_path), random.Random(1), codecs=(4,))
    with writer.log:
        writer.append(count=3)
        writer.append(producer=7, count=2)
        writer.end(7, is_commit=False)
        writer.show()
    for entry, expected in {
        1: {"base_offset": "offset 0 is the first", "last_delta": "offset 2 is the last", "records": "3 records",
            "attributes": "compressed: zstd", "producer_id": "no producer"},
        3: {"base_offset": "offset 3 is the first", "producer_id": "producer 7",
            "attributes": "compressed: zstd, transactional"},
        5: {"attributes": "not compressed, transactional, control", "marker": "aborts its transaction; version 0"},
    }.items():  # fmt: skip
        result = run("dump", path, "--entry", entry, "--json")
        fields = {field["name"]: field for field in result.json["fields"]}
        assert {name: fields[name]["meaning"] for name in expected} == expected
        assert (result.code, result.json["intact"]) == (0, True)
        places = sorted((field["offset"], field["length"]) for field in fields.values())
        assert all(start + length == following for (start, length), (following, _) in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("field", "at", "data"), [("batch_crc", 60, b"\1"), ("base_offset", 7, b"\7"), ("last_delta", 26, b"\7")]
)
def test_dump_finds_what_is_wrong_in_a_batch(tmp_path: Path, run: Run, field: str, at: int, data: bytes) -> None:
    """In a record whose own checksum is right: whoever appended it wrote it so."""
    writer = Writer(path := partition_path(tmp_path), random.Random(1), codecs=(0,))
    with writer.log:
        batch = bytearray(stamped(build_batch([b"a", b"b"], timestamps_ms=[1, 2]), 0, 1))
        batch[at : at + len(data)] = data
        writer.append_bytes(batch, 2)
        writer.show()
    result = run("dump", path, "--entry", 1, "--json")
    wrong = [each["name"] for each in result.json["fields"] if each["ok"] is False]
    assert result.code == 4 and field in wrong and "crc" not in wrong
