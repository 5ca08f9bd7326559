"""A node in a process of its own: `python -m tests.ha.process master|replica DIRECTORY NAME [JSON settings]`.

It prints JSON objects: {"address"}, and while a master appends, {"acked": count}. A master appends the numbers from the
end of its log on, one by one, until it reads a line or is deposed ({"ended": error}).
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
    """Return whether a line can be read."""
    return bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() is not None


def append(node: ha.Node) -> None:
    """Append until a line arrives. An append without an outcome is neither counted nor repeated."""
    acked = 0
    while not has_line():
        number = node.log.tail.end_entry
        try:
            node.append(b"%d of %s" % (number, node.name.encode()))
        # the log was closed, as the role changes at this moment
        except (OutcomeUnknownError, ReplicationError, ClosedError) as error:
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
