"""44, BookieJournalTest: what the end of a bookie's log may look like after a crash, and how it starts on it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import LOG
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.errors import WrongLogError
from pyreplog.metadata.memory import MemoryStore
from tests import running
from tests.bookie.asking import ANY_SPACE, Facts, add, entries_in, read
from tests.bookie.test_local import ask

CONFIG = BookieConfig.of({"durability": "appended", "segment_bytes": 64 << 10, **ANY_SPACE})
COUNT = 10
HEADER_BYTES = 4096

Change = Callable[[bytearray, int, int, random.Random], None]
"""Of a segment's bytes: the last record lies from one place to another."""


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as memory_store:
        yield memory_store


def opened(path: Path, store: MemoryStore) -> LocalBookie:
    return open_bookie(path, "b1", store, CONFIG, ledgers=Facts())[1]


def killed(path: Path, store: MemoryStore) -> tuple[Path, int, int]:
    """A bookie with entries of one ledger, as `kill -9` leaves it: its segment, and where the last record lies."""
    bookie = opened(path, store)
    for entry in range(COUNT - 1):
        ask(bookie, add(entry, flags=Flag.UNSYNCED))
    first = bookie.log.log.end_position
    ask(bookie, add(COUNT - 1, flags=Flag.UNSYNCED))
    end = bookie.log.log.end_position
    copy = running.copied(bookie.log.log.commit_log, path, path.with_name("copy"))
    bookie.close()
    shutil.rmtree(path)
    shutil.move(copy, path)
    (segment,) = [file for file in (path / LOG).glob("*.log") if b"7/9" in file.read_bytes()]
    return segment, first, end


def zeros_from(data: bytearray, start: int) -> None:
    data[start:] = bytes(len(data) - start)


def junk(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    data[start:end] = draw.randbytes(end - start)


CHANGES: dict[str, tuple[Change, int]] = {
    "cut in the length": (lambda data, first, end, draw: zeros_from(data, first + draw.randrange(1, 4)), COUNT - 1),
    "cut in the entry": (lambda data, first, end, draw: zeros_from(data, data.index(b"7/9") + 1), COUNT - 1),
    "junk behind the end": (lambda data, first, end, draw: junk(data, end, end + 3000, draw), COUNT),
    "junk in place of the last": (lambda data, first, end, draw: junk(data, first, end + 3000, draw), COUNT - 1),
    "nothing but junk": (lambda data, first, end, draw: junk(data, HEADER_BYTES, len(data), draw), 0),
    "nothing but a header": (lambda data, first, end, draw: zeros_from(data, HEADER_BYTES), 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bookie_starts_with_the_intact_part_of_a_torn_log(
    name: str, tmp_path: Path, store: MemoryStore, seed: int
) -> None:
    """And goes on from there; what was cut does not come back."""
    change, left = CHANGES[name]
    path = tmp_path / "bookie"
    segment, first, end = killed(path, store)
    data = bytearray(segment.read_bytes())
    change(data, first, end, random.Random(seed))
    segment.write_bytes(data)
    with closing(opened(path, store)) as bookie:
        assert entries_in(ask(bookie, read(0, COUNT))) == list(range(left))
        assert ask(bookie, add(*range(left, COUNT + 1))).status == ReplyStatus.OK
    with closing(opened(path, store)) as bookie:
        assert entries_in(ask(bookie, read(0, COUNT))) == list(range(COUNT + 1))


@pytest.mark.parametrize("size", [0, 1])
def test_a_log_whose_only_segment_is_gone_is_refused(size: int, tmp_path: Path, store: MemoryStore) -> None:
    path = tmp_path / "bookie"
    segment, _, _ = killed(path, store)
    with segment.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(WrongLogError, match="no intact segment"):
        opened(path, store)


@pytest.mark.parametrize("size", [HEADER_BYTES, HEADER_BYTES + 1])
def test_no_crash_leaves_a_segment_shorter_than_it_was_made(size: int, tmp_path: Path, store: MemoryStore) -> None:
    """It is damage: the bookie starts without what is gone, and its ledger is in limbo."""
    path = tmp_path / "bookie"
    segment, _, _ = killed(path, store)
    with segment.open("r+b") as file:
        file.truncate(size)
    with closing(open_bookie(path, "b1", store, CONFIG, ledgers=Facts(7))[1]) as bookie:
        assert bookie.lost_segments == 1
        assert ask(bookie, read(0, 0)).status == ReplyStatus.LIMBO
        assert ask(bookie, add(0, flags=Flag.RECOVERY)).status == ReplyStatus.OK
        assert entries_in(ask(bookie, read(0, 0))) == [0]
