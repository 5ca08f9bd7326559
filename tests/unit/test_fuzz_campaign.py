"""The count of a fuzzing campaign: blocks are counted once, in rows that grow together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Blocks, executed, missing, read_blocks, write_blocks


def test_blocks_that_follow_each_other_are_one_row() -> None:
    table = write_blocks([
        Blocks("kafka", 1, 2, 30, "none"), Blocks("kafka", 0, 1, 20, "none"), Blocks("kafka", 5, 6, 10, "none"),
        Blocks("kafka", 2, 3, 10, "address"), Blocks("frame", 3, 4, 10, "address"),
    ])  # fmt: skip
    assert read_blocks(table) == [
        Blocks("frame", 3, 4, 10, "address"), Blocks("kafka", 0, 2, 50, "none"), Blocks("kafka", 2, 3, 10, "address"),
        Blocks("kafka", 5, 6, 10, "none"),
    ]  # fmt: skip


def test_a_campaign_goes_on_with_the_blocks_that_were_not_counted() -> None:
    blocks = [Blocks("kafka", 1, 3, 50, "none"), Blocks("frame", 0, 10, 10, "none")]
    assert missing(blocks, "kafka", range(5)) == [0, 3, 4]
    assert missing(blocks, "kafka", range(1, 3)) == []


def test_executions_are_those_that_libfuzzer_reports() -> None:
    assert executed("Done\nstat::number_of_executed_units: 25731\nstat::average_exec_per_sec: 327\n") == 25731
    with pytest.raises(ValueError, match="executed units"):
        executed("Killed")


def test_a_block_with_a_finding_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def run(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
        runs.append(77 if len(runs) == 1 else 0)
        return subprocess.CompletedProcess([], runs[-1], "", "stat::number_of_executed_units: 25001\n")

    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    table = tmp_path / "tests" / "fuzz" / "executions.tsv"
    table.write_text(write_blocks([Blocks("kafka", 0, 1, 7, "none")]))
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("PYREPLOG_SANITIZERS", raising=False)
    assert campaign.main(["kafka", "0:4"]) == 1
    assert runs == [0, 77]
    assert read_blocks(table.read_text()) == [Blocks("kafka", 0, 2, 25008, "none")]
    assert campaign.main(["kafka", "0:4"]) == 0
    assert read_blocks(table.read_text()) == [Blocks("kafka", 0, 4, 75010, "none")]


def test_the_table_in_the_repository_is_one_that_a_campaign_writes() -> None:
    table = (Path(campaign.__file__).parent / "executions.tsv").read_text()
    assert write_blocks(read_blocks(table)) == table
