"""The program that measures an auditor's scan, in small: what is read, and that a round lists the newest shards only."""

from __future__ import annotations

from benchmarks.metadata_scan import run, zookeeper


def test_a_scan_reads_all_and_a_round_does_not() -> None:
    ledgers = 3 * 4096 + 10
    with zookeeper(256) as hosts:
        found = run(hosts, ledgers)
    assert found["ledgers"] == ledgers and found["bookies"] == 1000
    assert found["scan"]["bytes"] > 300 * ledgers and found["scan"]["memory"] > 0
    assert found["round"]["reads"] == 0 and found["round"]["listings"] == 3, "the shards, and the newest two of them"
