"""Writes tests/golden/replicate-to-v1.json: records of entries that go only to named clusters.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.replicate_to import encode_attribute

VERSION = 1
ORIGIN = OriginAttribute(0xF00D, 7, 1_700_000_000_000_000)
LISTS = [None, frozenset[str](), frozenset(("west",)), frozenset(("süd", "west", "n" * 200))]
"""Of each record; the last one was replicated here."""


def records() -> bytes:
    attributes = [None if names is None else encode_attribute(names) for names in LISTS]
    attributes[-1] = ORIGIN.to_bytes() + (attributes[-1] or b"")
    entries = encode_entries(
        [encode_messages([b"%d" % at, b"more"]) for at in range(len(LISTS))], ledger=3, first=0, lac=-1,
        time=1_750_000_000_000_000, messages=[2] * len(LISTS), attributes=attributes,
    )  # fmt: skip
    return bytes(entries.view)


def main() -> None:
    path = Path(__file__).with_name(f"replicate-to-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps({"records": records().hex()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
