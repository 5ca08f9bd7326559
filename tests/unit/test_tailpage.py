"""A tail page that is not what a writer left: nobody loops, takes memory or sees less for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import CorruptionError, ReplogError
from pyreplog.log import names, tail_page
from pyreplog.log.fsck import check as fsck
from pyreplog.tables import logs

SIZE, ENTRIES = 1 << 16, 900
VALUES = [b"%d" % n + bytes(100) for n in range(ENTRIES)]
WORDS = dict(
    zip(
        ("start", "end", "end_entry", "synced_end", "synced_entry", "visible", "visible_entry"),
        range(48, 104, 8),
        strict=True,
    )
)
SINGLE = {"truncations": 104, "open": 108, "unreplicated": 120}
BITS = [*range(24), 33, 47, 62, 63]


def flip(path: Path, offset: int, bit: int) -> None:
    fd = os.open(path / names.TAIL, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, offset + bit // 8)[0]
        os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), offset + bit // 8)
    finally:
        os.close(fd)


@contextlib.contextmanager
def flipped(path: Path, offset: int, bit: int) -> Iterator[None]:
    flip(path, offset, bit)
    try:
        yield
    finally:
        flip(path, offset, bit)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch(VALUES)
    return tmp_path / "log"


def all_of(path: Path) -> list[bytes]:
    with pyreplog.open(path, "r") as reader:
        assert reader.end == ENTRIES
        return reader[:]


@pytest.mark.parametrize("word", [*WORDS, *SINGLE])
def test_no_bit_of_the_page_of_a_closed_log_changes_what_is_read(log: Path, word: str) -> None:
    offset = {**WORDS, **SINGLE}[word]
    for bit in BITS if word in WORDS else range(8):
        with flipped(log, offset, bit):
            assert all_of(log) == VALUES
            snapshot = logs.take_snapshot(log)
            assert (snapshot.ends.end_entry, len(snapshot.segments), snapshot.first_entry) == (ENTRIES, 2, 0)
            assert fsck.check(log).clean


@pytest.mark.parametrize("word", WORDS)
def test_damaged_tail_page_of_an_open_log_never_shows_more_than_its_files_hold(log: Path, word: str) -> None:
    """While a writer has the log open nothing else says where it ends: readers get an error, or all there is."""
    with pyreplog.open(log) as writer:
        for bit in (5, 12, 21, 40, 62, 63):
            with flipped(log, WORDS[word], bit):
                for look in (lambda: len(all_of(log)), lambda: len(logs.take_snapshot(log).segments)):
                    with contextlib.suppress(ReplogError, AssertionError):
                        assert look() <= ENTRIES
        for bit in (40, 62):
            with flipped(log, WORDS[word], bit):
                with pytest.raises(CorruptionError, match="open it for writing again") as caught:
                    pyreplog.open(log, "r")
                assert caught.value.path == log / names.TAIL and caught.value.position in WORDS.values()
                assert [damage.part for damage in fsck.check(log).damages] == ["tail page"]
        writer.append(b"more")  # the words that an append moves are right again
        with pyreplog.open(log, "r") as reader:
            assert reader.end == ENTRIES + 1


def test_a_snapshot_up_to_the_start_of_a_segment_ends_with_the_one_before(log: Path) -> None:
    snapshot = logs.take_snapshot(log)
    first, second = snapshot.segments
    before = snapshot.up_to(second.base, second.first_entry)
    assert before.segments == (first,)
    assert (before.ends.end, before.ends.end_entry) == (second.base, second.first_entry)
    assert snapshot.up_to(0, 0).segments == () and snapshot.up_to(1 << 40, ENTRIES) == snapshot


def test_an_older_page_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE, durability="synced") as log:
        log.append_batch(VALUES[:300])
        older = (path / names.TAIL).read_bytes()
        log.append_batch(VALUES[300:])
    (path / names.TAIL).write_bytes(older)
    assert all_of(path) == VALUES
    assert logs.take_snapshot(path).ends.end_entry == ENTRIES
    with pyreplog.open(path) as writer:
        assert writer.end == ENTRIES
        with pyreplog.open(path, "r") as reader:
            assert reader.live and reader.end == ENTRIES


def test_a_writer_does_not_go_by_a_page_that_cannot_be(log: Path) -> None:
    flip(log, WORDS["visible"], 41)
    with pyreplog.open(log) as writer:
        assert writer.end == ENTRIES and tail_page.load(log) is not None
