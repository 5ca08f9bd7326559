"""Snapshots of global producers, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.topic.model.global_producer_snapshot import VERSION, GlobalProducerState, decode, encode
from tests.golden.global_producers import STATES

GOLDEN = bytes.fromhex(
    json.loads((Path(__file__).parent / f"global-producers-v{VERSION}.json").read_text())["snapshot"]
)


def test_a_snapshot_of_global_producers_has_its_golden_bytes() -> None:
    assert encode(STATES) == GOLDEN

    def plain(states: list[GlobalProducerState]) -> list[object]:
        return [state._replace(stored={key: ranges.dump() for key, ranges in state.stored.items()}) for state in states]

    assert plain(decode(GOLDEN)) == plain(STATES)
