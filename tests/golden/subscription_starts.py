"""Writes tests/golden/subscription-starts-v1.json: messages by which neighbours tell which messages they have removed,
in hexadecimal.

As make.py: once for a new version. Old files are never changed: test_subscriptions.py reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.geo.acks.messages import Message, StartOffsets, Summary, encode
from tests.golden.subscriptions import ORIGIN, OTHER, A, B


def starts() -> dict[str, Message]:
    """Return a message of each kind."""
    return {
        "summary": Summary(7, (("s", bytes(range(8))),), True),
        "starts": StartOffsets(7, frozenset({A, B}), ((ORIGIN, 1), (OTHER, 1 << 40))),
        "starts-of-two-clusters": StartOffsets(7, frozenset(), ((ORIGIN, 70_000),)),
    }


def main() -> None:
    golden = {name: encode(message).hex() for name, message in starts().items()}
    Path(__file__).with_name("subscription-starts-v1.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
