"""Entries lent out of a log of many ledgers: which, as views where that is possible, and for as long as they are held."""

from __future__ import annotations

import gc
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pyreplog._native.ledger_log.lending import lend_entries
from pyreplog._native.system.blocks import KEPT_MAX, kept_bytes
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.errors import CorruptionError, InvalidArgumentError
from pyreplog.log import names
from tests import running, samples
from tests.ledgers import SEGMENT_BYTES, open_log, read_all, record_of, records_of, split


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def address_of(view: bytes | memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


# ---- which -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gaps", [(), (0,), (7, 8, 20), (59,)])
def test_as_many_entries_are_lent_as_fit(gaps: tuple[int, ...], path: Path) -> None:
    """As many as fit, over several segments and between those of another ledger."""
    here = [entry for entry in range(60) if entry not in gaps]
    with open_log(path) as log:
        for entry in here:
            log.append(record_of(3, entry, 900) + record_of(9, entry, 400))
        assert log.segments()
        for first, (step, run), bytes_max in product((0, 5), ((1, 1), (3, 1), (5, 3), (5, 4)), (1, 3000, 1 << 20)):
            at = first
            while at < 60:
                records, after = log.lend(3, at, 60, bytes_max, step, run)
                asked = [entry for entry in range(at, after) if (entry - at) % step < run]
                given = list(split(records, 3, at, 59))
                assert after > at and given == [entry for entry in asked if entry in here]
                assert len(records) <= bytes_max or len(given) == 1
                at = after


@pytest.mark.parametrize(
    "wrong",
    [(3, 0, 10, 99, 0, 0), (3, 0, 10, 99, 2, 3), (3, 0, 10, 99, 2, 0), (3, 9, 9, 99), (3, 9, 0, 99), (3, 0, 10, 0)],
)
def test_lend_refuses_invalid_arguments(wrong: tuple[int, ...], path: Path) -> None:
    with open_log(path) as log, pytest.raises(InvalidArgumentError):
        log.lend(*wrong)


# ---- how -------------------------------------------------------------------------------------------------------


def test_contiguous_entries_are_lent_as_a_view_that_pins_their_segment(path: Path) -> None:
    with open_log(path) as log:
        log.append(records_of(3, *range(6)) + records_of(9, 0) + records_of(3, 6, 7))
        segment = running.active_segment(log.commit_log)
        before = segment.pinned
        view, after = log.lend(3, 0, 6, 1 << 20)
        assert (list(split(view, 3, 0, 5)), after, segment.pinned) == ([0, 1, 2, 3, 4, 5], 6, before + 1)
        copy, _ = log.lend(3, 0, 8, 1 << 20)
        assert (list(split(copy, 3, 0, 7)), segment.pinned) == ([*range(8)], before + 1)
        del view
        assert segment.pinned == before
        assert copy.readonly and len(split(copy, 3, 0, 7)) == 8


def test_lent_view_stays_valid_after_its_segment_is_removed(path: Path) -> None:
    """It is not written over as long as somebody has the view."""
    with open_log(path) as log:
        log.append(records_of(3, *range(4), size=3000))
        view, _ = log.lend(3, 0, 4, 1 << 20)
        said = bytes(view)
        for entry in range(200):
            log.append(record_of(9, entry, 6000))
            log.trim(log.segments()[-1][0] if log.segments() else 0)
        assert log.start_position > SEGMENT_BYTES and read_all(log, 3) == {}
        assert bytes(view) == said


# ---- damage ----------------------------------------------------------------------------------------------------


def test_records_are_not_verified_but_are_the_ones_meant(path: Path) -> None:
    with open_log(path) as log:
        records = records_of(3, *range(4))
        log.append(records)
        segment = running.active_segment(log.commit_log)
        entries, offsets = segment.ledgers.entries(3, 0, 4)
        samples.flip(names.segment_path(path, 0), int(offsets[2]) - 2)  # at the end of entry 1
        lent, after = log.lend(3, 0, 4, 1 << 20)
        assert (len(lent), after) == (len(records), 4)
        with pytest.raises(CorruptionError):
            log.read(3, 0, 4, 1 << 20)
        samples.flip(names.segment_path(path, 0), int(offsets[2]) + 32)  # in the id of entry 2
        lent, after = log.lend(3, 0, 4, 1 << 20)
        assert (len(lent), after) == (offsets[2] - 4096, 2)
        with pytest.raises(CorruptionError):
            log.lend(3, 2, 4, 1 << 20)
        for bad in (offsets + 4, offsets - 4096, offsets + SEGMENT_BYTES, offsets[::-1].copy()):
            with pytest.raises((CorruptionError, InvalidArgumentError)):
                lend_entries(segment, 3, entries, bad, 1 << 20, at_least_one=True)
        with pytest.raises(InvalidArgumentError):
            lend_entries(segment, 3, entries, offsets[:2], 1 << 20, at_least_one=True)
        assert lend_entries(segment, 3, entries, offsets, 1, at_least_one=False)[1] == 0
        assert lend_entries(segment, 3, entries[:0], offsets[:0], 1, at_least_one=True)[1] == 0


# ---- the memory of copies --------------------------------------------------------------------------------------


def test_the_memory_of_a_copy_is_used_again_and_what_is_kept_is_bounded(tmp_path: Path) -> None:
    with LedgerLog(tmp_path / "log", LogConfig(durability="appended", segment_bytes=8 << 20)) as log:
        for entry in range(80):
            log.append(record_of(3, entry, 20_000) + record_of(9, entry, 8))
        gc.collect()
        copy, _ = log.lend(3, 0, 20, 1 << 20)
        where, said = address_of(copy), bytes(copy)
        del copy  # others may have left so much that something of theirs goes for it
        assert 400_000 < kept_bytes() <= KEPT_MAX
        again, _ = log.lend(3, 0, 20, 1 << 20)
        other, _ = log.lend(3, 20, 40, 1 << 20)
        assert address_of(again) == where and bytes(again) == said and bytes(other) != said
        copies = [log.lend(3, 0, 80, 4 << 20)[0] for _ in range(2 * KEPT_MAX // 1_600_000)]
        assert len({address_of(copy) for copy in copies}) == len(copies)
        del copies, again, other
        assert KEPT_MAX // 2 < kept_bytes() <= KEPT_MAX
