"""`pyreplog export`, killed with -9: its directory is whole or not there, and the next export makes all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

import pyreplog
from pyreplog.log.files import RealFiles
from pyreplog.reports.atomic_directories import draft_of, put, tidy
from tests.cli.exporting import STOPPED
from tests.cli.support import Run

ROOT = Path(__file__).resolve().parents[2]
COUNT = 400


@pytest.fixture
def filled(log: Path) -> Path:
    with pyreplog.open(log) as new_log:
        new_log.append_batch([b"%d" % n for n in range(COUNT)])
    return log


def rows(folder: Path) -> list[bytes]:
    return [value for file in sorted(folder.iterdir()) for value in parquet.read_table(file)["value"].to_pylist()]


def export_and_kill(point: str, *arguments: object) -> None:
    command = [sys.executable, "-m", "tests.cli.exporting", point, "export", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == STOPPED, "it ended without having come there"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("point", "is_there", "stays"),
    [("group", False, None), ("group", True, "old"), ("filled", True, "old"), ("between", True, None),
     ("renamed", True, "new"), ("renamed", False, "new")],
)  # fmt: skip
def test_a_killed_export_leaves_the_directory_whole_or_absent(
    run: Run, filled: Path, tmp_path: Path, point: str, is_there: bool, stays: str | None
) -> None:
    """What was there before, all of the new, or nothing under that name; and nothing else in the end."""
    out = tmp_path / "exports" / "out"
    old, new = [b"%d" % n for n in range(COUNT)], [b"%d" % n for n in range(COUNT + 3)]
    if is_there:
        assert run("export", filled, "--parquet", out).code == 0
        assert rows(out) == old
    with pyreplog.open(filled) as log:
        log.append_batch(new[COUNT:])
    how = (filled, "--parquet", out, "--overwrite")
    export_and_kill(point, *how)
    assert out.exists() is (stays is not None)
    if stays is not None:
        assert rows(out) == (old if stays == "old" else new)
    assert {path.name.partition("-")[0] for path in out.parent.iterdir()} <= {"out", ".out.export"}
    assert run("export", *how).code == 0
    assert rows(out) == new
    assert list(out.parent.iterdir()) == [out], "what the killed one left behind is gone"


def test_export_restores_output_moved_aside_by_a_killed_export_before_it_refuses(
    run: Run, filled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "exports" / "out"
    assert run("export", filled, "--parquet", out).code == 0
    before = rows(out)
    export_and_kill("between", filled, "--parquet", out, "--overwrite")
    assert not out.exists()
    refused = run("export", filled, "--parquet", out)
    assert refused.code == 2 and "see overwrite" in refused.error
    assert rows(out) == before and list(out.parent.iterdir()) == [out]


def test_tidy_keeps_output_moved_aside_by_a_running_export(tmp_path: Path) -> None:
    """Its process is between the two renames."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "part").write_bytes(b"old")

    class Looking(RealFiles):
        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            if old == out:
                tidy(out)
                assert not out.exists() and (new / "part").read_bytes() == b"old"

    with draft_of(out) as draft:
        (draft / "part").write_bytes(b"new")
        put(draft, out, files=Looking())
    assert (out / "part").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [out]


def test_half_of_what_was_replaced_does_not_come_back(tmp_path: Path) -> None:
    """A process was killed while it removed that; and then somebody removed the new."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("a", "b"):
        (out / name).write_bytes(b"old")

    class Killed(Exception):
        pass

    class Stopping(RealFiles):
        def remove_tree(self, path: Path) -> None:
            (path / "a").unlink()
            raise Killed

    with draft_of(out) as draft, pytest.raises(Killed):
        put(draft, out, files=Stopping())
    assert not any(out.iterdir())
    out.rmdir()
    tidy(out)
    assert list(tmp_path.iterdir()) == []


def test_an_export_leaves_drafts_of_other_exports(tmp_path: Path) -> None:
    """Of one that is at work, and of other directories."""
    others = [tmp_path / name for name in (".out.export-12345678.tmp.mine", ".out.more.export-abcdefgh.tmp", "x")]
    for other in others:
        other.mkdir()
    with draft_of(tmp_path / "out") as draft:
        with draft_of(tmp_path / "out") as another:
            assert draft.is_dir()
            assert another.is_dir()
        assert not another.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)
