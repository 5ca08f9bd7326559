"""Writes tests/golden/subscription-histories-v1.json: messages by which neighbours compare their histories of third
clusters, in hexadecimal.

As make.py: once for a new version. Old files are never changed: test_subscriptions.py reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.geo.acks.messages import Connected, History, Message, Summary, encode
from pyreplog.origins.origin import LastEntry, OriginState
from tests.golden.subscriptions import ORIGIN, OTHER, A, B


def histories() -> dict[str, Message]:
    """Return a message of each kind, and of each result of a comparison."""
    stored = OriginState(1000, LastEntry(990, 1000, 0xDEADBEEF, 1_700_000_000_000_000))
    return {
        "summary": Summary(7, (("s", bytes(range(8))),), True, knows_histories=True, knows_starts=False),
        "history": History(7, ORIGIN, stored),
        "history-same": History(7, ORIGIN, stored, is_same=True),
        "history-differs": History(7, ORIGIN, stored, is_same=False),
        "history-of-nothing": History(7, OTHER, OriginState(0, None)),
        "connected": Connected(7, frozenset({A, B})),
        "connected-to-none": Connected(7, frozenset()),
    }


def main() -> None:
    golden = {name: encode(message).hex() for name, message in histories().items()}
    Path(__file__).with_name("subscription-histories-v1.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
