"""`python -m benchmarks.topic_clients HOST PORT hold COUNT | publish COUNT`: clients of a topic server.

`hold` opens connections, prints a line, answers heartbeats until its input ends, and fails if a connection was lost.
`publish` publishes one message of 100 B at a time, and prints the latencies as JSON, in seconds.
"""

from __future__ import annotations

import json
import sys
import time

import pyreplog
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.reactor import Reactor
from pyreplog.topic.client.remote.connection_pool import SERVICE

TOPIC = "latency"
_TOGETHER = 100
"""Connections that say hello at once: of more than 128 from one address, a server closes the oldest."""
_PATIENCE_S = 60.0
_POLL_S = 0.001


def hold(address: tuple[str, int], count: int) -> None:
    expected = NodeIdentity(service=SERVICE)
    with Reactor() as reactor:
        reactor.start()
        channels = list[Channel]()
        while len(channels) < count:
            size = min(_TOGETHER, count - len(channels))
            added = [Channel(reactor, address, expected=expected) for _ in range(size)]
            deadline = time.monotonic() + _PATIENCE_S
            while not all(channel.connected for channel in added):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(channels)} of {count} connections were opened: {added[0].error}")
                time.sleep(_POLL_S)
            channels += added
        print("ready", flush=True)
        sys.stdin.read()
        if lost := sum(not channel.connected for channel in channels):
            raise ConnectionError(f"{lost} of {count} connections were lost")
        for channel in channels:
            channel.close()


def publish(address: tuple[str, int], count: int) -> None:
    with pyreplog.connect(f"pyreplog://{address[0]}:{address[1]}") as client, client.topic(TOPIC) as topic:
        latencies = []
        for _ in range(count):
            began = time.perf_counter()
            topic.publish(bytes(100))
            latencies.append(time.perf_counter() - began)
    print(json.dumps(latencies), flush=True)


if __name__ == "__main__":
    host, port, action, number = sys.argv[1:]
    {"hold": hold, "publish": publish}[action]((host, int(port)), int(number))
