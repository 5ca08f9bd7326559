"""cat, tail, stat, bench, and what all commands have in common: JSON, exit codes, broken pipes."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.app import COMMANDS, main
from pyreplog.ledger.cluster import LedgerCluster
from tests.cli.support import COMMAND, SEGMENT_BYTES, Done, Run, process

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def filled(log: Path) -> Path:
    """20 entries: `value N` with key `k N`, the last one of bytes that are no text and without a key."""
    with pyreplog.open(log) as writer:
        for i in range(19):
            writer.append(b"value %d" % i, b"k %d" % i, event_time=i)
        writer.append(b"\xff\x00")
    return log


def lines(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


# ---- cat -------------------------------------------------------------------------------------------------------


def test_cat_prints_the_values_of_all_entries(filled: Path) -> None:
    command = [*COMMAND, "cat", str(filled)]
    out = subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE_S).stdout
    assert out == b"".join(b"value %d\n" % i for i in range(19)) + b"\xff\x00\n"


def test_cat_a_part_with_keys(run: Run, filled: Path) -> None:
    assert run("cat", filled, "--from", 3, "--to", 5, "--keys").out == "k 3\tvalue 3\nk 4\tvalue 4\n"
    assert run("cat", filled, "--from", 20).out == ""


@pytest.mark.parametrize("how", [("--json",), ("--format", "json")])
def test_cat_prints_entries_as_json(run: Run, filled: Path, how: tuple[str, ...]) -> None:
    first, *_, last = lines(run("cat", filled, *how).out)
    assert (first["entry"], first["key"], first["value"], first["event_time"]) == (0, "k 0", "value 0", 0)
    assert (last["entry"], last["key"], last["event_time"]) == (19, None, None)
    assert last["value"] == {"base64": base64.b64encode(b"\xff\x00").decode()}
    with pyreplog.open(filled, "r") as log:
        assert (last["position"], last["timestamp"]) == (log.position_of(19), log.get(19).timestamp)


def test_cat_beyond_the_end_is_refused(run: Run, filled: Path) -> None:
    done = run("cat", filled, "--from", 21)
    assert (done.code, done.out) == (1, "")
    assert done.error == "pyreplog: entry 21: the log has 0 to 20\n"


# ---- tail ------------------------------------------------------------------------------------------------------


def test_tail_prints_the_last_entries(run: Run, filled: Path) -> None:
    assert run("tail", filled, "-n", 3, "--json").out.count("\n") == 3
    assert run("tail", filled, "-n", 2, "--keys", "--json").out.startswith('{"entry": 18')
    assert run("tail", filled, "-n", 0).out == ""
    assert len(lines(run("tail", filled, "-n", 100, "--json").out)) == 20
    assert run("tail", filled, "-n", -1).code == 2


def test_tail_follows_over_writers_that_come_and_go(filled: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "tail", str(filled), "-f", "-n", "2", "--json"], stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None

        def next_entry() -> int:
            assert running.stdout is not None
            return int(json.loads(running.stdout.readline())["entry"])

        assert [next_entry(), next_entry()] == [18, 19]
        for entry in range(20, 24, 2):
            with pyreplog.open(filled) as writer:
                writer.append(b"new")
                assert next_entry() == entry
                writer.append_batch([b"x" * 100])
                assert next_entry() == entry + 1
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 130


# ---- stat ------------------------------------------------------------------------------------------------------


def test_stat_prints_numbers_of_a_log_as_text_and_json(run: Run, filled: Path) -> None:
    report = run("stat", filled, "--json").json
    expected = {"start": 0, "end": 20, "synced_end": 20, "clean": True, "writer": None, "segments": 1}
    assert {key: report[key] for key in expected} == expected
    assert report["segment_bytes"] == SEGMENT_BYTES
    with pyreplog.open(filled) as writer:
        assert report["uuid"] == writer.stats().uuid
        assert report["last_time"] == writer.get(19).timestamp
        writer.append(b"more")
        report = run("stat", filled, "--json").json
        assert (report["end"], report["synced_end"], report["clean"]) == (21, 20, False)
        assert report["writer"] is not None
    text = run("stat", filled).out
    assert "21, numbers 0 to before 21" in text
    assert "closed cleanly" in text


def test_stat_of_an_empty_log(run: Run, log: Path) -> None:
    assert "0, numbers 0 to before 0" in run("stat", log).out


def test_stat_of_a_log_without_its_segment(run: Run, filled: Path) -> None:
    segment = filled / f"{0:020d}.log"
    segment.unlink()
    for _ in range(2):
        done = run("stat", filled)
        assert (done.code, done.out) == (4, "")
        assert str(segment) in done.error and "no " in done.error
        (filled / "tail").unlink(missing_ok=True)  # and as after a boot


@pytest.mark.parametrize("command", ["stat", "fsck", "backup"])
def test_output_uses_the_singular_for_one_record(run: Run, log: Path, tmp_path: Path, command: str) -> None:
    with pyreplog.open(log) as writer:
        writer.append(b"x")
    done = run(command, log, *([tmp_path / "copy"] if command == "backup" else []))
    assert done.code == 0 and not re.search(r"\b1 \w+(s|ies)\b", done.out), done.out


# ---- bench -----------------------------------------------------------------------------------------------------


def test_bench_prints_its_figures_and_leaves_no_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_ROUNDS", 1), ("_BATCHES", 4), ("_SYNCS", 2)):
        monkeypatch.setattr(f"pyreplog.cli.bench.{name}", value)
    figures = run("bench", tmp_path, "--json").json
    assert [figure["unit"] for figure in figures] == ["records/s", "records/s", "MB/s"]
    assert all(figure["ratio"] == pytest.approx(figure["log"] / figure["bare"]) for figure in figures)
    assert run("bench", tmp_path).out.count("\n") == 4
    assert not list(tmp_path.iterdir())
    assert run("bench", tmp_path / "none").code == 2


# ---- all of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_prints_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from pyreplog.cli.app import main

    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_the_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    from pyreplog.cli.app import main

    for arguments, code in ((["--help"], 0), (["nonsense"], 2), ([], 2)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert ended.value.code == code
        assert [name for name in COMMANDS if name not in printed.out + printed.err] == []


@pytest.mark.parametrize("name", ["ledger", "cluster", "ha", "topic", "subscription"])
def test_a_command_without_its_action_lists_the_actions(name: str) -> None:
    done = process(name)
    assert done.code == 2 and "actions:" in done.error and done.error.endswith(f"{name}: error: expected ACTION\n")


@pytest.mark.parametrize("place", [0, 1, 4])
def test_the_json_option_may_stand_anywhere(run: Run, tmp_path: Path, place: int) -> None:
    LedgerCluster.embedded(tmp_path, bookies=1).close()
    arguments = ["cluster", "--embedded", str(tmp_path), "status"]
    arguments.insert(place, "--json")
    assert run(*arguments).json["ledgers"] == []


@pytest.mark.parametrize("arguments", [["--version"], ["cat", "--help"], ["stat", "--help"], ["fsck", "--help"]])
def test_a_command_loads_what_it_needs_alone(arguments: list[str]) -> None:
    """A log needs no sqlite3, no cluster and no topics."""
    program = (
        "import sys\nfrom pyreplog.cli.app import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name == 'sqlite3' or name.startswith(('pyreplog.topic', "
        "'pyreplog.ledger', 'pyreplog.ha.', 'rich'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_broker_for_kafka_clients_loads_neither_compaction_nor_metrics() -> None:
    """Few brokers need it before their first record, or have a server of metrics."""
    program = (
        "import sys, pyreplog.cli.kafka; print([name for name in ('pyreplog.partition.store.log_cleaner', "
        "'pyreplog.kafka.metrics', 'pyreplog.partition.metrics') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["cat", "tail", "stat"])
def test_a_command_on_a_path_without_a_log_ends_with_code_2(run: Run, tmp_path: Path, command: str) -> None:
    assert run(command, tmp_path / "none").code == 2
    assert run(command, tmp_path).code == 2
    (tmp_path / "file").touch()
    done = run(command, tmp_path / "file")
    assert (done.code, done.out) == (2, "")
    assert done.error == f"pyreplog: {tmp_path / 'file'} is a file; a log is a directory\n"


def test_a_log_that_another_process_writes(run: Run, filled: Path) -> None:
    with pyreplog.open(filled):
        done = process("ingest", filled, data=b"a\n")
    assert done.code == 3
    assert "is open for writing in process" in done.error


def test_a_usage_error_ends_with_code_2_and_the_usage() -> None:
    done = process("cat")
    assert done.code == 2
    assert "usage: pyreplog cat" in done.error
    assert process("--version").out == f"pyreplog {pyreplog.__version__}\n"


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_broken_pipe_is_quiet(log: Path, how: tuple[str, ...]) -> None:
    with pyreplog.open(log) as writer:
        writer.append_batch([b"x" * 1000] * 500)
    command = [*COMMAND, "cat", str(log), *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(DEADLINE_S) == 141


def with_closed(number: int, *arguments: object) -> Done:
    """Run a command with one of its standard streams closed."""
    command = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    return Done(done.returncode, done.stdout.decode("latin-1"), done.stderr.decode())


@pytest.mark.parametrize("number", [1, 2])
def test_a_closed_stream_is_no_file_of_the_log(filled: Path, tmp_path: Path, number: int) -> None:
    """Whatever is opened next gets its number: what is printed, by whom ever, must not go there."""
    (tmp_path / "rows").write_bytes(b"a\nb\n")
    for command in (
        ["stat", filled],
        ["cat", filled],
        ["ingest", filled, tmp_path / "rows"],
        ["fsck", filled, "--json"],
    ):
        done = with_closed(number, *command)
        assert (done.code, done.error) == (0, "")
        assert bool(done.out) == (number == 2)
    done = with_closed(number, "stat", tmp_path / "nothing")
    assert (done.code, done.out) == (2, "") and bool(done.error) == (number == 1)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_locale_does_not_have(filled: Path, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / os.fsdecode("ü \u2192 ".encode() + b"\xff")
    filled.rename(path)
    told = {}
    for command in (["stat"], ["stat", "--json"], ["fsck"], ["dump", "--entry", "0"]):
        done = subprocess.run(
            [*COMMAND, *command, path],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stderr) == (0, b""), command
        told[*command] = done.stdout
    assert json.loads(told["stat", "--json"].decode())["path"] == str(path)
    assert b"\\udcff" in told["stat",]


# A module that is interrupted as it is loaded, by a signal that comes then.
INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
AS_MODULE = "import runpy; runpy.run_module('pyreplog', run_name='__main__', alter_sys=True)"
AS_SCRIPT = """
import tomllib
with open("pyproject.toml", "rb") as file:
    module, _, function = tomllib.load(file)["project"]["scripts"]["pyreplog"].partition(":")
sys.exit(getattr(__import__(module, fromlist=[function]), function)())
"""


@pytest.mark.parametrize("module", ["pyreplog.cli.app", "argparse", "pyreplog.cli.stat", "pyreplog._native.log.batch"])
@pytest.mark.parametrize("way", [AS_MODULE, AS_SCRIPT], ids=["module", "script"])
def test_an_interrupt_while_the_command_line_is_loaded(filled: Path, module: str, way: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED + way, module, "stat", str(filled)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_while_a_command_is_loaded(monkeypatch: pytest.MonkeyPatch, filled: Path) -> None:
    def interrupted(name: str) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyreplog.cli.app.import_module", interrupted)
    assert main(["stat", str(filled)]) == 130
