"""The commands fsck, backup and restore: what they print, and with which exit code they end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyreplog
from pyreplog.log import names
from tests import samples
from tests.cli.support import Run, process
from tests.samples import ENTRIES, flip


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "sample")
    return tmp_path / "sample"


def test_fsck_of_an_intact_log(run: Run, sample: Path):
    done = run("fsck", sample)
    assert (done.code, done.error) == (0, "")
    assert "1,200 intact, numbers 0 to before 1,200" in done.out and done.out.endswith("clean\n")
    report = run("fsck", sample, "--json").json["report"]
    assert report["entries"] == ENTRIES and report["damages"] == [] and report["writer"] is None


def test_fsck_of_a_damaged_log(run: Run, sample: Path):
    flip(samples.segments(sample)[1], 30_000)
    flip(samples.indexes(sample)[0], 100)
    done = run("fsck", sample)
    assert done.code == 4 and done.out.endswith("2 damaged places\n")
    assert "no entry is lost" in done.out and "are unreadable, intact again at" in done.out
    json = run("fsck", sample, "--json")
    damage = json.json["report"]["damages"][1]
    assert json.code == 4 and damage["part"] == "record" and damage["resumes"] == damage["entry"] + 1
    assert damage["path"] == str(samples.segments(sample)[1])


def test_fsck_checks_and_does_not_repair_a_log_open_for_writing(run: Run, sample: Path):
    with pyreplog.open(sample):
        done = run("fsck", sample)
        assert done.code == 0 and "open for writing in process" in done.out
        done = run("fsck", sample, "--repair")
        assert done.code == pyreplog.LockedError.exit_code and "is open for writing in process" in done.error


def test_fsck_repairs_a_damaged_log(run: Run, sample: Path):
    flip(samples.segments(sample)[1], 20)
    (sample / names.CHECKPOINT).unlink()
    done = run("fsck", sample, "--repair")
    assert done.code == 0 and "repair: made the header" in done.out and done.out.endswith("after the repair: clean\n")
    samples.assert_intact(sample)
    assert run("fsck", sample, "--repair").out.endswith("clean\n")


def test_fsck_truncates_only_with_truncate_at_damage(run: Run, sample: Path):
    position = samples.position_of(sample, 700)
    flip(samples.segments(sample)[position // samples.SEGMENT_BYTES], position % samples.SEGMENT_BYTES + 50)
    assert run("fsck", sample, "--repair").code == 4
    assert run("fsck", sample, "--truncate-at-damage").code == pyreplog.InvalidArgumentError.exit_code
    samples_before = samples.segments(sample)
    done = run("fsck", sample, "--repair", "--truncate-at-damage", "--json")
    assert done.code == 0 and done.json["after"]["end"] == 700 and "entry 700" in done.json["actions"][0]
    assert len(samples.segments(sample)) < len(samples_before)
    samples.assert_intact(sample, range(700))


def test_the_log_of_a_bookie_is_not_truncated(run: Run, tmp_path: Path):
    """A bookie whose log ends earlier than it was durable does not start."""
    with pyreplog.Cluster.embedded(tmp_path / "cluster", segment_bytes=1 << 20) as cluster:
        with cluster.create_ledger(3) as ledger:
            ledger.append_batch([b"x" * 1000] * 50)
            ledger.append_batch([b"y" * 1000] * 50)
    log = tmp_path / "cluster" / "bookie-0" / "log"
    flip(samples.segments(log)[0], 20_000)
    done = run("fsck", log)
    assert done.code == 4 and "nothing intact follows" not in done.out
    assert re.search(r"; entries are unreadable \(\d+ intact before it, [1-9]\d* after it\)\n", done.out)
    assert run("fsck", log, "--repair").code == 4
    refused = run("fsck", log, "--repair", "--truncate-at-damage")
    assert refused.code == pyreplog.InvalidArgumentError.exit_code and "is the log of a bookie" in refused.error
    assert run("fsck", log).out == done.out


def test_fsck_of_a_missing_log_is_refused(run: Run, tmp_path: Path):
    done = run("fsck", tmp_path / "nowhere")
    assert done.code == pyreplog.NotALogError.exit_code and "does not exist" in done.error


def test_restore_makes_a_log_of_a_backup(run: Run, sample: Path, tmp_path: Path):
    done = run("backup", sample, tmp_path / "copy")
    assert done.code == 0 and done.out.startswith("1,200 entries, numbers 0 to before 1,200")
    done = run("restore", tmp_path / "copy", tmp_path / "new")
    assert done.code == 0 and done.out.startswith("1,200 entries")
    samples.assert_intact(tmp_path / "new")
    report = run("backup", tmp_path / "new", tmp_path / "again", "--json").json
    assert report["end"] == ENTRIES and len(report["pieces"]) == 4
    assert run("restore", tmp_path / "again", tmp_path / "third", "--json").json == report


def test_backup_and_restore_refuse_occupied_places_and_damage(run: Run, sample: Path, tmp_path: Path):
    assert run("backup", sample, tmp_path).code == pyreplog.InvalidArgumentError.exit_code
    assert run("restore", sample, tmp_path / "new").code == pyreplog.NotALogError.exit_code
    run("backup", sample, tmp_path / "copy")
    flip(next((tmp_path / "copy").glob("*.segment")), 5000)
    done = run("restore", tmp_path / "copy", tmp_path / "new")
    assert done.code == pyreplog.CorruptionError.exit_code and "CRC-32C" in done.error
    assert not (tmp_path / "new").exists()


def test_fsck_as_a_process_exits_with_0(sample: Path):
    done = process("fsck", sample)
    assert (done.code, done.error) == (0, "") and done.out.endswith("clean\n")
