"""A log with a commit point: readers see records once `show_up_to` has passed them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log.commit_log import CommitLog
from tests.ha.streams import PER_SEGMENT, config, held, uncommitted, values

ALL = 1 << 62


def open_gated(path: Path, **settings: object) -> CommitLog:
    return CommitLog(path, config(**settings), create=True, clock=None, files=None, gated=True)


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
def test_appends_are_not_seen_before_they_are_committed(tmp_path: Path, durability: str) -> None:
    with open_gated(tmp_path / "log", durability=durability) as log:
        log.append(b"0")
        log.append_batch([b"1", b"2"], [b"k", None])
        log.append_batch([b"3", b"4"])
        assert (log.end, held(log), uncommitted(log)) == (0, [], [b"0", b"1", b"2", b"3", b"4"])
        positions = [record.position for batch in log.read_positions(4096, committed=False) for record in batch]
        with pyreplog.open(log.path, "r") as reader:
            log.show_up_to(positions[2], 2)
            assert (log.end, held(log), held(reader)) == (2, [b"0", b"1"], [b"0", b"1"])
            log.show_up_to(positions[1], 1)
            assert log.end == 2
            log.show_up_to(ALL, ALL)
            assert (log.end, log.end_position, held(reader)) == (5, log.tail.end, held(log))
            log.append(b"5")
            assert (len(log), len(reader)) == (5, 5)


def test_followers_wait_for_the_commit_point(tmp_path: Path) -> None:
    with open_gated(tmp_path / "log") as log:
        follower = log.follow(0, timeout=60.0)
        log.append(b"0")
        threading.Timer(0.01, lambda: log.show_up_to(ALL, ALL)).start()
        assert next(iter(follower)).value == b"0"
        assert list(log.follow(1, timeout=0)) == []
        log.append(b"1")
        assert list(log.follow(1, timeout=0)) == []


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_commit_point_is_restored_when_the_log_is_opened_again(tmp_path: Path, durability: str) -> None:
    with open_gated(tmp_path / "log", durability=durability) as log:
        log.append_batch(values(2 * PER_SEGMENT))
        log.show_up_to(ALL, ALL)
        log.append_batch(values(PER_SEGMENT))
    with open_gated(tmp_path / "log", durability=durability) as log:
        assert len(log) == 2 * PER_SEGMENT
        with pyreplog.open(log.path, "r") as reader:
            assert len(reader) == 2 * PER_SEGMENT
        log.show_up_to(ALL, ALL)
        assert len(log) == 3 * PER_SEGMENT


def test_log_of_another_boot_shows_nothing_until_its_commit_point_is_known(tmp_path: Path) -> None:
    with open_gated(tmp_path / "log") as log:
        log.append_batch(values(5))
        log.show_up_to(ALL, ALL)
    (tmp_path / "log" / "tail").unlink()
    with open_gated(tmp_path / "log") as log, pyreplog.open(log.path, "r") as reader:
        assert (len(log), len(reader)) == (0, 0)
        log.show_up_to(ALL, ALL)
        assert (len(log), len(reader)) == (5, 5)


def test_a_truncation_takes_the_commit_point_along(tmp_path: Path) -> None:
    with open_gated(tmp_path / "log") as log:
        log.append_batch(values(5))
        log.show_up_to(ALL, ALL)
        log.append_batch(values(2, 5))
        log.truncate(3)
        assert (log.end, log.append(b"x"), log.end) == (3, 3, 3)


def test_a_log_without_a_commit_point_shows_all(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        log.append(b"0")
        assert (log.end, held(log), uncommitted(log)) == (1, [b"0"], [b"0"])
