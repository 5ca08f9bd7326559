"""The program that measures failover, in small; and that no failover waits for a lease to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.failover import measure, summarize

LEASE_S = 30.0


def test_a_master_that_is_killed_is_replaced_before_its_lease_ends(tmp_path: Path) -> None:
    """Both others lose their connections, ask each other, and nobody hears from it. SQLite ends its lease at once."""
    (seconds,) = measure(tmp_path, "kill", 1, LEASE_S)
    assert seconds < LEASE_S / 2


def test_a_master_that_is_stopped_is_replaced_before_its_lease_ends(tmp_path: Path) -> None:
    """Its connections stay, and its lease for two thirds of its time at least; it is missed for its beats."""
    (seconds,) = measure(tmp_path, "stop", 1, LEASE_S)
    assert seconds < 0.6 * LEASE_S


@pytest.mark.parametrize("times", [[1.0], [3.0, 1.0, 2.0]])
def test_summary_shows_maximum_lease_and_rounds(times: list[float]) -> None:
    line = summarize("kill", times, 6.0)
    assert f"max {max(times):.2f} s, lease 6 s, {len(times)} rounds" in line
