"""A leaf of a star is killed while it acknowledges: consumers go on at another leaf, which has no connection to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.metadata.layout import cluster_id
from tests.geo.region import Region
from tests.geo.replicated import take
from tests.geo.sites import NOWHERE
from tests.geo.test_replicator_kill import ROOT
from tests.topic.remoting import Wire
from tests.waiting import until

MESSAGES = 200


class Leaf:
    """The process of leaf b."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.geo.region", str(path)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        report = self.receive()
        self.address, self.cluster = str(report["address"]), str(report["cluster"])

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report

    def send(self, **fields: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields) + "\n")
        self._process.stdin.flush()

    def kill(self) -> list[int]:
        """Kill it; return the numbers of messages that it may have acknowledged after the last report that was read."""
        self._process.kill()
        assert self._process.stdout is not None
        return [json.loads(line)["acks"] for line in self._process.stdout.read().splitlines() if line.endswith("}")]

    def end(self) -> None:
        self._process.kill()
        with suppress(OSError):
            self._process.communicate()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """The wire from the centre to the leaf that is killed."""
    with Wire(NOWHERE) as wire:
        yield wire


@contextmanager
def running(path: Path, wire: Wire) -> Iterator[Leaf]:
    leaf = Leaf(path)
    try:
        wire.lead_to(leaf.address)
        yield leaf
    finally:
        leaf.end()


def test_consumers_go_on_at_the_other_leaf(tmp_path: Path, wire: Wire, seed: int) -> None:
    """No unacknowledged message is lost. Messages acknowledged when the leaf reported readiness are not repeated. The
    leaf restarts, and gets the acknowledgements of the other one."""
    with ExitStack() as stack:
        m, c = (Region(stack, tmp_path / name) for name in "mc")
        with running(tmp_path / "b", wire) as leaf:
            c.replicate(m, replicated_subscriptions=True)
            m.cluster.geo.add_cluster("b", f"pyreplog://{wire.address}", uuid=leaf.cluster)
            m.replicate(c)
            m.cluster.geo.set_policy("t", targets=["b", "c"], forward="all", replicated_subscriptions=True)
            m.publish(*range(MESSAGES // 2))
            c.publish(*range(MESSAGES // 2, MESSAGES))
            centre = {"centre": "m", "address": m.wire.address, "cluster": cluster_id(m.cluster.metadata).hex()}
            leaf.send(**centre, messages=MESSAGES, seed=seed)
            ready: set[int] = {*leaf.receive()["acked"]}
            maybe = {leaf.receive()["acks"] for _ in range(Random(seed).randrange(1, 100))} | {*leaf.kill()}
        until(lambda: len(c.topic) == MESSAGES and c.acked() >= ready)
        until(lambda: c.is_ready(m))
        acked = c.acked()
        assert acked <= ready | maybe
        with c.subscribe() as consumer:
            received = take(consumer, MESSAGES - len(acked))
            assert {*received} == {*range(MESSAGES)} - acked
            for number in sorted(received)[::2]:
                consumer.acknowledge(received[number])
            consumer.flush()
        until(lambda: m.acked() == c.acked())
        with running(tmp_path / "b", wire) as leaf:
            expected = c.acked() | maybe
            leaf.send(**centre, messages=MESSAGES, least=sorted(c.acked()))
            acked = {*leaf.receive()["acked"]}
            assert c.acked() <= acked <= expected
            until(lambda: m.acked() == c.acked() == acked)
