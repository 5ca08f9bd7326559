"""A cluster is killed while it acknowledges: consumers of the other one lose no message, and few are repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.geo.replicated import CONSUMERS, MESSAGES, Side, key_of, receive
from tests.geo.sites import SYNCED
from tests.geo.test_replicator_kill import ROOT
from tests.waiting import until


@pytest.mark.parametrize("type", CONSUMERS)
def test_a_killed_cluster_loses_no_message_of_a_replicated_subscription(tmp_path: Path, seed: int, type: str) -> None:
    """No unacknowledged message is lost. Messages that were acknowledged when readiness was reported are not repeated.

    The consumers acknowledge one by one and out of order, and those of the types with one active consumer cumulatively,
    too. Messages have the order that the type promises.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.geo.replicated", str(tmp_path / "a")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    b = Side(tmp_path / "b")
    try:
        assert process.stdin is not None and process.stdout is not None
        report: dict[str, Any] = json.loads(process.stdout.readline())
        b.site.topic(**SYNCED)
        b.follow_at(report["address"], bytes.fromhex(report["cluster"]))
        address = b.site.server.address
        process.stdin.write(
            json.dumps({"address": address, "cluster": b.cluster.hex(), "seed": seed, "type": type}) + "\n"
        )
        process.stdin.flush()
        ready: set[int] = {*json.loads(process.stdout.readline())["acked"]}
        lines = [process.stdout.readline() for _ in range(Random(seed).randrange(1, 100))]
        process.kill()
        lines += [line for line in process.stdout.read().splitlines() if line.endswith("}")]
        maybe = {number for line in lines for number in json.loads(line)["acks"]}
        assert len(b.topic) == MESSAGES

        def is_enough(numbers: Collection[int]) -> bool:  # the last message is never acknowledged
            return MESSAGES - 1 in numbers and {*numbers, *b.acked()} == {*range(MESSAGES)}

        with ExitStack() as stack:
            consumers = [stack.enter_context(b.subscribe(type)) for _ in range(CONSUMERS[type])]
            received = [*receive(consumers, is_enough)]
        assert not {*received} & ready
        assert ready <= {*b.acked()} <= ready | maybe
        if type in ("exclusive", "failover"):
            assert received == sorted(received)
        elif type == "key_shared":
            keys = {key: [number for number in received if key_of(number) == key] for key in map(key_of, received)}
            assert all(numbers == sorted(numbers) for numbers in keys.values())
        until(lambda: any(row.error for row in b.rows()))
    finally:
        process.kill()
        with suppress(OSError):
            process.communicate()
        b.end()
        b.wire.__exit__()
