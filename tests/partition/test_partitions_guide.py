"""The program of docs/partitions.md runs as it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.guides import ROOT, blocks, placed, run_as_promised


def test_the_guide(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "docs" / "partitions.md")
    namespace: dict[str, Any] = {}
    run_as_promised(placed(program, {"data/flights": str(tmp_path / "flights")}), namespace)
