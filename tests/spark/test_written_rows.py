"""Rows of Arrow batches as calls of producers: against plain Python, row by row."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.spark.write import rows as writtenrows
from pyreplog.spark.write.columns import WrittenColumns
from pyreplog.spark.write.rows import RowBatch, rows_of
from pyreplog.topic.model.times import as_times_us

pa = pytest.importorskip("pyarrow")

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema([
    ("value", pa.binary()), ("key", pa.string()), ("headers", HEADERS), ("eventTime", TIME), ("topic", pa.string())
])  # fmt: skip
ALL = WrittenColumns(0, 1, 2, 3, 4)


def draw(chance: random.Random, rows: int) -> list[dict[str, Any]]:
    keys = chance.choice([0.0, 0.3, 1.0])  # how many are null
    return [
        {
            "value": chance.randbytes(chance.choice([0, 5, 40])),
            "key": None if chance.random() < keys else f"key {chance.randrange(9)}",
            "headers": chance.choice([None, [], [{"key": f"h{n}", "value": b"%d" % n} for n in range(3)]]),
            "eventTime": chance.choice([None, chance.randrange(1 << 50), chance.randrange(1 << 42)]),
            "topic": f"topic {chance.randrange(chance.choice([1, 3]))}",
        }
        for _ in range(rows)
    ]


def arrow(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def flat(calls: list[RowBatch]) -> dict[str, list[tuple[Any, ...]]]:
    """By topic, as the topic has them: what producers are given, row by row."""
    items: dict[str, list[tuple[Any, ...]]] = {}
    for rows in calls:
        given = rows.arguments()
        count = len(rows.numbers)
        values = [item if isinstance(item, bytes) else item.as_py() for item in given["values"]]
        keys = given["keys"] if given["keys"] is not None else [None] * count
        keys = [key if key is None or isinstance(key, bytes) else key.as_py() for key in keys]
        times = as_times_us("event_times", given["event_times"])  # a timestamp has a type: no number is in doubt
        times = times if times is not None else [None] * count
        times = [None if time in (None, -(1 << 63)) else int(time) for time in times]
        headers = given["properties"] or [None] * count
        assert {len(values), len(keys), len(times), len(headers)} == {count}
        items.setdefault(rows.topic, []).extend(
            zip(rows.numbers.tolist(), values, keys, times, headers, strict=True)  # type: ignore[arg-type]
        )
    return items


def wanted(rows: list[dict[str, Any]], first: int, topic: str | None) -> dict[str, list[tuple[Any, ...]]]:
    items: dict[str, list[tuple[Any, ...]]] = {}
    for number, row in enumerate(rows, first):
        headers = {pair["key"]: pair["value"] for pair in row["headers"] or ()} or None
        key = None if row["key"] is None else row["key"].encode()
        items.setdefault(topic or row["topic"], []).append((number, row["value"], key, row["eventTime"], headers))
    return items


@pytest.mark.parametrize("topic", [None, "one"])
def test_each_row_once_in_order(monkeypatch: pytest.MonkeyPatch, seed: int, topic: str | None) -> None:
    chance = random.Random(seed)
    columns = ALL if topic is None else ALL._replace(topic=None)
    for _ in range(60):
        monkeypatch.setattr(writtenrows, "CALL_BYTES", chance.choice([100, 1000, 1 << 20]))
        monkeypatch.setattr(writtenrows, "CALL_ROWS", chance.choice([1, 7, 1000]))
        rows = draw(chance, chance.randrange(40))
        low, first = chance.randrange(len(rows) + 1), chance.randrange(1 << 40)
        batch = arrow(rows).slice(low)  # begins in the middle of its buffers
        calls = list(rows_of(batch, columns, topic, first))
        assert flat(calls) == wanted(rows[low:], first, topic)
        assert all(0 < len(call.numbers) <= writtenrows.CALL_ROWS for call in calls)


def test_calls_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writtenrows, "CALL_BYTES", 10_000)
    row = {"value": b"v" * 300, "key": "k" * 300, "headers": [{"key": "h" * 100, "value": b"x" * 236}], "topic": "t"}
    calls = list(rows_of(arrow([row] * 100), ALL, None, 0))
    assert [len(call.numbers) for call in calls] == [10] * 10  # 300 + 300 + 336, and 64 for the row


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_text_and_large_columns_are_bytes(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["é", "b"]).cast(kind)], names=["value"])
    calls = list(rows_of(batch, WrittenColumns(0, None, None, None, None), "t", 0))
    assert [row[1] for row in flat(calls)["t"]] == ["é".encode(), b"b"]


GOOD = {"value": b"v", "key": "k", "headers": [], "eventTime": None, "topic": "t"}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"value": None}, "column value: expected a value in each row, found null in row 1002"),
        ({"topic": None}, "column topic: expected a topic in each row, found null in row 1002"),
        (
            {"headers": [{"key": "a", "value": b""}] * 2},
            r"headers: expected unique keys .* \['a', 'a'\] in row 1002",
        ),
        ({"headers": [{"key": None, "value": b""}]}, r"headers: .* no nulls, found \[None\] in row 1002"),
        ({"headers": [{"key": "a", "value": None}]}, r"headers: .* no nulls, found \['a'\] in row 1002"),
        ({"headers": [None]}, r"headers: .* no nulls, found \[None\] in row 1002"),
    ],
)
def test_bad_rows_are_named(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        flat(list(rows_of(arrow([GOOD, GOOD, GOOD | bad, GOOD]), ALL, None, 1000)))
