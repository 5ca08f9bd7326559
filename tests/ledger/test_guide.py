"""The programs of docs/ledgers.md, docs/log.md and the README run as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.guides import ROOT, blocks, run, run_as_promised


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_program_of_the_ledger_guide_runs() -> None:
    (block,) = blocks(ROOT / "docs" / "ledgers.md")
    namespace: dict[str, Any] = {}
    try:
        printed = run(block, namespace)
    finally:
        namespace["cluster"].close()
    assert " ".join(printed) == "[0 1 2 3] [b'value', b'a', b'b', b'later'] b'value' b'key'"


def test_the_guide_to_logs_runs() -> None:
    block, cursors = blocks(ROOT / "docs" / "log.md")
    printed = run(block, {})
    assert printed[0].startswith("b'order 1' b'customer 7' "), "and where the log ends: what was submitted may be there"
    assert printed[-5:] == ["b'order 1'", "b'a'", "b'b'", "b'c'", "b'later'"], "all of it, followed by a reader"
    assert run(cursors, {}) == printed[-5:] and run(cursors, {}) == [], "those that are done do not come again"


def test_the_log_program_of_the_readme_runs() -> None:
    block, _ = blocks(ROOT / "README.md")  # the other program is in tests/kafka/test_kafka_guide.py
    namespace: dict[str, Any] = {}
    run_as_promised(block, namespace)
    with namespace["pyreplog"].open("data/orders", "r") as log:
        assert list(log) == [b"order 1", b"a", b"b", b"c"]


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
