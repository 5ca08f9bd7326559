"""Publishing in a forked child is refused, as the thread that sends submitted messages does not run there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.errors import ForkedError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publisher import Publisher

T = TypeVar("T")


class Still:
    """A PublisherRuntime whose other thread never runs a call."""

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        return future.result(30.0)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object:
        return self


def test_a_child_is_refused_though_something_waits_for_company(tmp_path: Path) -> None:
    item = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "durability": "appended"}
    with (
        Cluster.embedded(tmp_path, bookies=1, durability="appended") as cluster,
        cluster.topic("news", **item) as topic,
    ):
        publisher = Publisher(
            "news", topic.managed.writer, Still(), SystemClock(), topic.config, entry_bytes_max=1 << 20, end=topic.end
        )
        # the first one waits for its ledger; after that, bookies are known to answer at once
        for value in (b"0", b"1"):
            publisher.publish(value)
        staged = publisher.submit(b"2")
        assert not staged.done()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                publisher.submit(b"3")
            except ForkedError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        publisher.flush_async()
        assert staged.result(30.0) == 2
