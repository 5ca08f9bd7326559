"""Real `pyreplog ingest` processes, killed and interrupted at random moments of real work."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from pathlib import Path

import pytest

import pyreplog
from tests.cli.support import COMMAND, process, rows, values

ROWS = 60_000
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file with quoted line feeds, blank lines and malformed rows in it."""
    path = tmp_path_factory.mktemp("source") / "rows.csv"
    with path.open("wb") as file:
        file.write(b"\xef\xbb\xbfid,when,text\r\n")
        for i in range(ROWS):
            file.write(
                b'%d,%d,"a\nb, ""%d"""\r\n' % (i % 97, i, i) if i % 11 == 0 else b"%d,%d,text %d\n" % (i % 97, i, i)
            )
            if i % 1000 == 500:
                file.write(b"\nmalformed\n")
    return path


def expected() -> list[tuple[bytes | None, int | None, bytes]]:
    return [
        (b"%d" % (i % 97), i, b'%d,%d,"a\nb, ""%d"""\r' % (i % 97, i, i) if i % 11 == 0 else b"%d,%d,text %d" % (i % 97, i, i))
        for i in range(ROWS)
    ]  # fmt: skip


ARGUMENTS = (
    "--format", "csv", "--key", "id", "--event-time", "when", "--event-time-format", "us", "--on-error", "skip",
)  # fmt: skip


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "ingest", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )  # type: ignore[call-overload, no-any-return]


def kill_when(log: Path, running: subprocess.Popen[bytes], entries: int) -> None:
    """SIGKILL as soon as the log shows so many entries (or when the process has ended by itself)."""
    with pyreplog.open(log, "r") as reader:
        while reader.end < entries and running.poll() is None:
            for _ in reader.follow_batches(reader.end, timeout=0.05):
                if reader.end >= entries:
                    break
    running.kill()
    running.wait(DEADLINE_S)


@pytest.mark.parametrize(("durability", "batches"), [("appended", [1, 7, 100, 1000]), ("synced", [200, 1000])])
def test_killed_again_and_again(log: Path, source: Path, durability: str, batches: list[int]) -> None:
    """Wherever the kills strike, all rows are there once, in order, with their keys and times."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    kills, reached = 0, 0
    while reached < ROWS and kills < 40:
        with start(log, source, *ARGUMENTS, "--batch", draw.choice(batches), "--durability", durability) as running:
            kill_when(log, running, reached + draw.randint(1, ROWS // 4))
        kills += running.returncode == -signal.SIGKILL
        with pyreplog.open(log, "r") as reader:
            assert reached <= reader.end <= ROWS
            reached = reader.end
    done = process("ingest", log, source, *ARGUMENTS, "--json")
    assert (done.code, done.json["already"], done.json["skipped"]) == (0, reached, ROWS // 1000)
    assert rows(log) == expected()
    assert kills >= 2


def test_killed_at_any_time(tmp_path: Path, source: Path) -> None:
    """Also while it starts, makes the log, looks for its bookmark, or closes."""
    draw = random.Random(random.randrange(1 << 32))
    log = tmp_path / "log"
    for _ in range(8):
        with start(log, source, *ARGUMENTS, "--batch", 50) as running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(draw.uniform(0.05, 0.5))
            running.kill()
    done = process("ingest", log, source, *ARGUMENTS)
    assert (done.code, done.error.count("skipped:")) == (0, done.error.count("\n"))
    assert rows(log) == expected()


def test_ctrl_c(log: Path) -> None:
    """Ends with 130, says how far it came, and goes on from there."""
    lines = [b"line %d" % i for i in range(1000)]
    data = b"".join(line + b"\n" for line in lines)
    command = [*COMMAND, "ingest", str(log), "--source", "pipe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write(data[: len(data) // 2])
        running.stdin.flush()
        with pyreplog.open(log, "r") as reader:
            next(iter(reader.follow(0, timeout=DEADLINE_S)))
        running.send_signal(signal.SIGINT)
        out, error = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, out) == (130, b"")
    assert error.startswith(b"pyreplog: interrupted with ")
    assert 0 < len(values(log)) < 1000
    assert process("ingest", log, "--source", "pipe", data=data).code == 0
    assert values(log) == lines
