"""Bad calls: each has its own typed error, says what is wrong, and changes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyreplog
from pyreplog import (
    InvalidArgumentError,
    OutOfRangeError,
    ReadOnlyError,
    RecordTooLargeError,
    ReplogError,
    TrimmedError,
    WrongTypeError,
)

SIZE = 1 << 16
STRIDED = memoryview(b"abcdefgh")[::2]
NOT_BYTES = ["text", 1, None, 1.5, [1], {}, STRIDED, np.arange(9)[::2], object()]
NOT_INTS = ["1", 1.5, b"1", [1], object()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[pyreplog.CommitLog]:
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"zero", b"one", b"two"])
        yield log


@pytest.fixture(params=["a", "r"])
def handle(request, tmp_path: Path) -> Iterator[pyreplog.CommitLog | pyreplog.LogReader]:
    """A log with 3 entries, open for appending or for reading."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"zero", b"one", b"two"])
    with pyreplog.open(tmp_path / "log", request.param) as handle:
        yield handle


def refused(log, error: type[ReplogError], call, *args, match: str | None = None, **kwargs) -> None:
    """The call raises exactly this error and the log stays as it was."""
    before = (log.end, log.end_position)
    with pytest.raises(error, match=match) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error and len(str(caught.value)) < 400
    assert (log.end, log.end_position) == before


# ---- appending: types ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NOT_BYTES)
def test_values_that_are_no_bytes(log, value):
    refused(log, WrongTypeError, log.append, value, match="value: expected .*bytes-like")
    refused(log, WrongTypeError, log.submit, value, match="value")
    refused(log, WrongTypeError, log.append_batch, [b"fine", value], match="value")
    refused(log, WrongTypeError, log.submit_batch, [b"fine", value], match="value")


@pytest.mark.parametrize("key", [key for key in NOT_BYTES if key is not None])
def test_keys_that_are_no_bytes(log, key):
    refused(log, WrongTypeError, log.append, b"", key, match="key: expected .*bytes-like")
    refused(log, WrongTypeError, log.append_batch, [b"", b""], [b"fine", key], match="key")


@pytest.mark.parametrize("values", [b"bytes", bytearray(b"x"), memoryview(b"x"), "text", None, 5])
def test_batches_that_are_no_sequences(log, values):
    refused(log, WrongTypeError, log.append_batch, values, match="values: expected a sequence")
    if values is not None:
        refused(log, WrongTypeError, log.append_batch, [b"x"], values, match="keys: expected a sequence")
        refused(log, WrongTypeError, log.append_batch, [b"x"], None, values, match="event_times: expected a sequence")


def test_columns_of_different_lengths_are_refused(log):
    refused(log, InvalidArgumentError, log.append_batch, [b"1", b"2"], [b"k"], match="keys: expected 2")
    refused(log, InvalidArgumentError, log.append_batch, [b"1", b"2"], None, [1, 2, 3], match="event_times: expected 2")
    values = np.array([b"a", b"b"])
    refused(log, InvalidArgumentError, log.append_columns, values, values[:1], match="keys: expected 2")
    refused(log, InvalidArgumentError, log.append_columns, values, None, [1], match="event_times: expected 2")


@pytest.mark.parametrize("control", ["text", 5, bytearray(b"x")])
def test_control_records_that_are_no_bytes(log, control):
    refused(log, WrongTypeError, log.append_batch, [b"x"], control=control, match="control: expected bytes")


@pytest.mark.parametrize(
    "properties", [[("a", "b")], "text", 5, {"a": 1}, {"a": None}, {1: "a"}, {None: "a"}, {"a": ["b"]}]
)
def test_properties_of_wrong_types_are_refused(log, properties):
    refused(log, WrongTypeError, log.append, b"", properties=properties, match="propert")


@pytest.mark.parametrize(
    "values",
    [
        [b"a"],
        b"x",
        "text",
        None,
        (np.array([0, 1]),),
        ([[0, 1]], b"x"),
        (5, b"x"),
        ("a", b"x"),
        ([0, 1], "abc"),
        (np.array([0.0, 1.0]), b"abc"),
        np.zeros(3),
        np.zeros((2, 2, 2), np.uint8),
        np.array(["text"]),
        np.array([object()]),
    ],
)
def test_columns_of_wrong_types_are_refused(log, values):
    refused(log, WrongTypeError, log.append_columns, values, match="values")


@pytest.mark.parametrize("times", [["x", "y"], [1.5, 2.5], 5, np.array([1.5, 2.5])])
def test_event_time_columns_of_wrong_types(log, times):
    with pytest.raises((WrongTypeError, InvalidArgumentError), match="event_times"):
        log.append_columns(np.array([b"a", b"b"]), None, times)
    assert log.end == 3


@pytest.mark.parametrize(
    ("offsets", "data"), [([0, 5], b"abc"), ([2, 1], b"abc"), ([-1, 1], b"abc"), ([], b""), ([1 << 40, 1 << 41], b"x")]
)
def test_offsets_that_do_not_fit(log, offsets, data):
    refused(log, InvalidArgumentError, log.append_columns, (np.array(offsets, np.int64), data), match="values")


def test_columns_with_nulls_are_refused(log):
    import pyarrow

    column = pyarrow.array([b"a", None])
    refused(log, InvalidArgumentError, log.append_columns, column, match="expected no nulls")
    refused(log, WrongTypeError, log.append_columns, pyarrow.array([1, 2]), match="binary or string")


# ---- appending: sizes ----------------------------------------------------------------------------------------------


def test_empty_values_and_keys_are_stored(log):
    n = log.append(b"", b"")
    assert (log.get(n).value, log.get(n).key) == (b"", b"")
    assert log.get(log.append(b"")).key is None
    assert log.append_batch([]) == range(5, 5) and log.append_columns(np.array([], "S1")) == range(5, 5)
    assert [record.value for batch in log.read(3) for record in batch] == [b"", b""]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_the_largest_record_and_one_byte_more(tmp_path, durability):
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE, durability=durability) as log:
        with pytest.raises(RecordTooLargeError, match="at most") as caught:
            log.append(bytes(SIZE))
        largest = int(str(caught.value).split("at most ")[1].split()[0])
        value = os.urandom(largest)
        assert log[log.append(value)] == value
        refused(log, RecordTooLargeError, log.append, value + b"x", match=f"found {largest + 1}")
        refused(log, RecordTooLargeError, log.append_batch, [b"fine", value + b"x"])
        refused(log, RecordTooLargeError, log.append_batch, [b"fine"], control=value + b"x")
        refused(log, RecordTooLargeError, log.append_columns, ([0, 1, largest + 2], b"x" + value + b"x"))
        assert log[log.append(value)] == value


def test_the_longest_key_and_one_byte_more(tmp_path):
    with pyreplog.open(tmp_path / "log", segment_bytes=2 * SIZE) as log:
        n = log.append(b"v", b"k" * 65_535)
        assert log.get(n).key == b"k" * 65_535 and log[n] == b"v"
        refused(
            log, RecordTooLargeError, log.append, b"v", b"k" * 65_536, match="key: at most 65535 bytes, found 65536"
        )
        refused(log, RecordTooLargeError, log.append_batch, [b"a", b"b"], [b"", b"k" * 65_536], match="key")


@pytest.mark.parametrize(
    "properties", [{"a": "b" * 65_536}, {"a" * 65_536: "b"}, {f"name {i}": "v" * 1000 for i in range(70)}]
)
def test_properties_that_are_too_long(log, properties):
    refused(log, RecordTooLargeError, log.append, b"", properties=properties, match="at most")


def test_the_same_for_properties_that_fit(log):
    properties = {"": "", "grün": "ja", "raw": b"\xff\0", "long": "x" * 60_000}
    n = log.append(b"", properties=properties)
    assert log.get(n).properties == {"": b"", "grün": b"ja", "raw": b"\xff\0", "long": b"x" * 60_000}


# ---- times ---------------------------------------------------------------------------------------------------------

FARTHEST = (1 << 63) - 1


def test_times_before_1970_and_far_away(log):
    times = [-1, 0, FARTHEST, -FARTHEST]
    entries = log.append_batch([b""] * 4, None, times)
    assert [log.get(n).event_time for n in entries] == times
    assert log.get(log.append(b"", event_time=-FARTHEST)).event_time == -FARTHEST
    assert next(log.read(entries.start)).event_time.tolist()[:4] == times


@pytest.mark.parametrize("time", [FARTHEST + 1, -FARTHEST - 1, 1 << 100])
def test_times_beyond_64_bits_are_refused(log, time):
    refused(log, InvalidArgumentError, log.append, b"", event_time=time, match="event_time")
    refused(log, InvalidArgumentError, log.append_batch, [b"", b""], None, [1, time], match="event_time")
    if time != -FARTHEST - 1:  # in a column, the smallest number says that there is none
        with pytest.raises((InvalidArgumentError, WrongTypeError)):
            log.append_columns(np.array([b"a", b"b"]), None, [1, time])


@pytest.mark.parametrize("time", ["1", 1.5, True, b"1", np.float64(1)])
def test_times_that_are_no_ints(log, time):
    refused(log, WrongTypeError, log.append, b"", event_time=time, match="event_time")
    refused(log, WrongTypeError, log.append_batch, [b"", b""], None, [1, time], match="event_time")


def test_a_clock_that_goes_back(tmp_path):
    class Back:
        now = 2_000_000

        def now_us(self) -> int:
            self.now -= 1000
            return self.now

        def monotonic_us(self) -> int:
            return 0

    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE, clock=Back()) as log:
        for _ in range(5):
            log.append(b"")
        log.append_batch([b""] * 5)
        times = next(log.read()).timestamp.tolist()
        assert times == sorted(times) and len(times) == 10


def test_lookups_by_time_outside_of_the_log(handle):
    for early in (-(1 << 70), -1, 0):
        assert handle.entry_at_time(early) == 0
    for late in (FARTHEST, 1 << 70):
        assert handle.entry_at_time(late) == 3
    for bad in (*NOT_INTS, None, True):
        refused(handle, WrongTypeError, handle.entry_at_time, bad, match="time: ")


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [-1, 3, 4, 1 << 40, 1 << 63, -(1 << 63) - 1, 1 << 80])
def test_reads_outside_of_the_log(handle, entry):
    refused(handle, OutOfRangeError, handle.get, entry, match=str(entry))
    if entry != 3:
        refused(handle, OutOfRangeError, handle.position_of, entry, match=str(entry))
        refused(handle, OutOfRangeError, handle.read, entry, match=str(entry))
    if entry > 0:
        refused(handle, OutOfRangeError, lambda: handle[entry], match=str(entry))
    assert list(handle.read(3)) == [] and handle.position_of(3) == handle.end_position


def test_negative_subscripts_count_from_the_end(handle):
    assert handle[-1] == b"two" and handle[-3] == b"zero" and handle[-2:] == [b"one", b"two"]
    refused(handle, OutOfRangeError, lambda: handle[-4])
    assert handle[5:] == [] and handle[2:1] == [] and handle[::-1] == [b"two", b"one", b"zero"]
    with pytest.raises(ValueError, match="step"):
        handle[::0]


@pytest.mark.parametrize("entry", NOT_INTS)
def test_reads_of_what_is_no_number(handle, entry):
    for call in (handle.get, handle.position_of, handle.read, handle.follow, handle.follow_batches):
        refused(handle, WrongTypeError, call, entry, match="expected an int")
    refused(handle, WrongTypeError, handle.read_positions, entry, match="start: expected an int")
    refused(handle, WrongTypeError, handle.control_records, entry, match="start: expected an int")
    refused(handle, WrongTypeError, handle.read, 0, entry, match="end: expected an int")
    refused(handle, WrongTypeError, lambda: handle[entry], match="expected an int")
    if isinstance(handle, pyreplog.CommitLog):
        refused(handle, WrongTypeError, handle.truncate, entry, match="entry: expected an int")
        refused(handle, WrongTypeError, handle.trim, entry, match="entry: expected an int")


@pytest.mark.parametrize("batch_bytes", [0, -1])
def test_batch_sizes_below_one_byte_are_refused(handle, batch_bytes):
    for call in (handle.read, handle.follow_batches):
        refused(
            handle, InvalidArgumentError, call, 0, batch_bytes=batch_bytes, match="batch_bytes: expected at least 1"
        )
    refused(handle, WrongTypeError, handle.read, 0, batch_bytes="1", match="batch_bytes")


def test_positions_where_no_record_begins(handle):
    for position in (-1, 4097, 5):
        refused(handle, InvalidArgumentError, handle.read_positions, position, match="where a record begins")
    assert list(handle.read_positions(1 << 40)) == []
    with pytest.raises(pyreplog.CorruptionError):
        next(handle.read_positions(4096 + 8))
    with pytest.raises(OutOfRangeError):
        next(handle.read_positions(-8))


def test_followers_refuse_impossible_starts_and_time_outs(handle):
    for call in (handle.follow, handle.follow_batches):
        refused(handle, OutOfRangeError, call, -1, match="-1")
        refused(handle, OutOfRangeError, call, 1 << 63)
        refused(handle, WrongTypeError, call, 0, timeout="1", match="timeout")
        refused(handle, WrongTypeError, call, 0, timeout=True, match="timeout")
        refused(handle, InvalidArgumentError, call, 0, timeout=float("nan"), match="timeout")
        assert len(list(call(0, timeout=-1))) in (1, 3)


@pytest.mark.parametrize("number", [1 << 70, -(1 << 70), 1 << 63, -(1 << 63), (1 << 63) - 1])
def test_entry_numbers_beyond_64_bits_are_refused(handle, number):
    """None of them reaches the native side as it is: a typed error, or what the number means."""
    refused(handle, OutOfRangeError, handle.get, number)
    refused(handle, OutOfRangeError, handle.read, number)
    refused(handle, OutOfRangeError, handle.position_of, number)
    refused(handle, OutOfRangeError, lambda: handle[number])
    assert len(handle[number:]) + len(handle[:number]) == 3
    assert handle.entry_at_time(number) == (3 if number > 0 else 0)
    assert sum(len(batch) for batch in handle.read(0, number)) == (3 if number > 0 else 0)
    if number > 0:
        assert [len(batch) for batch in handle.read(0, batch_bytes=number)] == [3]
        assert [len(batch) for batch in handle.follow_batches(0, batch_bytes=number, timeout=0)] == [3]
    if abs(number) >= 1 << 63:
        refused(handle, OutOfRangeError, handle.read_positions, number & ~7, match="fits into 64 bits")
        refused(handle, OutOfRangeError, handle.read_positions, 0, number & ~7, match="fits into 64 bits")
    if isinstance(handle, pyreplog.CommitLog):
        refused(handle, OutOfRangeError, handle.truncate, number)
        assert handle.trim(number) == 0


def test_event_times_beyond_all_bounds(tmp_path):
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([b"early", b"none", b"late"], event_times=[-(1 << 63) + 1, None, (1 << 63) - 2])
        values = [batch.values() for batch in log.read_event_times(-(1 << 63), (1 << 63) - 1)]
        assert values == [[b"early", b"late"]]  # the lowest number there is stands for no time
        for time in (1 << 70, -(1 << 70), 1 << 63):
            refused(log, InvalidArgumentError, log.read_event_times, time, 0, match="low: .* 64 bits")
            refused(log, InvalidArgumentError, log.read_event_times, 0, time, match="high: .* 64 bits")


@pytest.mark.parametrize("timeout", [1e30, 1e308, float("inf"), 10**400])
def test_times_to_wait_that_no_clock_counts_are_for_ever(handle, timeout):
    async def first() -> bytes:
        return (await anext(aiter(handle.follow(1, timeout=timeout)))).value

    assert next(handle.follow_batches(0, timeout=timeout)).values() == [b"zero", b"one", b"two"]
    assert asyncio.run(first()) == b"one"


@pytest.mark.parametrize("timeout", [0, -1, -1e308, float("-inf"), -(10**400)])
def test_a_coroutine_follower_without_time_gives_what_is_there(handle, timeout):
    async def those_there() -> list[bytes]:
        return [record.value async for record in handle.follow(1, timeout=timeout)]

    assert [len(batch) for batch in handle.follow_batches(0, timeout=timeout)] == [3]
    assert asyncio.run(those_there()) == [b"one", b"two"]


def test_reads_of_trimmed_entries_are_refused(tmp_path):
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"x" * 1000] * 200)
        start = log.trim(150)
        assert start > 0
        for mode in ("a", "r"):
            with log if mode == "a" else pyreplog.open(tmp_path / "log", "r") as handle:
                for call in (
                    handle.get,
                    handle.position_of,
                    lambda n, h=handle: next(h.read(n)),
                    lambda n, h=handle: h[n],
                ):
                    refused(handle, TrimmedError, call, 0, match=f"begins at {start}")
                if mode == "a":
                    refused(log, TrimmedError, log.truncate, 3)
                    assert log.trim(10**9) == log.start <= log.end
                break


def test_truncation_outside_of_the_log(log):
    for entry in (-1, 4, 1 << 63):
        refused(log, OutOfRangeError, log.truncate, entry)
    assert log.truncate(3) == 3 and log.truncate(0) == 0 and log.end == 0 and log.append(b"new") == 0


@pytest.mark.parametrize(
    "name",
    [
        "append",
        "append_batch",
        "append_columns",
        "append_record_batches",
        "submit",
        "submit_batch",
        "truncate",
        "trim",
        "sync",
    ],
)
def test_a_reader_refuses_what_only_a_writer_may(tmp_path, log, name):
    with pyreplog.open(tmp_path / "log", "r") as reader:
        refused(reader, ReadOnlyError, getattr(reader, name), b"x", match="mode='a'")
