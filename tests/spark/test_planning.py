"""Planning: every record in exactly one task, tasks of equal bytes, and nothing read but indexes."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import ConfigError, NotALogError, OutOfRangeError, TrimmedError
from pyreplog.tables.planning import pack, plan, task_count
from tests import samples
from tests.spark.reading import bytes_planned, column, options_of, read_slices, read_table

SEGMENT = 64 << 10
HEADER = 4096


def make_log(path: Path, sizes: list[int], *, step_us: int = 1_000_000) -> None:
    """An entry for each size; entry n is appended at second n."""
    clock = ManualClock(0)
    with pyreplog.open(path, segment_bytes=SEGMENT, clock=clock) as log:
        for n, size in enumerate(sizes):
            log.append(b"%d." % n + b"v" * size)
            clock.advance(step_us)


def clear(path: Path, start: int, stop: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xee" * (stop - start))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 60), st.integers(0, 9000)), max_size=120),
    most=st.integers(1, 300_000),
    least=st.integers(1, 20),
    bounds=st.tuples(st.integers(0, 130), st.integers(0, 130)),
    closed=st.booleans(),
)
def test_each_record_is_in_one_task(
    sizes: list[int], most: int, least: int, bounds: tuple[int, int], closed: bool
) -> None:
    low, high = sorted(min(bound, len(sizes)) for bound in bounds)
    with tempfile.TemporaryDirectory() as folder, pyreplog.open(Path(folder) / "log", segment_bytes=SEGMENT) as log:
        for size in sizes:
            log.append(b"v" * size)
        if closed:
            log.close()
        options = options_of(
            log.path, maxPartitionBytes=most, minPartitions=least, startingOffsets=low, endingOffsets=high,
            columns="offset,size",
        )  # fmt: skip
        rows = read_slices(options, plan(options)).to_pylist()
    assert [(row["offset"], row["size"]) for row in rows] == [(n, sizes[n]) for n in range(low, high)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_planned_tasks_have_equal_bytes(tmp_path: Path, count: int) -> None:
    make_log(tmp_path / "log", [1000] * 1200)
    tasks = plan(options_of(tmp_path / "log", minPartitions=count))
    sizes = [bytes_planned([task]) for task in tasks]
    assert len(tasks) == count
    assert max(sizes) - min(sizes) <= 2 * SEGMENT  # the segment that was written last has no index yet, and is not cut


@pytest.mark.parametrize(
    ("total", "least", "tasks"),
    [(0, 1, 1), (1600, 1, 1), (1700, 1, 1), (1701, 1, 2), (6401, 1, 4), (6800, 1, 4), (6801, 1, 5), (6401, 7, 7)],
)
def test_a_few_bytes_more_are_no_task(total: int, least: int, tasks: int) -> None:
    """Of four tasks for four cores, or two, a fifth would be waited for by all others."""
    assert task_count(total, 1600, least) == tasks


def test_small_logs_share_a_task(tmp_path: Path) -> None:
    for n in range(20):
        make_log(tmp_path / f"log{n:02}", [100] * 5)
    options = options_of(tmp_path / "log*", columns="topic,offset")
    tasks = plan(options)
    assert len(tasks) == 1
    rows = read_slices(options, tasks).to_pylist()
    assert [(row["topic"], row["offset"]) for row in rows] == [(f"log{n:02}", i) for n in range(20) for i in range(5)]


def test_planning_reads_no_record(tmp_path: Path) -> None:
    """With every byte behind the segments' headers gone, the plan is the same."""
    path = tmp_path / "log"
    make_log(path, [1000] * 600)
    options = options_of(path, minPartitions=5, startingOffsets=100, endingOffsets=500)
    before = plan(options)
    for file in samples.segments(path):
        clear(file, HEADER, SEGMENT)
    assert plan(options) == before
    assert sum(len(task) for task in before) > 5


def test_planning_reads_a_block_a_segment(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [1000] * 600)
    segments = len(samples.segments(tmp_path / "log"))
    options = options_of(tmp_path / "log")
    plan(options)  # imports, and the first use of what is mapped
    before = bytes_read()
    plan(options)
    assert bytes_read() - before <= (segments + 12) * HEADER


def bytes_read() -> int:
    """By this thread, with read and pread."""
    lines = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(lines["rchar"])


# ---- ranges ----------------------------------------------------------------------------------------------------


def test_a_time_range_touches_its_part_of_the_log(tmp_path: Path) -> None:
    """One per cent of the time: at most two per cent of the bytes; all others may be gone."""
    path = tmp_path / "log"
    make_log(path, [3000] * 4000)
    low, high = 2000, 2040
    options = options_of(path, startingTimestamp=low * 1000, endingTimestamp=high * 1000, columns="offset,value")
    tasks = plan(options)
    total = sum(file.stat().st_size for file in samples.segments(path))
    assert bytes_planned(tasks) <= total * 2 // 100
    for file in samples.segments(path):
        planned = [(part.start, part.until) for task in tasks for part in task if part.path == str(file)]
        at = HEADER
        for start, until in [*planned, (SEGMENT, SEGMENT)]:
            clear(file, at, start)
            at = until
    assert [row["offset"] for row in read_slices(options, tasks).to_pylist()] == list(range(low, high))


def test_a_range_of_offsets_touches_its_part_of_the_log(tmp_path: Path) -> None:
    """To within a block of 4 KiB at both ends."""
    path = tmp_path / "log"
    make_log(path, [1000] * 4000)
    (whole,) = plan(options_of(path))
    each = bytes_planned([whole]) / 4000
    for low, high in ((0, 10), (1777, 1787), (2000, 2300), (3900, 3950)):
        options = options_of(path, startingOffsets=low, endingOffsets=high, columns="offset")
        tasks = plan(options)
        assert bytes_planned(tasks) <= each * (high - low) + 3 * 4096
        assert read_slices(options, tasks)["offset"].to_pylist() == list(range(low, high))


@pytest.mark.parametrize("low", [-5, 0, 1, 17, 599, 600, 700])
@pytest.mark.parametrize("length", [0, 1, 100, 900])
def test_a_range_of_times_selects_records_of_a_log(
    tmp_path_factory: pytest.TempPathFactory, low: int, length: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "times"
    if not path.exists():
        make_log(path, [300] * 600)
    offsets = column(path, "offset", startingTimestamp=low * 1000, endingTimestamp=(low + length) * 1000)
    assert offsets == [n for n in range(600) if low <= n < low + length]


def test_a_range_of_times_includes_equal_times_across_segments(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [3000] * 100, step_us=0)
    assert column(tmp_path / "log", "offset", startingTimestamp=0) == list(range(100))
    assert column(tmp_path / "log", "offset", endingTimestamp=0) == []


def test_a_damaged_time_rules_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    make_log(path, [1000] * 600)
    for file in samples.segments(path):
        samples.flip(file, HEADER + 16 + 6)  # the time of its first record lies far in the future now
    offsets = column(path, "offset", startingTimestamp=300_000, endingTimestamp=310_000, mode="DROPMALFORMED")
    assert offsets == list(range(300, 310))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"startingOffsets": 11}, OutOfRangeError, "startingOffsets 11, but the log ends at 10"),
        ({"endingOffsets": 11}, OutOfRangeError, "endingOffsets 11, but the log ends at 10"),
        ({"startingOffsets": 6, "endingOffsets": 5}, OutOfRangeError, "startingOffsets 6 lies behind endingOffsets 5"),
        (
            {"startingOffsets": '{"other": {"-1": 3}}'},
            ConfigError,
            "expected offsets of log partition -1, found those of",
        ),
        ({"ledgers": "3"}, ConfigError, "is a log by itself and holds no ledgers"),
    ],
)
def test_ranges_that_are_not_there(
    tmp_path: Path, options: dict[str, object], error: type[Exception], says: str
) -> None:
    make_log(tmp_path / "log", [10] * 10)
    with pytest.raises(error, match=says):
        plan(options_of(tmp_path / "log", **options))


def test_empty_ranges_of_offsets_give_no_rows(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [10] * 10)
    assert column(tmp_path / "log", "offset", startingOffsets=5, endingOffsets=5) == []
    assert column(tmp_path / "log", "offset", startingOffsets=10) == []
    assert column(tmp_path / "log", "offset", startingOffsets=20, endingOffsets=30, failOnDataLoss=False) == []
    assert column(tmp_path / "log", "offset", startingOffsets='{"log": {"-1": 8}}') == [8, 9]


def test_ranges_of_trimmed_offsets_are_refused_or_cut(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [1000] * 600)
    with pyreplog.open(tmp_path / "log") as log:
        first = log.trim(300)
        assert 0 < first <= 300
    with pytest.raises(TrimmedError, match=f"offset 0 was removed, the log begins at {first}; set failOnDataLoss"):
        plan(options_of(tmp_path / "log", startingOffsets=0))
    assert column(tmp_path / "log", "offset", startingOffsets=0, failOnDataLoss=False) == list(range(first, 600))
    assert column(tmp_path / "log", "offset") == list(range(first, 600))
    assert column(tmp_path / "log", "offset", endingOffsets=5, failOnDataLoss=False) == []


def test_an_empty_log_has_no_tasks(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [])
    assert plan(options_of(tmp_path / "log")) == []
    assert len(read_table(tmp_path / "log")) == 0


# ---- paths -----------------------------------------------------------------------------------------------------


def test_globs_and_lists_of_paths_select_logs(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_log(tmp_path / name, [10])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no log")
    assert column(tmp_path / "*", "topic") == ["a", "b", "c"]
    assert column(None, "topic", paths=f'["{tmp_path}/c", "{tmp_path}/a", "{tmp_path}/./c"]') == ["c", "a"]
    assert column(f"file://{tmp_path}/b", "topic") == ["b"]


def test_directories_that_are_called_the_same(tmp_path: Path) -> None:
    """What is said of each of several logs is told apart by the topic."""
    for folder in ("here/a", "here/b", "there/b", "here"):
        make_log(tmp_path / folder / "log", [10])
    make_log(tmp_path / "other", [10])
    values = column(
        None, "topic", paths=json.dumps([f"{tmp_path}/*/*/log", f"{tmp_path}/here/log", f"{tmp_path}/other"])
    )
    assert values == ["a/log", "here/b/log", "there/b/log", "here/log", "other"]
    offsets = json.dumps({"a/log": {"-1": 1}, "b/log": {"-1": 0}})
    assert column(tmp_path / "here" / "*" / "log", "topic", startingOffsets=offsets) == ["b/log"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "missing: no such directory on host "),
        ("file", "file is a file; a log is a directory"),
        ("empty", "empty holds no log: no segment and no checkpoint"),
        ("x*", "no log among 0 matches on host"),
        ("e*", "no log among 1 matches on host"),
    ],
)
def test_plan_of_a_path_without_a_log_raises_not_a_log_error(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no log")
    with pytest.raises(NotALogError, match=says):
        plan(options_of(tmp_path / name))


def test_tasks_of_a_few_bytes_are_a_mistake(tmp_path: Path) -> None:
    """128, where 128m was meant, of a large log: nobody waits until so many are cut."""
    make_log(tmp_path / "log", [100])
    options = options_of(tmp_path / "log")
    parts = [part for task in plan(options) for part in task]
    with pytest.raises(
        ConfigError, match="maxPartitionBytes: expected at most 1,000,000 tasks, found 7,895,161 of 128"
    ):
        pack([(part, 1 << 30) for part in parts], 128, 1)


def test_ten_thousand_slices_are_packed_by_bytes() -> None:
    from pyreplog.tables.slices import LogName, Slice

    draw = random.Random(7)
    name = LogName("nowhere", "t", bytes(16))
    rows = [
        (Slice(name, f"{n}.log", n, 0, HEADER, HEADER + weight, HEADER + weight), weight)
        for n in range(10_000)
        for weight in [draw.randrange(1, 1000)]
    ]
    tasks = pack(rows, 100_000, 1)
    assert [part for task in tasks for part in task] == [part for part, _ in rows]
    assert max(bytes_planned([task]) for task in tasks) <= 100_000 * 17 // 16 + 1000
