"""What commands print of somebody else's text, and what they do when nobody reads it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.app import EXIT_BROKEN_PIPE, main
from pyreplog.cli.shared.output import json_text, raw_lines, shown
from pyreplog.cli.shared.tables import Table
from pyreplog.errors import NotALogError

BAD = "".join(
    map(
        chr,
        [*range(1, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)],
    )
)
"""Control characters of ASCII and of Latin-1, and those that turn the direction of writing."""


def test_shown_escapes_control_and_bidirectional_characters() -> None:
    assert not set(shown("é" + BAD + "中")) & set(BAD) and shown("é 中\u200d👩") == "é 中\u200d👩"
    assert shown("a\x1b[2J\x9b\u202e") == r"a\x1b[2J\x9b\u202e"
    assert shown("a\tb\n\r", lines=True) == "a\tb\n" + r"\x0d"
    assert json.loads(json_text({BAD: BAD})) == {BAD: BAD} and not set(json_text(BAD)) & set(BAD)
    assert not set("".join(Table(("name",), [(BAD,)]).plain())) & set(BAD)


@pytest.mark.parametrize("command", ["fsck", "stat", "cat", "backup", "restore", "dump", "ledger", "topic"])
def test_a_path_with_control_characters(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / ("a" + BAD.replace("/", "")))
    more = {"backup": [path + "2"], "restore": [path + "2"], "dump": ["--entry", "0"], "ledger": ["--embedded", path]}
    arguments = [command, "list", *more[command]] if command == "ledger" else [command, path, *more.get(command, [])]
    with contextlib.suppress(SystemExit):
        main(arguments)
    out, err = capsys.readouterr()
    assert not set(out + err) & set(BAD) - {"\n", "\t"} and (out or err)


def test_a_log_whose_path_has_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("log" + BAD)
    with pyreplog.open(path) as log:
        log.append(b"x")
    for command in (["fsck"], ["stat"], ["fsck", "--json"], ["stat", "--json"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        out, err = capsys.readouterr()
        assert not set(out + err) & set(BAD) - {"\n"} and "log" in out


def test_raw_values_are_escaped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"\x1b[2J", b"\xff", "é\u202e".encode()]
    assert raw_lines(values) == b"\n".join([*values, b""])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert raw_lines(values).decode() == "\\x1b[2J\n\\xff\né\\u202e\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["cat", "LOG"], ["fsck", "LOG"], ["stat", "LOG", "--json"], ["fsck", "NONE"]]
)
@pytest.mark.parametrize("closed", ["stdout", "both"])
def test_command_with_closed_output_exits_without_a_traceback(
    arguments: list[str], closed: str, tmp_path: Path
) -> None:
    """Output that is closed early: no traceback, from the command or from the end of the interpreter."""
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([bytes(1000)] * 1000)
    places = {"LOG": tmp_path / "log", "NONE": tmp_path / "none"}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pyreplog", *(str(places.get(word, word)) for word in arguments)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "err").open("wb") as errors:
        done = subprocess.run(
            command, stdout=writing, stderr=writing if closed == "both" else errors, env=buffered, timeout=120,
            check=False,
        )  # fmt: skip
    os.close(writing)
    assert "Traceback" not in (tmp_path / "err").read_text() and "BrokenPipe" not in (tmp_path / "err").read_text()
    if arguments == ["--help"]:  # which argparse prints, and takes for done
        assert done.returncode in (0, EXIT_BROKEN_PIPE)
    elif arguments[-1] == "NONE" and closed == "stdout":
        assert done.returncode == NotALogError.exit_code
    else:
        assert done.returncode == EXIT_BROKEN_PIPE
