"""`kill -9` of an offload, wherever it is: readers see a prefix, and the next offload goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import NotALogError
from tests import samples
from tests.offload.places import Place

ROOT = Path(__file__).resolve().parents[2]
SEGMENT, SEGMENTS = 64 << 10, 7
LIMIT_S = 120.0


def make_log(path: Path) -> None:
    with pyreplog.open(path, segment_bytes=SEGMENT) as log:
        while log.end_position < SEGMENTS * SEGMENT + 5000:
            log.append(b"%d" % log.end + b"v" * 1000)


def kill_at(log: Path, url: str, where: str, number: int, flag: Path) -> None:
    command = [sys.executable, "-m", "tests.offload.stopping", str(log), url, where, str(number), str(flag)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not flag.exists():
                assert process.poll() is None, "it was over before it was to stop"
                assert time.monotonic() < deadline, "it does not come to where it is to stop"
                time.sleep(0.01)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("where", "number", "segments"),
    [
        ("put", 2, None), ("before", 1, None), ("after", 1, 2), ("put", 9, 4), ("after", 3, 6), ("after", 4, SEGMENTS),
    ],
)  # fmt: skip
def test_a_killed_offload_leaves_a_prefix_and_goes_on(
    folder: Place, tmp_path: Path, where: str, number: int, segments: int | None
) -> None:
    log = tmp_path / "log"
    make_log(log)
    kill_at(log, folder.url, where, number, tmp_path / "flag")
    starts = samples.first_entries(log)
    if segments is None:
        with pytest.raises(NotALogError):
            folder.table()
    else:
        assert folder.column("offset") == list(range(starts[segments]))
    left = {path.name for path in folder.folder.rglob("*.part")}
    assert bool(left) == (where == "put")
    archive = folder.copy(log)
    assert archive.segments == SEGMENTS - (segments or 0)
    with pyreplog.open(log, "r") as reader:
        assert folder.column("value") == reader[: starts[SEGMENTS]]
    assert not [*folder.folder.rglob("*.part")]
    assert len([*folder.folder.rglob("*.json")]) <= 3
