"""The program of docs/partitions.md runs as it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.guides import ROOT, blocks, placed, run, run_as_promised


def test_the_program_of_the_partitions_guide_runs(tmp_path: Path) -> None:
    program, overview = blocks(ROOT / "docs" / "partitions.md")
    namespace: dict[str, Any] = {}
    run_as_promised(placed(program, {"data/flights": str(tmp_path / "flights")}), namespace)
    first, second, leads = run(placed(overview, {"data/watched": str(tmp_path / "watched")}), namespace)
    assert first.startswith("flights 0 (") and second.startswith("flights 1 (") and leads.count(",") == 2
