"""Whatever records there are, and wherever the borders of batches and tasks fall: a report is what plain Python finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyreplog.reports.catalogue import report_of
from pyreplog.reports.snapshot import Snapshot
from tests.spark.reports.both import assert_rows
from tests.spark.reports.oracle import ORACLES, Record, grouped, key_skew
from tests.spark.reports.tasks import report_on

FACTS = Snapshot(as_of_us=0)
BEGIN_US = 1_700_000_000_000_000

AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)
"""Examples are small as they are: making them smaller would take minutes."""

STREAMS = st.sampled_from([
    ("t", -1, None), ("t", 0, None), ("u", 0, None), ("tt", 0, None), (None, -1, 3), (None, -1, 4),
])  # fmt: skip
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([2047, 2048, 2049, 5000, 70_001]))


@st.composite
def records_of(draw: st.DrawFn) -> list[Record]:
    """Of several streams side by side: holes in offsets, times that step back, numbers that come again."""
    records = list[Record]()
    offsets = dict[Any, int]()
    time = BEGIN_US
    for _ in range(draw(st.integers(0, 25))):
        topic, partition, ledger = stream = draw(STREAMS)
        offset = offsets.get(stream, -1) + draw(st.sampled_from([1, 1, 1, 1, 2, 5]))
        offsets[stream] = offset
        time += draw(st.sampled_from([0, 1, 1_000_000, 70_000_000, -1, -61_000_000]))
        producer = draw(st.sampled_from([None, "a", "b", ""]))
        sequence = None if producer is None and draw(st.booleans()) else draw(st.integers(0, 12))
        key = draw(st.sampled_from([None, b"", b"k", b"key 2", b"x" * 70 + b"1", b"x" * 70 + b"2"]))
        value = draw(st.sampled_from([b"v", b"w"])) * draw(SIZES)
        segment = None if ledger is None else f"{offset // 7}.log"
        records.append(Record(offset, time, value, key, producer, sequence, topic, partition, ledger, segment))
    return records


@st.composite
def tasks_of(draw: st.DrawFn) -> tuple[list[Record], list[list[list[Record]]]]:
    """Records, and those cut into tasks and batches, of which each may hold several streams."""
    records = draw(records_of())
    if draw(st.booleans()):  # streams behind each other, as they mostly are
        records = [record for some in grouped(records, "topic", "partition", "ledger").values() for record in some]
    tasks: list[list[list[Record]]] = [[[]]]
    for record in records:
        border = draw(st.sampled_from(["", "", "", "batch", "task"]))
        if border == "task":
            tasks.append([[]])
        elif border == "batch":
            tasks[-1].append([])
        tasks[-1][-1].append(record)
    return records, tasks


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=25, deadline=None, phases=AS_DRAWN)
@given(drawn=tasks_of())
def test_report_equals_plain_python_for_any_batches_and_tasks(
    name: str, drawn: tuple[list[Record], list[list[list[Record]]]]
) -> None:
    records, tasks = drawn
    report = report_of(name)
    actual_report = report_on(report, tasks, FACTS)
    assert actual_report.schema == report.schema()
    assert_rows(actual_report.to_pylist(), ORACLES[name](records))
    assert report_on(report, tasks[::-1], FACTS) == actual_report, "the order of tasks does not matter"


@settings(max_examples=15, deadline=None, phases=AS_DRAWN)
@given(drawn=tasks_of(), top=st.integers(1, 3))
def test_key_skew_is_right_however_tasks_are_cut(
    drawn: tuple[list[Record], list[list[list[Record]]]], top: int
) -> None:
    records, tasks = drawn
    assert_rows(report_on(report_of("key_skew", top=top), tasks, FACTS).to_pylist(), key_skew(records, top))


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("other", [("t", 0, None), ("u", -1, None), ("tt", -1, None)])
def test_streams_of_one_batch_are_kept_apart(name: str, other: tuple[str | None, int, None]) -> None:
    """Two that differ in one thing only."""
    records = [
        Record(n, BEGIN_US + n, b"v" * n, b"k", "a", n, *stream, None)
        for stream in (("t", -1, None), other)
        for n in range(3)
    ]
    assert_rows(report_on(report_of(name), [[records]], FACTS).to_pylist(), ORACLES[name](records))
