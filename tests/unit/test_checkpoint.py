"""How far a log is proven never moves back, whoever says so, and when (BookKeeper #4105)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import FormatVersionError
from pyreplog.log import names
from pyreplog.log.checkpoint import SLOT_BYTES, VERSION, Checkpoint, CheckpointFile, load
from pyreplog.log.files import RealFiles

FIRST = Checkpoint(uuid=b"u" * 16, segment_bytes=1 << 16, start=0, position=100, entry=10, epoch=1, clean=False)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CheckpointFile]:
    checkpoint_file = CheckpointFile(tmp_path, RealFiles(), FIRST)
    yield checkpoint_file
    checkpoint_file.close()


def proven(folder: Path) -> tuple[int, int, bool]:
    """As the next start finds it."""
    content = load(folder)
    assert content is not None
    return content.position, content.entry, content.clean


def test_an_older_proof_that_comes_late_changes_nothing(file: CheckpointFile, tmp_path: Path) -> None:
    """46, DbLedgerStorageTest.testConcurrentCheckpointCompleteLastMarkRegression: of two at once the first ends last, and
    what lies between may be gone by then."""
    file.advance(position=300, entry=30, clean=False)
    file.advance(position=200, entry=20, clean=False)
    file.advance(position=200, entry=20, clean=True)
    assert proven(tmp_path) == (300, 30, False)
    file.advance(position=300, entry=30, clean=True)
    assert proven(tmp_path) == (300, 30, True)


def test_removing_what_lies_before_takes_no_proof_back(file: CheckpointFile, tmp_path: Path) -> None:
    file.trim(start=50, entry=5)
    assert proven(tmp_path) == (100, 10, False)
    file.trim(start=400, entry=40)
    assert proven(tmp_path) == (400, 40, False)


def test_trim_to_the_proven_position_keeps_the_log_clean(file: CheckpointFile, tmp_path: Path) -> None:
    """Nothing of what was proven is removed: only what lies before."""
    file.advance(position=100, entry=10, clean=True)
    file.trim(start=100, entry=9)
    assert load(tmp_path) == replace(FIRST, start=100, clean=True, sequence=2)


def test_a_log_that_was_cut_goes_back_in_another_epoch(file: CheckpointFile, tmp_path: Path) -> None:
    file.advance(position=300, entry=30, clean=True)
    file.restart(position=200, entry=20, epoch=7)
    assert load(tmp_path) == replace(FIRST, position=200, entry=20, epoch=7, sequence=2)


def test_a_log_without_segments_begins_anywhere(file: CheckpointFile, tmp_path: Path) -> None:
    for start, entry in ((500, 50), (50, 5)):
        file.advance(position=start, entry=entry, clean=True)
        file.begin_at(start=start, entry=entry)
        assert load(tmp_path) == replace(FIRST, start=start, position=start, entry=entry, sequence=file.last.sequence)


def test_a_slot_that_was_torn_leaves_the_one_before(file: CheckpointFile, tmp_path: Path) -> None:
    path = tmp_path / names.CHECKPOINT
    for number in range(1, 5):
        before = load(tmp_path)
        file.advance(position=100 + number, entry=10 + number, clean=number % 2 == 0)
        whole, at = path.read_bytes(), (number & 1) * SLOT_BYTES
        assert len(whole) == 2 * SLOT_BYTES
        for offset in range(len(FIRST.encode())):
            torn = bytearray(whole)
            torn[at + offset] ^= 0x10
            path.write_bytes(torn)
            assert load(tmp_path) == before, offset
        with path.open("r+b") as content:  # in place: the writer has the file open
            content.write(whole)
        assert load(tmp_path) == file.last != before


def test_load_of_a_truncated_checkpoint_uses_its_intact_slots(file: CheckpointFile, tmp_path: Path) -> None:
    file.advance(position=200, entry=20, clean=True)
    path, size = tmp_path / names.CHECKPOINT, len(FIRST.encode())
    whole = path.read_bytes()
    for length, expected in ((0, None), (size - 1, None), (size, FIRST), (SLOT_BYTES + size - 1, FIRST),
                             (SLOT_BYTES + size, file.last)):  # fmt: skip
        path.write_bytes(whole[:length])
        assert load(tmp_path) == expected
        reopened = CheckpointFile(tmp_path, RealFiles(), replace(FIRST, position=150))
        reopened.close()
        assert path.stat().st_size == 2 * SLOT_BYTES
        assert load(tmp_path) == replace(FIRST, position=150), "a file of another size is written anew"
    path.unlink()
    assert load(tmp_path) is None


def test_bytes_after_both_slots_are_ignored(file: CheckpointFile, tmp_path: Path) -> None:
    path = tmp_path / names.CHECKPOINT
    path.write_bytes(path.read_bytes() + replace(FIRST, position=900, sequence=9).encode())
    assert load(tmp_path) == FIRST


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    slot = bytearray(FIRST.encode())
    slot[12:14] = (VERSION + 1).to_bytes(2, "little")
    slot[8:12] = crc32c(bytes(slot[12:])).to_bytes(4, "little")
    assert Checkpoint.decode(bytes(slot)) == FIRST, "a version that this one can read"
    slot[14:16] = (VERSION + 1).to_bytes(2, "little")
    slot[8:12] = crc32c(bytes(slot[12:])).to_bytes(4, "little")
    with pytest.raises(FormatVersionError) as caught:
        Checkpoint.decode(bytes(slot))
    assert (caught.value.found, caught.value.supported) == (VERSION + 1, VERSION)


def test_a_closed_file_has_no_descriptor_until_it_is_written_again(tmp_path: Path) -> None:
    def descriptors() -> int:
        """How many descriptors of this process are open for the file."""
        path = os.path.realpath(tmp_path / names.CHECKPOINT)
        return sum(os.path.realpath(link) == path for link in Path("/proc/self/fd").iterdir())

    file = CheckpointFile(tmp_path, RealFiles(), FIRST)
    file.open()
    assert descriptors() == 1
    for _ in range(2):
        file.close()
        assert descriptors() == 0
    file.open()
    file.close()
    file.advance(position=200, entry=20, clean=False)
    file.advance(position=300, entry=30, clean=False)
    assert descriptors() == 1
    file.close()
    assert (descriptors(), proven(tmp_path)) == (0, (300, 30, False))
