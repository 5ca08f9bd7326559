"""Brokers as processes over a real ZooKeeper: a leader that is killed, and leaders whose sessions expire while they live."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from pyreplog.partition.metadata.broker_registration import AVAILABLE
from tests.metadata.cut_proxy import CutProxy
from tests.metadata.zookeeper import Ensemble
from tests.partition.broker_processes import Load, Processes
from tests.waiting import stand_still, until

NAMES = "abc"
LEASE_MS = 3_000
"""The default. ZooKeeper on a busy machine does not always answer within a third of a shorter one."""


class ZooKeeperBrokers:
    """Three brokers, each of which reaches ZooKeeper by a proxy of its own; the client reaches it without."""

    def __init__(self, path: Path, stack: ExitStack, ensemble: Ensemble, url: str) -> None:
        port = ensemble.servers[0].port
        self.proxies = {name: stack.enter_context(CutProxy(port)) for name in NAMES}
        urls = {name: url.replace(ensemble.hosts, proxy.hosts) for name, proxy in self.proxies.items()}
        self.processes = Processes(path, stack, f"lease_ms={LEASE_MS}", url=url, urls=urls)
        self.topic = self.processes.client.create_topic("flights", min_isr=2)

    def await_other_leader(self, leader: str) -> None:
        until(lambda: self.topic[0].leader not in ("", leader))

    def await_whole_isr(self) -> None:
        until(lambda: len(self.topic[0].isr) == len(NAMES))


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: Ensemble, zookeeper_url: str) -> Iterator[ZooKeeperBrokers]:
    with ExitStack() as stack:
        yield ZooKeeperBrokers(tmp_path, stack, zookeeper, zookeeper_url)


def longest_pause(load: Load) -> float:
    """Seconds without an acknowledged append."""
    times = load.acknowledged_s
    return max(after - before for before, after in pairwise(times))


def test_appends_go_on_after_the_leader_is_killed(
    brokers: ZooKeeperBrokers, capsys: pytest.CaptureFixture[str]
) -> None:
    with Load(brokers.topic) as load:
        for _ in range(2):
            load.await_more()
            leader = brokers.processes.leader(brokers.topic)
            brokers.processes.kill(leader)
            brokers.await_other_leader(leader)
            load.await_more()
            brokers.processes.start(leader)
            brokers.await_whole_isr()
    load.check()
    with capsys.disabled():
        print(
            f"\nZooKeeper, lease of {LEASE_MS / 1000:.0f} s, leaders killed: no append was acknowledged for "
            f"{longest_pause(load):.2f} s"
        )


def test_a_leader_that_is_cut_off_from_zookeeper_is_replaced_and_comes_back(brokers: ZooKeeperBrokers) -> None:
    """Its session expires while it lives, and answers clients and followers. What it takes meanwhile counts only if it is
    committed."""
    with Load(brokers.topic) as load:
        load.await_more()
        leader = brokers.processes.leader(brokers.topic)
        brokers.proxies[leader].cut()
        brokers.await_other_leader(leader)
        load.await_more()
        assert brokers.processes.running[leader].poll() is None
        brokers.proxies[leader].mend()
        brokers.await_whole_isr()
        load.await_more()
    load.check()


def test_a_leader_that_stands_still_until_its_session_expires_is_replaced_and_comes_back(
    brokers: ZooKeeperBrokers,
) -> None:
    with Load(brokers.topic) as load:
        load.await_more()
        leader = brokers.processes.leader(brokers.topic)
        stand_still(brokers.processes.running[leader])
        try:
            brokers.await_other_leader(leader)
            load.await_more()
        finally:
            brokers.processes.running[leader].send_signal(signal.SIGCONT)
        brokers.await_whole_isr()
        load.await_more()
    load.check()


def test_brokers_go_on_after_all_of_them_were_cut_off_from_zookeeper(brokers: ZooKeeperBrokers) -> None:
    """All sessions expire, and nobody is left to elect. The brokers register again, and nothing is lost."""
    with Load(brokers.topic) as load:
        load.await_more()
        for proxy in brokers.proxies.values():
            proxy.cut()
        until(lambda: not brokers.processes.client.store.list(AVAILABLE))
        for proxy in brokers.proxies.values():
            proxy.mend()
        brokers.await_whole_isr()
        load.await_more()
    load.check()
