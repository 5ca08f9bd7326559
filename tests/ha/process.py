"""A node as a process: `python -m tests.ha.process master|replica DIRECTORY NAME [JSON settings]`.

Prints JSON objects: {"address"}, and while a master appends, {"acked": how many}. A master appends the numbers from its
log's end on, one by one, until it is told to end (a line) or is deposed ({"ended": error}).
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any

from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.errors import ClosedError, OutcomeUnknownError, ReplicationError
from tests.ha.nodes import SEGMENT_BYTES

_TOLD_EACH = 20


def say(**value: Any) -> None:
    print(json.dumps(value), flush=True)


def has_line() -> bool:
    """Whether there was a line."""
    return bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() is not None


def append(node: ha.Node) -> None:
    """Until told to end. What has no outcome is not counted, and not tried again."""
    acked = 0
    while not has_line():
        number = node.log.tail.end_entry
        try:
            node.append(b"%d of %s" % (number, node.name.encode()))
        except (OutcomeUnknownError, ReplicationError, ClosedError) as error:  # closed: its role changes this moment
            say(acked=acked, ended=type(error).__name__)
            return
        acked += 1
        if acked % _TOLD_EACH == 0:
            say(acked=acked, last=number)
    say(acked=acked, ended="")


def main() -> None:
    role, directory, name, *rest = sys.argv[1:]
    settings = {"ack_timeout_ms": 600_000, **(json.loads(rest[0]) if rest else {})}
    settings["log"] = LogConfig(segment_bytes=SEGMENT_BYTES, **settings.pop("log", {}))
    settings["group"] = ha.GroupConfig(**{"ack": "received", **settings.pop("group", {})})
    make = ha.open_master if role == "master" else ha.open_replica
    with make(directory, name=name, **settings) as node:
        say(address=node.address, role=node.role)
        if role == "master":
            append(node)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
