"""A redrive in a process of its own, which is killed: `python -m tests.topic.redriving URL STEP`.

With a STEP the process kills itself, in a random batch: between the copies and their acknowledgement ("copied"), after
the acknowledgement and before it is stored ("acknowledged"), or when it is stored ("stored"). With "" the test kills
it. It prints a JSON object on each line: how many dead letters were sent so far, and at the end that it is done.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

from pyreplog.cluster import Cluster
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.dead_letter import RedriveReport
from tests.topic.handling import hasten

LEASE_S = 1.0
DEAD, PEOPLE = "dead", "people"


def kill_at(step: str) -> None:
    """Kill this process at a step of a random batch."""
    method = "acknowledge" if step == "copied" else "flush"
    call: Any = getattr(Consumer, method)
    calls, fatal = 0, random.randint(1, 3)

    def called(self: Consumer, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if step == "stored":
            call(self, *arguments)
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return None if step == "stored" else call(self, *arguments)

    setattr(Consumer, method, called)


def say(report: RedriveReport) -> None:
    print(json.dumps({"sent": report.sent}), flush=True)
    time.sleep(0.1)  # time for the test to kill the process


def main(url: str, step: str) -> None:
    with Cluster.connect(url, request_timeout_ms=60_000) as cluster:
        hasten(cluster)
        cluster.topics.serve_at("nowhere:1", lease_s=LEASE_S)
        if step:
            kill_at(step)
        dead = cluster.topic(DEAD, create=False, wait=60.0)
        for name in ("once", "again"):
            cluster.topic(name, create=False, wait=60.0)
        dead.redrive(PEOPLE, on_progress=say)
    print(json.dumps({"done": 1}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
