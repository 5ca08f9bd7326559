"""Either end, a real process, is killed again and again: each message arrives once and in order.

`PYREPLOG_GEO_KILLS=N` kills N times (`make geokills`); a run of all tests kills less often.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.geo.sites import NOWHERE, Site, entries, has_all, values
from tests.topic.remoting import Wire
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("PYREPLOG_GEO_KILLS", "4"))


class Process:
    """A process of `tests.geo.site`."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.geo.site", str(path), *arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address: str = self.line()["address"]

    def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        report: dict[str, Any] = json.loads(line)
        return report

    def publishes(self, batches: int) -> None:
        """Wait until it has confirmed so many batches."""
        for _ in range(batches):
            assert self.line()["published"]

    def kill(self) -> None:
        self._process.kill()
        with suppress(OSError):
            self._process.communicate()


def test_replication_survives_kills_of_either_end(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    target = Process(tmp_path / "b")
    with Wire(target.address) as wire:
        source = Process(tmp_path / "a", wire.address)
        for _ in range(KILLS):
            source.publishes(random.randrange(1, 60))
            if random.random() < 0.5:
                source.kill()
                source = Process(tmp_path / "a", wire.address)
            else:
                target.kill()
                target = Process(tmp_path / "b")
                wire.lead_to(target.address)
                wire.cut()
        source.publishes(5)
        source.kill()
        target.kill()
        wire.cut()
        with Site(tmp_path / "a") as a, Site(tmp_path / "b") as b:
            wire.lead_to(b.server.address)
            end = a.topic().end
            has_all(a.replicate("b", wire.address), end)
            assert values(b.topic()) == [b"%d" % number for number in range(end)]
            assert entries(b.topic()) == entries(a.topic())


def test_a_producer_goes_on_in_the_other_cluster(tmp_path: Path, seed: int) -> None:
    """The cluster of the producer is killed while the link is down, and comes back later. Each number is stored once in
    each cluster, also those that only the lost cluster had, and those that the producer sent to both."""
    random = Random(seed)
    with Site(tmp_path / "b") as b, Wire(b.server.address) as wire:
        lost = Process(tmp_path / "a", wire.address, "p")
        lost.publishes(random.randrange(5, 30))
        until(lambda: "t" in b.cluster.topics.names() and b.topic().end)
        assert b.topic().config.global_producers, "the topic has the settings of its source"
        wire.lead_to(NOWHERE)
        wire.cut()
        confirmed = 0
        for _ in range(random.randrange(10, 40)):
            confirmed = lost.line()["published"]
        lost.kill()
        resent = max(confirmed - 3 * random.randrange(8), 0)  # an entry is stored as a whole
        end = confirmed + 3 * random.randrange(4, 60)
        for number in range(resent, end, 3):
            size = random.choice((1, 3))
            for first in range(number, number + 3, size):
                numbers = range(first, first + size)
                b.topic().publish_batch([b"%d" % at for at in numbers], producer="p", sequences=numbers)
        if random.random() < 0.5:
            b.end()
            b.begin()
        wire.lead_to(b.server.address)
        with Site(tmp_path / "a") as a:
            stored = a.topic().end
            assert stored >= confirmed
            there, here = a.replicate("b", wire.address), b.replicate("a", a.server.address)
            has_all(there, a.topic().end)
            has_all(here, b.topic().end)
            for topic in (a.topic(), b.topic()):
                assert sorted(map(int, values(topic))) == list(range(max(end, stored)))
