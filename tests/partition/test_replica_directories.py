"""Directories of a broker on several disks: a new replica goes where fewest are, whatever came and went."""

from __future__ import annotations

from pathlib import Path

from pyreplog.log.files import RealFiles
from pyreplog.partition.store.replica_directories import ReplicaDirectories


def test_counts_follow_what_is_made_removed_set_aside_and_restored(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    _make(paths[2], 0)
    directories = ReplicaDirectories(paths, RealFiles())
    made = [_choose(directories, number) for number in range(1, 6)]
    assert [path.parent.name for path in made] == ["a", "b", "a", "b", "c"]
    directories.remove(made[1])
    assert _choose(directories, 6).parent == paths[1]
    aside = [directories.set_aside(path, 1, is_damaged=False) for path in (made[0], made[2])]
    assert [_choose(directories, number).parent for number in (7, 8)] == [paths[0]] * 2
    assert directories.restore(made[0].name) == made[0]
    assert not aside[0].exists() and aside[1].exists()
    assert _choose(directories, 9).parent == paths[1]
    assert _choose(directories, 10).parent == paths[2]


def test_a_disk_that_works_again_is_counted_anew(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.mkdir()
    directories = ReplicaDirectories(paths, RealFiles())
    assert _choose(directories, 0).parent == paths[0]
    directories.mark_failed(paths[1], OSError("away"))
    assert [_choose(directories, number).parent for number in (1, 2)] == [paths[0]] * 2
    for number in range(3, 9):
        _make(paths[1], number)
    assert directories.probe(paths[1])
    assert [_choose(directories, number).parent for number in (9, 10, 11, 12)] == [paths[0]] * 4


def _make(directory: Path, number: int) -> Path:
    path = directory / f"{'0' * 32}-{number}"
    path.mkdir()
    return path


def _choose(directories: ReplicaDirectories, number: int) -> Path:
    path = directories.choose(f"{'0' * 32}-{number}")
    path.mkdir()
    return path
