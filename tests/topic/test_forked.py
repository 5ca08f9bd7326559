"""Publishing in a forked child, where no thread would ever send what is submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ForkedError
from pyreplog.topic.client.publishing.outbox import Outbox


def test_a_child_is_refused_though_something_waits_for_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "durability": "appended"}
    with (
        Cluster.embedded(tmp_path, bookies=1, durability="appended") as cluster,
        cluster.topic("news", **one) as topic,
    ):
        outbox: Outbox = topic.publisher._intake._outbox
        monkeypatch.setattr(outbox, "_soon", lambda _: True)
        for value in (b"0", b"1"):  # the first one waits for its ledger; then it is known that bookies answer at once
            topic.publish(value)
        staged = topic.submit(b"2")
        assert topic.publisher._intake.is_staged and not staged.done()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                topic.submit(b"3")
            except ForkedError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        outbox.push()
        assert staged.result(30.0) == 2
