"""Logs and disks that fail: the replica leaves the ISR and the leadership, the others go on, and it comes back."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import DiskFullError
from pyreplog.log.files import RealFiles
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, delete_topic, find_topic, state_key
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from tests.waiting import until

from .managers import EVENTS, messages
from .managers import Cluster as ManagedCluster
from .test_broker import Cluster, directories

SETTINGS = {"segment_bytes": 1 << 20, "lag_ms": 60_000, "lease_ms": 60_000, "readmit_ms": 200}


class BreakableFiles(RealFiles):
    """A disk that fails in some directories."""

    def __init__(self) -> None:
        self.broken: set[Path] = set()
        self.is_full = False
        self.last_written: Path | None = None  # the disk of this small file breaks when it has been written

    def _check(self, path: Path) -> None:
        if any(directory == path or directory in path.parents for directory in self.broken):
            raise OSError(errno.EIO, f"{path}: the disk is broken")

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self._check(path)
        if self.is_full:
            raise DiskFullError(errno.ENOSPC, f"{path}: no room")
        return super().create(path, size, zeroed=zeroed)

    def open(self, path: Path, *, writable: bool) -> int:
        self._check(path)
        return super().open(path, writable=writable)

    def replace_small(self, path: Path, data: bytes) -> None:
        self._check(path)
        super().replace_small(path, data)
        if path == self.last_written:
            self.broken.add(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        self._check(old)
        super().rename(old, new)


class Brokers(Cluster):
    """With disks that can be broken, and more than one directory for each broker."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, over_tcp=False)
        self._root = path
        self.files = {name: BreakableFiles() for name in "abc"}

    def start(self, *names: str, more: int = 0, **settings: Any) -> None:
        config = BrokerConfig(**{**SETTINGS, **settings})
        for name in names:
            self.stores[name] = SQLiteStore(self._root / "metadata")
            others = [self._root / f"{name}{number}" for number in range(1, more + 1)]
            broker = Broker(
                self._root / name, name, self.stores[name], self.transport, config=config, files=self.files[name],
                directories=others,
            )  # fmt: skip
            assert self.transport is not None
            self.transport.register(name, broker.replicas)
            self.brokers[name] = broker

    def lines(self, topic: TopicMetadata, number: int = 0) -> list[Path]:
        """The paths of all copies of a partition, that are in use."""
        return sorted(self._root.glob(f"*/{topic.topic_id}-{number}"))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    brokers.close()


# ---- the state ---------------------------------------------------------------------------------------------------


def members(names: str) -> tuple[Member, ...]:
    return tuple(Member(name, 1) for name in names)


@pytest.mark.parametrize(
    ("isr", "elr", "leader", "expected"),
    [
        ("abc", "", "a", ("bc", "", "")),
        ("abc", "", "b", ("bc", "", "b")),
        ("ab", "c", "a", ("b", "c", "")),
        ("a", "bc", "a", ("", "bc", "")),
        ("b", "ac", "b", ("b", "c", "b")),
        ("a", "", "a", None),
        ("bc", "", "b", None),
    ],
)
def test_a_replica_that_failed_is_in_neither_isr_nor_elr(isr: str, elr: str, leader: str, expected: Any) -> None:
    state = PartitionState(tuple("abc"), members(isr), 3, members(elr), leader, LeaderEpoch(4, leader))
    after = state.without("a")
    if expected is None:
        assert after is None
        return
    assert after is not None
    assert (after.isr, after.elr, after.leader) == (members(expected[0]), members(expected[1]), expected[2])
    assert PartitionState.decode(after.encode()) == after


# ---- one replica -------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ManagedCluster]:
    cluster = ManagedCluster(tmp_path)
    cluster.lead("a")
    cluster.settle()
    yield cluster
    cluster.close()


def test_a_leader_whose_log_fails_gives_up(cluster: ManagedCluster) -> None:
    a = cluster.brokers["a"]
    a.log.close()
    response = a.manager.append_records(1, {EVENTS: messages(b"x")}).result(0)[EVENTS]
    assert response.code is ErrorCode.KAFKA_STORAGE_ERROR
    state = cluster.states[EVENTS][1]
    assert (state.leader, [member.broker for member in state.isr], state.elr) == ("", ["b", "c"], ())
    cluster.elect()
    cluster.settle()
    assert cluster.brokers["b"].partition.is_leader
    assert cluster.brokers["b"].manager.append_records(-1, {EVENTS: messages(b"x")}).done() is False
    cluster.settle()
    assert cluster.brokers["c"].log.high_watermark.entry == 1


def test_a_follower_whose_log_fails_leaves_the_isr(cluster: ManagedCluster) -> None:
    future = cluster.brokers["a"].manager.append_records(-1, {EVENTS: messages(b"x")})
    c = cluster.brokers["c"]
    c.log.close()
    cluster.settle()
    assert [member.broker for member in cluster.states[EVENTS][1].isr] == ["a", "b"]
    assert future.result(0)[EVENTS].code is ErrorCode.NONE, "nobody waits for it"


def test_the_last_replica_stays_in_the_isr(cluster: ManagedCluster) -> None:
    version, state = cluster.states[EVENTS]
    cluster.states[EVENTS] = version, state.with_isr(state.isr[:1], {})
    cluster.set(EVENTS, PartitionState(("a",), members("a"), 1, (), "a", state.epoch))
    cluster.settle()
    before = cluster.states[EVENTS]
    cluster.brokers["a"].log.close()
    cluster.brokers["a"].manager.append_records(1, {EVENTS: messages(b"x")})
    cluster.settle()
    assert cluster.states[EVENTS] == before


# ---- brokers -----------------------------------------------------------------------------------------------------


def test_a_broker_goes_on_without_a_log_that_failed_and_readmits_it(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.start("a", "b", "c")
    topic = brokers.create(partitions=2, assignment={0: ["a", "b", "c"], 1: ["a", "b", "c"]})
    values = [b"%d" % number for number in range(10)]
    for value in values:
        brokers.append(value)
        brokers.append(value, number=1)
    a = brokers.brokers["a"]
    partition = a.partition("flights", 0)
    assert partition is not None
    assert brokers.leader() is a
    partition.fail(OSError(errno.EIO, "this disk hums"))
    assert a.failed_replicas and "this disk hums" in str(a.failed_replicas)
    assert brokers.leader(1) is a, "the others go on"
    assert brokers.append(b"more") == 10
    assert brokers.leader() is not a
    brokers.await_isr(topic, 3)
    assert a.failed_replicas == {}
    assert a.partition("flights", 0) is not partition
    assert "works again" in caplog.text
    brokers.await_values(topic, [*values, b"more"])


def test_a_damaged_log_is_copied_anew(brokers: Brokers, tmp_path: Path) -> None:
    brokers.start("a", "b", "c")
    topic = brokers.create()
    values = [b"%d" % number for number in range(10)]
    for value in values:
        brokers.append(value)
    brokers.await_values(topic, values)
    brokers.stop("c")
    with (tmp_path / "c" / f"{topic.topic_id}-0" / f"{0:020d}.log").open("r+b") as segment:
        segment.write(b"?" * 4096)
    brokers.start("c")
    until(lambda: brokers.brokers["c"].failed_replicas or brokers.brokers["c"].partition("flights", 0))
    brokers.await_isr(topic, 3)
    until(lambda: brokers.brokers["c"].partition("flights", 0))
    brokers.await_isr(topic, 3)
    brokers.await_values(topic, values)
    assert any(name.endswith(".damaged") for name in directories(tmp_path / "c"))


def test_a_log_that_is_lost_leaves_the_isr_before_it_is_begun_anew(brokers: Brokers, tmp_path: Path) -> None:
    """Else the broker might lead with an empty log, and all others would cut theirs."""
    brokers.start("a", "b", "c")
    topic = brokers.create(assignment={0: ["a", "b", "c"]})
    values = [b"%d" % number for number in range(10)]
    for value in values:
        brokers.append(value)
    brokers.await_values(topic, values)
    for name in "abc":
        brokers.stop(name)
    key = state_key(topic.topic_id, 0)
    stored = brokers.store.get(key)
    assert stored is not None
    state = replace(PartitionState.decode(stored.value), isr=members("abc"), leader="")
    brokers.store.put(key, state.encode(), stored.version)
    shutil.rmtree(tmp_path / "a" / f"{topic.topic_id}-0")
    brokers.start("a")
    until(lambda: "a" not in [member.broker for member in brokers.state(topic).isr])
    brokers.start("b", "c")
    brokers.await_isr(topic, 3)
    brokers.await_values(topic, values)


def test_the_last_log_that_is_lost_is_not_begun_anew(brokers: Brokers, tmp_path: Path) -> None:
    """It had records that nobody else has, perhaps: somebody has to decide."""
    brokers.start("a")
    topic = brokers.create(replication_factor=1)
    brokers.append(b"value")
    brokers.stop("a")
    home = tmp_path / "a" / f"{topic.topic_id}-0"
    home.rename(tmp_path / "elsewhere")
    brokers.start("a")
    until(lambda: brokers.brokers["a"].failed_replicas)
    assert "and found it in none" in str(brokers.brokers["a"].failed_replicas)
    (tmp_path / "elsewhere").rename(home)
    assert brokers.append(b"more") == 1


def test_broker_with_one_failed_disk_serves_the_partitions_of_others(brokers: Brokers, tmp_path: Path) -> None:
    brokers.start("a", more=2)
    brokers.start("b", "c")
    topic = brokers.create(partitions=6)
    for number in range(6):
        assert brokers.append(b"%d" % number, number=number) == 0
    homes = {path.parent.name for number in range(6) for path in brokers.lines(topic, number)}
    assert homes == {"a", "a1", "a2", "b", "c"}
    counts = [len(directories(tmp_path / name)) for name in ("a", "a1", "a2")]
    assert counts == [2, 2, 2], "the directory with fewest replicas gets the next one"

    broken = tmp_path / "a1"
    brokers.files["a"].broken.add(broken)
    a = brokers.brokers["a"]
    hit = [number for number in range(6) if any(path.parent == broken for path in brokers.lines(topic, number))]
    partition = a.partition("flights", hit[0])
    assert partition is not None
    partition.fail(OSError(errno.EIO, "it hums"))
    until(lambda: broken in a.failed_directories)
    for number in range(6):
        assert brokers.append(b"more", number=number) == 1
    for number in hit:  # they begin anew on other disks
        brokers.await_isr(topic, 3, number)
        until(lambda number=number: len([path for path in brokers.lines(topic, number) if path.parent != broken]) == 3)
    brokers.files["a"].broken.clear()
    brokers.stop("a")
    brokers.start("a", more=2)
    for number in range(6):
        brokers.await_isr(topic, 3, number)
        assert brokers.append(b"last", number=number) == 2
        until(lambda number=number: len(brokers.lines(topic, number)) == 3)


def test_a_disk_that_fails_before_a_log_is_retried_takes_its_other_replicas_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    brokers.start("a", more=2)
    brokers.start("b", "c")
    topic = brokers.create(partitions=6)
    for number in range(6):
        assert brokers.append(b"first", number=number) == 0
    broken = tmp_path / "a1"
    hit = [number for number in range(6) if any(path.parent == broken for path in brokers.lines(topic, number))]
    assert len(hit) == 2
    brokers.files["a"].last_written = broken / "probe"
    partition = brokers.brokers["a"].partition("flights", hit[0])
    assert partition is not None
    partition.fail(OSError(errno.EIO, "it hums"))
    for number in hit:
        until(lambda number=number: len([path for path in brokers.lines(topic, number) if path.parent != broken]) == 3)
        brokers.await_isr(topic, 3, number)


def test_a_full_disk_hands_over(brokers: Brokers) -> None:
    brokers.start("a", "b", "c", segment_bytes=1 << 16)
    topic = brokers.create(assignment={0: ["a", "b", "c"]})
    brokers.append(b"first")
    assert brokers.leader().name == "a"
    brokers.files["a"].is_full = True
    for _ in range(12):
        brokers.append(bytes(20_000))
    assert brokers.leader().name != "a"
    assert "a" not in [member.broker for member in brokers.state(topic).isr]
    brokers.files["a"].is_full = False
    brokers.await_isr(topic, 3)


# ---- strays ------------------------------------------------------------------------------------------------------


def test_a_replica_of_a_topic_deleted_meanwhile_is_set_aside_and_removed(brokers: Brokers, tmp_path: Path) -> None:
    brokers.start("a", "b", "c")
    topic = brokers.create()
    brokers.append(b"value")
    brokers.stop("c")
    delete_topic(brokers.store, "flights")
    until(lambda: find_topic(brokers.store, "flights") is None)
    other = brokers.create()
    brokers.start("c")
    until(lambda: any(name.endswith(".stray") for name in directories(tmp_path / "c")))
    assert f"{topic.topic_id}-0" not in directories(tmp_path / "c")
    until(lambda: f"{other.topic_id}-0" in directories(tmp_path / "c"))
    brokers.append(b"anew")
    assert any(name.endswith(".stray") for name in directories(tmp_path / "c")), "it has a grace"
    brokers.stop("c")
    brokers.start("c", stray_grace_ms=0)
    until(lambda: directories(tmp_path / "c") == [f"{other.topic_id}-0"])
    brokers.await_values(other, [b"anew"])
