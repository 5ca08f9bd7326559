"""A replica sends its progress reports in ascending order, whichever thread sends them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from pyreplog.ha.master import Master
from pyreplog.ha.protocol.messages import ProgressReport
from pyreplog.ha.replica_stream import ReplicaStream
from pyreplog.net.connection import Connection
from pyreplog.stream.receiver import StreamReceiver
from tests.ha.nodes import Lab, level, until, values


def test_a_thread_that_looked_and_lost_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was preempted sent its older marks last. The master refused them as absurd, and expelled a healthy
    replica."""
    reports: list[ProgressReport] = []
    armed, overtaken, stalled = threading.Event(), threading.Event(), threading.Event()
    progress, report = Master.progress, StreamReceiver.report

    def note(self: Master, connection: Connection, progress_report: ProgressReport) -> None:
        reports.append(progress_report)
        progress(self, connection, progress_report)

    def preempted(self: StreamReceiver) -> None:
        """Report as `report` does. Once, the thread that syncs pauses between reading its marks and sending them."""
        is_other = threading.current_thread().name != "pyreplog-replica-sync"
        if is_other or not armed.is_set() or stalled.is_set() or self._log is None:
            report(self)
            return
        marks = self._log.progress
        stalled.set()
        assert overtaken.wait(60)
        self._on_progress(*marks)  # type: ignore[call-arg]  # as once

    monkeypatch.setattr(ReplicaStream, "fast_path", None)  # the master takes each report by `progress`
    monkeypatch.setattr(Master, "progress", note)
    monkeypatch.setattr(StreamReceiver, "report", preempted)
    with ExitStack() as stack:
        lab = Lab(tmp_path, stack)
        a = lab.master(members="abc", durability="synced")
        c = lab.replica("c", a, durability="synced")
        until(lambda: c.role == "replica" and c.stats()["streaming"])
        a.append(b"zero")
        level(a, c)
        armed.set()
        a.submit(b"one")
        assert stalled.wait(60)
        last = len(reports)
        a.submit(b"two")
        until(lambda: len(reports) > last)
        overtaken.set()
        a.append(b"three")
        level(a, c)
        assert values(c) == [b"zero", b"one", b"two", b"three"]
        assert a.stats()["refused"] == 0
    assert all(earlier.received <= later.received for earlier, later in pairwise(reports))
    assert all(earlier.synced <= later.synced for earlier, later in pairwise(reports))
