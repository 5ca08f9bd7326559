"""The program that measures an auditor's scan, in small: what is read, and that a round lists the newest shards only."""

from __future__ import annotations

from benchmarks.metadata_scan import run, zookeeper


def test_a_scan_reads_all_and_a_round_does_not() -> None:
    ledgers = 2 * 4096 + 10
    with zookeeper(256) as hosts:
        result = run(hosts, ledgers)
    assert result["ledgers"] == ledgers and result["bookies"] == 1000
    assert result["scan"]["bytes"] > 300 * ledgers and result["scan"]["memory"] > 0
    assert result["round"]["reads"] == 0 and result["round"]["listings"] == 3, "the shards, and the newest two of them"
