"""Cursors: the rules of Pulsar's managed cursor, with the names of this package, and the records of a cursor."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyreplog.cursors.cursor_record import PROPERTIES_MAX, CursorRecord, is_snapshot
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, OutOfRangeError
from pyreplog.topic.model import cursor as cursor_module
from pyreplog.topic.model.cursor import SAMPLE_US, SAMPLES_MAX, SNAPSHOT_AFTER_BYTES, Backlog, Cursor
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.model.trend import Sample
from tests.topic.acking import NOW, Topic, acknowledge, acknowledge_range, check, count, counted, cumulative, int64s

SINGLES = Topic([1] * 20)
PAIRS = Topic([2] * 10)


def taken(cursor: Cursor) -> bytes:
    changes = cursor.take_changes()
    assert changes is not None
    return changes[1]


def delivered(topic: Topic, mark: int = 0) -> Cursor:
    cursor = Cursor("sub", topic.total(mark))
    cursor.deliver(topic.columns(0, len(topic.counts)))  # type: ignore[arg-type]
    return cursor


# ---- acknowledging and backlog -------------------------------------------------------------------------------------


def test_the_backlog_counts_from_the_mark_at_opening() -> None:
    topic = Topic([1] * 4)
    cursors = [Cursor(f"sub{mark}", topic.total(mark)) for mark in range(5)]
    assert [cursor.backlog(topic.end) for cursor in cursors] == [Backlog(n, n, 10 * n) for n in (4, 3, 2, 1, 0)]
    cursors[0].deliver(topic.columns(0, 4))  # type: ignore[arg-type]
    assert cursors[0].backlog(topic.end).messages == 4, "reading acknowledges nothing"
    acknowledge(cursors[0], topic, [2])
    assert cursors[0].backlog(topic.end).messages == 3
    cumulative(cursors[0], topic, 1)
    assert cursors[0].backlog(topic.end).messages == 2


def test_backlog_of_a_topic_that_ends_below_the_mark() -> None:
    with pytest.raises(InvalidArgumentError, match="below its mark"):
        Cursor("sub", SINGLES.end).backlog(SINGLES.total(19))


def test_bytes_are_exact_whatever_the_sizes() -> None:
    topic = Topic([1, 3, 1, 2], [7, 1000, 0, 50])
    cursor = delivered(topic)
    assert cursor.backlog(topic.end) == (7, 4, 1057)
    acknowledge(cursor, topic, [2, 3])
    assert cursor.backlog(topic.end) == (5, 4, 1057)
    acknowledge(cursor, topic, [1])
    assert cursor.backlog(topic.end) == (4, 3, 57)
    cumulative(cursor, topic, 7)
    assert cursor.backlog(topic.end) == (0, 0, 0)


def test_cumulative_does_not_go_back() -> None:
    cursor = delivered(SINGLES)
    cumulative(cursor, SINGLES, 5)
    cumulative(cursor, SINGLES, 5)
    with pytest.raises(InvalidArgumentError, match="everything below 5 is acknowledged"):
        cumulative(cursor, SINGLES, 4)
    assert cursor.mark == SINGLES.total(5)


def test_single_acknowledgements_let_the_mark_jump() -> None:
    cursor = delivered(SINGLES)
    marks = []
    for offset in (0, 3, 0, 2, 1, 3):
        acknowledge(cursor, SINGLES, [offset])
        marks.append(cursor.mark.offset)
    assert marks == [1, 1, 1, 1, 4, 4]


def test_mask_marks_acknowledged_offsets() -> None:
    cursor = delivered(PAIRS)
    acknowledge(cursor, PAIRS, [0, 5])
    assert np.flatnonzero(cursor.mask(np.arange(20))).tolist() == [0, 5]
    assert [cursor.next_unacked(at) for at in (0, 1, 5)] == [1, 1, 6]


@pytest.mark.parametrize("seed", range(4))
def test_backlog_falls_by_one_with_each_in_any_order(seed: int) -> None:
    topic = Topic.random(seed, 60, 4)
    cursor = Cursor("sub", ORIGIN)
    order = list(range(topic.end.offset))
    random.Random(seed).shuffle(order)
    for done, offset in enumerate(order):
        assert cursor.backlog(topic.end).messages == len(order) - done
        acknowledge(cursor, topic, [offset])
        if done % 20 == 0:
            check(cursor, topic, set(order[: done + 1]))
    assert (cursor.mark, cursor.backlog(topic.end)) == (topic.end, (0, 0, 0))
    assert cursor.acks.nbytes == 0


def test_nothing_beyond_the_end_is_acknowledged() -> None:
    cursor = delivered(SINGLES)
    with pytest.raises(OutOfRangeError):
        cursor.acknowledge(int64s([3, 20]), 20, NOW)
    with pytest.raises(OutOfRangeError):
        cursor.acknowledge_range(15, 21, 20, NOW)
    with pytest.raises(OutOfRangeError, match="ends at 20"):
        cursor.cumulative(SINGLES.place(19), 21, 20, NOW)
    assert (counted(cursor), cursor.last_acked_us) == (count(SINGLES, set()), None)


def test_cumulative_over_a_hole_leaves_no_ranges() -> None:
    cursor = delivered(PAIRS)
    acknowledge(cursor, PAIRS, [3, 4, 5, 9])
    cumulative(cursor, PAIRS, 10)
    check(cursor, PAIRS, set(range(10)))
    assert cursor.acks.ranges == 0


@pytest.mark.parametrize("before", [False, True])
def test_a_cumulative_acknowledgement_joins_a_range(before: bool) -> None:
    cursor = Cursor("sub", ORIGIN)
    acknowledge_range(cursor, PAIRS, 5, 9)
    cumulative(cursor, PAIRS, 7, before=before)
    check(cursor, PAIRS, set(range(9)))


def test_skip_counts_unacknowledged_messages_only() -> None:
    cursor = delivered(SINGLES)
    acknowledge(cursor, SINGLES, [1, 3, 4])
    cumulative(cursor, SINGLES, cursor.offset_behind(3, 20))
    check(cursor, SINGLES, set(range(6)))
    assert cursor.offset_behind(100, 20) == 20


# ---- positions -----------------------------------------------------------------------------------------------------


def test_seek_moves_a_cursor_in_both_directions() -> None:
    cursor = delivered(PAIRS)
    acknowledge(cursor, PAIRS, [0, 1, 2, 9, 11])
    for to in (15, 3, 0, 20):
        cursor.seek(PAIRS.total(to), NOW)
        check(cursor, PAIRS, set(range(to)))
    cursor.seek(PAIRS.total(3), NOW)
    acknowledge(cursor, PAIRS, [3])
    assert cursor.mark == TopicPosition(4, 2, 40)


def test_advance_past_trimmed_entries_counts_them_as_acknowledged() -> None:
    cursor = Cursor("reader", ORIGIN, durable=False)
    acknowledge(cursor, PAIRS, [9, 14])
    cursor.advance(PAIRS.total(6), NOW)
    check(cursor, PAIRS, {*range(6), 9, 14})
    cursor.advance(PAIRS.total(4), NOW)
    check(cursor, PAIRS, {*range(6), 9, 14})
    acknowledge_range(cursor, PAIRS, 7, 12)
    cursor.advance(PAIRS.total(10), NOW)
    check(cursor, PAIRS, {*range(12), 14})


def test_advance_into_a_restored_range_of_unknown_entries() -> None:
    records = []
    cursor = delivered(PAIRS)
    acknowledge(cursor, PAIRS, [7, 8, 9, 10, 11, 14])
    records.append(taken(cursor))
    cursor = Cursor.restore("sub", records)
    cursor.advance(PAIRS.total(10), NOW)
    check(cursor, PAIRS, set(range(10)))


# ---- what is written -----------------------------------------------------------------------------------------------


def test_individual_acknowledgements_are_restored() -> None:
    cursor = delivered(PAIRS)
    acknowledge(cursor, PAIRS, [2, 3, 9])
    records = [taken(cursor)]
    acknowledge(cursor, PAIRS, [8, 15])
    cumulative(cursor, PAIRS, 1)
    records.append(taken(cursor))
    assert [is_snapshot(record) for record in records] == [True, False]
    assert cursor.take_changes() is None
    check(Cursor.restore("sub", records), PAIRS, {0, 2, 3, 8, 9, 15})
    check(Cursor.restore("sub", records[:1]), PAIRS, {2, 3, 9})


def test_unchanged_cursor_has_no_record_to_write() -> None:
    cursor = delivered(PAIRS)
    taken(cursor)
    acknowledge(cursor, PAIRS, [3])
    taken(cursor)
    acknowledge(cursor, PAIRS, [3])
    cursor.deliver(PAIRS.columns(0, 10))  # type: ignore[arg-type]
    cursor.backlog(PAIRS.end)
    assert not cursor.has_changes and cursor.take_changes() is None
    restored = Cursor.restore("sub", [cursor.snapshot_record()[1]])
    assert not restored.has_changes
    acknowledge(restored, PAIRS, [8])
    assert is_snapshot(taken(restored)), "who goes on begins anew"


def test_a_cursor_that_is_not_durable_writes_nothing() -> None:
    cursor = Cursor("reader", ORIGIN, durable=False)
    acknowledge(cursor, PAIRS, [0])
    assert not cursor.has_changes and cursor.take_changes() is None
    assert cursor.durable_mark == cursor.mark == TopicPosition(1, 0, 0)


@pytest.mark.parametrize("order", ["as written", "reversed"])
def test_a_seek_back_is_not_undone_by_what_was_written_before(order: str) -> None:
    cursor = delivered(PAIRS)
    records = [taken(cursor)]
    cumulative(cursor, PAIRS, 13)
    records.append(taken(cursor))
    cursor.seek(PAIRS.total(4), NOW)
    acknowledge(cursor, PAIRS, [6])
    records.append(taken(cursor))
    assert is_snapshot(records[-1])
    acknowledge(cursor, PAIRS, [4])
    records.append(taken(cursor))
    if order == "reversed":
        records.reverse()
    check(Cursor.restore("sub", records), PAIRS, {*range(5), 6})


def test_restore_ignores_records_after_a_missing_record() -> None:
    cursor = delivered(PAIRS)
    records = [taken(cursor)]
    for offset in (1, 3, 5, 7):
        acknowledge(cursor, PAIRS, [offset])
        records.append(taken(cursor))
    restored = Cursor.restore("sub", [*records[:2], *records[3:]])
    check(restored, PAIRS, {1})
    assert restored.records_lost == 2
    sequence, record = restored.snapshot_record()
    assert sequence == 6, "above all that was ever written"
    check(Cursor.restore("sub", [*records, record]), PAIRS, {1})


def test_a_record_twice_is_one() -> None:
    cursor = delivered(PAIRS)
    records = [taken(cursor)]
    acknowledge(cursor, PAIRS, [1])
    records.append(taken(cursor))
    check(Cursor.restore("sub", [*records, *records]), PAIRS, {1})


def test_a_snapshot_comes_when_changes_outgrow_it() -> None:
    topic = Topic([1] * 60_000)
    cursor = delivered(topic)
    written, kinds = 0, []
    size = len(taken(cursor))
    for start in range(1, 60_000, 500):
        acknowledge(cursor, topic, range(start, min(start + 500, 60_000), 2))
        record = taken(cursor)
        kinds.append(is_snapshot(record))
        if kinds[-1]:
            assert written > max(size, SNAPSHOT_AFTER_BYTES)
            written, size = 0, len(record)
        else:
            written += len(record)
            assert written - len(record) <= max(size, SNAPSHOT_AFTER_BYTES)
    assert 3 <= sum(kinds) <= 10


def test_changes_beyond_the_record_size_limit_go_to_the_next_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "ACKS_BYTES_MAX", 200)
    monkeypatch.setattr(cursor_module, "SNAPSHOT_AFTER_BYTES", 400)
    cursor = delivered(topic := Topic([1] * 1000))
    records = [taken(cursor)]
    acknowledge(cursor, topic, range(1, 1000, 2))
    while cursor.has_changes:
        assert counted(Cursor.restore("sub", records)) != counted(cursor)
        records.append(taken(cursor))
    assert 8 < len(records) < 20
    assert not any(is_snapshot(record) for record in records[1:])
    check(Cursor.restore("sub", records), topic, set(range(1, 1000, 2)))


def test_the_durable_mark_is_the_lowest_that_a_crash_may_leave() -> None:
    cursor = delivered(PAIRS, mark=2)
    first = cursor.take_changes()
    cumulative(cursor, PAIRS, 8)
    second = cursor.take_changes()
    cumulative(cursor, PAIRS, 12)
    assert first is not None and second is not None
    assert cursor.durable_mark.offset == 2
    cursor.persisted(first[0])
    assert cursor.durable_mark.offset == 2
    cursor.persisted(second[0])
    assert cursor.durable_mark == PAIRS.total(8)
    cursor.seek(PAIRS.total(5), NOW)
    assert cursor.durable_mark.offset == 5
    third = cursor.take_changes()
    cumulative(cursor, PAIRS, 18)
    fourth = cursor.snapshot_record()
    assert third is not None and cursor.durable_mark.offset == 5, "a crash may leave what the seek wrote"
    cursor.persisted(fourth[0])
    assert cursor.durable_mark.offset == 18
    assert Cursor.restore("sub", [fourth[1]]).durable_mark.offset == 18


def test_properties_survive_acknowledgements_without_any() -> None:
    cursor = delivered(PAIRS)
    cursor.set_properties({"a": 1, "größe": -(1 << 63)})
    records = [taken(cursor)]
    for to in (3, 5):
        cumulative(cursor, PAIRS, to)
        records.append(taken(cursor))
    cursor.set_properties({"a": 2})
    records.append(taken(cursor))
    cumulative(cursor, PAIRS, 9)
    records.append(taken(cursor))
    assert len(records[1]) < len(records[3]), "only those that changed are written"
    assert dict(Cursor.restore("sub", records[:3]).properties) == {"a": 1, "größe": -(1 << 63)}
    restored = Cursor.restore("sub", records)
    assert dict(restored.properties) == {"a": 2, "größe": -(1 << 63)}
    assert dict(Cursor.restore("sub", [restored.snapshot_record()[1]]).properties) == restored.properties


@pytest.mark.parametrize(
    "properties",
    [{"a": 1 << 63}, {"a": "1"}, {"x" * 256: 1}, {1: 1}, {str(n): n for n in range(PROPERTIES_MAX + 1)}],
    ids=["large", "text", "long", "no name", "many"],
)
def test_properties_that_cannot_be_stored(properties: dict[str, int]) -> None:
    cursor = delivered(PAIRS)
    with pytest.raises(InvalidArgumentError, match="propert"):
        cursor.set_properties(properties)
    assert not cursor.properties


def test_bytes_that_are_no_record() -> None:
    cursor = delivered(PAIRS)
    cursor.set_properties({"abc": 1, "d": 2})
    acknowledge(cursor, PAIRS, [3])
    record = taken(cursor)
    mark_end = 16 + 12 + 10 + 3
    for size in {*range(len(record))} - {mark_end}:
        with pytest.raises(InvalidRecordsError):
            Cursor.restore("sub", [record[:size]])
    for place, value in [(0, 2), (1, 3), (2, 2), (2, 0), (4, 255), (15, 255), (16, 200), (17, 255), (28, 9)]:
        with pytest.raises(InvalidRecordsError):
            Cursor.restore("sub", [record[:place] + bytes([value]) + record[place + 1 :]])
    with pytest.raises(InvalidRecordsError, match="each property once"):
        CursorRecord.from_bytes(CursorRecord(0, True, {"a": 1, "b": 2}, b"").to_bytes().replace(b"b", b"a"))
    for none in ([], [CursorRecord(5, False, None, b"\0\0\0").to_bytes()]):
        with pytest.raises(InvalidRecordsError, match="a snapshot of a cursor"):
            Cursor.restore("sub", none)


# ---- samples -------------------------------------------------------------------------------------------------------


def test_samples_are_few_and_apart() -> None:
    cursor = delivered(SINGLES)
    for i in range(SAMPLES_MAX * 2 + 1):
        cursor.sample(i * SAMPLE_US // 2, SINGLES.end)
    assert len(cursor.samples) == SAMPLES_MAX and cursor.samples[0].at_us == SAMPLE_US
    acknowledge(cursor, SINGLES, [0, 5])
    cursor.sample(SAMPLE_US * 80, SINGLES.end)
    assert cursor.samples[-1] == Sample(SAMPLE_US * 80, 20, 1, 18)
    cursor.sample(5, SINGLES.end)
    assert cursor.samples[-1].at_us == 5, "a clock that goes back does not stop them"
