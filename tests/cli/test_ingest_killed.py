"""Real `pyreplog ingest` processes, killed and interrupted at random moments of real work."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from tests.cli.support import COMMAND, process, rows, values

ROWS = 60_000
DEADLINE_S = 60.0


def row(i: int) -> bytes:
    return b'%d,%d,"a\nb, ""%d"""\r' % (i % 97, i, i) if i % 11 == 0 else b"%d,%d,text %d" % (i % 97, i, i)


EXPECTED = [(b"%d" % (i % 97), i, row(i)) for i in range(ROWS)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "rows.csv"
    path.write_bytes(table(ROWS))
    return path


def table(rows: int) -> bytes:
    """CSV with quoted line feeds, blank lines and malformed rows in it."""
    lines = (row(i) + b"\n" + (b"\nmalformed\n" if i % 1000 == 500 else b"") for i in range(rows))
    return b"\xef\xbb\xbfid,when,text\r\n" + b"".join(lines)


ARGUMENTS = (
    "--format", "csv", "--key", "id", "--event-time", "when", "--event-time-format", "us", "--on-error", "skip",
)  # fmt: skip


def start(*arguments: object, stdin: int | None = None) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "ingest", *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def fed(data: bytes, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """One whose standard input has so much and no end yet, so that it is there until it is killed."""
    theirs, ours = os.pipe()

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(ours, data)

    feeding = threading.Thread(target=feed)
    with start(*arguments, stdin=theirs) as running:
        os.close(theirs)
        feeding.start()
        yield running
    feeding.join()
    os.close(ours)


def wait_for(log: Path, entries: int) -> None:
    with pyreplog.open(log, "r") as reader:
        batch = next(reader.follow_batches(entries - 1, timeout=DEADLINE_S), None)
    assert batch is not None, f"no {entries} entries within {DEADLINE_S} s"


@pytest.mark.parametrize(("durability", "batches"), [("appended", [1, 7, 100, 1000]), ("synced", [200, 1000])])
def test_an_ingest_that_is_killed_repeatedly_adds_each_row_once(
    log: Path, source: Path, durability: str, batches: list[int], seed: int
) -> None:
    """Wherever the kills strike, all rows are there once, in order, with their keys and times."""
    draw = random.Random(f"{durability} {seed}")
    kills, reached = 0, 0
    arguments = (*ARGUMENTS, "--source", "rows", "--durability", durability)
    while reached < ROWS and kills < 40:
        some, batch = min(ROWS * (kills + 1) // 3, ROWS), ("--batch", draw.choice(batches))
        both = fed(table(some), log, "-", *arguments, *batch) if some < ROWS else start(log, source, *arguments, *batch)
        with both as running:
            wait_for(log, min(reached + draw.randint(1, ROWS // 4), some))
            running.kill()
        kills += running.returncode == -signal.SIGKILL
        with pyreplog.open(log, "r") as reader:
            assert reached <= reader.end <= ROWS
            reached = reader.end
    done = process("ingest", log, source, *arguments, "--json")
    assert (done.code, done.json["already"], done.json["skipped"]) == (0, reached, ROWS // 1000)
    assert rows(log) == EXPECTED
    assert kills >= 2


def test_an_ingest_killed_at_any_time_adds_each_row_once(tmp_path: Path, source: Path, seed: int) -> None:
    """Also while it starts, makes the log, looks for its bookmark, or closes."""
    draw = random.Random(seed)
    log = tmp_path / "log"
    for _ in range(8):
        with start(log, source, *ARGUMENTS, "--batch", 50) as running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(draw.uniform(0.05, 0.5))
            running.kill()
    done = process("ingest", log, source, *ARGUMENTS)
    assert done.code == 0, done.error
    assert rows(log) == EXPECTED


def test_ingest_goes_on_after_ctrl_c(log: Path) -> None:
    """Ends with 130, says how far it came, and goes on from there."""
    lines = [b"line %d" % i for i in range(1000)]
    data = b"".join(line + b"\n" for line in lines)
    command = [*COMMAND, "ingest", str(log), "--source", "pipe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write(data[: len(data) // 2])
        running.stdin.flush()
        wait_for(log, 1)
        running.send_signal(signal.SIGINT)
        out, error = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, out) == (130, b"")
    assert error.startswith(b"pyreplog: interrupted with ")
    assert 0 < len(values(log)) < 1000
    assert process("ingest", log, "--source", "pipe", data=data).code == 0
    assert values(log) == lines
