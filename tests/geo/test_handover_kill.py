"""Either cluster is killed in each phase of a handover: no acknowledged message is delivered again, and none is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.geo.replicated import MESSAGES, Side, rest, take
from tests.geo.sites import NOWHERE, SYNCED
from tests.geo.test_replicator_kill import ROOT
from tests.topic.remoting import Wire
from tests.waiting import until

PHASES = ["stopping", "draining", "moving", "done"]


class Process:
    """A process of `tests.geo.handing_over`."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.geo.handing_over", str(path)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        report = self.line()
        self.address, self.cluster = report["address"], bytes.fromhex(report["cluster"])

    def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        report: dict[str, Any] = json.loads(line)
        return report

    def meet(self, address: str, cluster: bytes, *, owns: bool, seed: int = 0) -> None:
        assert self._process.stdin is not None
        order = {"address": address, "cluster": cluster.hex(), "owns": owns, "seed": seed}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        with suppress(OSError):
            self._process.communicate()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path / "here")
    side.site.topic(**SYNCED)
    try:
        yield side
    finally:
        side.end()
        side.wire.__exit__()


def check(received: list[int], acked: list[int], maybe: list[int]) -> None:
    assert len(received) == len({*received})
    assert not {*received} & {*acked}
    assert {*range(MESSAGES)} - {*acked} - {*maybe} <= {*received}


@pytest.mark.parametrize("phase", PHASES)
def test_a_handover_survives_kills_of_the_owner(here: Side, tmp_path: Path, seed: int, phase: str) -> None:
    """Consumers of the cluster that is then the home get the remaining messages, and consumers of the other one get
    none."""
    process = Process(tmp_path / "there")
    try:
        with Wire(process.address) as wire:
            here.follow_at(wire.address, process.cluster)
            process.meet(here.wire.address, here.cluster, owns=True, seed=seed)
            report = process.line()
            while PHASES.index(process.line()["phase"]) < PHASES.index(phase):
                pass
            process.kill()
            there = Side(tmp_path / "there")
            try:
                wire.lead_to(there.site.server.address)
                wire.cut()
                there.follow_at(here.wire.address, here.cluster)
                until(there.is_ready)
                until(here.is_ready)
                (home,) = {row.home for row in there.rows()}
                assert home == "other" or (phase != "done" and home is None)
                winner, loser = (here, there) if home == "other" else (there, here)
                if home == "other":
                    with loser.subscribe():
                        assert loser.subscriptions is not None
                        until(loser.subscriptions.waiting)
                        with winner.subscribe() as consumer:
                            check(rest(consumer, MESSAGES - 1), report["acked"], report["maybe"])
                        assert loser.topic.subscription("s").held == 0
                else:
                    with winner.subscribe() as consumer:
                        check(rest(consumer, MESSAGES - 1), report["acked"], report["maybe"])
            finally:
                there.end()
                there.wire.__exit__()
    finally:
        process.kill()


def test_the_other_cluster_is_killed(here: Side, tmp_path: Path, seed: int) -> None:
    """The target is killed at a random moment; the handover goes on when it is back."""
    random = Random(seed)
    process = Process(tmp_path / "there")
    try:
        with Wire(process.address) as wire:
            here.follow_at(wire.address, process.cluster)
            process.meet(here.wire.address, here.cluster, owns=False)
            here.publish(0, MESSAGES)
            subscriptions = here.subscriptions
            assert subscriptions is not None
            with here.subscribe() as consumer:
                messages = take(consumer, MESSAGES)
                acked = random.sample(range(MESSAGES - 1), 200)
                for number in acked[:100]:
                    consumer.acknowledge(messages[number])
                consumer.flush()
                subscriptions.hand_over("s", "other", order="1", timeout=120.0, grace=0.3)
                for number in acked[100:]:
                    consumer.acknowledge(messages[number])
                wanted = random.choice(["stopping", "draining", "moving"])
                until(lambda: phase_of(here) in PHASES[PHASES.index(wanted) :])
                process.kill()
                wire.lead_to(NOWHERE)
                wire.cut()
            there = Side(tmp_path / "there")
            try:
                wire.lead_to(there.site.server.address)
                there.follow_at(here.wire.address, here.cluster)
                until(lambda: phase_of(here) == "done")
                with there.subscribe() as consumer:
                    received = rest(consumer, MESSAGES - 1)
                assert sorted(received) == sorted({*range(MESSAGES)} - {*acked})
            finally:
                there.end()
                there.wire.__exit__()
    finally:
        process.kill()


def test_a_home_that_was_killed_is_taken_over(here: Side, tmp_path: Path, seed: int) -> None:
    """Consumers here wait until the takeover is ordered; then each unacknowledged message is delivered once."""
    process = Process(tmp_path / "there")
    try:
        here.follow_at(process.address, process.cluster)
        process.meet(here.wire.address, here.cluster, owns=False)
        here.publish(0, MESSAGES)
        subscriptions = here.subscriptions
        assert subscriptions is not None
        with here.subscribe() as consumer:
            messages = take(consumer, MESSAGES)
            acked = Random(seed).sample(range(MESSAGES - 1), 100)
            for number in acked:
                consumer.acknowledge(messages[number])
            consumer.flush()
            until(lambda: phase_of(here) == "done")
        process.kill()
        with here.subscribe() as consumer:
            until(lambda: any(row.error for row in here.rows()))
            until(subscriptions.waiting)
            assert here.topic.subscription("s").held == 0
            subscriptions.take_over("s", any_cluster=False)
            received = rest(consumer, MESSAGES - 1)
        assert sorted(received) == sorted({*range(MESSAGES)} - {*acked})
    finally:
        process.kill()


def phase_of(side: Side) -> str:
    assert side.subscriptions is not None
    row = side.subscriptions.hand_over("s", "other", order="1", timeout=120.0, grace=0.3)
    assert row["phase"] in ("opening", *PHASES), row
    return str(row["phase"])
