"""The ledger index against a dictionary, its file against the byte table, and damage to the file."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog.errors import CorruptionError, InvalidArgumentError

SEGMENT = {"uuid": bytes(range(16)), "base": 1 << 30, "stamp": 77, "end": 1 << 30}
FIRST_OFFSET = 4096
BLOCK = 4096
EVERY_ENTRY = (0, 2**63 - 1)

ledger_ids = st.sampled_from([0, 1, 2, 9, 2**40, 2**63 - 1])
entry_ids = st.one_of(
    st.integers(0, 12), st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**62]), st.integers(0, 2**63 - 2)
)
strides = st.integers(8, 40).map(lambda words: words * 8)
gaps = st.integers(0, 3).map(lambda words: words * 8)
additions = st.tuples(ledger_ids, entry_ids, gaps, strides)
Row = tuple[int, int, int, int]  # ledger, entry, offset, stride
Record = tuple[int, int, int]  # ledger, entry, offset
Damage = Callable[[bytearray], None]
RUN = struct.Struct("<qqqQQII")  # ledger, first, last, bytes, run, entries, words


# The file, read and sealed by plain Python from its byte table.


def decode(image: bytes) -> list[Record]:
    magic, version, min_reader = struct.unpack_from("<8s4xHH", image)
    ledgers, entries, data_end = struct.unpack_from("<IQQ", image, 52)
    assert (magic, version, min_reader) == (b"RPLEDG01", 1, 1)
    identity = struct.unpack_from("<16sqqI", image, 16)
    assert identity == (SEGMENT["uuid"], SEGMENT["base"], SEGMENT["end"], SEGMENT["stamp"])
    records = []
    at = BLOCK + ledgers * RUN.size
    for ledger, first, last, _, run, count, words in RUN.iter_unpack(image[BLOCK:at]):
        assert run == at
        for _ in range(count):
            *delta, place = struct.unpack_from(f"<{words}I", image, at)
            records.append((ledger, first + sum(word << 32 * i for i, word in enumerate(delta)), place * 8))
            at += words * 4
        assert records[-1][1] == last
    assert (len(records), at) == (entries, data_end)
    return records


def reseal(image: bytearray) -> bytearray:
    """Give every block, the CRC table and the header the CRCs that their bytes have."""
    (data_end,) = struct.unpack_from("<Q", image, 64)
    blocks = (data_end + BLOCK - 1) // BLOCK
    for block in range(1, blocks):
        crc = crc32c(image[block * BLOCK : (block + 1) * BLOCK])
        struct.pack_into("<I", image, blocks * BLOCK + (block - 1) * 4, crc)
    for root, at in enumerate(range(blocks * BLOCK, len(image), BLOCK)):
        struct.pack_into("<I", image, 128 + root * 4, crc32c(image[at : at + BLOCK]))
    return reseal_header(image)


def reseal_header(image: bytearray) -> bytearray:
    struct.pack_into("<I", image, 8, crc32c(image[12:BLOCK]))
    return image


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

    def entries(self, ledger: int, start: int, stop: int, below: int = 2**62) -> list[tuple[int, int]]:
        where = {(ledger, entry): offset for ledger, entry, offset, _ in self.rows if offset < below}
        return sorted((e, o) for (held, e), o in where.items() if held == ledger and start <= e < stop)

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
        self.take(batch)

    @rule(ledger=st.sampled_from([0, 1]), first=st.integers(0, 30), count=st.integers(1, 12), stride=strides)
    def add_stretch(self, ledger: int, first: int, count: int, stride: int) -> None:
        self.take([(ledger, first + i, 0, stride) for i in range(count)])

    def take(self, batch: list[Row]) -> None:
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

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), ledger=ledger_ids)
    def range_as_it_was(self, data: st.DataObject, ledger: int) -> None:
        below = data.draw(st.sampled_from(self.model.rows))[2] + data.draw(st.integers(-1, 1))
        ids, offsets = self.index.entries(ledger, *EVERY_ENTRY, below)
        assert list(zip(ids.tolist(), offsets.tolist(), strict=True)) == self.model.entries(ledger, *EVERY_ENTRY, below)

    @rule(start=st.integers(0, 2**40), length=st.integers(0, 2**40))
    def save_and_open(self, start: int, length: int) -> None:
        self.path.write_bytes(self.index.to_bytes(**SEGMENT))
        image = self.path.read_bytes()
        assert decode(image) == sorted((*pair, offset) for pair, offset in self.model.where().items())
        assert reseal(bytearray(image)) == image
        with SealedIndex.open(self.path, **SEGMENT) as sealed:
            assert_same(sealed, self.model)
            for ledger in (0, 9):
                expected = self.model.entries(ledger, start, start + length)
                assert pairs(sealed, ledger, start, start + length) == expected

    @invariant()
    def same(self) -> None:
        assert_same(self.index, self.model)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.tuples(ledger_ids, entry_ids), min_size=1, max_size=400),
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_gives_the_right_answer_or_an_error(ids: list[tuple[int, int]], flips: list[tuple[int, int]]) -> None:
    index = index_of(ids)
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


def index_of(ids: list[tuple[int, int]]) -> LedgerIndex:
    index = LedgerIndex()
    for number, (ledger, entry) in enumerate(ids):
        index.add(ledger, entry, FIRST_OFFSET + number * 64, 64)
    return index


def two_ledgers(each: int) -> list[tuple[int, int]]:
    """Ledgers 10 and 11 in turn; every fourth entry id is left out."""
    return [(10 + i % 2, i // 2 + i // 6) for i in range(2 * each)]


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


def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path: Path) -> None:
    ids = [*two_ledgers(10), (4, 0), (4, 2**33)]
    index = index_of(ids)
    keys = [*ids, (4, 1), (10, 3), (11, 14), (9, 0), (12, 0)]
    answers = [index.get(*key) for key in keys]
    path = tmp_path / "index"
    path.write_bytes(index.to_bytes(**SEGMENT))
    with path.open("r+b", buffering=0) as file:
        for position, byte in enumerate(path.read_bytes()):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << position % 8]), position)
            with pytest.raises(CorruptionError), SealedIndex.open(path, **SEGMENT) as sealed:
                for key, answer in zip(keys, answers, strict=True):
                    assert sealed.get(*key) == answer
            os.pwrite(file.fileno(), bytes([byte]), position)


def test_a_bad_block_spoils_its_own_lookups_only(tmp_path: Path) -> None:
    ids = [(10 + i % 4, i // 4 + i // 12) for i in range(16_000)]
    asked = list(enumerate(ids))[::37]
    image = index_of(ids).to_bytes(**SEGMENT)
    path = tmp_path / "index"
    directory, table = 1, len(image) // BLOCK - 1
    for block in range(1, len(image) // BLOCK):
        damaged = bytearray(image)
        damaged[block * BLOCK + 50] ^= 0x10
        path.write_bytes(damaged)
        refused = 0
        with SealedIndex.open(path, **SEGMENT) as sealed:
            for number, key in asked:
                try:
                    assert sealed.get(*key) == FIRST_OFFSET + number * 64
                except CorruptionError as error:
                    assert error.position == block * BLOCK
                    refused += 1
        if block in (directory, table):
            assert refused == len(asked)
        else:
            assert 0 < refused < len(asked) // 4


def cut_to(size: int) -> Damage:
    def cut(image: bytearray) -> None:
        del image[size:]

    return cut


def put(layout: str, position: int, *values: int) -> Damage:
    def change(image: bytearray) -> None:
        struct.pack_into(layout, image, position, *values)
        if position < BLOCK:
            reseal_header(image)
        else:
            reseal(image)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        cut_to(0),
        cut_to(100),
        cut_to(BLOCK),
        cut_to(-BLOCK),
        cut_to(-1),
        lambda image: image.extend(bytes(1)),
        lambda image: image.extend(bytes(BLOCK)),
        lambda image: image.__setitem__(slice(None), bytes(len(image))),
        put("<H", 14, 2),  # lowest version of a reader
        put("<I", 52, 2**32 - 1),  # ledgers
        put("<I", 52, 10**6),
        put("<Q", 56, 2**64 - 1),  # entries
        put("<Q", 64, 2**64 - 1),  # data end
        put("<Q", 64, 2**63),
        put("<Q", 64, BLOCK + 8),
        put("<Q", 64, 0),
    ],
)
def test_a_file_of_wrong_size_or_absurd_counts_is_refused(damage: Damage, tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = bytearray(index_of(two_ledgers(600)).to_bytes(**SEGMENT))
    damage(image)
    path.write_bytes(image)
    with pytest.raises(CorruptionError):
        SealedIndex.open(path, **SEGMENT)


@pytest.mark.parametrize(
    "damage",
    [
        put("<Q", BLOCK + 32, 2**64 - 4),  # run
        put("<Q", BLOCK + 32, 0),
        put("<Q", BLOCK + 32, BLOCK + 2 * RUN.size + 2),
        put("<I", BLOCK + 40, 2**32 - 1),  # entries
        put("<I", BLOCK + 40, 0),
        put("<I", BLOCK + 44, 3),  # words
        put("<I", BLOCK + 44, 0),
        put("<q", BLOCK + 16, -1),  # last
        put("<q", BLOCK + 8, -(2**63)),  # first
        put("<I", BLOCK + 2 * RUN.size + 4, 0),  # place of the first item
        put("<I", BLOCK + 2 * RUN.size + 4, 2**32 - 1),
    ],
)
def test_absurd_values_behind_right_checksums_are_refused(damage: Damage, tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = bytearray(index_of(two_ledgers(600)).to_bytes(**SEGMENT))
    damage(image)
    path.write_bytes(image)
    with SealedIndex.open(path, **SEGMENT) as sealed:
        with pytest.raises(CorruptionError):
            sealed.get(10, 0)
        with pytest.raises(CorruptionError):
            sealed.entries(10, 0, 10)
        assert sealed.get(11, 0) == FIRST_OFFSET + 64


def test_a_file_beyond_what_its_header_can_vouch_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    header = bytearray(index_of([(7, 0)]).to_bytes(**SEGMENT)[:BLOCK])
    data_end = BLOCK + 992 * 1024 * BLOCK
    struct.pack_into("<Q", header, 64, data_end)
    path.write_bytes(reseal_header(header))
    os.truncate(path, data_end + 992 * BLOCK)  # a hole: takes no room
    with pytest.raises(CorruptionError, match="runs that fit"):
        SealedIndex.open(path, **SEGMENT)
