"""fsck --repair: what can be made again is, what cannot is kept aside, and no entry goes without a word."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log import names, truncation
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck.damage import HEADER
from pyreplog.log.fsck.repair import repair
from tests import samples
from tests.samples import SEGMENT_BYTES, first_entries, flip, position_of


@pytest.fixture
def log(sample_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_log, tmp_path / "log"))


def digest(path: Path) -> dict[str, str]:
    return {str(f.relative_to(path)): hashlib.md5(f.read_bytes()).hexdigest() for f in path.rglob("*") if f.is_file()}


def test_repair_of_an_intact_log_does_nothing(log):
    before = digest(log)
    done = repair(log)
    assert done.actions == () and done.after.clean
    assert {**digest(log), names.LOCK: ""} == {**before, names.LOCK: ""}


def test_repair_needs_the_log_not_to_be_open(log):
    with pyreplog.open(log), pytest.raises(pyreplog.LockedError):
        repair(log)


def test_indexes_and_checkpoint_go_aside_and_are_made_again(log):
    flip(samples.indexes(log)[0], 100)
    flip(log / names.CHECKPOINT, 20)
    flip(log / names.CHECKPOINT, 4096 + 20)
    (log / names.TRUNCATION).write_bytes(b"00000000 {}\n")
    done = repair(log)
    assert len(done.before.damages) == 3 and len(done.actions) == 4 and done.after.clean
    folder = next((log / names.ASIDE).iterdir())
    assert {path.name for path in folder.iterdir()} == {samples.indexes(folder)[0].name, "checkpoint", "truncation"}
    pyreplog.open(log).close()
    assert fsck.check(log).clean
    samples.assert_intact(log)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_header_is_made_again(log, which, zeroed):
    path = samples.segments(log)[which]
    old = path.read_bytes()[:4096]
    if zeroed:
        with path.open("r+b") as file:
            file.write(bytes(4096))
    else:
        flip(path, 33)
    done = repair(log)
    assert done.after.clean and len(done.actions) == 1
    assert path.read_bytes()[:4096] == old
    samples.assert_intact(log)


def test_a_header_of_a_later_epoch_is_made_again(log):
    with pyreplog.open(log) as writer:
        for at in (1100, 1000, 900):
            writer.truncate(at)
        writer.append_batch([b"x" * 1000] * 200)
    files = [names.segment_path(log, base) for base in names.segment_bases(log)]
    flip(files[-2], 12)
    assert repair(log).after.clean


def test_a_header_that_cannot_be_known_is_left_alone(log):
    """Neither neighbour tells the first entry, and records can be damaged too."""
    for path in samples.segments(log)[1:3]:
        flip(path, 30)
        flip(path, 4096 + 9)
    before = digest(log)
    done = repair(log)
    assert not done.after.clean and done.actions == ()
    assert {k: v for k, v in digest(log).items() if k.endswith(".log")} == {
        k: v for k, v in before.items() if k.endswith(".log")
    }


def test_stray_bytes_behind_a_header_are_cleared(log):
    flip(samples.segments(log)[1], 2000)
    done = repair(log)
    assert done.before.damages[0].part == HEADER and not done.before.damages[0].costs_entries
    assert done.after.clean


def test_a_bad_record_is_never_skipped_silently(log):
    position = position_of(log, 700)
    flip(samples.segments(log)[position // SEGMENT_BYTES], position % SEGMENT_BYTES + 60)
    before = digest(log)
    done = repair(log)
    assert done.actions == () and not done.after.clean
    assert {**digest(log), names.LOCK: ""} == {**before, names.LOCK: ""}


def test_truncating_at_a_bad_record_keeps_all_behind_it_aside(log):
    position = position_of(log, 700)
    which = position // SEGMENT_BYTES
    files = samples.segments(log)
    kept = {path.name: path for path in files[which:]}
    flip(files[which], position % SEGMENT_BYTES + 60)
    bytes_before = {name: path.read_bytes() for name, path in kept.items()}
    done = repair(log, truncate_at_damage=True)
    assert done.after.clean and done.after.end == 700 and "entry 700" in done.actions[0]
    folder = next((log / names.ASIDE).iterdir())
    assert {path.name: path.read_bytes() for path in folder.glob("*.log")} == bytes_before
    samples.assert_intact(log, range(700))
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == 700
    assert fsck.check(log).clean


@pytest.mark.parametrize("how", ["missing", "foreign", "short"])
def test_truncating_before_a_lost_segment(log, how, tmp_path):
    path, end = samples.segments(log)[2], first_entries(log)[2]
    if how == "missing":
        path.unlink()
    elif how == "short":
        with path.open("r+b") as file:
            file.truncate(100)
    else:
        samples.make_log(tmp_path / "other")
        shutil.copy(samples.segments(tmp_path / "other")[2], path)
    done = repair(log, truncate_at_damage=True)
    assert done.after.clean, done
    samples.assert_intact(log, range(end))


def test_truncating_a_segment_that_was_cut_short_keeps_what_is_left_of_it(log):
    path, first = samples.segments(log)[2], first_entries(log)[2]
    os.truncate(path, 20_000)
    kept = fsck.check(log).first_loss
    assert kept is not None and kept.entry is not None and kept.entry > first
    done = repair(log, truncate_at_damage=True)
    assert done.after.clean, done
    samples.assert_intact(log, range(kept.entry))
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == kept.entry
    assert fsck.check(log).clean


def test_nothing_can_be_kept_when_the_first_segment_is_lost(log):
    samples.segments(log)[0].unlink()
    done = repair(log, truncate_at_damage=True)
    assert not done.after.clean and "nothing intact lies before" in done.actions[0]
    assert len(samples.segments(log)) == 3


def test_a_reader_without_a_writer_stops_where_repair_cut(log):
    """The tail page of the last writer still names the old end."""
    with pyreplog.open(log, "r") as reader:
        position = reader.position_of(700)
        flip(samples.segments(log)[position // SEGMENT_BYTES], position % SEGMENT_BYTES + 60)
        repair(log, truncate_at_damage=True)
        assert reader.end == 700
    samples.assert_intact(log, range(700))


def test_a_checkpoint_of_another_log_goes_aside(log, tmp_path):
    with pyreplog.open(tmp_path / "other", segment_bytes=SEGMENT_BYTES) as other:
        other.append_batch([b"x" * 1000] * 300)
        other.trim(200)
    shutil.copy(tmp_path / "other" / names.CHECKPOINT, log / names.CHECKPOINT)
    assert repair(log).after.clean
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == samples.ENTRIES
    assert fsck.check(log).clean


def test_a_repair_that_was_interrupted_is_finished_by_the_next_opening(log, monkeypatch):
    position = position_of(log, 700)
    flip(samples.segments(log)[position // SEGMENT_BYTES], position % SEGMENT_BYTES + 60)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(truncation, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            repair(log, truncate_at_damage=True)
    report = fsck.check(log)
    assert report.clean and report.end == 700
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == 700
    assert len(list((log / names.ASIDE).glob("*/*.log"))) == 4 - position // SEGMENT_BYTES
