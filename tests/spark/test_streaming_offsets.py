"""Offsets of streams as Spark keeps them: their text, and what is said of those that make no sense; options; limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxFiles, ReadMinRows

from pyreplog.errors import CheckpointError, ConfigError
from pyreplog.spark.stream.limits import cut, shares
from pyreplog.spark.stream.offsets import SOURCE_PARTITIONS_MAX, Position, StreamOffset
from pyreplog.spark.stream.options import StreamOptions, check_batch
from pyreplog.spark.stream.reader import LogStreamReader
from pyreplog.tables.offsets import LAST
from pyreplog.tables.options import ReadOptions
from tests.spark.streams import Query, append, open_log

UUID = "00112233445566778899aabbccddeeff"
FINE = {"source": "pyreplog", "tasks": 1, "topics": {"t": {"-1": {"offset": 4, "token": "x"}}}, "v": 1}


def test_stream_offsets_have_their_golden_text() -> None:
    positions = {("b", 10): Position(7, "t2"), ("b", 2): Position(8, "t1"), ("a", -1): Position(0, "t0")}
    assert json.dumps(StreamOffset("topics", positions, 3).encode()) == (
        '{"source": "pyreplog", "tasks": 3, "topics": {"a": {"-1": {"offset": 0, "token": "t0"}}, '
        '"b": {"10": {"offset": 7, "token": "t2"}, "2": {"offset": 8, "token": "t1"}}}, "v": 1}'
    )
    logs = StreamOffset("logs", {(UUID, -1): Position(5, name="orders")})
    assert json.dumps(logs.encode()) == (
        f'{{"logs": {{"{UUID}": {{"name": "orders", "offset": 5}}}}, "source": "pyreplog", "tasks": 1, "v": 1}}'
    )


@given(st.dictionaries(st.tuples(st.text(max_size=5), st.integers(-1, 70_000)), st.integers(0, (1 << 63) - 1)))
def test_decode_reverses_encode_of_stream_offsets(numbers: dict[tuple[str, int], int]) -> None:
    offset = StreamOffset("topics", {key: Position(n, "t") for key, n in numbers.items()})
    text = json.dumps(offset.encode())
    again = StreamOffset.decode(json.loads(text))
    assert again == offset
    shuffled = StreamOffset("topics", dict(reversed(list(offset.positions.items()))))
    assert json.dumps(shuffled.encode()) == text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"orders": {"0": 5}}, "to another source: found the offset .*begin with a new checkpointLocation"),
        ([1], "to another source"),
        ({**FINE, "v": 2}, "version 2, this build reads 1: use the pyreplog version that wrote it, or begin"),
        ({**FINE, "v": True}, "version true"),
        ({**FINE, "v": None}, "version null"),
        ({**FINE, "logs": {}}, "damaged: expected logs or topics"),
        ({"source": "pyreplog", "tasks": 1, "v": 1}, "damaged: expected logs or topics"),
        ({**FINE, "tasks": 0}, "damaged: expected 1 to 1000000 tasks, found 0"),
        ({**FINE, "tasks": 1.5}, "damaged: expected 1 to 1000000 tasks, found 1.5"),
        ({**FINE, "topics": []}, "damaged"),
        ({**FINE, "topics": {"t": {"01": {"offset": 1, "token": ""}}}}, "number of a partition"),
        ({**FINE, "topics": {"t": {"x": {"offset": 1, "token": ""}}}}, "damaged"),
        ({**FINE, "topics": {"t": {"0": {"offset": -1, "token": ""}}}}, "an offset from 0 on"),
        ({**FINE, "topics": {"t": {"0": {"offset": 1 << 63, "token": ""}}}}, "an offset from 0 on"),
        ({**FINE, "topics": {"t": {"0": {"offset": True, "token": ""}}}}, "an offset from 0 on"),
        ({**FINE, "topics": {"t": {"0": {"offset": 1, "token": "", "more": 1}}}}, "an offset from 0 on"),
        ({**FINE, "topics": {"t": {"0": {"offset": 1, "token": 7}}}}, "token: expected text"),
        ({**FINE, "topics": {"t": {"0": {"offset": 1, "token": "x" * 2000}}}}, "token: expected text"),
        (
            {"logs": {"beef": {"name": "a", "offset": 1}}, "source": "pyreplog", "tasks": 1, "v": 1},
            "expected the uuid of a log",
        ),
        ({"logs": {"zz": {"name": "a", "offset": 1}}, "source": "pyreplog", "tasks": 1, "v": 1}, "damaged"),
    ],
)
def test_decode_of_an_invalid_stream_offset_raises_checkpoint_error(value: object, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        StreamOffset.decode(value)


def test_the_size_of_stream_offsets_is_bounded() -> None:
    many = {(f"t{n}", -1): Position(0, "x") for n in range(SOURCE_PARTITIONS_MAX + 1)}
    with pytest.raises(CheckpointError, match=f"at most {SOURCE_PARTITIONS_MAX} .*found {SOURCE_PARTITIONS_MAX + 1}"):
        StreamOffset("topics", many).encode()
    rows = {f"t{n}": {"-1": {"offset": 0, "token": "x"}} for n in range(SOURCE_PARTITIONS_MAX + 1)}
    with pytest.raises(CheckpointError, match=f"at most {SOURCE_PARTITIONS_MAX} logs or partitions"):
        StreamOffset.decode({**FINE, "topics": rows})


def test_a_checkpoint_of_the_other_kind(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 50)
    with Query(tmp_path / "log", offset=json.dumps(FINE)) as query:
        with pytest.raises(
            CheckpointError, match="of topics, and the query reads logs; begin with a new checkpointLocation"
        ):
            query.next()


# ---- options ---------------------------------------------------------------------------------------------------


def test_stream_options_are_parsed() -> None:
    options = StreamOptions.of({"path": "a", "maxoffsetspertrigger": "10k", "startingOffsets": "latest"})
    assert (options.max_rows, options.max_bytes, options.starting_offsets.everywhere) == (10 << 10, None, LAST)
    assert options.read == ReadOptions(paths=("a",))
    each = StreamOptions.of({"path": "a", "startingOffsets": '{"t": {"0": -1, "1": -2, "2": 5}}'})
    assert [each.starting_offsets.of(("t", n)) for n in range(3)] == [-1, -2, 5]
    timed = StreamOptions.of({"path": "a", "startingTimestamp": "5"})
    assert (timed.starting_time, timed.read.starting_time) == (5000, None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "1m"}, "expected at most one of them, found 2"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: expected 1 to"),
        ({"maxBytesPerTrigger": "x"}, "maxBytesPerTrigger: expected 1 to"),
        ({"endingOffsets": "5"}, "readStream, which has no end"),
        ({"endingTimestamp": "5"}, "readStream, which has no end"),
        (
            {"startingOffsets": "5", "startingTimestamp": "5"},
            "startingOffsets, startingTimestamp: expected at most one",
        ),
        ({"startingOffsets": "-3"}, "startingOffsets: .*found -3"),
        ({"startingOffsets": "newest"}, "startingOffsets: expected"),
        ({"ledgers": "5"}, "ledgers, replica: expected with read"),
        ({"view": "rate_by_minute"}, "view: expected with read, found with readStream"),
        ({"replica": "all"}, "ledgers, replica: expected with read"),
        ({"maxRowsPerTrigger": "5"}, "unknown option 'maxrowspertrigger'; there are .*, maxOffsetsPerTrigger,"),
    ],
)
def test_options_that_no_stream_has(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StreamOptions.of({"path": "a", **given})


def test_ledgers_of_a_cluster_are_no_stream() -> None:
    with pytest.raises(ConfigError, match="cluster: expected topics or topicsPattern"):
        StreamOptions.of({"cluster": "sqlite:/nowhere"})


def test_limits_of_spark_that_mean_nothing_here(tmp_path: Path) -> None:
    reader = LogStreamReader(StreamOptions.of({"path": str(tmp_path)}), ())
    for limit in (ReadMaxFiles(3), ReadMinRows(3)):
        with pytest.raises(ConfigError, match="read limit: expected rows or bytes at most, found Read"):
            reader.latestOffset({}, limit)


def test_a_batch_has_no_limits() -> None:
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger: expected with readStream"):
        check_batch({"MAXoffsetspertrigger": "5"})


# ---- limits ----------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 1000),
    st.dictionaries(st.integers(), st.integers(0, 1000), max_size=8),
    st.integers(0, (1 << 32) - 1),
)
def test_a_limit_is_shared_among_logs(limit: int, waiting: dict[int, int], turn: int) -> None:
    actual_shares = shares(limit, waiting, turn)
    assert actual_shares.keys() == waiting.keys()
    assert sum(actual_shares.values()) == min(limit, sum(waiting.values()))
    hungry = [key for key, amount in waiting.items() if amount]
    left = max(sum(waiting.values()) - len(hungry), 1)
    for key, amount in waiting.items():
        assert 0 <= actual_shares[key] <= amount
        if len(hungry) <= limit < sum(waiting.values()) and amount:
            assert abs(actual_shares[key] - 1 - (limit - len(hungry)) * (amount - 1) / left) < 1 + 1e-9
    if limit < len(hungry):
        assert all(any(shares(limit, waiting, turn + n)[key] for n in range(len(hungry))) for key in hungry)


@given(
    st.dictionaries(
        st.integers(), st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple), max_size=5
    ),
    st.integers(1, 12),
)
def test_ranges_are_cut_into_equal_parts(ranges: dict[int, tuple[int, int]], count: int) -> None:
    parts = [[(key, n) for key, bounds in part for n in range(*bounds)] for part in cut(ranges, count)]
    assert [row for part in parts for row in part] == [
        (key, n) for key, bounds in ranges.items() for n in range(*bounds)
    ]
    sizes = [len(part) for part in parts]
    assert len(parts) <= count and all(size > 0 for size in sizes)
    assert not sizes or len(parts) < count or max(sizes) - min(sizes) <= 1
