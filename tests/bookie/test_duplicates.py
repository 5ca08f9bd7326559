"""Entries that arrive again, and entries that arrive between others that are here: compared in bulk, one by one in
effect."""

from __future__ import annotations

import random

import pytest

from pyreplog._native.ledger_log.entries import compare_entries
from pyreplog.bookie.duplicates import are_stored
from pyreplog.bookie.protocol import ReplyStatus, Request, RequestKind
from pyreplog.errors import CorruptionError, InvalidRecordsError, OtherRecordError, WrongTypeError
from tests.bookie.asking import KEY, LEDGER, Node, add, entries_in, read, records_of
from tests.bookie.memory_log import MemoryLog, split


class CountingLog(MemoryLog):
    """Counts looks at stored entries, and verifies what it reads, as the one on a disk."""

    looks = 0

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        records, stop = super().read(ledger, start, end, bytes_max)
        try:
            split(records)
        except InvalidRecordsError as error:
            raise CorruptionError("memory", start, "a record", "damage") from error
        return records, stop

    def lend(self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int) -> tuple[bytes, int]:
        self.looks += ledger == LEDGER
        return super().lend(ledger, start, end, bytes_max, step, run)


def stored_log(*entries: int, mark: bytes = b"") -> CountingLog:
    log = CountingLog()
    for entry in entries:
        log.append(records_of(entry, mark=mark))
    log.sync()
    return log


def flip(log: MemoryLog, entry: int) -> None:
    for at, item in enumerate(log.stored):
        if item.entry == entry and item.ledger == LEDGER:
            log.stored[at] = type(item)(item.ledger, item.entry, item.raw[:-1] + bytes((item.raw[-1] ^ 1,)))


# ---- one look --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_a_stripe_between_others_costs_one_look(again: bool) -> None:
    """Copies come stripe by stripe, thousands of entries in a request; each look holds up all other requests."""
    log = stored_log(*range(0, 1000, 5))
    if again:
        log.append(records_of(*range(1, 1000, 5)))
        log.sync()
    log.looks = 0
    assert are_stored(log, add(*range(1, 1000, 5))) == again
    assert log.looks == 1


def test_entries_at_any_distances_cost_one_look() -> None:
    log = stored_log(*range(0, 1000, 3))
    log.looks = 0
    assert not are_stored(log, add(1, 2, 30, 600, 602))
    assert are_stored(log, add(0, 3, 30, 600)) and are_stored(log, add(0, 300, 600))
    assert log.looks == 3


# ---- as one by one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_an_add_is_a_duplicate_only_if_each_of_its_entries_is_stored(seed: int) -> None:
    """Whatever is stored, damaged or another record: as if each entry was looked at alone."""
    rng = random.Random(seed)
    here = sorted(rng.sample(range(60), rng.randrange(40)))
    others = {entry for entry in here if rng.random() < rng.choice([0, 0, 0.05])}
    log = CountingLog()
    for entry in here:
        log.append(records_of(entry, mark=b"other" if entry in others else b""))
    log.sync()
    flipped = {entry for entry in here if rng.random() < rng.choice([0, 0, 0.1])}
    for entry in flipped:
        flip(log, entry)
    log.damaged = {(LEDGER, entry) for entry in here if rng.random() < rng.choice([0, 0, 0.05])}
    if rng.random() < 0.5:
        asked = list(range(rng.randrange(9), 60, rng.randint(1, 20)))
    else:
        asked = sorted(rng.sample(range(60), rng.randint(1, 20)))
    damaged = flipped | {entry for _, entry in log.damaged}
    if others & {*asked} - damaged:
        # a damaged one before it changes nothing: the request is refused as a whole
        with pytest.raises(OtherRecordError) as raised:
            are_stored(log, add(*asked))
        assert f"entry {min(others & {*asked} - damaged)} " in str(raised.value)
    else:
        assert are_stored(log, add(*asked)) == ({*asked} <= {*here} - damaged)


def test_a_bookie_stores_entries_between_stored_ones_once() -> None:
    node = Node()
    node.ask(add(*range(0, 100, 5)))
    for _ in range(2):
        assert node.ask(add(*range(1, 100, 5))).status == ReplyStatus.OK
    assert len(node.log.stored) == 1 + 40
    assert node.ask(add(*range(2, 90, 5))).status == ReplyStatus.OK
    assert node.ask(add(87, 92, 97)).status == ReplyStatus.OK, "some are here"
    assert node.ask(add(51, 52, mark=b"other")).status == ReplyStatus.REFUSED
    assert entries_in(node.ask(read(0, 200))) == sorted({*range(0, 100, 5), *range(1, 100, 5), *range(2, 100, 5)})


def test_records_after_a_damaged_one_are_not_taken_for_duplicates() -> None:
    node = Node()
    node.ask(add(0, 1))
    bad = Request(RequestKind.ADD, LEDGER, 0, 1, KEY, records=records_of(0) + records_of(1)[:-1] + b"\xff")
    assert node.ask(bad).status == ReplyStatus.INVALID


# ---- the comparison --------------------------------------------------------------------------------------------


def test_stamps_do_not_matter_and_all_else_does() -> None:
    given = records_of(0, 2, 4, 6)
    entry_bytes = len(given) // 4
    assert compare_entries(given, given) == (4, -1)
    stamped = bytearray(given)
    for at in range(0, len(given), entry_bytes):
        stamped[at + 8 : at + 12] = b"\xff\1\2\3"
    assert compare_entries(given, stamped) == compare_entries(stamped, given) == (4, -1)
    for at in (
        set(range(2 * entry_bytes, 3 * entry_bytes))
        - set(range(2 * entry_bytes + 8, 2 * entry_bytes + 12))
        - set(range(2 * entry_bytes, 2 * entry_bytes + 4))
    ):
        changed = bytearray(stamped)
        changed[at] ^= 0x10
        count, differs = compare_entries(given, changed)
        is_entry = 32 <= at % entry_bytes < 40
        assert differs == (-1 if is_entry else 2 * entry_bytes) and count < 4, at
    assert compare_entries(given, records_of(4, mark=b"longer")) == (0, 2 * entry_bytes)


def test_entries_that_only_one_side_has() -> None:
    assert compare_entries(records_of(1, 3, 5), records_of(0, 2, 4, 6)) == (0, -1)
    assert compare_entries(records_of(1, 3, 5), records_of(0, 1, 2, 5, 6)) == (2, -1)
    assert compare_entries(b"", records_of(1)) == compare_entries(records_of(1), b"") == (0, -1)
    assert compare_entries(records_of(1) + b"x", records_of(1)[:-1] + b"xx") in {(0, 0), (0, -1), (1, -1)}
    with pytest.raises(WrongTypeError):
        compare_entries("", b"")  # type: ignore[arg-type]
