"""Commands run in this process, and logs for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.app import main
from tests.cli.support import SEGMENT_BYTES, Done, Run


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; however long it takes, it tells no progress on standard error."""
    monkeypatch.setattr("pyreplog.cli.shared.progress._FILE_S", 86_400.0)

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Directory of an empty log with segments so small that tests meet their ends."""
    path = tmp_path / "log"
    pyreplog.open(path, segment_bytes=SEGMENT_BYTES).close()
    return path
