"""A server of topics of an embedded cluster, whose bookies have settings of their own: says its address, and serves
until it is told to end."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any


def command(python: str, directory: Path, bookies: int, settings: dict[str, Any]) -> list[str]:
    """What runs it."""
    return [python, __file__, str(directory), str(bookies), json.dumps(settings)]


def address(said: str) -> str | None:
    """The address in what it said; None: it has not yet."""
    found = re.search(r"^serving (\S+)\n", said, re.MULTILINE)
    return None if found is None else found[1]


def serve(directory: str, bookies: int, settings: dict[str, Any]) -> None:
    """Until SIGTERM."""
    from pyreplog import Cluster
    from pyreplog.topic.server.topic_server import TopicServer

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with Cluster.embedded(directory, bookies=bookies, **settings) as cluster, TopicServer(cluster) as server:
        print(f"serving {server.address}", flush=True)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
