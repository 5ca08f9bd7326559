"""Backup of a live log, and restore: the same entries under another identity, or a clear error and nothing left."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, truncation
from pyreplog.log.backup import copying as backups
from pyreplog.log.backup import manifest
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck import check as fsck
from pyreplog.log.lock import writer_of
from tests import samples
from tests.samples import ENTRIES, SEGMENT_BYTES, flip


@pytest.fixture
def log(sample_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_log, tmp_path / "log"))


@pytest.fixture(scope="module")
def copy_template(sample_log: Path, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("backup") / "copy"
    backup(sample_log, path)
    return path


@pytest.fixture
def copy(copy_template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(copy_template, tmp_path / "copy"))


def columns(path: Path) -> list[tuple]:
    """All that a reader can see of each entry, its place included."""
    with pyreplog.open(path, "r") as log:
        return [
            (r.entry, r.position, r.timestamp, r.event_time, r.key, r.value, r.kind, bytes(r.raw[12:]))
            for batch in log.read_positions(log.start_position, all_kinds=True)
            for r in batch
        ]


def uuid_of(path: Path) -> bytes:
    checkpoint = checkpoints.load(path)
    assert checkpoint is not None
    return checkpoint.uuid


# ---- the whole way -------------------------------------------------------------------------------------------------


def test_restored_backup_equals_the_log_under_another_identity(log, tmp_path):
    new_backup = backup(log, tmp_path / "copy")
    assert (new_backup.start, new_backup.end, new_backup.entries) == (0, ENTRIES, ENTRIES)
    assert new_backup.uuid == uuid_of(log).hex() and len(new_backup.pieces) == 4
    assert manifest.load(tmp_path / "copy") == restore(tmp_path / "copy", tmp_path / "new") == new_backup
    assert columns(tmp_path / "new") == columns(log)
    assert uuid_of(tmp_path / "new") != uuid_of(log)
    report = fsck.check(tmp_path / "new")
    assert report.clean and report.notes == () and report.entries == ENTRIES
    samples.assert_intact(tmp_path / "new")


def test_every_restored_log_is_another_one(copy, tmp_path):
    restore(copy, tmp_path / "a")
    restore(copy, tmp_path / "b")
    assert uuid_of(tmp_path / "a") != uuid_of(tmp_path / "b")


def test_a_restored_log_goes_on_from_its_end(copy, tmp_path):
    restore(copy, tmp_path / "new")
    with pyreplog.open(tmp_path / "new") as log:
        assert log.append(b"on") == ENTRIES
        assert log[ENTRIES - 1] == samples.value_of(ENTRIES - 1) and log[0] == samples.value_of(0)
    assert fsck.check(tmp_path / "new").clean


def test_a_segment_of_the_original_does_not_pass_in_the_restored_log(log, copy, tmp_path):
    restore(copy, tmp_path / "new")
    shutil.copy(samples.segments(log)[1], samples.segments(tmp_path / "new")[1])
    with pytest.raises(pyreplog.CorruptionError, match="of log"):
        pyreplog.open(tmp_path / "new")


def test_an_empty_log_is_backed_up_and_restored(tmp_path):
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES):
        new_backup = backup(tmp_path / "log", tmp_path / "copy")
    assert new_backup.entries == 0
    restore(tmp_path / "copy", tmp_path / "new")
    with pyreplog.open(tmp_path / "new") as log:
        assert log.end == 0 and log.append(b"first") == 0


def test_a_trimmed_and_truncated_log(log, tmp_path):
    with pyreplog.open(log) as writer:
        writer.truncate(1000)
        writer.trim(600)
        start = writer.start
        writer.append_batch([b"x" * 3000] * 50)
    backup(log, tmp_path / "copy")
    new_restore = restore(tmp_path / "copy", tmp_path / "new")
    assert 0 < new_restore.start == start and new_restore.end == 1050
    assert columns(tmp_path / "new") == columns(log)
    with pyreplog.open(tmp_path / "new") as writer:
        assert writer.truncate(1010) == 1010
    assert fsck.check(tmp_path / "new").clean


def test_backup_omits_bytes_after_the_last_record(tmp_path):
    """A recycled segment still has an earlier life's bytes in it."""
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, retention_bytes=0, spare_segments=1) as log:
        while log.start_position < 4 * SEGMENT_BYTES:
            log.append(b"secret" * 1000)
        log.append(b"plain")
        backup(path, tmp_path / "copy")
        end = log.end_position
    last = sorted((tmp_path / "copy").glob("*.segment"))[-1]
    assert last.stat().st_size == end % SEGMENT_BYTES


def test_backup_and_restore_tell_their_progress(log, tmp_path):
    seen: list[tuple[int, int]] = []
    backup(log, tmp_path / "copy", progress=lambda done, entries: seen.append((done, entries)))
    assert seen[-1] == (sum(f.stat().st_size for f in (tmp_path / "copy").glob("*.segment")), ENTRIES)
    restored: list[tuple[int, int]] = []
    restore(tmp_path / "copy", tmp_path / "new", progress=lambda done, entries: restored.append((done, entries)))
    assert restored == seen


# ---- live logs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_backup_of_a_log_during_appends_is_consistent(tmp_path, durability):
    path, stop = tmp_path / "log", threading.Event()
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, durability=durability) as log:
        log.append_batch([b"%d" % n for n in range(3000)])

        def go_on() -> None:
            while not stop.is_set():
                log.append_batch([b"%d" % n for n in range(log.end, log.end + 20)])

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            for i in range(3):
                new_backup = backup(path, tmp_path / f"copy{i}")
                assert new_backup.entries == new_backup.end >= 3000
        finally:
            stop.set()
            thread.join()
    for i in range(3):
        new_backup = restore(tmp_path / f"copy{i}", tmp_path / f"new{i}")
        with pyreplog.open(tmp_path / f"new{i}", "r") as log:
            assert log[:] == [b"%d" % n for n in range(new_backup.end)]


def test_backup_of_a_log_trimmed_meanwhile_begins_at_its_new_start(tmp_path, monkeypatch):
    """The copy then begins where the log begins by then."""
    path, hold = tmp_path / "log", backups.map_locked
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_batch([b"%d" % n * 50 for n in range(1500)])
        assert log.stats().segments > 4
        starts = samples.first_entries(path)

        def trim_first(directory: Path, base: int):
            if base == 2 * SEGMENT_BYTES:
                log.trim(starts[3])
            return hold(directory, base)

        monkeypatch.setattr(backups, "map_locked", trim_first)
        new_backup = backup(path, tmp_path / "copy")
        assert (new_backup.start, new_backup.end) == (starts[3], 1500)
        assert len(list((tmp_path / "copy").glob("*.segment"))) == len(new_backup.pieces)
        restore(tmp_path / "copy", tmp_path / "new")
        assert columns(tmp_path / "new") == columns(path)


def test_backup_of_a_log_truncated_meanwhile_raises_truncated_error(log, tmp_path, monkeypatch):
    """Half of it from before and half from after would be no log that ever was."""
    hold = backups.map_locked
    with pyreplog.open(log) as writer:

        def cut_first(directory: Path, base: int):
            if base == 2 * SEGMENT_BYTES:
                writer.truncate(ENTRIES - 1)
                writer.append(b"another")
            return hold(directory, base)

        monkeypatch.setattr(backups, "map_locked", cut_first)
        with pytest.raises(pyreplog.TruncatedError, match="cut while it was copied"):
            backup(log, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_backup_of_a_log_with_a_pending_truncation_raises_truncated_error(log, tmp_path):
    truncation.announce(log, RealFiles(), truncation.Truncation(5000, 1, 1))
    with pytest.raises(pyreplog.TruncatedError):
        backup(log, tmp_path / "copy")


def test_does_not_disturb_the_writer_lock(log, tmp_path):
    with pyreplog.open(log):
        backup(log, tmp_path / "copy")
        assert writer_of(log) is not None


# ---- refused -------------------------------------------------------------------------------------------------------


def test_a_target_that_holds_something(log, copy, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    for target in (tmp_path / "full", tmp_path / "full" / "x"):
        with pytest.raises(pyreplog.InvalidArgumentError, match="target: expected a new or empty directory"):
            backup(log, target)
        with pytest.raises(pyreplog.InvalidArgumentError, match="target: expected a new or empty directory"):
            restore(copy, target)
    with pytest.raises(pyreplog.InvalidArgumentError, match="target: expected a directory outside the log"):
        backup(log, log / "copy")


def test_empty_directories_are_fine(log, tmp_path):
    for name in ("copy", "new"):
        (tmp_path / name).mkdir()
    backup(log, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "new")
    samples.assert_intact(tmp_path / "new")


def test_a_damaged_log_gives_no_backup(log, tmp_path):
    flip(samples.segments(log)[1], 30_000)
    with pytest.raises(pyreplog.CorruptionError) as caught:
        backup(log, tmp_path / "copy")
    assert caught.value.path == samples.segments(log)[1]
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_log_with_a_missing_segment_gives_no_backup(log, tmp_path):
    samples.segments(log)[1].unlink()
    with pytest.raises(pyreplog.CorruptionError):
        backup(log, tmp_path / "copy")


def test_a_backup_is_no_log_and_a_log_no_backup(log, copy, tmp_path):
    with pytest.raises(pyreplog.NotALogError):
        pyreplog.open(copy)
    with pytest.raises(pyreplog.NotALogError):
        pyreplog.open(copy, "r")
    with pytest.raises(pyreplog.NotALogError, match="manifest"):
        restore(log, tmp_path / "new")
    with pytest.raises(pyreplog.NotALogError):
        restore(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(pyreplog.NotALogError):
        backup(tmp_path / "nowhere", tmp_path / "copy2")
    assert not (tmp_path / "new").exists() and not (tmp_path / "copy2").exists()


def test_an_unfinished_backup_is_refused(copy, tmp_path):
    (copy / manifest.NAME).unlink()
    with pytest.raises(pyreplog.NotALogError, match="not finished"):
        restore(copy, tmp_path / "new")


@pytest.mark.parametrize("change", ["flip", "short", "missing", "swapped"])
def test_a_damaged_backup_makes_no_log(copy, tmp_path, change):
    a, b = sorted(copy.glob("*.segment"))[1:3]
    if change == "flip":
        flip(a, 20_000)
    elif change == "short":
        a.write_bytes(a.read_bytes()[:-8])
    elif change == "missing":
        a.unlink()
    else:
        a.rename(copy / "x"), b.rename(a), (copy / "x").rename(b)
    with pytest.raises(pyreplog.CorruptionError) as caught:
        restore(copy, tmp_path / "new")
    assert caught.value.path == a
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_changed_manifest_of_a_backup_is_refused(copy, tmp_path):
    path = copy / manifest.NAME
    good = path.read_text()
    for bad in (good.replace(f'"end": {ENTRIES}', f'"end": {ENTRIES + 1}'), "", "[]", '{"format": 1}', good[:-20]):
        assert bad != good
        path.write_text(bad)
        with pytest.raises(pyreplog.CorruptionError, match="manifest"):
            restore(copy, tmp_path / "new")


def test_a_manifest_of_a_later_version(copy, tmp_path):
    path = copy / manifest.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(pyreplog.FormatVersionError):
        restore(copy, tmp_path / "new")


def test_a_manifest_with_impossible_sizes(copy, tmp_path):
    """Its CRC-32C is right: what it says is checked all the same."""
    content = manifest.load(copy)
    piece = content.pieces[1]
    for changed in (
        {"segment_bytes": 1 << 40},
        {"segment_bytes": "64 KiB"},
        {"end_position": 5},
        {"pieces": ()},
        {"pieces": (*content.pieces[:1], manifest.Piece(**{**vars(piece), "bytes": 1 << 40}), *content.pieces[2:])},
        {"pieces": (*content.pieces[:1], manifest.Piece(**{**vars(piece), "base": 0}), *content.pieces[2:])},
    ):
        manifest.Manifest(**{**vars(content), **changed}).write(copy, RealFiles())
        with pytest.raises(pyreplog.CorruptionError, match="manifest"):
            restore(copy, tmp_path / "new")


def test_files_of_backups_are_private(log, copy, tmp_path):
    restore(copy, tmp_path / "new")
    backup(log, tmp_path / "copy3")
    for folder in (tmp_path / "new", tmp_path / "copy3"):
        assert folder.stat().st_mode & 0o77 == 0
        assert all(path.stat().st_mode & 0o77 == 0 for path in folder.iterdir())


def test_an_interrupted_restore_can_be_done_again(copy, tmp_path):
    (tmp_path / "new.restoring").mkdir()
    (tmp_path / "new.restoring" / names.LOCK).write_bytes(b"")
    restore(copy, tmp_path / "new")
    samples.assert_intact(tmp_path / "new")
    assert not (tmp_path / "new.restoring").exists()
