"""Owners die, or their metadata store fails, at each write: no acknowledged message is lost, and no ledger is left
over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from pyreplog.errors import MetadataUnavailableError, OutcomeUnknownError, ReplogError, TopicFencedError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.protocol import recovery, writer
from pyreplog.topic.owner.managed import ledgers
from pyreplog.topic.owner.managed.ledgers import delete_orphans
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.thorough import one_in
from tests.topic.counting import Faults
from tests.topic.owners import PATIENCE_S, config, process, publish, read_all, result, until

T = TypeVar("T")
US = 1_700_000_000_000_000
NAME = "t"
LOST = (TopicFencedError, MetadataUnavailableError, OutcomeUnknownError)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerCluster]:
    folder = tmp_path_factory.mktemp("crash")
    with LedgerCluster.embedded(folder, bookies=2, segment_bytes=1 << 20, collect_interval_ms=3_600_000) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed writes after a short time."""
    for module, name in (
        (writer, "RETRY_METADATA_S"), (recovery, "RETRY_METADATA_S"), (ledgers, "RETRY_FIRST_S"), (ledgers, "DELETE_RETRY_FIRST_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.001)


class Life:
    """The calls of an owner: it publishes over several ledgers, rolls, trims, clears and closes."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.acked: dict[int, bytes] = {}
        self.trimmed = 0

    def wait(self, future: AppendFuture[Any]) -> Any:
        """Return the result of a future; raise MetadataUnavailableError if the owner dies before."""
        if not self.faults.wait(future):
            raise MetadataUnavailableError("it died")
        return future.result()

    def publish(self, topic: ManagedLedger, count: int) -> None:
        for _ in range(count):
            values = [b"%d" % (len(self.acked) + at) for at in range(2)]
            offsets = self.wait(publish(topic, values))
            self.acked.update(zip(offsets, values, strict=True))

    def insist(self, call: Callable[[], T]) -> T:
        """Repeat a call while the store fails."""
        while True:
            try:
                return call()
            except (MetadataUnavailableError, OutcomeUnknownError):
                if self.faults.is_dead:
                    raise

    def trim(self, below: int, topic: ManagedLedger) -> None:
        self.trimmed = below
        self.insist(lambda: self.wait(topic.trim(below, US * 2)))

    def live(self, cluster: LedgerCluster) -> None:
        for _ in range(2):
            topic = self.insist(lambda: ManagedLedger.open(cluster, NAME, config=config()))
            try:
                self.publish(topic, 3)
                self.wait(topic.roll())
                self.publish(topic, 1)
                self.trim(topic.end.offset - 3, topic)
                self.publish(topic, 1)
            finally:
                self.faults.wait(topic._writer.begin_close())
                topic.close(timeout=0)


def writes_of_a_life(cluster: LedgerCluster) -> int:
    faults = Faults()
    with process(cluster, faults) as new_process:
        Life(faults).live(new_process)
        count = len(faults.calls)
    ManagedLedger.open(cluster, NAME).delete()
    return count


def check(cluster: LedgerCluster, life: Life) -> None:
    """Check the topic as its next owner: acknowledged messages are stored, offsets are dense, and no ledger is left
    over."""
    with ManagedLedger.open(cluster, NAME, config=config()) as topic:
        records = read_all(topic)
        start, end = topic.start.offset, topic.end.offset
        assert list(records) == list(range(start, end)) and start <= life.trimmed
        assert {offset: value for offset, value in life.acked.items() if offset >= start} == {
            offset: records[offset] for offset in life.acked if offset >= start
        }
        assert all(offset < end for offset in life.acked)
        assert result(publish(topic, [b"next"])) == range(end, end + 1)
        delete_orphans(cluster)
        until(lambda: set(cluster.ledgers()) == topic.chain.ids)
        assert delete_orphans(cluster) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(cluster: LedgerCluster, after: bool, seed: int) -> None:
    share = one_in(6)
    for at in range(seed % share, writes_of_a_life(cluster), share):
        faults = Faults(at, after=after, dies=True)
        life = Life(faults)
        with process(cluster, faults) as new_process:
            try:
                life.live(new_process)
            except ReplogError:
                assert faults.is_dead, (at, faults.calls)
        check(cluster, life)
        ManagedLedger.open(cluster, NAME).delete()


@pytest.mark.parametrize("after", [False, True], ids=["not-done", "done"])
def test_a_fault_at_every_write(cluster: LedgerCluster, after: bool, seed: int) -> None:
    """The store was away for a moment, or its reply was lost: the owner goes on without an error."""
    share = one_in(12)
    for at in range(seed % share, writes_of_a_life(cluster), share):
        faults = Faults(at, after=after)
        life = Life(faults)
        with process(cluster, faults) as new_process:
            life.live(new_process)
        assert len(life.acked) == 20 and list(life.acked) == list(range(20))
        check(cluster, life)
        ManagedLedger.open(cluster, NAME).delete()


class Opening:
    """Opens a topic in a thread of its own, which does not return if its process dies."""

    def __init__(self, cluster: LedgerCluster) -> None:
        self.future: AppendFuture[ManagedLedger] = AppendFuture()
        self._thread = threading.Thread(target=self._open, args=(cluster,))
        self._thread.start()

    def _open(self, cluster: LedgerCluster) -> None:
        try:
            set_result(self.future, ManagedLedger.open(cluster, NAME))
        except ReplogError as error:
            set_exception(self.future, error)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write_of_taking_over(cluster: LedgerCluster, after: bool) -> None:
    """The former owner died with an open ledger. A process that was taken for dead, and goes on, has lost the topic."""
    at, died = 0, True
    while died:
        dead, faults = Faults(), Faults(at, after=after, dies=True)
        life = Life(dead)
        with process(cluster, dead) as new_process, process(cluster, faults) as elsewhere:
            topic = ManagedLedger.open(new_process, NAME, config=config(roll_entries=9))
            life.publish(topic, 3)
            dead.is_dead = True
            opening = Opening(elsewhere)
            if died := not faults.wait(opening.future) or opening.future.exception() is not None:
                assert faults.is_dead
            else:
                opening.future.result().close()
            check(cluster, life)
            faults.is_dead = False
            opening.join()
            assert not died or isinstance(opening.future.exception(), LOST)
            topic.close(timeout=0)
        ManagedLedger.open(cluster, NAME).delete()
        at += 1
    assert at > 3
