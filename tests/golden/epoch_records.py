"""Writes tests/golden/epoch-records-v1.json: the values of control records of leader epochs.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.store.epoch_record import encode_epoch
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import TermStart

VERSION = 1
STARTS = [
    TermStart(LeaderEpoch(1, "a"), LogPosition(0, 0)),
    TermStart(LeaderEpoch(7, "broker-2"), LogPosition(4096 + 64, 3)),
    TermStart(LeaderEpoch(1 << 40, "süd"), LogPosition(1 << 41, 1 << 42)),
]


def main() -> None:
    path = Path(__file__).with_name(f"epoch-records-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps([encode_epoch(start).hex() for start in STARTS], indent=1) + "\n")


if __name__ == "__main__":
    main()
