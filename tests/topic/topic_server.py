"""A server of topics in a process of its own, which a test kills: `python -m tests.topic.topic_server URL`.

It prints its address, and serves until its standard input has a line.
"""

from __future__ import annotations

import json
import sys

from pyreplog.cluster import Cluster
from pyreplog.topic.server.topic_server import TopicServer

LEASE_S = 1.0


def main(url: str) -> None:
    with Cluster.connect(url) as cluster, TopicServer(cluster, lease_ms=round(LEASE_S * 1000)) as server:
        print(json.dumps({"address": server.address}), flush=True)
        sys.stdin.readline()
        server.drain(10.0)


if __name__ == "__main__":
    main(sys.argv[1])
