"""The ledger index, in memory and saved, against a dictionary."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyreplog._native.index import LedgerIndex, SealedIndex
from pyreplog.errors import CorruptionError, InvalidArgumentError

SEGMENT = {"uuid": bytes(range(16)), "base": 1 << 30, "stamp": 77, "end": 1 << 30}
FIRST_OFFSET = 4096
EVERY_ENTRY = (0, 2**63 - 1)

ledger_ids = st.sampled_from([0, 1, 2, 9, 2**40, 2**63 - 1])
entry_ids = st.one_of(
    st.integers(0, 12), st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**62]), st.integers(0, 2**63 - 2)
)
strides = st.integers(8, 40).map(lambda words: words * 8)
gaps = st.integers(0, 3).map(lambda words: words * 8)
additions = st.tuples(ledger_ids, entry_ids, gaps, strides)
Row = tuple[int, int, int, int]  # ledger, entry, offset, stride


class Model:
    """Records in log order; the last one of an entry is where it is."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def end(self) -> int:
        return self.rows[-1][2] + self.rows[-1][3] if self.rows else FIRST_OFFSET

    def place(self, batch: list[Row]) -> list[Row]:
        """Rows of the additions (ledger, entry, gap before, stride) as they follow this model's."""
        end, placed = self.end, []
        for ledger, entry, gap, stride in batch:
            placed.append((ledger, entry, end + gap, stride))
            end += gap + stride
        return placed

    def where(self) -> dict[tuple[int, int], int]:
        return {(ledger, entry): offset for ledger, entry, offset, _ in self.rows}

    def entries(self, ledger: int, start: int, stop: int) -> list[tuple[int, int]]:
        return sorted((e, o) for (held, e), o in self.where().items() if held == ledger and start <= e < stop)

    def ledgers(self) -> list[tuple[int, int, int, int, int]]:
        table = []
        for ledger in sorted({row[0] for row in self.rows}):
            ids = {row[1] for row in self.rows if row[0] == ledger}
            size = sum(row[3] for row in self.rows if row[0] == ledger)
            table.append((ledger, min(ids), max(ids), size, len(ids)))
        return table


def pairs(index: LedgerIndex | SealedIndex, ledger: int, start: int, stop: int) -> list[tuple[int, int]]:
    ids, offsets = index.entries(ledger, start, stop)
    return list(zip(ids.tolist(), offsets.tolist(), strict=True))


def assert_same(index: LedgerIndex | SealedIndex, model: Model) -> None:
    where = model.where()
    assert index.count == len(where)
    assert index.ledgers().tolist() == model.ledgers()
    for ledger, entry in where:
        assert index.get(ledger, entry) == where[ledger, entry]
        for neighbour in (entry - 1, entry + 1):
            if 0 <= neighbour < 2**63:
                assert index.get(ledger, neighbour) == where.get((ledger, neighbour))
    for ledger in (0, 1, 2, 9, 2**40, 2**63 - 1):
        assert pairs(index, ledger, *EVERY_ENTRY) == model.entries(ledger, *EVERY_ENTRY)
        last = max((e for held, e in where if held == ledger), default=None)
        assert index.last_entry(ledger) == last


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = LedgerIndex()
        self.model = Model()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "index"

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(addition=additions)
    def add(self, addition: Row) -> None:
        (row,) = self.model.place([addition])
        self.index.add(*row)
        self.model.rows.append(row)

    @rule(batch=st.lists(additions, min_size=1, max_size=60))
    def add_batch(self, batch: list[Row]) -> None:
        rows = self.model.place(batch)
        self.index.add_batch(*np.array(rows, np.int64).T.copy())
        self.model.rows += rows

    @rule(batch=st.lists(additions, max_size=10))
    def refused_batch_changes_nothing(self, batch: list[Row]) -> None:
        rows = [*self.model.place(batch), (0, -1, 1 << 29, 64)]
        try:
            self.index.add_batch(*np.array(rows, np.int64).T.copy())
        except InvalidArgumentError:
            return
        raise AssertionError("a negative entry id was accepted")

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        ledger, entry, _, stride = data.draw(st.sampled_from(self.model.rows))
        (row,) = self.model.place([(ledger, entry, 0, stride)])
        self.index.add(*row)
        self.model.rows.append(row)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(FIRST_OFFSET - 8, self.model.end + 8))
        self.index.remove_from(offset)
        self.model.rows = [row for row in self.model.rows if row[2] + row[3] <= offset]

    @rule(ledger=ledger_ids, start=st.integers(0, 14), length=st.integers(-2, 14))
    def range_of_entries(self, ledger: int, start: int, length: int) -> None:
        stop = start + length
        assert pairs(self.index, ledger, start, stop) == self.model.entries(ledger, start, stop)

    @rule(start=st.integers(0, 2**40), length=st.integers(0, 2**40))
    def save_and_open(self, start: int, length: int) -> None:
        self.index.save(self.path, **SEGMENT)
        with SealedIndex.open(self.path, **SEGMENT) as sealed:
            assert_same(sealed, self.model)
            for ledger in (0, 9):
                expected = self.model.entries(ledger, start, start + length)
                assert pairs(sealed, ledger, start, start + length) == expected

    @invariant()
    def same(self) -> None:
        assert_same(self.index, self.model)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.tuples(ledger_ids, entry_ids), min_size=1, max_size=400),
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_gives_the_right_answer_or_an_error(
    ids: list[tuple[int, int]], flips: list[tuple[int, int]]
) -> None:
    index = LedgerIndex()
    for number, (ledger, entry) in enumerate(ids):
        index.add(ledger, entry, FIRST_OFFSET + number * 64, 64)
    image = bytearray(index.to_bytes(**SEGMENT))
    for position, mask in flips:
        image[position % len(image)] ^= mask
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(image)
        try:
            with SealedIndex.open(path, **SEGMENT) as sealed:
                for ledger, entry in [*ids, (0, 5), (9, 2**32)]:
                    assert answer_of(sealed, ledger, entry) in (index.get(ledger, entry), "unknown")
        except CorruptionError as error:
            assert error.path == path


def answer_of(sealed: SealedIndex, ledger: int, entry: int) -> int | str | None:
    try:
        return sealed.get(ledger, entry)
    except CorruptionError:
        return "unknown"


@settings(max_examples=300, deadline=None)
@given(image=st.binary(max_size=3 * 4096))
def test_arbitrary_bytes_are_no_index(image: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "index"
        path.write_bytes(image)
        try:
            SealedIndex.open(path, **SEGMENT).close()
        except CorruptionError:
            return
        raise AssertionError("accepted")
