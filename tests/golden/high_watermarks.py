"""Writes tests/golden/high-watermarks-v1.json: the file of a broker's high watermarks.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.store.high_watermarks import StoredHighWatermark, encode_high_watermarks
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import TermStart

VERSION = 1
STORED = {
    "orders-0": StoredHighWatermark(
        bytes(range(16)), TermStart(LeaderEpoch(1, "a"), LogPosition(0, 0)), LogPosition(4096 + 64, 0)
    ),
    "größe-11": StoredHighWatermark(
        bytes(range(16, 32)),
        TermStart(LeaderEpoch(1 << 40, "süd"), LogPosition(1 << 41, 1 << 42)),
        LogPosition((1 << 41) + 8, (1 << 42) + 30),
    ),
}


def main() -> None:
    path = Path(__file__).with_name(f"high-watermarks-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps([encode_high_watermarks(stored).hex() for stored in ({}, STORED)], indent=1) + "\n")


if __name__ == "__main__":
    main()
