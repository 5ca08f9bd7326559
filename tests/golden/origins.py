"""Writes tests/golden/origins-v1.json: records of replicated entries, and a snapshot of what a topic has of its origins.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import GateState
from pyreplog.origins.origin import Gap, GapCause, LastEntry, Origin
from pyreplog.origins.snapshot import VERSION, encode

ORIGINS = [Origin(bytes(range(16)), "0123456789abcdef0123456789abcdef"), Origin(b"\xff" * 16, "tökén")]
ALL = tuple(Gap(10 * cause, 10 * cause + 5, cause) for cause in GapCause)
ATTRIBUTES = [
    OriginAttribute(ORIGINS[0].key, 0, 1_700_000_000_000_000),
    None,
    OriginAttribute(ORIGINS[1].key, 1 << 40, -1, (Gap(1 << 39, 1 << 40, GapCause.EXPIRED),)),
    OriginAttribute(ORIGINS[0].key, 100, 1_700_000_000_000_001, ALL),
]
VALUES = [[b"one"], [b"local", b"entry"], [b"two", b"three"], [b"four"]]
STATES = [
    GateState(
        ORIGINS[0], 7, 130, LastEntry(100, 101, 0xDEADBEEF, 1_700_000_000_000_001), (Gap(101, 130, ALL[0].cause),)
    ),
    GateState(ORIGINS[1], 0, 0, None, ()),
]


def records() -> bytes:
    entries = encode_entries(
        [encode_messages(values) for values in VALUES], ledger=3, first=0, lac=-1, time=1_750_000_000_000_000,
        messages=[len(values) for values in VALUES],
        attributes=[None if attribute is None else attribute.to_bytes() for attribute in ATTRIBUTES],
    )  # fmt: skip
    return bytes(entries.view)


def main() -> None:
    path = Path(__file__).with_name(f"origins-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps({"records": records().hex(), "snapshot": encode(STATES).hex()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
