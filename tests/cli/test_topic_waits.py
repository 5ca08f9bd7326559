"""A topic that wants more bookies than are there: its publishers wait, and everybody is told why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.owner.managed import ledgers
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import Run
from tests.topic.partitioning import PATIENCE_S, until

WHY = "expected 3 bookies for the ensemble, found 1 that take entries: start or add bookies"


def test_topic_that_waits_for_bookies_reports_the_reason(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "RETRY_FIRST_S", 0.001)
    tries: list[str] = []
    retry_later = ledgers.Jobs.retry_later
    monkeypatch.setattr(
        ledgers.Jobs,
        "retry_later",
        lambda self, error, then: (tries.append(str(error)), retry_later(self, error, then)),
    )

    def warnings() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno >= logging.WARNING and WHY in record.getMessage()
        ]

    with Cluster.embedded(tmp_path / "c", bookies=3) as cluster, TopicServer(cluster) as server:
        runtime = cluster.runtime
        candidates = runtime.candidates
        monkeypatch.setattr(runtime, "candidates", lambda *, suspects=False: candidates(suspects=suspects)[:1])
        topic = cluster.topic("orders", ensemble=3)
        assert topic.stats().waits_for == ""
        for episode in (1, 2):
            future = topic.submit(b"value")
            until(lambda: tries.count(WHY) >= 3)
            assert not future.done() and topic.stats().waits_for == WHY
            assert len(warnings()) == episode and "topic orders: " in warnings()[-1], "once, however often it is tried"
            url = f"pyreplog://{server.address}"
            assert run("topic", "stats", url, "orders", "--json").json["waits_for"] == WHY
            assert f"waits for   {WHY}\n" in run("topic", "stats", url, "orders").out
            topic.configure(ensemble=1)
            assert future.result(PATIENCE_S) == episode - 1
            assert topic.stats().waits_for == ""
            assert "waits for" not in run("topic", "stats", url, "orders").out
            topic.configure(ensemble=3)
            topic.managed.roll().result(PATIENCE_S)
            tries.clear()
