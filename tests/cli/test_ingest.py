"""`pyreplog ingest`: every row once, whatever happens in between."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.input import bookmark
from pyreplog.cli.input.bookmark import Bookmark
from tests.cli.support import COMMAND, SEGMENT_BYTES, Run, process, rows, values

LINES = [b"line %d" % i for i in range(100)]
DATA = b"\n".join(LINES) + b"\n"

TABLE = b"id,when,text\n" + b"".join(b"k%d,%d,v%d\n" % (i % 7, i, i) for i in range(60))
TABLE_ARGUMENTS = ("--format", "csv", "--key", "id", "--event-time", "when", "--event-time-format", "us")
TABLE_ROWS = [(b"k%d" % (i % 7), i, b"k%d,%d,v%d" % (i % 7, i, i)) for i in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def marks(log: Path) -> list[Bookmark]:
    with pyreplog.open(log, "r") as reader:
        bookmarks = [Bookmark.decode(record.value) for record in reader.control_records()]
    assert None not in bookmarks
    return [mark for mark in bookmarks if mark is not None]


# ---- what becomes of a source ----------------------------------------------------------------------------------


def test_ingest_appends_each_line(run: Run, log: Path, source: Path) -> None:
    done = run("ingest", log, source, "--batch", 7)
    assert (done.code, done.error) == (0, "")
    assert "100 records added, 0 were there already, 0 rows skipped" in done.out
    assert values(log) == LINES
    assert run("cat", log).out.encode() == DATA


def test_rows_have_keys_and_event_times(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(TABLE)
    assert run("ingest", log, source, *TABLE_ARGUMENTS).code == 0
    assert rows(log) == TABLE_ROWS
    assert marks(log)[0].settings["header"] == ["id", "when", "text"]


def test_ingest_prints_its_result_as_json(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(b'{"a": "x"}\n{"a": "y"}')
    done = run("ingest", log, source, "--json", "--format", "jsonl", "--key", "a")
    assert {key: done.json[key] for key in ("source", "added", "already", "skipped", "bytes", "end")} == {
        "source": str(source), "added": 2, "already": 0, "skipped": 0, "bytes": 21, "end": 2,
    }  # fmt: skip
    assert rows(log) == [(b"x", None, b'{"a": "x"}'), (b"y", None, b'{"a": "y"}')]


def test_ingest_uses_the_singular_for_one_record(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(b"x\n")
    assert "1 record added, 0 were there already, 0 rows skipped" in run("ingest", log, source).out
    assert "0 records added, 1 was there already, 0 rows skipped" in run("ingest", log, source).out
    source.write_bytes(b'{"a": 1}\nnot\n')
    arguments = ("--format", "jsonl", "--key", "a", "--on-error", "skip", "--source", "other")
    assert "1 record added, 0 were there already, 1 row skipped" in run("ingest", log, source, *arguments).out


@pytest.mark.parametrize("option", ["--key", "--event-time"])
def test_a_member_that_no_row_has_is_named(run: Run, log: Path, source: Path, option: str) -> None:
    """In the first run, in one that adds nothing, and in one that goes on after a kill in the middle."""
    arguments = ("ingest", log, source, "--batch", 2, "--format", "jsonl", option, "ticket")
    source.write_bytes(b'{"a": 1}\n{"a": 2}\n{"tickets": 3}\n')
    done = run(*arguments)
    assert done.code == 2 and "no row has 'ticket'; 3 records were appended without it" in done.error
    assert "3 records added" in done.out
    assert run(*arguments).code == 2 and len(values(log)) == 3
    with pyreplog.open(log) as writer:
        writer.truncate(1)
    assert run(*arguments).code == 2 and len(values(log)) == 3
    with source.open("ab") as file:
        file.write(b'{"ticket": null}\n')
    assert run(*arguments).code == 0 and len(values(log)) == 4


def test_a_member_that_only_early_rows_have_is_no_mistake(run: Run, log: Path, source: Path) -> None:
    arguments = ("ingest", log, source, "--batch", 1, "--format", "jsonl", "--key", "k")
    source.write_bytes(b'{"k": "x"}\n{}\n')
    assert run(*arguments).code == 0
    with source.open("ab") as file:
        file.write(b"{}\n{}\n")
    assert run(*arguments).code == 0 and len(values(log)) == 4


def test_ingest_creates_a_missing_log(run: Run, tmp_path: Path, source: Path) -> None:
    assert run("ingest", tmp_path / "new", source, "--durability", "synced").code == 0
    assert values(tmp_path / "new") == LINES


@pytest.mark.parametrize("data", [b"", b"id,when,text\n", b"id,when,text"])
def test_a_source_without_rows_adds_nothing(run: Run, log: Path, source: Path, data: bytes) -> None:
    source.write_bytes(data)
    for _ in range(2):
        done = run("ingest", log, source, "--json", *TABLE_ARGUMENTS[: 2 if not data else None])
        assert (done.code, done.json["added"]) == (0, 0)
    assert not marks(log)


def test_the_last_line_needs_no_end(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(DATA[:-1])
    assert run("ingest", log, source).code == 0
    assert values(log) == LINES
    with source.open("ab") as file:
        file.write(b"\nmore")
    assert run("ingest", log, source, "--json").json["added"] == 1
    with source.open("ab") as file:
        file.write(b" of it\n")
    assert run("ingest", log, source).code == 8
    assert values(log) == [*LINES, b"more"]


# ---- again -----------------------------------------------------------------------------------------------------


def test_a_repeated_ingest_adds_no_rows(run: Run, log: Path, source: Path) -> None:
    run("ingest", log, source, "--batch", 9)
    with pyreplog.open(log, "r") as reader:
        before = reader.end_position
    done = run("ingest", log, source, "--json")
    assert (done.json["added"], done.json["already"]) == (0, 100)
    with pyreplog.open(log, "r") as reader:
        assert reader.end_position == before


def test_goes_on_with_what_was_added(run: Run, log: Path, source: Path) -> None:
    for stop in range(0, len(DATA) + 1, 53):
        source.write_bytes(DATA[: DATA.rfind(b"\n", 0, stop) + 1])
        assert run("ingest", log, source, "--batch", 3).code == 0
    source.write_bytes(DATA)
    assert run("ingest", log, source).code == 0
    assert values(log) == LINES


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_goes_on_from_any_prefix_of_the_log(run: Run, log: Path, source: Path, batch: int) -> None:
    """What a kill or a power cut leaves is a prefix of the log: cut it after every entry."""
    source.write_bytes(TABLE)
    run("ingest", log, source, "--batch", batch, *TABLE_ARGUMENTS)
    for stop in range(len(TABLE_ROWS), -1, -1):
        with pyreplog.open(log) as writer:
            writer.truncate(stop)
        done = run("ingest", log, source, "--json", "--batch", 1 + stop % 5, *TABLE_ARGUMENTS)
        assert (done.code, done.json["already"], done.json["added"]) == (0, stop, 60 - stop)
        assert rows(log) == TABLE_ROWS


def test_goes_on_behind_a_control_record_without_entries(run: Run, log: Path, source: Path) -> None:
    run("ingest", log, source, "--batch", 40)
    with pyreplog.open(log) as writer:
        writer.truncate(80)
        writer.append_batch([], control=marks(log)[-1].encode())
    assert len(marks(log)) == 4
    assert run("ingest", log, source, "--json").json["already"] == 80
    assert values(log) == LINES


def test_two_sources_each_go_on_where_they_were(run: Run, log: Path, tmp_path: Path) -> None:
    """Each goes on where it was, with the other's entries and a foreign program's between its own."""
    files = {name: tmp_path / name for name in ("one", "two")}
    content = {name: [b"%s %d" % (name.encode(), i) for i in range(30)] for name in files}
    for count in (10, 20, 30):
        for name, path in files.items():
            path.write_bytes(b"".join(line + b"\n" for line in content[name][:count]))
            assert run("ingest", log, path, "--batch", 4).code == 0
        with pyreplog.open(log) as writer:
            writer.append_batch([b"foreign"], control=b"foreign" if count == 20 else None)
    for name in files:
        assert [value for value in values(log) if value.startswith(name.encode())] == content[name]
    assert values(log).count(b"foreign") == 3


def test_a_cut_batch_is_completed_behind_entries_of_another_source(
    run: Run, log: Path, source: Path, tmp_path: Path
) -> None:
    run("ingest", log, source, "--batch", 50)
    with pyreplog.open(log) as writer:
        writer.truncate(70)
    other = tmp_path / "other"
    other.write_bytes(DATA)
    run("ingest", log, other)
    assert run("ingest", log, source, "--json").json["already"] == 70
    assert values(log) == [*LINES[:70], *LINES, *LINES[70:]]


def test_a_source_is_found_many_segments_back(run: Run, log: Path, source: Path, tmp_path: Path) -> None:
    run("ingest", log, source)
    other = tmp_path / "other"
    other.write_bytes(b"".join(b"%d %s\n" % (i, b"x" * 1000) for i in range(300)))
    run("ingest", log, other, "--batch", 10)
    with pyreplog.open(log) as writer:
        assert writer.stats().segments > 4
        hit = bookmark.find(writer, str(source), SEGMENT_BYTES)
        assert hit is not None
        assert (hit.first, hit.stored, hit.bookmark.place.offset) == (0, 100, 0)
        assert bookmark.find(writer, "never met", SEGMENT_BYTES) is None
    assert run("ingest", log, source, "--json").json["added"] == 0


def test_a_name_stands_for_the_path(run: Run, log: Path, source: Path, tmp_path: Path) -> None:
    run("ingest", log, source, "--source", "lines")
    moved = source.rename(tmp_path / "moved")
    assert run("ingest", log, moved, "--source", "lines", "--json").json["added"] == 0
    assert run("ingest", log, moved, "--json").json["added"] == 100


# ---- standard input --------------------------------------------------------------------------------------------


def test_standard_input_with_a_name_goes_on(log: Path) -> None:
    for stop in (0, 40, 100, 100):
        data = b"".join(line + b"\n" for line in LINES[:stop])
        done = process("ingest", log, "-", "--source", "pipe", "--json", data=data)
        assert done.code == 0, done.error
    assert values(log) == LINES
    assert process("ingest", log, "--source", "pipe", data=DATA[:-9]).code == 8


def test_standard_input_without_a_name_is_appended_each_time(log: Path) -> None:
    for _ in range(2):
        assert process("ingest", log, data=b"a\nb\n").code == 0
    assert values(log) == [b"a", b"b"] * 2


# ---- a changed source ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"other" + data, "has changed since it was ingested up to byte"),
        (lambda data: data.replace(b"line 3\n", b"line 4\n"), "has changed since it was ingested up to byte"),
        (lambda data: data.replace(b"line 95\n", b"line 00\n"), r"expected b'line 95' \(entry 95\), found b'line 00'"),
        (lambda data: data[:100], "ends at byte 100, and was ingested up to byte"),
        (lambda data: data[: data.index(b"line 97")], r"expected b'line 97' \(entry 97\), found its end"),
        (lambda data: b"", "ends at byte 0"),
    ],
)
def test_a_changed_source_is_refused(
    run: Run, log: Path, source: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    run("ingest", log, source, "--batch", 30)
    source.write_bytes(change(DATA))
    done = run("ingest", log, source)
    assert done.code == 8
    assert done.error.startswith(f"pyreplog: {source} ")
    assert re.search(message, done.error), done.error
    assert values(log) == LINES


def test_an_ingest_with_other_settings_than_before_is_refused(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(TABLE)
    run("ingest", log, source, *TABLE_ARGUMENTS)
    done = run("ingest", log, source, "--format", "csv", "--key", "text")
    assert done.code == 2
    assert "was ingested with key 'id' before, found 'text'" in done.error
    assert rows(log) == TABLE_ROWS


# ---- malformed rows --------------------------------------------------------------------------------------------

BAD = b'id,n\na,1\nb\nc,3\n\n"d\nd",4\ne,5,5\nf,6\n'
GOOD = [b"a,1", b"c,3", b'"d\nd",4', b"f,6"]


def test_stops_at_a_malformed_row(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(BAD)
    for _ in range(2):
        done = run("ingest", log, source, "--format", "csv")
        assert (done.code, done.out) == (7, "")
        assert done.error == f"pyreplog: {source} line 3 (byte 9): expected 2 columns, found 1\n"
        assert values(log) == GOOD[:1]
    assert run("ingest", log, source, "--format", "csv", "--on-error", "skip").code == 0
    assert values(log) == GOOD


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_skips_malformed_rows_and_counts_them_right(run: Run, log: Path, source: Path, batch: int) -> None:
    source.write_bytes(BAD)
    arguments = ("ingest", log, source, "--format", "csv", "--on-error", "skip", "--batch", batch)
    done = run(*arguments, "--json")
    assert (done.json["added"], done.json["skipped"]) == (4, 2)
    assert "skipped: " in done.error
    assert "line 8 (byte 24): expected 2 columns, found 3" in done.error
    for stop in range(4, -1, -1):
        with pyreplog.open(log) as writer:
            writer.truncate(stop)
        done = run(*arguments, "--json")
        assert (done.code, done.json["already"], done.json["skipped"]) == (0, stop, 2)
        assert values(log) == GOOD


def test_a_skipped_row_is_met_again_when_stopping(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(BAD)
    run("ingest", log, source, "--format", "csv", "--on-error", "skip")
    assert run("ingest", log, source, "--format", "csv").code == 7
    assert values(log) == GOOD


def test_many_malformed_rows_are_not_all_shown(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(b"x\n" * 50)
    done = run("ingest", log, source, "--format", "jsonl", "--on-error", "skip", "--batch", 7, "--json")
    assert (done.json["skipped"], done.json["added"]) == (50, 0)
    assert len(done.error.splitlines()) == 10


# ---- arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--batch", "0"), 2, "--batch: expected 1 to"),
        (("--key", "id"), 2, "use csv or jsonl"),
        (("--format", "csv", "--key", "id"), 2, "column 'id': expected one of that name"),
        (("--format", "csv", "--event-time-format", "never"), 2, "event time format"),
    ],
)
def test_ingest_checks_its_arguments_before_it_creates_a_log(
    run: Run, tmp_path: Path, source: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run("ingest", tmp_path / "new", source, *arguments)
    assert done.code == code
    assert message in done.error
    assert not (tmp_path / "new").exists()


def test_a_source_that_is_not_there(run: Run, log: Path, tmp_path: Path) -> None:
    done = run("ingest", log, tmp_path / "none")
    assert done.code == 1
    assert "No such file" in done.error
    assert run("ingest", log, tmp_path).code == 2
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "ingest", str(log)], capture_output=True, check=False
    )
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr == b"pyreplog: standard input is closed; name a file, or redirect standard input\n"


def test_a_row_too_large_for_the_log(run: Run, log: Path, source: Path) -> None:
    source.write_bytes(b"a\n" + b"x" * SEGMENT_BYTES + b"\n")
    assert run("ingest", log, source).code == 2
    assert run("ingest", log, source, "--batch", 1).code == 2
    assert values(log) == [b"a"]


def test_the_bookmark_is_plain_json(run: Run, log: Path, source: Path) -> None:
    run("ingest", log, source, "--batch", 60)
    with pyreplog.open(log, "r") as reader:
        second = json.loads(list(reader.control_records())[1].value)
    assert second["source"] == str(source)
    assert (second["entries"], second["count"], second["line"], second["skipped"]) == (60, 40, 61, 0)
    assert second["offset"] == sum(len(line) + 1 for line in LINES[:60])
