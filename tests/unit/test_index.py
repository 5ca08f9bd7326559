"""The (ledger, entry) index: answers in memory and from a file, and what damage to the file leads to."""

from __future__ import annotations

import pickle
import threading
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from pyreplog._native.ledger_log.entries import CONTROL, encode_control, encode_entries
from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.errors import ClosedError, CorruptionError, InvalidArgumentError
from tests import running

BLOCK = 4096
HEADER_SIZE = 4096  # of the segment: its first record's offset
STRIDE = 72
SEGMENT_MAX = 1 << 30
SEGMENT = {"uuid": b"0123456789abcdef", "base": 3 << 30, "stamp": 0xFEEDBEEF, "end": 1 << 28}


def offset_of(number: int) -> int:
    return HEADER_SIZE + number * STRIDE


def index_of(*ids: tuple[int, int]) -> LedgerIndex:
    """An index of records of STRIDE bytes, one behind the other."""
    index = LedgerIndex()
    for number, (ledger, entry) in enumerate(ids):
        index.add(ledger, entry, offset_of(number), STRIDE)
    return index


def striped(ledgers: int, each: int) -> list[tuple[int, int]]:
    """Interleaved ledgers 10, 11, ... whose entry ids leave out every fourth."""
    return [(10 + ledger, i + i // 3) for i in range(each) for ledger in range(ledgers)]


def saved(index: LedgerIndex, path: Path) -> Path:
    path.write_bytes(index.to_bytes(**SEGMENT))
    return path


def open_sealed(path: Path) -> SealedIndex:
    return SealedIndex.open(path, **SEGMENT)


def columns(records: list[tuple[int, ...]]) -> list[np.ndarray]:
    return [np.array(column, np.int64) for column in zip(*records, strict=True)]


def as_lists(pair: tuple[np.ndarray, np.ndarray]) -> tuple[list[int], list[int]]:
    return pair[0].tolist(), pair[1].tolist()


def test_finds_what_was_added_and_nothing_else() -> None:
    index = index_of((7, 0), (9, 0), (7, 1), (7, 5))
    assert [index.get(7, 0), index.get(9, 0), index.get(7, 1), index.get(7, 5)] == list(map(offset_of, range(4)))
    assert [index.get(7, 2), index.get(9, 1), index.get(8, 0)] == [None, None, None]
    assert (index.last_entry(7), index.last_entry(9), index.last_entry(8)) == (5, 0, None)
    assert index.count == 4


def test_the_last_copy_of_an_entry_wins_and_counts_once() -> None:
    index = index_of((7, 3), (7, 4), (7, 3))
    assert index.get(7, 3) == offset_of(2)
    assert index.count == 2
    assert as_lists(index.entries(7, 0, 10)) == ([3, 4], [offset_of(2), offset_of(1)])


def test_index_distinguishes_ledgers_with_equal_entry_ids(tmp_path: Path) -> None:
    ids = [(ledger * 1000, entry) for entry in range(3) for ledger in range(4000)]
    index = index_of(*ids)
    with open_sealed(saved(index, tmp_path / "i")) as sealed:
        for each in (index, sealed):
            assert each.count == len(ids)
            assert [each.get(*pair) for pair in ids] == list(map(offset_of, range(len(ids))))
            assert [each.get(ledger, 3) for ledger, _ in ids[:4000]] == [None] * 4000


def test_ledgers_returns_entry_range_and_bytes_of_each_ledger() -> None:
    index = index_of((9, 4), (7, 3), (9, 2), (9, 4))
    assert index.ledgers().tolist() == [(7, 3, 3, STRIDE, 1), (9, 2, 4, 3 * STRIDE, 2)]
    assert LedgerIndex().ledgers().tolist() == []


@pytest.mark.parametrize("ids", [(-1, 0), (0, -1), (7, -0x2000)])
def test_negative_ids_are_refused(ids: tuple[int, int], tmp_path: Path) -> None:
    index = index_of((7, 0))
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        index.add(*ids, offset_of(1), STRIDE)
    with open_sealed(saved(index, tmp_path / "i")) as sealed:
        for each in (index, sealed):
            with pytest.raises(InvalidArgumentError, match="0 or more"):
                each.get(*ids)
            with pytest.raises(InvalidArgumentError, match="0 or more"):
                each.entries(*ids, 5)
    assert index.count == 1


@pytest.mark.parametrize(
    ("offset", "stride"),
    [
        (HEADER_SIZE, STRIDE),  # where the record before lies
        (offset_of(1) - 8, STRIDE),
        (offset_of(1) + 4, STRIDE),
        (offset_of(1), 0),
        (offset_of(1), 56),  # less than a header
        (offset_of(1), STRIDE + 4),
        (offset_of(1), -STRIDE),
        (SEGMENT_MAX, STRIDE),
        (SEGMENT_MAX - 64, STRIDE),
        (offset_of(1), 2**63 - 8),
        (2**63 - 8, 64),
        (-STRIDE, STRIDE),
    ],
)
def test_places_that_no_next_record_can_have_are_refused(offset: int, stride: int) -> None:
    index = index_of((7, 0))
    with pytest.raises(InvalidArgumentError, match=f"found {stride} bytes at {offset}"):
        index.add(7, 1, offset, stride)
    assert (index.count, index.get(7, 1)) == (1, None)


def test_a_batch_is_as_many_single_records() -> None:
    ids = striped(3, 500)
    batched, single = LedgerIndex(), index_of(*ids)
    records = [(*pair, offset_of(i), STRIDE) for i, pair in enumerate(ids)]
    batched.add_batch(*columns(records[:700]))
    batched.add_batch(*columns(records[700:]))
    assert batched.to_bytes(**SEGMENT) == single.to_bytes(**SEGMENT)


def test_a_batch_with_a_refused_record_adds_nothing() -> None:
    index = index_of((7, 0), (7, 1))
    before = index.to_bytes(**SEGMENT)
    batch = [(7, 1, offset_of(2), STRIDE), (8, 0, offset_of(3), STRIDE), (8, -1, offset_of(4), STRIDE)]
    with pytest.raises(InvalidArgumentError, match="entry -1"):
        index.add_batch(*columns(batch))
    assert index.to_bytes(**SEGMENT) == before
    assert (index.get(7, 1), index.last_entry(8)) == (offset_of(1), None)


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(2, np.int32),
        np.zeros(2, np.uint64),
        np.zeros(2, np.float64),
        np.zeros(4, np.int64)[::2],
        np.zeros((2, 2), np.int64),
        np.zeros(3, np.int64),
        b"12345678" * 2,
    ],
)
def test_batch_columns_are_int64_arrays_of_one_length(column: np.ndarray | bytes) -> None:
    index = LedgerIndex()
    good = columns([(7, i, offset_of(i), STRIDE) for i in range(2)])
    with pytest.raises(InvalidArgumentError, match="column"):
        index.add_batch(good[0], column, good[2], good[3])
    assert index.count == 0


def test_truncation_brings_back_the_copy_before() -> None:
    index = index_of((7, 3), (8, 0), (7, 3), (7, 4))
    index.remove_from(offset_of(2))
    assert (index.get(7, 3), index.get(7, 4), index.get(8, 0)) == (offset_of(0), None, offset_of(1))
    assert index.ledgers().tolist() == [(7, 3, 3, STRIDE, 1), (8, 0, 0, STRIDE, 1)]
    index.remove_from(offset_of(1))
    assert (index.count, index.last_entry(8)) == (1, None)
    index.add(8, 6, offset_of(1), STRIDE)
    assert index.get(8, 6) == offset_of(1)


def test_a_truncation_inside_a_record_forgets_the_record() -> None:
    index = index_of((7, 0), (7, 1))
    index.remove_from(offset_of(2))
    assert index.get(7, 1) == offset_of(1)
    index.remove_from(offset_of(2) - 8)
    assert (index.get(7, 0), index.get(7, 1)) == (offset_of(0), None)
    index.remove_from(0)
    assert (index.count, index.ledgers().size) == (0, 0)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_index_gives_entries_of_a_range(kind: str, tmp_path: Path) -> None:
    ids = [5, 2, 9, 2, 2**40, 7]
    memory = index_of(*((7, entry) for entry in ids))
    with open_sealed(saved(memory, tmp_path / "i")) as sealed:
        index = memory if kind == "memory" else sealed
        where = {entry: offset_of(i) for i, entry in enumerate(ids)}
        for start, stop in [
            (0, 10),
            (2, 9),
            (3, 8),
            (5, 6),
            (6, 7),
            (0, 2**63 - 1),
            (10, 2**40),
            (9, 2),
            (0, -1),
        ]:
            expected = sorted(entry for entry in where if start <= entry < stop)
            assert as_lists(index.entries(7, start, stop)) == (expected, [where[e] for e in expected])
        assert as_lists(index.entries(6, 0, 10)) == ([], [])
        assert index.entries(7, 0, 10)[0].dtype == np.int64


def test_a_file_answers_as_the_memory_did(tmp_path: Path) -> None:
    ids = [*striped(5, 3000), (3, 0), (3, 2**32 - 1), (4, 0), (4, 2**32), (2**63 - 1, 2**63 - 1), (10, 17)]
    index = index_of(*ids)
    with open_sealed(saved(index, tmp_path / "i")) as sealed:
        assert sealed.count == index.count
        assert sealed.ledgers().tolist() == index.ledgers().tolist()
        for ledger in {ledger for ledger, _ in ids}:
            assert as_lists(sealed.entries(ledger, 0, 2**63 - 1)) == as_lists(index.entries(ledger, 0, 2**63 - 1))
            assert sealed.last_entry(ledger) == index.last_entry(ledger)
            for entry in [*range(4200), 2**32 - 1, 2**32, 2**63 - 1]:
                assert sealed.get(ledger, entry) == index.get(ledger, entry)
        assert (sealed.get(12345, 0), sealed.last_entry(12345)) == (None, None)


def test_arguments_of_the_file_are_checked() -> None:
    index = index_of((7, 0))
    for wrong in ({"uuid": b"short"}, {"end": offset_of(1) - 8}, {"end": SEGMENT_MAX + 8}):
        with pytest.raises(InvalidArgumentError):
            index.to_bytes(**(SEGMENT | wrong))


@pytest.mark.parametrize(
    ("name", "other", "position"),
    [("uuid", b"fedcba9876543210", 16), ("base", 0, 32), ("end", 4096, 40), ("stamp", 1, 48)],
)
def test_the_index_of_another_segment_is_refused(name: str, other: object, position: int, tmp_path: Path) -> None:
    path = saved(index_of((7, 0)), tmp_path / "i")
    with pytest.raises(CorruptionError) as caught:
        SealedIndex.open(path, **(SEGMENT | {name: other}))
    assert (caught.value.path, caught.value.position) == (path, position)
    assert str(SEGMENT[name]) in caught.value.found


def test_a_missing_file_is_no_corruption(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_sealed(tmp_path / "none")


def test_a_zeroed_block_is_no_absence(tmp_path: Path) -> None:
    path = saved(index_of(*striped(1, 3000)), tmp_path / "i")
    image = bytearray(path.read_bytes())
    image[2 * BLOCK : 3 * BLOCK] = bytes(BLOCK)
    path.write_bytes(image)
    with open_sealed(path) as sealed:
        assert sealed.get(10, 0) == offset_of(0)
        with pytest.raises(CorruptionError):
            sealed.get(10, 800 + 800 // 3)
        with pytest.raises(CorruptionError):
            sealed.entries(10, 0, 4000)


def test_a_damaged_directory_is_no_absence(tmp_path: Path) -> None:
    path = saved(index_of(*striped(2, 10)), tmp_path / "i")
    image = bytearray(path.read_bytes())
    image[BLOCK] ^= 1
    path.write_bytes(image)
    with open_sealed(path) as sealed:
        for ask in (sealed.ledgers, lambda: sealed.last_entry(10), lambda: sealed.last_entry(99)):
            with pytest.raises(CorruptionError) as caught:
                ask()
            assert (caught.value.path, caught.value.position) == (path, BLOCK)


def test_a_closed_index_refuses_calls(tmp_path: Path) -> None:
    sealed = open_sealed(saved(index_of((7, 0)), tmp_path / "i"))
    sealed.entries(7, 0, 1)
    sealed.close()
    sealed.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    calls = [
        lambda: sealed.get(7, 0),
        lambda: sealed.entries(7, 0, 1),
        lambda: sealed.last_entry(7),
        sealed.ledgers,
        sealed.__enter__,
        lambda: sealed.count,
        lambda: SealedIndex().get(7, 0),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_an_index_may_be_closed_while_it_is_read(tmp_path: Path) -> None:
    index = index_of(*striped(1, 20_000))
    sealed = open_sealed(saved(index, tmp_path / "i"))
    expected = as_lists(index.entries(10, 0, 10**6))
    reading, wrong = threading.Event(), []

    def read() -> None:
        while True:
            try:
                entries = sealed.entries(10, 0, 10**6)
            except ClosedError:
                return
            reading.set()
            if as_lists(entries) != expected:
                wrong.append(entries)

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait()
    sealed.close()
    reader.join()
    assert not wrong
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_the_last_reference_unmaps_the_file(tmp_path: Path) -> None:
    sealed = open_sealed(saved(index_of((7, 0)), tmp_path / "dropped"))
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del sealed
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_indexes_refuse_pickling(tmp_path: Path) -> None:
    with open_sealed(saved(index_of((7, 0)), tmp_path / "i")) as sealed:
        for index in (LedgerIndex(), sealed):
            with pytest.raises(TypeError):
                pickle.dumps(index)


def test_many_entries_take_few_bytes() -> None:
    index = LedgerIndex()
    for start, stop in pairwise([0, 400, 3_000, 30_000, 250_000]):
        batch = [(10 + i % 8, i // 8, offset_of(i), STRIDE) for i in range(start, stop)]
        index.add_batch(*columns(batch))
        assert index.memory_bytes <= 20 * stop if stop == 400 else 11 * stop
    assert len(index.to_bytes(**SEGMENT)) <= 8.1 * index.count


def test_gaps_and_disorder_take_a_few_more() -> None:
    shuffled = np.random.default_rng(5).permutation(30_000).tolist()
    for entries, most in (([i + i // 3 for i in range(30_000)], 18), (shuffled, 52)):
        index = index_of(*((7, entry) for entry in entries))
        assert index.get(7, entries[-1]) == offset_of(29_999)
        assert index.memory_bytes <= most * 30_000


def test_a_ledger_out_of_order_is_right_after_every_addition() -> None:
    """Stretches that overlap, repeat and leave gaps, in random order, with lookups, cuts and listings between them."""
    random = np.random.default_rng(11)
    index, records = LedgerIndex(), []
    for turn in range(1500):
        first, count = int(random.integers(400)), int(random.integers(1, 9))
        for entry in range(first, first + count):
            index.add(7, entry, offset_of(len(records)), STRIDE)
            records.append(entry)
        if turn % 50 == 49:
            del records[-int(random.integers(40)) :]
            index.remove_from(offset_of(len(records)))
        where = {entry: offset_of(i) for i, entry in enumerate(records)}
        for entry in random.integers(0, 410, 5).tolist():
            assert index.get(7, entry) == where.get(entry)
        if turn % 10 == 0:
            assert index.count == len(where)
            ids = sorted(entry for entry in where if first - 20 <= entry < first + 20)
            assert as_lists(index.entries(7, max(first - 20, 0), first + 20)) == (ids, [where[e] for e in ids])
    assert as_lists(index.entries(7, 0, 500)) == (sorted(where), [where[e] for e in sorted(where)])


def test_every_way_in_which_three_stretches_overlap() -> None:
    stretches = [range(first, stop) for stop in range(1, 6) for first in range(stop)]
    for order in product(stretches, repeat=3):
        ids = [entry for stretch in order for entry in stretch]
        index = index_of(*((7, entry) for entry in ids))
        where = {entry: offset_of(i) for i, entry in enumerate(ids)}
        assert [index.get(7, entry) for entry in range(6)] == [where.get(entry) for entry in range(6)]
        assert as_lists(index.entries(7, 0, 6)) == (sorted(where), [where[e] for e in sorted(where)])


def test_an_index_tells_a_ledger_as_it_was_before_an_offset() -> None:
    index = index_of((7, 3), (7, 4), (8, 0), (7, 9))
    assert as_lists(index.entries(7, 0, 10, offset_of(3))) == ([3, 4], [offset_of(0), offset_of(1)])
    assert as_lists(index.entries(7, 0, 10, offset_of(0) + 1)) == ([3], [offset_of(0)])
    assert as_lists(index.entries(7, 0, 10, offset_of(0))) == ([], [])
    index.add(7, 3, offset_of(4), STRIDE)
    assert as_lists(index.entries(7, 3, 4)) == ([3], [offset_of(4)])
    assert as_lists(index.entries(7, 0, 9, offset_of(4))) == ([3, 4], [offset_of(0), offset_of(1)])
    assert index.share(7) == (3, 9, 4 * STRIDE, 3)
    assert index.share(9) is None
    again = index_of(*((7, entry) for entry in [0, 1, 2, 3, 0, 1, 2, 3]))  # the offset lies amid the second stretch
    assert as_lists(again.entries(7, 0, 9, offset_of(6))) == ([0, 1, 2, 3], [offset_of(i) for i in (4, 5, 2, 3)])


def test_a_log_indexes_batches_as_it_would_single_records(tmp_path: Path) -> None:
    """Batches longer than what the index takes at a time, gaps, a ledger after the other, and control records."""
    batches = [(7, 0, 700), (8, 5, 3), (7, 700, 1), (7, 900, 300), (8, 8, 2), (7, 100, 4)]
    expected, end = LedgerIndex(), HEADER_SIZE
    data = b""
    for ledger, first, count in batches:
        entries = encode_entries([b"v" * (i % 50) for i in range(count)], ledger=ledger, first=first, lac=-1, time=1)
        for i, (start, stop) in enumerate(pairwise(entries.offsets)):
            expected.add(ledger, first + i, end + start, stop - start)
        end += entries.nbytes
        data += bytes(entries.view)
    control = encode_control(8, 2, b"fence", lac=-1, time=1)
    expected.add(8 + CONTROL, 2, end, len(control))
    for appended in (data + control, b""):
        with LedgerLog(tmp_path / "log", LogConfig(segment_bytes=1 << 20)) as log:
            log.append(appended)
            index = running.active_segment(log.commit_log).ledgers  # made by appends; then, by a walk over the segment
            assert isinstance(index, LedgerIndex)
            assert index.to_bytes(**SEGMENT) == expected.to_bytes(**SEGMENT)


def test_readers_beside_a_writer_miss_nothing() -> None:
    index = LedgerIndex()
    batches = [
        columns([(10 + i % 4, i // 4, offset_of(i), STRIDE) for i in range(at, at + 40_000)])
        for at in range(0, 320_000, 40_000)
    ]
    wrong: list[tuple[int, int | None]] = []
    added, done = [0], threading.Event()

    def look_up() -> None:
        while not done.is_set():
            for number in range(0, added[0], 997):  # not index.count, which waits for the batch being added
                held_value = index.get(10 + number % 4, number // 4)
                if held_value != offset_of(number):
                    wrong.append((number, held_value))

    def list_entries() -> None:
        while not done.is_set():
            count = added[0] // 4
            ids, _ = index.entries(10, 0, count)
            if ids.size != count:
                wrong.append((count, ids.size))

    readers = [threading.Thread(target=look_up), threading.Thread(target=list_entries)]
    for reader in readers:
        reader.start()
    for batch in batches:
        index.add_batch(*batch)
        added[0] = index.count
    done.set()
    for reader in readers:
        reader.join()
    assert (wrong, index.count) == ([], 320_000)
