"""How far a log is proven never moves back, whoever says so, and when (BookKeeper #4105)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.log.checkpoint import Checkpoint, CheckpointFile, load
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
