"""A cluster in a process of its own, which a test kills: `python -m tests.geo.handing_over PATH`.

The process prints its address and the id of its cluster. It reads those of the other cluster, and whether it owns the
subscription. An owner publishes `MESSAGES`, acknowledges some and prints which, and hands the subscription over while
its consumer acknowledges more. It prints each phase of the handover.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.geo.replicated import MESSAGES, Side, begin_to_acknowledge, say
from tests.geo.sites import SYNCED


def hand_over(side: Side, random: Random) -> None:
    side.publish(0, MESSAGES)
    subscriptions = side.subscriptions
    assert subscriptions is not None
    with side.subscribe() as consumer:
        messages, numbers = begin_to_acknowledge(side, consumer, random)
        say(acked=numbers[:100], maybe=numbers[100:])
        more, phase = iter(numbers[100:]), ""
        while phase != "done":
            row = subscriptions.hand_over("s", "other", order="1", timeout=60.0, grace=0.2)
            if (number := next(more, None)) is not None:
                consumer.acknowledge(messages[number])
            if row["phase"] != phase:
                phase = row["phase"]
                say(phase=phase)


def main(path: Path) -> None:
    side = Side(path)
    side.site.topic(**SYNCED)
    say(address=side.site.server.address, cluster=side.cluster.hex())
    other: dict[str, Any] = json.loads(sys.stdin.readline())
    side.follow_at(other["address"], bytes.fromhex(other["cluster"]))
    if other["owns"]:
        hand_over(side, Random(int(other["seed"])))
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
