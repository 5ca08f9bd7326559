"""Writes tests/golden/subscriptions-v<version>.json: messages and records of replicated subscriptions, in hexadecimal.

As make.py: once for a new version. Old files are never changed: test_subscriptions.py reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pyreplog.geo.acks.digests import digest_line
from pyreplog.geo.acks.journal import VERSION, encode_record
from pyreplog.geo.acks.messages import (
    AcksItem,
    Delta,
    Digest,
    ForgottenItem,
    Item,
    Message,
    StateItem,
    Stored,
    Summary,
    TombstoneItem,
    UnknownItem,
    encode,
)
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.subscription_state import Generation, Home, SubscriptionState
from pyreplog.origins.origin import Origin

A, B = bytes(range(16)), bytes(range(16, 32))
ORIGIN, OTHER = Origin(A, "token of a"), Origin(B, "token of b")


def state() -> SubscriptionState:
    """Return a state with two births, a seek, a home, bases and acknowledgements."""
    bases, acks = OriginRanges(), OriginRanges()
    bases.add(ORIGIN, np.array([0]), np.array([1000]))
    bases.add(OTHER, np.array([0, 20]), np.array([10, 30]))
    acks.add(ORIGIN, np.array([1000, 1003, 200_000]), np.array([1002, 1004, 300_000]))
    return SubscriptionState(frozenset({"t1", "t2"}), Generation(3, B), Home(2, A), bases, acks)


def items() -> tuple[Item, ...]:
    """Return an item of each kind."""
    whole = state()
    return (
        TombstoneItem("déjà", "t0", frozenset({A, B})),
        StateItem.of("s", whole),
        AcksItem("s", "t1", whole.generation, ORIGIN, whole.acks.of(ORIGIN)),
        UnknownItem(77, "s", b"of a later version"),
        ForgottenItem("déjà", "t0"),
    )


def messages() -> dict[str, Message]:
    """Return a message of each kind of the first builds."""
    whole = state()
    line = digest_line("s", whole.acks_identity(), whole.acks.of(ORIGIN))
    every = ranges_of(np.array([0]), np.array([70_000]))
    return {
        "summary": Summary(
            7, (("s", whole.header_digest()), ("déjà", bytes(8))), True, knows_histories=False, knows_starts=False
        ),
        "digest": Digest(7, ORIGIN, (line, digest_line("t", whole.acks_identity(), every)), False),
        "delta": Delta(7, 1, items()),
        "stored": Stored(7, 1),
    }


def main() -> None:
    golden = {name: encode(message).hex() for name, message in messages().items()}
    golden["record"] = encode_record(1, items()).hex()
    golden["snapshot"] = encode_record(9, items(), is_snapshot=True).hex()
    path = Path(__file__).with_name(f"subscriptions-v{VERSION}.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
