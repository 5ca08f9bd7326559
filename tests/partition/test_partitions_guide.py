"""The programs and the commands of docs/partitions.md run as they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.consoles import Console, shape, steps
from tests.guides import ROOT, blocks, fences, placed, run, run_as_promised


def test_the_program_of_the_partitions_guide_runs(tmp_path: Path) -> None:
    program, overview = blocks(ROOT / "docs" / "partitions.md")
    namespace: dict[str, Any] = {}
    run_as_promised(placed(program, {"data/flights": str(tmp_path / "flights")}), namespace)
    first, second, leads = run(placed(overview, {"data/watched": str(tmp_path / "watched")}), namespace)
    assert first.startswith("flights 0 (") and second.startswith("flights 1 (") and leads.count(",") == 2


def test_commands_of_the_partitions_guide_start_brokers_and_make_a_topic(tmp_path: Path) -> None:
    (block,) = [text for language, text in fences(ROOT / "docs" / "partitions.md") if language == "console"]
    with Console(tmp_path) as console:
        for step in steps(block):
            if step.terminal:
                assert [shape(line) for line in console.start(step)] == [shape(step.printed)]
            else:
                printed = console.run(step.command)
        assert printed.split("\n")[1].split() == step.printed.split("\n")[1].split(), "the columns"
        assert len(printed.splitlines()) == len(step.printed.splitlines())
