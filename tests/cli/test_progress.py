"""Progress on a terminal, with and without rich, and in a file."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyreplog.cli.shared import progress as progress_module
from pyreplog.cli.shared.progress import progress
from tests.cli.support import COMMAND


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second each time it is read, and no rich."""
    seconds = iter(range(1000))
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(progress_module, "find_spec", lambda _: None)


@pytest.mark.usefixtures("moments")
def test_a_line_written_over_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress("file", start=1024, total=11264) as shown:
        shown.update(2048, 10)
        shown.update(6144, 50)
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        "file: 10 records, 2.0 KiB of 11.0 KiB (18 %), 1.0 KiB/s, 9.0 s left",
        "file: 50 records, 6.0 KiB of 11.0 KiB (54 %), 2.5 KiB/s, 2.0 s left",
        "",
    ]


@pytest.mark.usefixtures("moments")
def test_a_line_now_and_then_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with progress("pipe", start=0, total=None) as shown:
        for i in range(12):
            shown.update(i << 20, i)
    assert file.getvalue().splitlines() == [
        "pipe: 4 records, 4.0 MiB, 819.2 KiB/s",
        "pipe: 9 records, 9.0 MiB, 921.6 KiB/s",
    ]


def test_progress_is_a_bar_with_rich(log: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a line\n" * 1000)
    ours, theirs = pty.openpty()
    command = [*COMMAND, "ingest", str(log), str(source)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=environment) as running:
        os.close(theirs)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", all_that_comes(ours).decode())
        os.close(ours)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert re.search(r"source ━+ 6\.8/6\.8 KiB .*1,000 records ETA", shown)
    assert out.startswith(str(source).encode())


def all_that_comes(terminal: int) -> bytes:
    """Until nobody has its other side open."""
    actual = b""
    with contextlib.suppress(OSError):  # Linux says so
        while more := os.read(terminal, 1 << 16):
            actual += more
    return actual
