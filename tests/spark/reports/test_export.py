"""Exports as Parquet files, beside what the log, or the topic, holds."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import pyreplog
from pyreplog.errors import CorruptionError, InvalidArgumentError
from pyreplog.reports.export import all_topics, export
from pyreplog.tables.options import ReadOptions
from tests.spark.clusters import embedded

SEGMENT = 64 << 10
COUNT = 3000


@pytest.fixture
def log(tmp_path: Path, seed: int) -> Path:
    """Of several segments."""
    draw = random.Random(seed)
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        for _ in range(COUNT // 100):
            log.append_batch(
                [draw.randbytes(draw.randrange(200)) for _ in range(100)],
                [draw.choice([None, b"k", b"\xff"]) for _ in range(100)],
            )
    return tmp_path / "log"


def options(path: Path, **given: str) -> ReadOptions:
    return ReadOptions.of(all_topics({"path": str(path), **given}))


def read(files: list[Path]) -> pa.Table:
    return pa.concat_tables(parquet.read_table(file) for file in files)


def test_every_record_is_there_once_and_offsets_ascend(log: Path, tmp_path: Path) -> None:
    new_export = export(options(log, minPartitions="7"), tmp_path / "out")
    table = read(new_export.files)
    with pyreplog.open(log, "r") as source:
        expected = [(record.key, record.value, record.timestamp) for batch in source.read() for record in batch]
    key = zip(
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        table["timestamp"].cast(pa.int64()).to_pylist(),
        strict=True,
    )
    assert list(key) == expected
    assert table["offset"].to_pylist() == list(range(COUNT))
    assert new_export.rows == COUNT
    assert len(new_export.files) == 7
    assert new_export.bytes == sum(file.stat().st_size for file in new_export.files)
    assert sorted((tmp_path / "out").iterdir()) == new_export.files


def test_files_say_what_is_in_them(log: Path, tmp_path: Path) -> None:
    new_export = export(options(log, minPartitions="3"), tmp_path / "out")
    ends = []
    for file in new_export.files:
        group = parquet.ParquetFile(file).metadata.row_group(0)
        columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
        assert columns["value"].compression == "ZSTD"
        ends.append((columns["offset"].statistics.min, columns["offset"].statistics.max))
    assert ends[0][0] == 0
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ends))


def test_export_into_a_directory_with_files_is_refused_without_overwrite(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = export(options(log), target)
    before = {file: file.read_bytes() for file in first.files}
    with pytest.raises(InvalidArgumentError, match="expected an empty directory"):
        export(options(log), target)
    assert {file: file.read_bytes() for file in target.iterdir()} == before
    again = export(options(log, minPartitions="5"), target, overwrite=True)
    assert sorted(target.iterdir()) == again.files
    assert len(again.files) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"], "nothing is left beside it"


def test_an_error_leaves_what_was_there(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = export(options(log), target)
    before = {file: file.read_bytes() for file in first.files}
    segment = sorted(log.glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[SEGMENT // 2] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(CorruptionError):
        export(options(log, minPartitions="4"), target, overwrite=True)
    assert {file: file.read_bytes() for file in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


def test_an_empty_log_is_a_file_without_rows(tmp_path: Path) -> None:
    pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT).close()
    new_export = export(options(tmp_path / "log"), tmp_path / "out")
    assert new_export.rows == 0
    assert "value" in read(new_export.files).column_names


def test_messages_of_topics_and_columns_that_are_chosen(tmp_path: Path) -> None:
    with embedded(tmp_path / "cluster") as cluster:
        for name in ("a,b", "plain"):
            topic = cluster.topic(name)
            for n in range(20):
                topic.publish(b"%s %d" % (name.encode(), n))
    new_export = export(options(tmp_path / "cluster", columns="topic,offset,value"), tmp_path / "out")
    rows = read(new_export.files).to_pylist()
    assert sorted((row["topic"], row["offset"], row["value"]) for row in rows) == [
        (name, n, b"%s %d" % (name.encode(), n)) for name in ("a,b", "plain") for n in range(20)
    ]
    item = export(options(tmp_path / "cluster", topics='["a,b"]'), tmp_path / "one")
    assert item.rows == 20


def test_small_row_groups_hold_all(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.reports.export.GROUP_BYTES", 10_000)
    new_export = export(options(log, batchRows="100"), tmp_path / "out")
    assert parquet.ParquetFile(new_export.files[0]).metadata.num_row_groups > 3
    assert read(new_export.files)["offset"].to_pylist() == list(range(COUNT))
