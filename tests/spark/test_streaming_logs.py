"""Streams of logs that are written, rolled, trimmed, cut and replaced meanwhile."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from threading import get_ident

import pytest

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import CheckpointError, ConfigError, CorruptionError, OutOfRangeError, TrimmedError, TruncatedError
from pyreplog.log import names
from pyreplog.tables.options import MODES
from tests import samples
from tests.spark.reading import column
from tests.spark.streams import Query, append, decoded, offsets, open_log, position, value_of


def test_a_stream_follows_appends(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log, Query(log.path) as query:
        assert query.read() == []
        for count in (50, 2000, 100):
            before = log.end
            append(log, count)
            wanted = [(n, value_of(n)) for n in range(before, log.end)]
            assert [(row["offset"], row["value"]) for row in query.read()] == wanted
        assert len(names.segment_bases(log.path)) > 2


def test_stream_of_an_empty_log_begins_with_its_first_record(tmp_path: Path) -> None:
    open_log(tmp_path / "log").close()
    with Query(tmp_path / "log") as query:
        assert query.read() == []
        with open_log(tmp_path / "log") as log:
            append(log, 100)
            assert offsets(query.read()) == list(range(100))
        assert query.read() == []


def test_a_batch_replayed_is_the_same(tmp_path: Path, seed: int) -> None:
    """Another process, later, when the log has grown and rolled, gives the same rows for the same two offsets, and each
    task the same ones: the segments that were written then have indexes now."""
    rng = random.Random(seed)
    with open_log(tmp_path / "log") as log:
        append(log, 300)
        played = []
        query = Query(log.path, minPartitions=3)
        while log.end < 6000:
            append(log, rng.randrange(50, 700))
            end = query.next()
            played.append((query.offset, end, query.tasks(query.offset, end)))
            query.offset = end
        query.planner.close()
        for start, end, tasks in played:
            with Query(log.path, offset=start, minPartitions=rng.randrange(1, 9)) as again:
                assert again.tasks(start, end) == tasks
        assert [n for *_, tasks in played for task in tasks for n in task] == list(range(log.end))
        assert all(len(tasks) == 3 for *_, tasks in played)


@pytest.mark.parametrize("limit", [1, 7, 100, 5000])
def test_max_offsets_per_trigger_bounds_rows(tmp_path: Path, limit: int) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 50 if limit == 1 else 1000)
        with Query(log.path, maxOffsetsPerTrigger=limit) as query:
            batches = [offsets(rows) for rows in query.batches()]
        assert [n for rows in batches for n in rows] == list(range(log.end))
        assert all(len(rows) == limit for rows in batches[:-1])


@pytest.mark.parametrize("limit", [1, 3000, 100_000])
def test_max_bytes_per_trigger_bounds_bytes(tmp_path: Path, limit: int) -> None:
    """As many records as fit, and at least one."""
    with open_log(tmp_path / "log") as log:
        append(log, 50 if limit == 1 else 3000)
        with Query(log.path, maxBytesPerTrigger=limit) as query:
            batches = [offsets(rows) for rows in query.batches()]
        assert [n for rows in batches for n in rows] == list(range(log.end))
        for rows in batches[:-1]:
            size = log.position_of(rows[-1]) - log.position_of(rows[0])
            assert len(rows) == 1 or size <= limit
        assert limit == 1 or len(batches) <= 2 + 1.5 * log.end_position / limit


def test_several_logs_share_a_batch(tmp_path: Path) -> None:
    with open_log(tmp_path / "a" / "log") as few, open_log(tmp_path / "b" / "log") as many:
        append(few, 100)
        append(many, 1000)
        with Query(tmp_path / "*" / "log", maxOffsetsPerTrigger=110) as query:
            batches = list(query.batches())
        assert [len(rows) for rows in batches] == [110] * 10
        assert sorted(n for rows in batches for n in offsets(rows)) == sorted([*range(100), *range(1000)])


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 100}, {"maxBytesPerTrigger": 3000}])
def test_a_small_log_does_not_wait_for_a_large_one(tmp_path: Path, limit: dict[str, int]) -> None:
    """The large one has more each time; of 100 rows, or 3,000 bytes, the share of the small one is less than a row."""
    with open_log(tmp_path / "a" / "log") as small, open_log(tmp_path / "b" / "log") as large:
        append(large, 20_000)
        small.append(b"one")
        with Query(tmp_path / "*" / "log", columns="offset,value", **limit) as query:
            rows = next(query.batches())
        assert sum(row["value"] == b"one" for row in rows) == 1
        assert 1 < len(rows) <= 100


def test_records_larger_than_a_batch_take_turns(tmp_path: Path) -> None:
    """Beside a log that has more each time, none of two with many records larger than a batch waits for the other."""
    with (
        open_log(tmp_path / "a" / "log") as first,
        open_log(tmp_path / "b" / "log") as second,
        open_log(tmp_path / "c" / "log") as busy,
        Query(tmp_path / "*" / "log", columns="offset,value", maxBytesPerTrigger=5000) as query,
    ):
        for log, mark in ((first, b"a"), (second, b"b")):
            log.append_batch([mark * 9000] * 40)
        seen, large = Counter[bytes](), 0
        for _ in range(40):
            append(busy, 100)
            end = query.next()
            rows, query.offset = query.rows(query.offset, end), end
            came = Counter(row["value"][:1] for row in rows if len(row["value"]) == 9000)
            seen, large = seen + came, max(large, came.total())
        assert min(seen[b"a"], seen[b"b"]) >= 10
        assert large == 1, "one of them is a batch by itself"


@pytest.mark.parametrize("spoilt", ["value", "length"])
@pytest.mark.parametrize(
    "limit", [{}, {"maxOffsetsPerTrigger": 10}, {"maxOffsetsPerTrigger": 701}, {"maxBytesPerTrigger": 3000},
              {"startingOffsets": 701}],
)  # fmt: skip
def test_a_batch_that_ends_at_damage(tmp_path: Path, spoilt: str, limit: dict[str, int]) -> None:
    """What a mode lets pass is passed wherever batches end: planning looks up where their entries lie."""
    with open_log(tmp_path / "log") as log:
        append(log, 3000)
        position = log.position_of(700)
    path = samples.segments(tmp_path / "log")[position // samples.SEGMENT_BYTES]
    samples.flip(path, position % samples.SEGMENT_BYTES + (50 if spoilt == "value" else 2))
    with Query(tmp_path / "log", mode="DROPMALFORMED", **limit) as query:
        numbers = [n for rows in query.batches() for n in offsets(rows)]
    assert numbers == [n for n in range(limit.get("startingOffsets", 0), 3000) if n != 700]
    if "startingOffsets" not in limit:
        with Query(tmp_path / "log", **limit) as query, pytest.raises(CorruptionError, match=f"position {position}:"):
            list(query.batches())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_is_no_segment(tmp_path: Path, mode: str, is_there: bool) -> None:
    """Its header is damaged, or it is missing: in no mode is a query started, or started again."""
    with open_log(tmp_path / "log") as log:
        append(log, 3000)
    with Query(tmp_path / "log", mode=mode, maxOffsetsPerTrigger=10) as query:
        query.offset = query.next()
    path = samples.segments(tmp_path / "log")[1]
    if is_there:
        samples.flip(path, 40)
    else:
        path.unlink()
    with pytest.raises(CorruptionError, match=path.name):
        Query(tmp_path / "log", mode=mode)
    with Query(tmp_path / "log", query.offset, mode=mode) as again, pytest.raises(CorruptionError, match=path.name):
        again.next()


def test_a_log_that_comes_later(tmp_path: Path) -> None:
    """A glob finds it; it begins with one batch, and is read from its beginning in the next."""
    with open_log(tmp_path / "a") as first:
        append(first, 100)
        with Query(tmp_path / "*") as query:
            assert len(query.read()) == 100
            with open_log(tmp_path / "b") as second:
                append(second, 50)
                batches = list(query.batches())
            assert [(len(rows), {row["topic"] for row in rows}) for rows in batches] == [(0, set()), (50, {"b"})]


def test_the_end_of_a_query_that_reads_what_is_available(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 500)
        with Query(log.path, maxOffsetsPerTrigger=150) as query:
            query.planner.stop_at_current_end()
            append(log, 500)
            assert [len(rows) for rows in query.batches()] == [150, 150, 150, 50]
        with Query(log.path, offset=query.offset) as again:
            assert offsets(again.read()) == list(range(500, 1000))


def test_a_batch_reads_only_its_part_of_the_segment_that_is_written(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log, Query(log.path) as query:
        append(log, 500)
        query.read()
        start = query.offset
        append(log, 50)
        ((part,),) = query.planner.tasks(decoded(start), decoded(query.next()))
        assert part.size == log.position_of(550) - log.position_of(500)


def test_planning_looks_at_the_segments_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 10_000)
        query = Query(log.path, startingOffsets="latest")
        append(log, 50)
        end = query.next()
        opened: list[tuple[int, str]] = []  # the log's own threads open files, too
        real_open = os.open
        monkeypatch.setattr(
            os, "open", lambda path, *more: opened.append((get_ident(), str(path))) or real_open(path, *more)
        )
        query.planner.tasks(decoded(query.offset), decoded(end))
        monkeypatch.undo()
        query.planner.close()
        assert len(names.segment_bases(log.path)) > 10
        assert 1 <= len({path for by, path in opened if by == get_ident() and path.endswith(".log")}) <= 2


# ---- where a new query begins ----------------------------------------------------------------------------------


def test_a_stream_of_a_log_begins_where_options_say(tmp_path: Path) -> None:
    with open_log(tmp_path / "orders") as log:
        append(log, 1000)
        middle = log.get(400).timestamp

        def first(**options: object) -> int:
            with Query(log.path, **options) as query:
                return position(query)

        assert first() == 0
        assert first(startingOffsets="latest") == 1000
        assert first(startingOffsets=-1) == 1000
        assert first(startingOffsets="earliest") == 0
        assert first(startingOffsets=500) == 500
        assert first(startingOffsets='{"orders": {"-1": 7}}') == 7
        assert first(startingTimestamp=middle // 1000 + 1_000_000) == 1000
        first_offset = first(startingTimestamp=middle // 1000)
        assert log.get(first_offset).timestamp >= middle // 1000 * 1000
        assert first_offset == 0 or log.get(first_offset - 1).timestamp < middle // 1000 * 1000
        for wrong in ({"startingOffsets": 1001}, {"startingOffsets": '{"other": {"-1": 7}}'}):
            with pytest.raises((OutOfRangeError, ConfigError)):
                first(**wrong)


@pytest.mark.parametrize("spoilt", ["value", "length"])
def test_begins_at_a_time_whose_entry_is_damaged(tmp_path: Path, spoilt: str) -> None:
    """As the mode says; nothing older comes, and nothing that can be read is left out."""
    clock = ManualClock(1_700_000_000_000_000)
    with pyreplog.open(tmp_path / "log", segment_bytes=samples.SEGMENT_BYTES, clock=clock) as log:
        for _ in range(60):
            append(log, 50)
            clock.advance(1_000_000)
        middle = log.get(1500).timestamp // 1000
        position = log.position_of(1500)
    segment = samples.segments(tmp_path / "log")[position // samples.SEGMENT_BYTES]
    samples.flip(segment, position % samples.SEGMENT_BYTES + (50 if spoilt == "value" else 2))
    intact = column(tmp_path / "log", "offset", mode="DROPMALFORMED", verifyChecksum=True)
    assert 1500 not in intact
    for at, first in ((middle, 1500), (middle - 1000, 1450), (middle + 1000, 1550)):
        with Query(tmp_path / "log", mode="DROPMALFORMED", startingTimestamp=at) as query:
            assert offsets(query.read()) == [n for n in intact if n >= first]
    permissive = {"mode": "PERMISSIVE", "columns": "offset,crcOk", "startingTimestamp": middle}
    with Query(tmp_path / "log", **permissive) as query:
        rows = query.read()
    assert [row["offset"] for row in rows if row["crcOk"]] == [n for n in intact if n >= 1500]
    assert any(not row["crcOk"] for row in rows), "it is told of"
    with pytest.raises(CorruptionError, match=segment.name):
        Query(tmp_path / "log", startingTimestamp=middle)


# ---- what is removed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lenient", [False, True])
def test_a_stream_of_a_trimmed_log_fails_or_goes_on(tmp_path: Path, lenient: bool) -> None:
    with open_log(tmp_path / "log") as log, Query(log.path, failOnDataLoss=not lenient) as query:
        append(log, 100)
        query.read()
        append(log, 3000)
        end = query.next()
        first = log.trim(2000)
        assert 100 < first <= 2000
        if lenient:
            assert offsets(query.rows(query.offset, end)) == list(range(first, 3100))
            assert offsets(query.read()) == list(range(first, 3100))
            return
        for call in (query.next, lambda: query.rows(query.offset, end)):
            with pytest.raises(
                TrimmedError, match=f"offset 100 was removed, the first one is {first}; set failOnDataLoss"
            ):
                call()


@pytest.mark.parametrize("lenient", [False, True])
def test_a_stream_of_a_truncated_log_fails_or_goes_on(tmp_path: Path, lenient: bool) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 1000)
        with Query(log.path, failOnDataLoss=not lenient) as query:
            query.read()
        log.truncate(900)
    with Query(tmp_path / "log", offset=query.offset, failOnDataLoss=not lenient) as again:
        if not lenient:
            with pytest.raises(TruncatedError, match="was cut at 900, and the query has read up to 1000"):
                again.next()
            return
        assert again.read() == []
        with open_log(tmp_path / "log") as log:
            append(log, 50)
            assert offsets(again.read()) == list(range(900, 950))


def test_another_log_in_its_place(tmp_path: Path) -> None:
    """Under way, and after a restart; also when what is lost does not matter: nothing would be left of the query."""
    with open_log(tmp_path / "log") as log:
        append(log, 100)
    with Query(tmp_path / "log", failOnDataLoss=False) as query:
        query.read()
        shutil.rmtree(tmp_path / "log")
        with open_log(tmp_path / "log") as log:
            append(log, 200)
        with pytest.raises(CheckpointError, match=r"belongs to other logs \(log\) than .*begin with a new checkpoint"):
            query.next()
        with Query(tmp_path / "log", offset=query.offset) as again, pytest.raises(CheckpointError):
            again.rows(query.offset, query.offset)


def test_a_log_that_moved_is_the_same(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 100)
    with Query(tmp_path / "log") as query:
        query.read()
    (tmp_path / "log").rename(tmp_path / "moved")
    with open_log(tmp_path / "moved") as log:
        append(log, 50)
        with Query(log.path, offset=query.offset) as again:
            assert offsets(again.read()) == list(range(100, 150))


@pytest.mark.parametrize("lenient", [False, True])
def test_missing_log_of_a_stream_follows_fail_on_data_loss(tmp_path: Path, lenient: bool) -> None:
    """Its place is remembered: should it come back, nothing is read twice."""
    for name in ("a", "b"):
        with open_log(tmp_path / name) as log:
            append(log, 100)
    with Query(tmp_path / "[ab]", failOnDataLoss=not lenient) as query:
        query.read()
        (tmp_path / "b").rename(tmp_path / "away")
        with open_log(tmp_path / "a") as log:
            append(log, 50)
        if not lenient:
            with pytest.raises(
                CheckpointError, match=r"log b \(\w{32}\) in the checkpoint does not exist; set failOnData"
            ):
                query.next()
            return
        assert offsets(query.read()) == list(range(100, 150))
        (tmp_path / "away").rename(tmp_path / "b")
        with open_log(tmp_path / "b") as log:
            append(log, 50)
        assert [(row["topic"], row["offset"]) for row in query.read()] == [("b", n) for n in range(100, 150)]


def test_a_stream_over_copies_of_one_log_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path / "a") as log:
        append(log, 100)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="are the same log"):
        Query(tmp_path / "*")
