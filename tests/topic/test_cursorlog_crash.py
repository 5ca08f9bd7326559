"""A process dies, or loses an answer, at each of its calls: the cursor never goes below the acknowledgements that were
reported as persisted, nor beyond those that were made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.cursors.cursor_log import CursorLog
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.errors import ClosedError
from pyreplog.ledger.cluster import LedgerCluster
from tests.thorough import one_in
from tests.topic.counting import Counting, Faults, FaultyCluster, attach, create, mark, open_log, state_of

NAMES = ("a", "b")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerCluster]:
    with LedgerCluster.embedded(tmp_path_factory.mktemp("crash") / "c", bookies=1) as cluster:
        yield cluster


class Run:
    """One process, from its first acknowledgement on: it rolls ledgers, stores a clean cursor and uses it again, writes
    large records, and takes over its own ledger."""

    def __init__(self, cluster: LedgerCluster, topic: str, faults: Faults) -> None:
        self.cluster, self.topic, self.faults = cluster, topic, faults
        for name in NAMES:
            create(cluster, topic, name)
        self.process: Any = FaultyCluster(cluster, faults)
        self.log: CursorLog = open_log(self.process, roll_entries=3)
        self.cursors: dict[str, tuple[Counting, CursorPersister]] = {}

    def go(self) -> None:
        """Run until the process dies, or to the end."""
        for name in NAMES:
            self.cursors[name] = self._attach(name)
        for turn in range(6):
            for name in NAMES:
                if turn != 3 or name == "a":
                    self._acknowledge(name, flush=turn != 2)
            if turn == 3:
                self._wait(self.cursors["b"][1].store_clean())

    def _attach(self, name: str) -> tuple[Counting, CursorPersister]:
        """Open a subscription again until that succeeds; failures of opening are not tested here."""
        self.faults.pause()
        try:
            return attach(self.log, self.topic, name, padding=100)
        finally:
            self.faults.resume()

    def _acknowledge(self, name: str, *, flush: bool) -> None:
        source, persister = self.cursors[name]
        source.acknowledge()
        persister.dirty()
        if flush:
            self._wait(persister.flush())

    def _wait(self, future: Any) -> None:
        if not self.faults.is_dead and self.faults.wait(future):
            future.result()

    def end(self) -> None:
        """Close the log, or drop it if the process is dead."""
        self._wait(self.log.flush_async())
        if not self.faults.is_dead:
            self.log.close()
        if self.faults.is_dead:
            self.log.refuse_calls(ClosedError("dead"))
            self.log.flusher._thread.close()

    def check(self) -> None:
        for name, (source, _) in self.cursors.items():
            assert source.lost_with is None
            state = state_of(self.cluster, self.topic, name)
            assert source.persisted_state <= state <= source.state, (name, self.faults.at, self.faults.calls)
            if not self.faults.is_dead:
                assert state == source.state, "everything was flushed"


@pytest.fixture(scope="module")
def calls(cluster: LedgerCluster) -> int:
    """Return the number of calls of a run without faults."""
    run = Run(cluster, "whole", Faults())
    run.go()
    run.end()
    run.check()
    kinds = set(run.faults.calls)
    assert {"append", "create_ledger", "create", "put", "get", "delete_ledger", "delete"} <= kinds
    return len(run.faults.calls)


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "goes on"])
@pytest.mark.parametrize("after", [True, False], ids=["done", "not done"])
def test_a_cursor_log_that_fails_at_any_call_keeps_acknowledgements(
    cluster: LedgerCluster, calls: int, after: bool, dies: bool, seed: int
) -> None:
    share = one_in(3)
    for at in range(seed % share, calls, share):
        run = Run(cluster, f"{after} {dies} {at}", Faults(at, after=after, dies=dies))
        run.go()
        run.end()
        run.check()
        run.process.close_ledgers()


def test_a_successor_that_recovers_at_any_moment_finds_what_was_reported(cluster: LedgerCluster) -> None:
    """The former owner goes on acknowledging: acknowledgements that it is told are persisted are not lost."""
    for moment in range(12):
        topic = f"successor {moment}"
        create(cluster, topic)
        with open_log(cluster, roll_entries=2) as former, open_log(cluster) as owner:
            source, persister = attach(former, topic)
            for turn in range(12):
                if turn == moment:
                    successor, taken = attach(owner, topic)
                source.acknowledge()
                persister.dirty()
                future = persister.flush()
                if turn >= moment:
                    error = future.exception(30.0)
                    assert source.came.wait(30.0) and error is source.lost_with is not None
                else:
                    future.result(30.0)
            assert successor.state == source.persisted_state == moment
            assert mark(successor, taken) == moment + 1
        assert state_of(cluster, topic) == moment + 1
