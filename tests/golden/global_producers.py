"""Writes tests/golden/global-producers-v1.json: a snapshot of the producers of a topic with `global_producers`.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.topic.model.global_producer_snapshot import VERSION, GlobalProducerState, encode


def numbers(*ranges: tuple[int, int]) -> RangeSet:
    members = RangeSet()
    for start, end in ranges:
        members.add(start, end)
    return members


STATES = [
    GlobalProducerState(b"orders", 0, 1_700_000_000_000_000, {0: numbers((7, 1 << 40)), 1 << 63: numbers((0, 3))}),
    GlobalProducerState("zähler".encode(), 12, -1, {0: numbers((12, 13), (20, 30))}),
]


def main() -> None:
    path = Path(__file__).with_name(f"global-producers-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps({"snapshot": encode(STATES).hex()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
