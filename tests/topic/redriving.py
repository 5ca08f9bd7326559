"""A redrive in a process of its own, to be killed: `python -m tests.topic.redriving URL STEP`.

STEP: kills itself between the copies of a batch and their acknowledgement ("copied"), behind the acknowledgement before
it is stored ("acknowledged"), or when that is stored ("stored"), in a batch at random; "" it is killed. Prints a JSON object a line: how many were
sent so far, and at last that it is done.
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
    """In the one batch or the other."""
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
    time.sleep(0.1)  # to be killed in


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
