"""Damaged, foreign and truncated segments, in each mode."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyreplog
from pyreplog.errors import CorruptionError
from pyreplog.tables.planning import plan
from tests import samples
from tests.spark.reading import column, options_of, read_slices, read_table

HEADER = 4096


@pytest.fixture
def log(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "log")
    return tmp_path / "log"


def place(log: Path, entry: int) -> tuple[Path, int]:
    """Segment file and offset of an entry's record."""
    position = samples.position_of(log, entry)
    return samples.segments(log)[position // samples.SEGMENT_BYTES], position % samples.SEGMENT_BYTES


def test_failfast_names_the_place(log: Path) -> None:
    position = samples.position_of(log, 500)
    path, offset = place(log, 500)
    samples.flip(path, offset + 40)
    with pytest.raises(CorruptionError, match=f"{path.name} at position {position}: expected CRC-32C") as caught:
        read_table(log)
    assert caught.value.position == position


def test_drop_malformed_goes_on_behind_damage(log: Path) -> None:
    for entry in (3, 500, 501, 900):
        path, offset = place(log, entry)
        samples.flip(path, offset + 40)
    offsets = column(log, "offset", mode="DROPMALFORMED", verifyChecksum=True)
    assert offsets == [n for n in range(samples.ENTRIES) if n not in (3, 500, 501, 900)]


def test_permissive_mode_returns_damaged_records_with_their_position(log: Path) -> None:
    path, offset = place(log, 500)
    samples.flip(path, offset + 40)
    raw = path.read_bytes()[offset:]
    rows = read_table(log, includeMetadata=True, mode="PERMISSIVE").to_pylist()
    assert [row["offset"] for row in rows] == [None if n == 500 else n for n in range(samples.ENTRIES)]
    bad = rows[500]
    length = (int.from_bytes(raw[:4], "little") + 7) & ~7
    assert bad["_corrupt_record"] == raw[:length]
    assert (bad["crcOk"], bad["key"], bad["value"], bad["segment"]) == (False, None, None, path.name)
    assert bad["position"] == samples.position_of(log, 499) + samples_stride(log, 499)
    assert all(row["crcOk"] and row["_corrupt_record"] is None for row in rows if row is not bad)


def samples_stride(log: Path, entry: int) -> int:
    with pyreplog.open(log, "r") as reader:
        return (len(reader.get(entry).raw) + 7) & ~7


@pytest.mark.parametrize("name", ["offset", "value"])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_lost_length_costs_little(log: Path, indexed: bool, name: str) -> None:
    """The next record is found again, by the index or by its looks; whether values are read or headers alone."""
    path, offset = place(log, 100)
    samples.flip(path, offset, bit=3)
    if not indexed:
        for index in samples.indexes(log):
            index.unlink()
    table = read_table(log, columns=f"offset,{name}" if name != "offset" else name, mode="DROPMALFORMED")
    assert table["offset"].to_pylist() == [n for n in range(samples.ENTRIES) if n != 100]


def test_rows_around_a_stretch_of_rubbish_are_read(log: Path) -> None:
    path, offset = place(log, 200)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(10_000))
    offsets = column(log, "offset", mode="DROPMALFORMED")
    assert offsets == [n for n in range(samples.ENTRIES) if n < 200 or n >= offsets[200]]
    assert 200 < offsets[200] <= 200 + 10_000 // 40
    rows = read_table(log, columns="offset,_corrupt_record", mode="PERMISSIVE", minPartitions=7).to_pylist()
    assert [row["offset"] for row in rows if row["offset"] is not None] == offsets
    assert 10_000 <= sum(len(row["_corrupt_record"]) for row in rows if row["offset"] is None) < 10_500


def test_the_last_record_of_a_segment(log: Path) -> None:
    last = samples.first_entries(log)[1] - 1
    path, offset = place(log, last)
    samples.flip(path, offset + 5)
    assert column(log, "offset", mode="DROPMALFORMED", verifyChecksum=True) == [
        n for n in range(samples.ENTRIES) if n != last
    ]


def test_a_copy_of_a_record_in_a_value_is_not_taken_for_one(tmp_path: Path) -> None:
    """Behind a bad record, its value is searched for the next one: a record of an earlier number in there is none."""
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=samples.SEGMENT_BYTES) as log:
        log.append(b"first")
        raw = bytes(log.get(0).raw)
        log.append(b"." * (-len(raw) % 8) + raw * 3)
        log.append(b"third")
    file, offset = place(path, 1)
    samples.flip(file, offset + 36)
    assert column(path, "value", mode="DROPMALFORMED") == [b"first", b"third"]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_rows_read_from_random_damage_are_right(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever bits are wrong: what is called right is, in order; and headers alone are read without harm."""
    source = tmp_path_factory.getbasetemp() / "sound"
    if not source.exists():
        samples.make_log(source)
    path = tmp_path_factory.mktemp("damaged") / "log"
    shutil.copytree(source, path)
    which = data.draw(st.integers(0, 3))
    file, bounds = samples.segments(path)[which], [*samples.first_entries(path), samples.ENTRIES]
    for offset in data.draw(st.lists(st.integers(HEADER, 3 * HEADER), min_size=1, max_size=20)):
        samples.flip(file, offset, bit=data.draw(st.integers(0, 7)))
    everything = {"includeHeaders": True, "includeMetadata": True, "mode": "PERMISSIVE"}
    rows = read_table(path, **everything, minPartitions=3).to_pylist()
    sound = [row for row in rows if row["crcOk"]]
    assert [(row["key"], row["value"]) for row in sound] == [
        (samples.key_of(row["offset"]), samples.value_of(row["offset"])) for row in sound
    ]
    assert [row["offset"] for row in sound] == sorted({row["offset"] for row in sound})
    assert samples.ENTRIES - 20 * 5 <= len(sound) <= samples.ENTRIES
    names = "key,value,headers,producerName,sequenceId,eventTime,size,offset"
    unverified = read_table(path, columns=names, verifyChecksum=False, mode="DROPMALFORMED")
    values = set(unverified["offset"].to_pylist())  # a wrong length may hide the records behind it in its segment
    assert values.issuperset(range(bounds[which])) and values.issuperset(range(bounds[which + 1], samples.ENTRIES))
    shutil.rmtree(path)


# ---- whole files -----------------------------------------------------------------------------------------------


def spoil_header(path: Path, tmp_path: Path) -> None:
    samples.flip(path, 40)


def swap(path: Path, tmp_path: Path) -> None:
    samples.make_log(tmp_path / "other")
    shutil.copy(tmp_path / "other" / path.name, path)


def cut(path: Path, tmp_path: Path) -> None:
    os.truncate(path, 30_000)


def remove(path: Path, tmp_path: Path) -> None:
    path.unlink()


WAYS = [
    (spoil_header, "header CRC-32C"),
    (swap, "a segment of log"),
    (cut, "a file of 65536 bytes, found 30000 bytes"),
    (remove, "a segment of a log that ends at .*, found no file"),
]


@pytest.mark.parametrize(("spoil", "says"), WAYS, ids=lambda way: getattr(way, "__name__", ""))
def test_files_that_are_no_segments(log: Path, tmp_path: Path, spoil: object, says: str) -> None:
    assert callable(spoil)
    path = samples.segments(log)[1]
    low, high = samples.first_entries(log)[1:3]
    spoil(path, tmp_path)
    with pytest.raises(CorruptionError, match=says):
        plan(options_of(log))
    rest = [n for n in range(samples.ENTRIES) if not low <= n < high]
    assert column(log, "offset", mode="DROPMALFORMED") == rest
    rows = read_table(log, mode="PERMISSIVE", columns="offset,segment,_corrupt_record").to_pylist()
    assert [row["offset"] for row in rows] == [*rest[:low], None, *rest[low:]]
    assert rows[low]["segment"] == path.name
    assert rows[low]["_corrupt_record"] == (path.read_bytes()[:HEADER] if path.exists() else b"")


@pytest.mark.parametrize(("spoil", "says"), WAYS[:3], ids=lambda way: getattr(way, "__name__", ""))
def test_files_damaged_after_planning_are_passed_over(log: Path, tmp_path: Path, spoil: object, says: str) -> None:
    assert callable(spoil)
    options = options_of(log, columns="offset", mode="DROPMALFORMED", failOnDataLoss=False)
    tasks = plan(options)
    low, high = samples.first_entries(log)[1:3]
    spoil(samples.segments(log)[1], tmp_path)
    rest = [n for n in range(samples.ENTRIES) if not low <= n < high]
    assert read_slices(options, tasks)["offset"].to_pylist() == rest


def test_a_damaged_index_is_done_without(log: Path) -> None:
    for index in samples.indexes(log):
        samples.flip(index, 120)
    assert column(log, "offset", minPartitions=9, startingOffsets=300) == list(range(300, samples.ENTRIES))


def test_a_log_without_its_checkpoint_is_read(log: Path) -> None:
    (log / "checkpoint").unlink()
    (log / "tail").unlink()
    assert column(log, "offset") == list(range(samples.ENTRIES))
