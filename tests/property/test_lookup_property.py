"""Lookups beside brute force. Their arguments are values that occur, and those one beside them: a bound that is off by
one shows itself nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog import LogReader, ManualClock
from pyreplog.errors import InvalidArgumentError, OutOfRangeError, WrongTypeError
from pyreplog.log.log_view import LogView
from tests.spark.reading import read_table

SEGMENT_BYTES, BLOCK, PAGE = 1 << 18, 1 << 16, 1 << 12
HEADER = 32  # bytes of a record's
T0 = 1_700_000_000_000_000


@dataclass(frozen=True)
class Entry:
    number: int
    position: int
    time: int
    event_time: int | None
    value: bytes


def filler(position: int, unit: int) -> int:
    """Bytes of a value without event time whose record ends at the next boundary of `unit`; or of one far before it."""
    left = -position % unit
    return left - HEADER if HEADER <= left < PAGE else 100


def fill(path: Path, draw: Random) -> list[Entry]:
    """Entries of two segments and a third one: runs of one size, controls between them, event times of few values that
    go up and down, append times that stand still and jump; many records begin at a boundary of a page or of a block."""
    clock, rows, at_boundaries = ManualClock(T0), [], Counter[int]()
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, clock=clock) as log:
        event_time = 1000
        while (
            log.end_position < 2 * SEGMENT_BYTES + BLOCK + PAGE or at_boundaries[BLOCK] < 2 or at_boundaries[PAGE] < 4
        ):
            clock.advance(draw.choice((0, 0, 1, 1, 7, 1000)))
            kind = draw.randrange(12)
            if kind == 0:
                log.append_batch([], control=bytes(draw.choice((0, 12, 500))))
                continue
            value = b"%d," % log.end + bytes(draw.choice((4, 20, 20, 300, 900)))
            event_time += draw.choice((-3, -1, 0, 0, 1, 2, 5))
            event = event_time if kind > 2 else None
            if kind == 1:
                value, event = bytes(filler(log.end_position, draw.choice((PAGE, BLOCK, BLOCK)))), None
            rows.append((log.append(value, event_time=event), clock.now_us(), event, value))
            position = log.position_of(log.end - 1)
            at_boundaries.update(unit for unit in (PAGE, BLOCK) if position % unit == 0)
        return [Entry(number, log.position_of(number), time, event, value) for number, time, event, value in rows]


def beside(values: set[int], draw: Random, count: int) -> list[int]:
    """Some values, the lowest and the highest among them, and the numbers before and behind each."""
    some = {min(values), max(values), *draw.sample(sorted(values), min(count, len(values)))}
    return sorted({value + step for value in some for step in (-1, 0, 1)})


@pytest.fixture(scope="module", params=range(3))
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> tuple[Path, list[Entry], Random]:
    draw, path = Random(seed * 3 + request.param), tmp_path_factory.mktemp("lookups") / "log"
    return path, fill(path, draw), draw


@pytest.fixture(params=["a", "r"])
def log(request: pytest.FixtureRequest, filled: tuple[Path, list[Entry], Random]) -> Iterator[LogView]:
    with pyreplog.open(filled[0], request.param) as opened:
        assert isinstance(opened, LogReader) == (request.param == "r")
        yield opened


Filled = tuple[Path, list[Entry], Random]


def test_the_filled_log_has_records_at_page_and_block_borders(filled: Filled) -> None:
    places = [entry.position for entry in filled[1]]
    assert sum(place % BLOCK == 0 for place in places) >= 2 and sum(place % PAGE == 0 for place in places) >= 4


def test_records_are_found_by_number(log: LogView, filled: Filled) -> None:
    _, entries, draw = filled
    for entry in entries:
        record = log.get(entry.number)
        assert (record.entry, record.position, record.timestamp, record.value) == (
            entry.number, entry.position, entry.time, entry.value,
        )  # fmt: skip
        assert log.position_of(entry.number) == entry.position and log[entry.number] == entry.value
    for number in (-1, len(entries)):
        with pytest.raises(OutOfRangeError):
            log.get(number)
    edges = {entry.number for entry in entries if not entry.position % PAGE or entry.position % SEGMENT_BYTES == PAGE}
    for start in beside(edges, draw, 8):
        for stop in beside(edges, draw, 4):
            if 0 <= start <= len(entries):
                actual_entries = [record.entry for batch in log.read(start, stop) for record in batch]
                assert actual_entries == list(range(start, min(stop, len(entries))))


def test_slices_of_a_log_are_those_of_a_list(log: LogView, filled: Filled) -> None:
    """As a list's, whatever their bounds; what is no integer is refused by name."""
    _, entries, draw = filled
    values, end, far = [entry.value for entry in entries], len(entries), 1 << 80
    bounds = [None, -far, far, -end, end, *beside({0, end // 2, end}, draw, 3)]
    for _ in range(60):
        part = slice(draw.choice(bounds), draw.choice(bounds), draw.choice((None, 1, 1, 2, -1, 500, far, -far)))
        assert log[part] == values[part]
    for wrong, error in (
        (slice("a", None), WrongTypeError),
        (slice(1.5), WrongTypeError),
        (slice(0, 5, 0), InvalidArgumentError),
    ):
        with pytest.raises(error):
            log[wrong]


def test_records_are_found_by_append_time(log: LogView, filled: Filled) -> None:
    _, entries, draw = filled
    for time in beside({entry.time for entry in entries}, draw, 60):
        wanted = next((entry.number for entry in entries if entry.time >= time), len(entries))
        assert log.entry_at_time(time) == wanted


def test_records_are_found_by_event_time(log: LogView, filled: Filled) -> None:
    _, entries, draw = filled
    times = {entry.event_time for entry in entries if entry.event_time is not None}
    ends: set[int] = set()  # the lowest and the highest of each block, by which blocks are passed over
    for block in range(entries[-1].position // BLOCK + 1):
        inside = [e.event_time for e in entries if e.event_time is not None and e.position // BLOCK == block]
        ends |= {min(inside), max(inside)} if inside else set()
    for low in [*beside(ends, draw, 30), *beside(times, draw, 10)]:
        for high in (low, low + 1, low + draw.randrange(2, 9), draw.choice(sorted(ends)) + draw.randrange(2)):
            actual_entries = [record.entry for batch in log.read_event_times(low, high) for record in batch]
            assert actual_entries == [
                e.number for e in entries if e.event_time is not None and low <= e.event_time < high
            ]


def test_records_are_found_by_offset_in_tables(filled: Filled) -> None:
    path, entries, draw = filled
    edges = {entry.number for entry in entries if not entry.position % PAGE or entry.position % SEGMENT_BYTES == PAGE}
    for low in beside(edges, draw, 5):
        high = min(low + draw.choice((0, 1, 2, 400)), len(entries))
        if 0 <= low <= high:
            rows = read_table(path, columns="offset", startingOffsets=low, endingOffsets=high)
            assert rows.column("offset").to_pylist() == list(range(low, high))


def test_records_are_found_by_append_time_in_tables(filled: Filled) -> None:
    path, entries, draw = filled
    for low in beside({entry.time for entry in entries}, draw, 5):
        high = low + draw.choice((0, 1, 2, 5000))
        rows = read_table(path, columns="offset", startingTimestamp=_iso(low), endingTimestamp=_iso(high))
        assert rows.column("offset").to_pylist() == [e.number for e in entries if low <= e.time < high]


def _iso(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime(f"%Y-%m-%dT%H:%M:%S.{time_us % 1_000_000:06}Z")
