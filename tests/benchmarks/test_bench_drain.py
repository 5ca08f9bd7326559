"""The program that measures a drain, in small."""

from __future__ import annotations

import pytest

from benchmarks.drain import drain


@pytest.mark.parametrize("kills", [0, 1])
def test_a_drain_leaves_every_entry_with_all_its_copies(kills: int) -> None:
    result = drain(8 << 20, ledgers=4, kills=kills, segment_bytes=4 << 20)
    assert result.kills == kills and result.seconds > 0 and result.copy_s > 0
    assert result.read_back * 1024 // 2 == result.bytes
    if not kills:
        assert result.copied == result.bytes
