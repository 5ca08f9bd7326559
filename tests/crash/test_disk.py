"""The modelled disk loses what it should, and nothing gets past it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pyreplog.log import files as files_module
from pyreplog.log.files import RealFiles

from .disk import ORDERS, PAGE, Disk, PowerCutFiles
from .process import in_process

Work = Callable[[Disk, PowerCutFiles, Path], None]


@pytest.fixture
def left(tmp_path: Path) -> Callable[[Work, float], Path]:
    """What is left of a directory when the power is cut after some work in it. share: of what was not synced."""

    def cut(work: Work, share: float) -> Path:
        home, target = tmp_path / f"home {share}", tmp_path / f"target {share}"
        home.mkdir()

        def run() -> None:
            disk = Disk(home, target, Random(0))
            disk.share = share
            work(disk, PowerCutFiles(disk), home)
            disk.power_cut(0)

        in_process(run, tmp_path / "report")
        return target

    return cut


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_written_is_not_synced(left: Callable[[Work, float], Path]) -> None:
    def work(disk: Disk, files: PowerCutFiles, home: Path) -> None:
        fd = files.create(home / "file", 2 * PAGE, zeroed=True)
        files.sync_directory(home)
        files.write_sync(fd, b"synced", 0)
        files.write(fd, b"written", PAGE)

    assert (left(work, 0.0) / "file").read_bytes() == b"synced".ljust(2 * PAGE, b"\0")
    assert (left(work, 1.0) / "file").read_bytes() == b"synced".ljust(PAGE, b"\0") + b"written".ljust(PAGE, b"\0")


def test_a_name_is_not_durable_before_its_directory_is_synced(left: Callable[[Work, float], Path]) -> None:
    def work(disk: Disk, files: PowerCutFiles, home: Path) -> None:
        files.replace_small(home / "kept", b"1")
        files.replace_small(home / "renamed", b"2")
        files.rename(home / "renamed", home / "other")
        files.remove(home / "kept")

    assert {path.name for path in left(work, 0.0).iterdir()} == {"kept", "renamed"}
    assert {path.name for path in left(work, 1.0).iterdir()} == {"other"}


def test_each_name_of_a_file_is_durable_by_itself(left: Callable[[Work, float], Path]) -> None:
    def work(disk: Disk, files: PowerCutFiles, home: Path) -> None:
        files.write_new_synced(home / "file", b"1")
        files.sync_directory(home)
        files.make_directory(home / "a" / "b")
        files.link(home / "file", home / "a" / "b" / "linked")
        files.rename(home / "file", home / "a" / "moved")

    assert names_in(left(work, 0.0)) == {"file", "a", "a/b"}
    work_left = left(work, 1.0)
    assert names_in(work_left) == {"a", "a/b", "a/b/linked", "a/moved"}
    assert (work_left / "a" / "b" / "linked").read_bytes() == b"1"


def test_a_tree_goes_name_by_name(left: Callable[[Work, float], Path]) -> None:
    def work(disk: Disk, files: PowerCutFiles, home: Path) -> None:
        files.make_directory(home / "a" / "b")
        files.replace_small(home / "a" / "b" / "file", b"1")
        files.rename(home / "a", home / "c")
        files.remove_tree(home / "c")

    assert names_in(left(work, 0.0)) == {"a", "a/b", "a/b/file"}
    assert names_in(left(work, 1.0)) == set()


def test_names_change_in_an_order(tmp_path: Path) -> None:
    """A journal leaves the first of them; a disk without one any."""

    def work() -> None:
        (tmp_path / "home").mkdir()
        disk = Disk(tmp_path / "home", tmp_path / "target", Random(0))
        files = PowerCutFiles(disk)
        for number in range(4):
            files.write_new(tmp_path / "home" / str(number), b"")
        for disk.order in ORDERS:
            for seed in range(64):
                disk.leave(tmp_path / disk.order / str(seed), Random(seed))

    for order in ORDERS:
        (tmp_path / order).mkdir()
    in_process(work, tmp_path / "report")
    actual = {order: {frozenset(names_in(path)) for path in (tmp_path / order).iterdir()} for order in ORDERS}
    assert actual["first"] == {frozenset("0123"[:number]) for number in range(5)}
    assert {frozenset(), frozenset("0123")} <= actual["any"]
    assert actual["any"] - actual["first"]
    assert actual["last"] == {frozenset("3")}


def test_pages_of_a_failed_sync_are_lost_until_they_are_written_again(left: Callable[[Work, float], Path]) -> None:
    def work(disk: Disk, files: PowerCutFiles, home: Path) -> None:
        fd = files.create(home / "file", 2 * PAGE, zeroed=True)
        files.sync_directory(home)
        files.write(fd, b"lost", 0)
        files.write(fd, b"lost, written again", PAGE)
        disk.failing_sync = disk.syncs + 1
        with pytest.raises(OSError):
            files.sync(fd)
        files.write_sync(fd, b"lost, written again", PAGE)

    assert (left(work, 0.0) / "file").read_bytes() == bytes(PAGE) + b"lost, written again".ljust(PAGE, b"\0")


def test_the_whole_disk_layer_is_modelled() -> None:
    """A call that is new there must be put on the model, too, or it would sync what nobody watches."""
    native = {name for name, value in vars(files_module).items() if type(value).__name__ == "cython_function_or_method"}
    native |= {
        name
        for name, value in vars(files_module).items()
        if getattr(value, "__module__", "").startswith("pyreplog._native")
    }
    assert native == {"write", "write_back", "write_sync", "lock_file", "unlock_file", "punch_hole", "Steps"}
    calls = {name for name in vars(RealFiles) if not name.startswith("_")}
    assert calls == {
        "create", "open", "read", "write", "sync", "write_sync", "sync_directory", "rename", "remove", "replace_small",
        "write_new", "unlock", "populate", "run", "allocate", "create_empty", "sync_file", "make_directory", "link",
        "remove_tree", "write_new_synced", "punch",
    }  # fmt: skip
