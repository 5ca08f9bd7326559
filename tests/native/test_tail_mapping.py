"""A writer gives up the mapping of its tail page, and takes it again: readers and sleepers lose nothing by that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyreplog._native.log.tail_page import PAGE, Tail
from tests.waiting import until

UUID, BOOT = bytes(16), bytes(range(16))
SLEEPERS = slice(116, 120)  # FORMAT.md, "Tail page"
WAIT_S = 60.0
LONG_US = int(WAIT_S * 1e6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tail").write_bytes(bytes(PAGE))
    return tmp_path / "tail"


def open_tail(path: Path) -> Tail:
    with path.open("r+b") as file:
        return Tail(file, writable=True)


def map_again(tail: Tail, path: Path) -> None:
    with path.open("r+b") as file:
        tail.map(file)


def publish(tail: Tail, end: int) -> None:
    tail.publish(
        start=0, end=end, end_entry=end, synced_end=end, synced_entry=end, visible=end, visible_entry=end, is_open=True
    )


def is_asked(path: Path) -> bool:
    return any(path.read_bytes()[SLEEPERS])


def test_words_changed_while_unmapped_are_written_when_the_page_is_mapped_again(path: Path) -> None:
    tail, reader = open_tail(path), open_tail(path)
    tail.begin(boot_id=BOOT, uuid=UUID, pid=7)
    publish(tail, 10)
    assert tail.unmap() and not tail.is_mapped and tail.unmap()
    assert (tail.end, tail.visible_entry, tail.pid, tail.open) == (10, 10, 7, True)
    publish(tail, 20)
    tail.note_truncation()
    tail.unreplicated = True
    tail.start = 4
    assert (tail.end, tail.start, reader.end, reader.start, reader.truncations) == (20, 4, 10, 0, 0)
    for _ in range(2):
        map_again(tail, path)
        words = [
            (page.start, page.end, page.end_entry, page.synced_end, page.synced_entry, page.visible, page.visible_entry)
            for page in (tail, reader)
        ]
        assert tail.is_mapped and words == [(4, 20, 20, 20, 20, 20, 20)] * 2
        assert (reader.truncations, reader.unreplicated) == (1, True)


def test_a_new_file_is_claimed_and_that_of_another_log_is_not(path: Path) -> None:
    tail = open_tail(path)
    tail.begin(boot_id=BOOT, uuid=UUID, pid=7)
    publish(tail, 10)
    assert tail.unmap()
    path.write_bytes(bytes(PAGE))
    map_again(tail, path)
    assert open_tail(path).belongs_to(BOOT, UUID) and open_tail(path).end == 10
    assert tail.unmap()
    open_tail(path).begin(boot_id=BOOT, uuid=BOOT, pid=7)
    with pytest.raises(ValueError, match="another log"):
        map_again(tail, path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="expected 4096 bytes"):
        map_again(tail, path)
    assert not tail.is_mapped and tail.end == 10


def test_a_page_on_which_a_thread_sleeps_stays_mapped(path: Path) -> None:
    tail, ends = open_tail(path), list[int]()
    sleeper = threading.Thread(target=lambda: ends.append(tail.wait_for(0, LONG_US)))
    sleeper.start()
    until(lambda: is_asked(path))  # it sleeps, or is about to
    assert not tail.unmap() and tail.is_mapped
    publish(tail, 1)
    sleeper.join(WAIT_S)
    assert ends == [1] and tail.unmap()


def test_wait_for_on_an_unmapped_page_is_woken_by_its_mapping(path: Path) -> None:
    tail, ends = open_tail(path), list[int]()

    def wait() -> None:
        while not ends:
            if end := tail.wait_for(0, LONG_US):
                ends.append(end)

    assert tail.unmap()
    sleeper = threading.Thread(target=wait)
    sleeper.start()
    map_again(tail, path)
    until(lambda: is_asked(path))
    publish(tail, 1)
    sleeper.join(WAIT_S)
    assert ends == [1]


def test_wakeup_requested_while_the_page_was_unmapped_is_set_when_it_is_mapped_again(path: Path) -> None:
    tail = open_tail(path)
    assert tail.unmap()
    tail.ask_wakeup()
    assert not is_asked(path)
    map_again(tail, path)
    assert is_asked(path)


def test_other_waiters_are_woken_by_a_mapping_with_changes(path: Path) -> None:
    tail, reader, ends = open_tail(path), open_tail(path), list[int]()
    assert tail.unmap()
    sleeper = threading.Thread(target=lambda: ends.append(reader.wait_for(0, LONG_US)))
    sleeper.start()
    until(lambda: is_asked(path))
    publish(tail, 5)
    assert sleeper.is_alive() or not ends
    map_again(tail, path)
    sleeper.join(WAIT_S)
    assert ends == [5]
