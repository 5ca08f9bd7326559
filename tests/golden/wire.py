"""Writes tests/golden/topics-wire-v<version>.txt: a request of each kind that clients send to topic servers, as bytes; and
topics-wire-origins.txt, topics-wire-subscriptions.txt and topics-wire-replicate-to.txt, with those of the features
`origins`, `subscriptions` and `replicate-to`.

As make.py: once for a new version of that wire. A line holds the name of the request and its body, in hexadecimal digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pyreplog.origins.origin import Gap, GapCause, OriginEntry
from pyreplog.origins.replicate_to import attribute_of
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.protocol import encode_request

VERSION = 4
OFFSETS = np.array([0, 3, 4, 1 << 40], np.int64)
REQUESTS: list[Any] = [
    protocol.Open(7, True, "news", "me", "c1", '{"ensemble": 1}'),
    protocol.CloseProducer(7),
    protocol.Publish(7, [b"one", b"", b"three"]),
    protocol.Subscribe(8, -3, True, 17, "news", "\u00fc", "c", "{}"),
    protocol.Detach(8),
    protocol.Flow(8, 1 << 20),
    protocol.Fetch(8),
    protocol.Acknowledge(8, 3, OFFSETS),
    protocol.AcknowledgeRange(8, 2, 0, 1 << 61),
    protocol.AcknowledgeCumulative(8, 0, 5),
    protocol.Nack(8, -1, OFFSETS),
    protocol.Redeliver(8),
    protocol.Seek(8, "latest"),
    protocol.Flush(8),
    protocol.ReadRequest(5, 9, 1 << 20, "news"),
    protocol.Call("news", "skip", '{"messages": 3}'),
    protocol.AcknowledgeAndFetch(8, 2, 7, 8),
    protocol.Resume(8, (1 << 61) + 1, 5, np.array([[7, 9], [12, 13]])),
    protocol.NackWithReason(8, 5_000_000, "no such customer", OFFSETS),
]
"""One of each kind; those of a kind that a later version adds go to the end."""
ORIGINS: list[Any] = [
    protocol.OpenOrigin(9, 1 << 40, True, 3, bytes(range(16)), "news", "0123abcd", '{"ensemble": 1}'),
    protocol.Replicate(
        9,
        (Gap(12, 15, GapCause.EXPIRED),),
        [
            OriginEntry(b"one", 1, 3, 1_700_000_000_000_000, (Gap(0, 2, GapCause.FOREIGN), Gap(2, 3, GapCause.LOST))),
            OriginEntry(b"", 8, 4, -1, ()),
        ],
    ),
]
"""Those of the feature `origins`."""
SUBSCRIPTIONS: list[Any] = [
    protocol.Exchange(
        1 << 61, 0, False, -1, -1, 0, 0, 0, bytes(range(16)), "news", "0123abcd", [],
    ),
    protocol.Exchange(
        1 << 61, 7, True, 1 << 40, 12, 15, 0xFEDCBA98, -1, bytes(range(16)), "\u00fc", "0123abcd", [b"one", b"", b"three"],
    ),
]  # fmt: skip
"""Those of the feature `subscriptions`."""
REPLICATE_TO: list[Any] = [
    protocol.PublishTo(
        7, [attribute_of(("west", "s\u00fcd")), None, None, attribute_of(())], [b"one", b"", b"2", b"3"]
    ),
    protocol.ReplicateTo(
        9,
        (Gap(12, 15, GapCause.EXPIRED),),
        [attribute_of(("west",)), None],
        [
            OriginEntry(b"one", 1, 3, 1_700_000_000_000_000, (Gap(0, 3, GapCause.FOREIGN),)),
            OriginEntry(b"", 8, 4, -1, ()),
        ],
    ),
]
"""Those of the feature `replicate-to`."""


def body_of(request: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request))


def main() -> None:
    lines = [f"{type(request).__name__} {body_of(request).hex()}\n" for request in REQUESTS]
    Path(__file__).with_name(f"topics-wire-v{VERSION}.txt").write_text("".join(lines))
    lines = [f"{type(request).__name__} {body_of(request).hex()}\n" for request in ORIGINS]
    Path(__file__).with_name("topics-wire-origins.txt").write_text("".join(lines))
    lines = [f"{type(request).__name__} {body_of(request).hex()}\n" for request in SUBSCRIPTIONS]
    Path(__file__).with_name("topics-wire-subscriptions.txt").write_text("".join(lines))
    lines = [f"{type(request).__name__} {body_of(request).hex()}\n" for request in REPLICATE_TO]
    Path(__file__).with_name("topics-wire-replicate-to.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
