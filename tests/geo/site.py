"""A site in a process of its own, which a test kills: `python -m tests.geo.site PATH [TARGET [PRODUCER]]`.

It serves its topics. With TARGET, an address, it publishes numbers and replicates them there; with PRODUCER it
publishes as this global producer. It prints a JSON object on each line: first its address, then the number up to which
all are confirmed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pyreplog.topic.owner.topic import Topic
from tests.geo.sites import GLOBAL, SYNCED, Site

SAYING = threading.Lock()  # one line for each batch


def say(**fields: object) -> None:
    with SAYING:
        print(json.dumps(fields), flush=True)


def publish(topic: Topic, producer: str | None) -> None:
    number = topic.end
    while True:
        numbers = range(number, number + 3)
        values = [b"%d" % at for at in numbers]
        if producer is None:
            topic.publish_batch(values)
        else:
            topic.publish_batch(values, producer=producer, sequences=numbers)
        number += 3
        say(published=number)


def main(path: str, target: str | None = None, producer: str | None = None) -> None:
    with Site(Path(path)) as site:
        topic = site.topic(**{**(SYNCED if producer is None else GLOBAL), "roll_entries": 50})
        say(address=site.server.address)
        if target is not None:
            site.replicate("b", target)
            threading.Thread(target=publish, args=(topic, producer), daemon=True).start()
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
