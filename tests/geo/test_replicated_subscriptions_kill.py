"""A cluster is killed while it acknowledges: consumers of the other one lose no message, and few are repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.geo.replicated import MESSAGES, Side, rest
from tests.geo.sites import SYNCED
from tests.geo.test_replicator_kill import ROOT
from tests.waiting import until


def test_a_cluster_is_killed(tmp_path: Path, seed: int) -> None:
    """No unacknowledged message is lost. Messages that were acknowledged when readiness was reported are not repeated."""
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
        process.stdin.write(json.dumps({"address": address, "cluster": b.cluster.hex(), "seed": seed}) + "\n")
        process.stdin.flush()
        ready: list[int] = json.loads(process.stdout.readline())["acked"]
        maybe = [json.loads(process.stdout.readline())["acks"] for _ in range(Random(seed).randrange(1, 100))]
        process.kill()
        maybe += [json.loads(line)["acks"] for line in process.stdout.read().splitlines() if line.endswith("}")]
        assert len(b.topic) == MESSAGES
        with b.subscribe() as consumer:
            received = rest(consumer, MESSAGES - 1)
        assert len(received) == len({*received})
        assert not {*received} & {*ready}
        assert {*range(MESSAGES)} - {*ready} - {*maybe} <= {*received}
        until(lambda: any(row.error for row in b.rows()))
    finally:
        process.kill()
        with suppress(OSError):
            process.communicate()
        b.end()
        b.wire.__exit__()
