"""The program that measures a drain, in small."""

from __future__ import annotations

import pytest

from benchmarks.drain import drain


@pytest.mark.parametrize("kills", [0, 1])
def test_a_drain_leaves_every_entry_with_all_its_copies(kills: int) -> None:
    found = drain(8 << 20, ledgers=4, kills=kills)
    assert found.kills == kills and found.seconds > 0 and found.copy_s > 0
    assert found.read_back * 1024 // 2 == found.bytes
    if not kills:
        assert found.copied == found.bytes
