"""`pyreplog cursor`: lists, moves and removes the cursors of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli.shared.output import amount
from tests.cli.support import Run


@pytest.fixture
def followed(log: Path) -> Path:
    """20 entries, a cursor at entry 5 and one at the end."""
    with pyreplog.open(log) as writer:
        writer.append_batch([b"value"] * 20)
        writer.cursor("billing", 5).close()
        writer.cursor("audit", "latest").close()
    return log


def test_cursor_lists_cursors_with_their_lag(run: Run, followed: Path) -> None:
    with pyreplog.open(followed, "r") as log:
        rows = [
            {"name": "audit", "entry": 20, "position": log.end_position, "lag": 0, "bytes": 0},
            {
                "name": "billing", "entry": 5, "position": log.position_of(5), "lag": 15,
                "bytes": log.end_position - log.position_of(5),
            },
        ]  # fmt: skip
    assert run("cursor", followed, "--json").json == rows
    holds = amount(rows[1]["bytes"])  # type: ignore[arg-type]
    listed = run("cursor", followed).out.splitlines()
    assert listed[1] == f"billing  at entry 5, 15 entries to process, retains {holds}"


def test_cursor_on_a_log_without_cursors_says_so(run: Run, log: Path) -> None:
    pyreplog.open(log).close()
    assert "has no cursors" in run("cursor", log).out and run("cursor", log, "--json").json == []


def test_cursor_moves_creates_and_removes_cursors(run: Run, followed: Path) -> None:
    assert [row["entry"] for row in run("cursor", followed, "billing", "--seek", 2, "--json").json] == [20, 2]
    assert [row["name"] for row in run("cursor", followed, "new", "--seek", 3, "--json").json] == [
        "audit",
        "billing",
        "new",
    ]
    assert [row["name"] for row in run("cursor", followed, "audit", "--delete", "--json").json] == ["billing", "new"]
    assert run("cursor", followed, "audit", "--delete").code == 2
    with pyreplog.open(followed) as log:
        assert log.cursors() == {"billing": 2, "new": 3}


@pytest.mark.parametrize("arguments", [("billing",), ("--delete",), ("--seek", 3)])
def test_arguments_that_make_no_sense(run: Run, followed: Path, arguments: tuple[object, ...]) -> None:
    assert run("cursor", followed, *arguments).code == 2


def test_a_cursor_that_a_reader_has(run: Run, followed: Path) -> None:
    with pyreplog.open(followed, "r") as log, log.cursor("billing"):
        for change in (("--seek", 3), ("--delete",)):
            done = run("cursor", followed, "billing", *change)
            assert done.code == 3 and "one reader at a time" in done.error
