"""The programs of docs/ledgers.md, and of the README's parts on logs and on ledgers, run as they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.guides import ROOT, blocks, run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_guide_runs() -> None:
    (block,) = blocks(ROOT / "docs" / "ledgers.md")
    namespace: dict[str, Any] = {}
    try:
        printed = run(block, namespace)
    finally:
        namespace["cluster"].close()
    assert " ".join(printed) == "[0 1 2 3] [b'value', b'a', b'b', b'later']"


def test_the_readme_runs_a_ledger() -> None:
    (block,) = blocks(ROOT / "README.md", "### Ledgers")
    printed = run(f"import pyreplog\n{block}", {})
    assert " ".join(printed) == "[0 1] [b'order 1', b'later']"


def test_the_readme_runs_a_log() -> None:
    (block,) = blocks(ROOT / "README.md", "## What it is")
    printed = run(block, {})
    assert printed[0].startswith("b'order 1' b'customer 7' "), "and where the log ends: what was submitted may be there"
    assert printed[-5:] == ["b'order 1'", "b'a'", "b'b'", "b'c'", "b'later'"], "all of it, followed by a reader"
