"""The programs that compare AutoRecovery with BookKeeper's, in small; our side, since Maven fetches theirs."""

from __future__ import annotations

import pytest

from benchmarks.peers.bookkeeper import flipped_byte
from benchmarks.peers.bookkeeper.recovery import Workload, measure


def test_all_copies_come_back_and_no_more_are_made() -> None:
    quorums = 5, 3, 2
    entries = 20 * quorums[0]  # so that each member has the same share
    result = measure("pyreplog", Workload(quorums, ledgers=20, entries=entries, idle=3, quiet_s=1, limit_s=120))
    assert (result.left, result.fenced, result.failed) == (0, 0, 0) and result.needed > 0
    assert result.copied_per_needed == pytest.approx(1.0, abs=0.2)  # a few of the client's ledger, too
    assert result.requests > result.writes > 0 and result.adds > 0 and result.cpu_s > 0


def test_a_flipped_byte_is_found_and_mended() -> None:
    result = flipped_byte.measure("pyreplog")
    assert result.found and result.mended and result.read > 0 and result.bad == 0
